//! The bytes on disk, format version 1. Written down for people in `docs/journal-format.md`.
//!
//! Owns encoding and decoding of frames, segment headers and the control file. Pure: bytes in,
//! values out. Nothing here decides what an invalid byte means for the journal; `scan` does.

pub mod control;
pub mod frame;
pub mod segment;

/// The version this program writes, and the only one it reads.
pub const FORMAT_VERSION: u8 = 1;
/// Frames begin here in each segment.
pub const SEGMENT_HEADER_BYTES: u64 = 64;
/// Frames begin and end at multiples of this.
pub const ALIGNMENT_BYTES: usize = 8;
/// Length, checksum, sequence, kind.
pub const FRAME_HEADER_BYTES: usize = 17;
/// What a frame takes beyond its payload, padding included.
pub const FRAME_OVERHEAD_BYTES_MAX: usize = FRAME_HEADER_BYTES + ALIGNMENT_BYTES - 1;
/// Size of the mark at the head of each write.
pub const MARK_BYTES: usize = 32;
