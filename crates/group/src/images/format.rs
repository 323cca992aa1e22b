//! Bytes of an image file, as `docs/image-format.md` tells them.
//!
//! Owns encoding and decoding of the directory at its head. Knows no rows and does no I/O; what it
//! is given may be anything.

use bytes::{Buf, BufMut};
use cachetier_model::SlotId;
use crc32c::{crc32c, crc32c_append};
use uuid::Uuid;

const MAGIC: &[u8; 8] = b"CTSLOTS\0";
pub(crate) const FORMAT_VERSION: u8 = 1;
/// Magic, versions, number of slots, checksum.
const PREFIX_BYTES: usize = 16;
const CHECKSUM_AT: usize = 12;
const HEADER_BYTES: usize = 64;
const ENTRY_BYTES: usize = 40;
const FLAG_COVERED: u8 = 1;

/// Slots of one file.
pub(crate) const BUNDLE_SLOTS: usize = 64;
/// Files there can be.
pub(crate) const BUNDLES: usize = cachetier_model::SLOT_COUNT as usize / BUNDLE_SLOTS;
/// The directory; behind it the slots, one after the other, in its order.
pub(crate) const DIRECTORY_BYTES: usize = HEADER_BYTES + BUNDLE_SLOTS * ENTRY_BYTES;

/// What the file is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Version of the packed form of instances.
    pub layout: u8,
    pub journal: Uuid,
    pub schema: u64,
    /// Token of the writing process; 0: it had none yet.
    pub token: u64,
    /// Generation of the writing process.
    pub generation: u32,
    /// CRC-32C of the condition that selects what is loaded: it says what "covered" means.
    pub condition: u32,
}

/// One slot of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub slot: SlotId,
    /// A load of the slot was complete (R20).
    pub covered: bool,
    /// CRC-32C of its bytes.
    pub checksum: u32,
    /// See `tenure`.
    pub tenure: u64,
    /// It holds the effect of every frame of the slot up to here.
    pub sequence: u64,
    pub instances: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Directory {
    pub header: Header,
    pub entries: Vec<Entry>,
}

/// Why an image is not used; the name is a label of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Unfit {
    /// Checksums, lengths or values are wrong.
    Damaged,
    /// It cannot be read from the disk.
    Unreadable,
    /// Another release wrote it.
    Version,
    /// Of another journal, or of a later state of this one.
    Foreign,
    /// Of other tables.
    Schema,
    /// The journal does not hold everything that came after it.
    TooOld,
    /// The slot was not held without a break since.
    Released,
    /// The budget was used up.
    MemoryFull,
    /// A sample of the images is not what the backend has.
    Differs,
}

impl Unfit {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Damaged => "Damaged",
            Self::Unreadable => "Unreadable",
            Self::Version => "Version",
            Self::Foreign => "Foreign",
            Self::Schema => "Schema",
            Self::TooOld => "TooOld",
            Self::Released => "Released",
            Self::MemoryFull => "MemoryFull",
            Self::Differs => "Differs",
        }
    }
}

/// Encodes a directory; always of [`DIRECTORY_BYTES`].
pub(crate) fn encode(directory: &Directory) -> Vec<u8> {
    let Directory { header, entries } = directory;
    let mut rest = Vec::with_capacity(DIRECTORY_BYTES);
    rest.put_slice(header.journal.as_bytes());
    rest.put_u64_le(header.schema);
    rest.put_u64_le(header.token);
    rest.put_u32_le(header.generation);
    rest.put_u32_le(header.condition);
    rest.resize(HEADER_BYTES - PREFIX_BYTES, 0);
    for entry in entries {
        rest.put_u16_le(entry.slot.number());
        rest.put_u8(if entry.covered { FLAG_COVERED } else { 0 });
        rest.put_u8(0);
        rest.put_u32_le(entry.checksum);
        rest.put_u64_le(entry.tenure);
        rest.put_u64_le(entry.sequence);
        rest.put_u64_le(entry.instances);
        rest.put_u64_le(entry.bytes);
    }
    rest.resize(DIRECTORY_BYTES - PREFIX_BYTES, 0);
    let mut out = Vec::with_capacity(DIRECTORY_BYTES);
    out.put_slice(MAGIC);
    out.put_slice(&[FORMAT_VERSION, header.layout]);
    out.put_u16_le(entries.len() as u16);
    let checksum = crc32c_append(crc32c(&out), &rest);
    out.put_u32_le(checksum);
    out.put_slice(&rest);
    out
}

/// Decodes a directory; `layout` is the packed form that can be read.
pub(crate) fn decode(bytes: &[u8], layout: u8) -> Result<Directory, Unfit> {
    let whole = bytes.get(..DIRECTORY_BYTES).ok_or(Unfit::Damaged)?;
    let (prefix, rest) = whole.split_at_checked(PREFIX_BYTES).ok_or(Unfit::Damaged)?;
    let (head, mut stored) = prefix.split_at_checked(CHECKSUM_AT).ok_or(Unfit::Damaged)?;
    let mut fields = head.strip_prefix(MAGIC).ok_or(Unfit::Damaged)?;
    let (version, of_layout) = (take_u8(&mut fields)?, take_u8(&mut fields)?);
    if version != FORMAT_VERSION {
        return Err(Unfit::Version);
    }
    let count = usize::from(fields.try_get_u16_le().map_err(|_| Unfit::Damaged)?);
    let checksum = stored.try_get_u32_le().map_err(|_| Unfit::Damaged)?;
    if crc32c_append(crc32c(head), rest) != checksum || count > BUNDLE_SLOTS {
        return Err(Unfit::Damaged);
    }
    if of_layout != layout {
        return Err(Unfit::Version);
    }
    let (mut header, mut entries) =
        rest.split_at_checked(HEADER_BYTES - PREFIX_BYTES).ok_or(Unfit::Damaged)?;
    let journal =
        header.get(..16).and_then(|id| Uuid::from_slice(id).ok()).ok_or(Unfit::Damaged)?;
    header.advance(16);
    let (schema, token) = (take_u64(&mut header)?, take_u64(&mut header)?);
    let generation = header.try_get_u32_le().map_err(|_| Unfit::Damaged)?;
    let condition = header.try_get_u32_le().map_err(|_| Unfit::Damaged)?;
    let entries = (0..count).map(|_| take_entry(&mut entries)).collect::<Result<_, _>>()?;
    Ok(Directory {
        header: Header { layout, journal, schema, token, generation, condition },
        entries,
    })
}

fn take_entry(from: &mut &[u8]) -> Result<Entry, Unfit> {
    let number = from.try_get_u16_le().map_err(|_| Unfit::Damaged)?;
    let slot = SlotId::new(number).ok_or(Unfit::Damaged)?;
    let covered = take_u8(from)? & FLAG_COVERED != 0;
    take_u8(from)?;
    let checksum = from.try_get_u32_le().map_err(|_| Unfit::Damaged)?;
    let (tenure, sequence) = (take_u64(from)?, take_u64(from)?);
    let (instances, bytes) = (take_u64(from)?, take_u64(from)?);
    Ok(Entry { slot, covered, checksum, tenure, sequence, instances, bytes })
}

fn take_u8(from: &mut &[u8]) -> Result<u8, Unfit> {
    from.try_get_u8().map_err(|_| Unfit::Damaged)
}

fn take_u64(from: &mut &[u8]) -> Result<u64, Unfit> {
    from.try_get_u64_le().map_err(|_| Unfit::Damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Directory {
        let entry = |number, covered| Entry {
            slot: SlotId::new(number).unwrap(),
            covered,
            checksum: 7,
            tenure: 3,
            sequence: 1 << 44 | 9,
            instances: 2,
            bytes: 300,
        };
        let header = Header {
            layout: 1,
            journal: Uuid::from_u128(0x1234),
            schema: 42,
            token: 5,
            generation: 6,
            condition: 0x0a0b_0c0d,
        };
        Directory { header, entries: vec![entry(64, true), entry(65, false)] }
    }

    #[test]
    fn a_directory_reads_back_and_no_flipped_bit_passes() {
        let bytes = encode(&sample());
        assert_eq!(bytes.len(), DIRECTORY_BYTES);
        assert_eq!(decode(&bytes, 1), Ok(sample()));
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            assert!(decode(&flipped, 1).is_err(), "byte {at}");
            assert!(decode(&bytes[..at], 1).is_err(), "cut at {at}");
        }
        assert_eq!(decode(&bytes, 2), Err(Unfit::Version), "another packed form");
    }

    #[test]
    fn version_1_is_frozen() {
        let bytes = encode(&sample());
        let head = "4354534c4f5453000101020012f1c06800000000000000000000000000001234\
                    2a0000000000000005000000000000000600000\
                    00d0c0b0a0000000000000000";
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(hex(&bytes[..HEADER_BYTES]), head);
        let entry =
            "40000100070000000300000000000000090000000010000002000000000000002c01000000000000";
        assert_eq!(hex(&bytes[HEADER_BYTES..HEADER_BYTES + ENTRY_BYTES]), entry);
    }
}
