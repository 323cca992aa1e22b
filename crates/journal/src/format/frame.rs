//! What is a frame.
//!
//! ```text
//! 0   u32  payload length           little-endian throughout
//! 4   u32  checksum                 CRC-32C of all other bytes, padding included,
//! 8   u64  sequence                 begun from the CRC-32C of the journal's id
//! 16  u8   kind                     0: mark, 1–255: the caller's
//! 17  …    payload
//!     …    zeros up to a multiple of 8
//! ```
//!
//! A *mark* stands at the head of every write. It has the sequence of the frame after it and says
//! what was synced when the write began, so that recovery can tell an unfinished write (nothing
//! later vouches for it) from damage to synced data (something later does).

use bytes::Buf;
use crc32c::{crc32c, crc32c_append};
use uuid::Uuid;

use super::{ALIGNMENT_BYTES, FRAME_HEADER_BYTES, MARK_BYTES};
use crate::Sequence;

/// Kind of the journal's own frames.
pub const KIND_MARK: u8 = 0;
/// Synced sequence (8) and length of the frames that follow in the same write (4).
const MARK_PAYLOAD_BYTES: usize = 12;

/// Binds frames to one journal: a frame of another fails its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(u32);

impl Seed {
    /// The seed of a journal.
    pub fn of(journal_id: Uuid) -> Self {
        Self(crc32c(journal_id.as_bytes()))
    }

    fn checksum(self, length: &[u8], rest: &[u8]) -> u32 {
        crc32c_append(crc32c_append(self.0, length), rest)
    }
}

/// Bytes a frame with this payload takes in the file.
pub const fn frame_bytes(payload_bytes: usize) -> usize {
    (FRAME_HEADER_BYTES + payload_bytes).next_multiple_of(ALIGNMENT_BYTES)
}

/// Appends an encoded frame to `out`.
pub fn encode_frame(out: &mut Vec<u8>, seed: Seed, sequence: Sequence, kind: u8, payload: &[u8]) {
    let total = frame_bytes(payload.len());
    let length = (payload.len() as u32).to_le_bytes();
    let start = out.len();
    out.reserve(total);
    out.extend_from_slice(&length);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&sequence.get().to_le_bytes());
    out.push(kind);
    out.extend_from_slice(payload);
    out.resize(start + total, 0);
    let crc = seed.checksum(&length, out.get(start + 8..).unwrap_or_default());
    if let Some(field) = out.get_mut(start + 4..start + 8) {
        field.copy_from_slice(&crc.to_le_bytes());
    }
}

/// What a mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Sequence of the first frame of this write.
    pub first: Sequence,
    /// Everything up to here was synced before this write began.
    pub synced: Sequence,
    /// Length of the frames after the mark that belong to this write.
    pub write_bytes: u32,
}

/// Encodes a mark.
pub fn encode_mark(seed: Seed, mark: Mark) -> [u8; MARK_BYTES] {
    let mut payload = [0; MARK_PAYLOAD_BYTES];
    let (synced, bytes) = payload.split_at_mut(8);
    synced.copy_from_slice(&mark.synced.get().to_le_bytes());
    bytes.copy_from_slice(&mark.write_bytes.to_le_bytes());
    let mut encoded = Vec::with_capacity(MARK_BYTES);
    encode_frame(&mut encoded, seed, mark.first, KIND_MARK, &payload);
    let mut out = [0; MARK_BYTES];
    out.copy_from_slice(&encoded);
    out
}

/// A valid frame, borrowed from the bytes it was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawFrame<'a> {
    pub sequence: Sequence,
    pub kind: u8,
    pub payload: &'a [u8],
}

impl RawFrame<'_> {
    /// Bytes it takes in the file.
    pub fn total_bytes(&self) -> usize {
        frame_bytes(self.payload.len())
    }

    /// The mark in it, if it is one.
    pub fn mark(&self) -> Option<Mark> {
        if self.kind != KIND_MARK || self.payload.len() != MARK_PAYLOAD_BYTES {
            return None;
        }
        let mut payload = self.payload;
        let synced = Sequence::from_stored(payload.try_get_u64_le().ok()?)?;
        let write_bytes = payload.try_get_u32_le().ok()?;
        Some(Mark { first: self.sequence, synced, write_bytes })
    }
}

/// Result of looking for a frame at the start of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// A valid frame.
    Frame(RawFrame<'a>),
    /// A frame could be here, and takes this many bytes; `bytes` holds fewer.
    Short(usize),
    /// Space never written.
    Zeros,
    /// Anything else.
    Invalid,
}

/// Looks for a frame at the start of `bytes`. `payload_bytes_max` bounds what a broken length
/// field can ask for.
pub fn decode_frame(bytes: &[u8], seed: Seed, payload_bytes_max: usize) -> Decoded<'_> {
    let Some((header, _)) = bytes.split_at_checked(FRAME_HEADER_BYTES) else {
        return Decoded::Short(FRAME_HEADER_BYTES);
    };
    if header.iter().all(|byte| *byte == 0) {
        return Decoded::Zeros;
    }
    let Some((length, crc, sequence, kind)) = header_fields(header) else {
        return Decoded::Invalid;
    };
    if length as usize > payload_bytes_max {
        return Decoded::Invalid;
    }
    let total = frame_bytes(length as usize);
    let Some(frame) = bytes.get(..total) else {
        return Decoded::Short(total);
    };
    let (Some(length_field), Some(rest)) = (frame.get(..4), frame.get(8..)) else {
        return Decoded::Invalid;
    };
    let payload = frame.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + length as usize);
    match (payload, Sequence::from_stored(sequence)) {
        (Some(payload), Some(sequence)) if seed.checksum(length_field, rest) == crc => {
            Decoded::Frame(RawFrame { sequence, kind, payload })
        }
        _ => Decoded::Invalid,
    }
}

fn header_fields(mut header: &[u8]) -> Option<(u32, u32, u64, u8)> {
    let length = header.try_get_u32_le().ok()?;
    let crc = header.try_get_u32_le().ok()?;
    let sequence = header.try_get_u64_le().ok()?;
    let kind = header.try_get_u8().ok()?;
    Some((length, crc, sequence, kind))
}

/// True if the bytes may begin a mark: a cheap test before the checksum.
pub fn looks_like_mark(bytes: &[u8]) -> bool {
    bytes.get(..4) == Some(&(MARK_PAYLOAD_BYTES as u32).to_le_bytes())
        && bytes.get(16) == Some(&KIND_MARK)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seed() -> Seed {
        Seed::of(Uuid::from_u128(7))
    }

    proptest! {
        #[test]
        fn a_frame_reads_back_as_written(
            generation in 1u32..=crate::sequence::GENERATION_MAX, counter in 1u64..1 << 44,
            kind in 1u8.., payload in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let sequence = Sequence::new(generation, counter);
            let mut bytes = Vec::new();
            encode_frame(&mut bytes, seed(), sequence, kind, &payload);
            prop_assert_eq!(bytes.len(), frame_bytes(payload.len()));
            let frame = RawFrame { sequence, kind, payload: &payload };
            prop_assert_eq!(decode_frame(&bytes, seed(), 300), Decoded::Frame(frame));
        }

        #[test]
        fn no_flipped_bit_passes(
            payload in proptest::collection::vec(any::<u8>(), 0..64), bit in any::<proptest::sample::Index>(),
        ) {
            let mut bytes = Vec::new();
            encode_frame(&mut bytes, seed(), Sequence::new(1, 1), 9, &payload);
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let decoded = decode_frame(&bytes, seed(), 1 << 20);
            prop_assert!(!matches!(decoded, Decoded::Frame(_)));
        }
    }

    #[test]
    fn a_frame_of_another_journal_is_invalid() {
        let mut bytes = Vec::new();
        encode_frame(&mut bytes, seed(), Sequence::new(1, 1), 1, b"x");
        let other = Seed::of(Uuid::from_u128(8));
        assert_eq!(decode_frame(&bytes, other, 100), Decoded::Invalid);
    }

    #[test]
    fn a_mark_reads_back_as_written() {
        let mark =
            Mark { first: Sequence::new(3, 40), synced: Sequence::new(3, 39), write_bytes: 123 };
        let bytes = encode_mark(seed(), mark);
        assert!(looks_like_mark(&bytes));
        let Decoded::Frame(frame) = decode_frame(&bytes, seed(), 100) else { panic!() };
        assert_eq!(frame.mark(), Some(mark));
        assert_eq!(frame.total_bytes(), MARK_BYTES);
    }
}
