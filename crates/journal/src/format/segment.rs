//! What is a segment: a header of 64 bytes, then frames of one generation.
//!
//! ```text
//! 0   [8]  "CTJSEGMT"
//! 8   u8   format version           9..12 zeros
//! 12  u32  CRC-32C of all other bytes of the header
//! 16  [16] journal id
//! 32  u64  sequence of the first frame; also the file's name, in hexadecimal
//! 40  u64  sequence of the last frame before this segment, 0 if there never was one
//! 48  u64  size of the file when it was made
//! 56  [8]  zeros
//! ```

use std::path::Path;

use bytes::Buf;
use crc32c::{crc32c, crc32c_append};
use uuid::Uuid;

use super::{FORMAT_VERSION, SEGMENT_HEADER_BYTES};
use crate::Sequence;

const MAGIC: &[u8; 8] = b"CTJSEGMT";
const EXTENSION: &str = "segment";
const HEADER_BYTES: usize = SEGMENT_HEADER_BYTES as usize;

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    pub journal_id: Uuid,
    /// Sequence of the first frame.
    pub first: Sequence,
    /// Last sequence before this segment.
    pub after: Sequence,
    /// Size of the file when it was made.
    pub segment_bytes: u64,
}

/// Why a header is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// Not ours, or destroyed.
    Invalid(&'static str),
    /// Ours, of a version unknown here.
    Version(u8),
}

/// Encodes a header.
pub fn encode_header(header: &SegmentHeader) -> [u8; HEADER_BYTES] {
    let mut head = Vec::with_capacity(HEADER_BYTES);
    head.extend_from_slice(MAGIC);
    head.extend_from_slice(&[FORMAT_VERSION, 0, 0, 0]);
    let mut rest = Vec::with_capacity(HEADER_BYTES);
    rest.extend_from_slice(header.journal_id.as_bytes());
    rest.extend_from_slice(&header.first.get().to_le_bytes());
    rest.extend_from_slice(&header.after.get().to_le_bytes());
    rest.extend_from_slice(&header.segment_bytes.to_le_bytes());
    rest.extend_from_slice(&[0; 8]);
    let crc = crc32c_append(crc32c(&head), &rest);
    head.extend_from_slice(&crc.to_le_bytes());
    head.extend_from_slice(&rest);
    let mut out = [0; HEADER_BYTES];
    out.copy_from_slice(&head);
    out
}

/// Decodes a header.
pub fn decode_header(bytes: &[u8]) -> Result<SegmentHeader, HeaderError> {
    let bytes = bytes.get(..HEADER_BYTES).ok_or(HeaderError::Invalid("file ends in its header"))?;
    let (head, tail) = bytes.split_at(12);
    let (crc, mut rest) = tail.split_at(4);
    if !head.starts_with(MAGIC) {
        return Err(HeaderError::Invalid("not a journal segment"));
    }
    match head.get(8) {
        Some(&FORMAT_VERSION) => {}
        version => return Err(HeaderError::Version(version.copied().unwrap_or(0))),
    }
    if crc32c_append(crc32c(head), rest).to_le_bytes() != crc {
        return Err(HeaderError::Invalid("checksum of the header is wrong"));
    }
    fields(&mut rest).ok_or(HeaderError::Invalid("header holds an impossible sequence"))
}

fn fields(rest: &mut &[u8]) -> Option<SegmentHeader> {
    let journal_id = Uuid::from_slice(rest.get(..16)?).ok()?;
    rest.advance(16);
    Some(SegmentHeader {
        journal_id,
        first: Sequence::from_stored(rest.try_get_u64_le().ok()?)?,
        after: Sequence::from_stored(rest.try_get_u64_le().ok()?)?,
        segment_bytes: rest.try_get_u64_le().ok()?,
    })
}

/// Name of the segment whose first frame has this sequence. Names sort as sequences do.
pub fn segment_name(first: Sequence) -> String {
    format!("{:016x}.{EXTENSION}", first.get())
}

/// The first sequence a file's name promises, if it is a segment's name.
pub fn sequence_of_name(path: &Path) -> Option<Sequence> {
    if path.extension()?.to_str()? != EXTENSION {
        return None;
    }
    let stem = path.file_stem()?.to_str()?;
    let value = (stem.len() == 16).then(|| u64::from_str_radix(stem, 16).ok())??;
    Sequence::from_stored(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader {
            journal_id: Uuid::from_u128(5),
            first: Sequence::new(2, 1),
            after: Sequence::new(1, 77),
            segment_bytes: 1 << 20,
        }
    }

    #[test]
    fn a_header_reads_back_as_written() {
        assert_eq!(decode_header(&encode_header(&header())), Ok(header()));
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_refused() {
        for bit in 0..HEADER_BYTES * 8 {
            let mut bytes = encode_header(&header());
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_header(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn names_sort_as_sequences_and_read_back() {
        let (low, high) = (Sequence::new(1, 900), Sequence::new(2, 1));
        assert!(segment_name(low) < segment_name(high));
        assert_eq!(sequence_of_name(Path::new(&segment_name(high))), Some(high));
        assert_eq!(sequence_of_name(Path::new("control")), None);
    }
}
