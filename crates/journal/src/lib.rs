//! A durable log of opaque bytes.
//!
//! Owns the files of one journal directory: control file, segments, lock. Takes frames from any
//! thread, gives each its [`Sequence`], writes them in groups on one thread, and publishes how
//! far they are safe. Knows no rows, no network and no backend: payloads and attributes are
//! bytes, and trimming is told to it.
//!
//! Read in the order a frame travels: [`Journal::append`] in `journal`, `buffer` (accepted,
//! bounded), `writer` (one write, one sync, publish), `segments` (files), `format` (bytes); and
//! back: `recover`, `scan`, `reader`. `offline` is for administrators, `file_system` is the seam
//! all I/O goes through.

pub mod file_system;
pub mod format;
pub mod offline;

mod buffer;
mod control_file;
mod driver;
mod error;
mod journal;
mod open;
mod options;
mod reader;
mod recover;
mod scan;
mod segments;
mod sequence;
mod shared;
mod stats;
mod syncer;
mod watermarks;
mod window;
mod writer;

pub use driver::JournalDriver;
pub use error::{AppendError, Disposition, InDoubt, JournalError};
pub use journal::{Frame, Journal, Recovery};
pub use options::{Durability, JournalOptions, PAYLOAD_BYTES_MAX};
pub use reader::FrameReader;
pub use sequence::Sequence;
pub use stats::JournalStats;
pub use watermarks::{Stopped, Watermarks};
pub use writer::Turn;
