//! What is the control file: identity, generation, marks and the owner's attributes.
//!
//! ```text
//! 0   [8]  "CTJCTRL\0"
//! 8   u8   format version           9..12 zeros
//! 12  u32  CRC-32C of bytes 0..12 and 16..20+body
//! 16  u32  length of the body; the file may be longer, the rest is reserve
//! 20  [16] journal id
//! 36  u32  generation opened last
//! 40  u8   1: closed in order
//! 41  u64  trimmed: no frame up to here is needed, its segments may be gone
//! 49  u64  synced: frames up to here were synced when this was written
//! 57  u32  number of attributes, then for each, in order of keys:
//!          u16 length and UTF-8 key, u32 length and value
//! ```

use std::collections::BTreeMap;

use bytes::{Buf, BufMut};
use crc32c::{crc32c, crc32c_append};
use uuid::Uuid;

use super::FORMAT_VERSION;
use super::segment::HeaderError;
use crate::Sequence;

const MAGIC: &[u8; 8] = b"CTJCTRL\0";
/// Magic, version, checksum, length.
const PREFIX_BYTES: usize = 20;
/// No control file is longer: it is rewritten whole on every change.
pub const CONTROL_BYTES_MAX: usize = 4 << 20;

/// The content of the control file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    pub journal_id: Uuid,
    /// Generation opened last; 0: none yet.
    pub generation: u32,
    /// True if the journal was closed in order.
    pub clean: bool,
    /// No frame up to here is needed.
    pub trimmed: Sequence,
    /// Frames up to here were synced when this was written.
    pub synced: Sequence,
    /// The owner's values; opaque here.
    pub attributes: BTreeMap<String, Vec<u8>>,
}

impl Control {
    /// A journal that was never opened.
    pub fn new(journal_id: Uuid) -> Self {
        Self {
            journal_id,
            generation: 0,
            clean: true,
            trimmed: Sequence::ZERO,
            synced: Sequence::ZERO,
            attributes: BTreeMap::new(),
        }
    }
}

/// Encodes a control file, without reserve.
pub fn encode_control(control: &Control) -> Vec<u8> {
    let mut body = Vec::with_capacity(256);
    body.put_slice(control.journal_id.as_bytes());
    body.put_u32_le(control.generation);
    body.put_u8(u8::from(control.clean));
    body.put_u64_le(control.trimmed.get());
    body.put_u64_le(control.synced.get());
    body.put_u32_le(control.attributes.len() as u32);
    for (key, value) in &control.attributes {
        body.put_u16_le(key.len() as u16);
        body.put_slice(key.as_bytes());
        body.put_u32_le(value.len() as u32);
        body.put_slice(value);
    }
    let mut out = Vec::with_capacity(PREFIX_BYTES + body.len());
    out.put_slice(MAGIC);
    out.put_slice(&[FORMAT_VERSION, 0, 0, 0]);
    let length = (body.len() as u32).to_le_bytes();
    let crc = crc32c_append(crc32c_append(crc32c(&out), &length), &body);
    out.put_u32_le(crc);
    out.put_slice(&length);
    out.put_slice(&body);
    out
}

/// Decodes a control file.
pub fn decode_control(bytes: &[u8]) -> Result<Control, HeaderError> {
    let short = HeaderError::Invalid("control file is cut short");
    let (prefix, rest) = bytes.split_at_checked(PREFIX_BYTES).ok_or(short)?;
    let (head, mut fields) = prefix.split_at(12);
    if !head.starts_with(MAGIC) {
        return Err(HeaderError::Invalid("not a control file"));
    }
    match head.get(8) {
        Some(&FORMAT_VERSION) => {}
        version => return Err(HeaderError::Version(version.copied().unwrap_or(0))),
    }
    let crc = fields.try_get_u32_le().map_err(|_| short)?;
    let length = fields.try_get_u32_le().map_err(|_| short)?;
    let mut body = rest.get(..length as usize).ok_or(short)?;
    if crc32c_append(crc32c_append(crc32c(head), &length.to_le_bytes()), body) != crc {
        return Err(HeaderError::Invalid("checksum of the control file is wrong"));
    }
    decode_body(&mut body).ok_or(HeaderError::Invalid("control file holds impossible values"))
}

fn decode_body(body: &mut &[u8]) -> Option<Control> {
    let journal_id = Uuid::from_slice(take(body, 16)?).ok()?;
    let generation = body.try_get_u32_le().ok()?;
    let clean = body.try_get_u8().ok()? == 1;
    let trimmed = Sequence::from_stored(body.try_get_u64_le().ok()?)?;
    let synced = Sequence::from_stored(body.try_get_u64_le().ok()?)?;
    let count = body.try_get_u32_le().ok()?;
    let mut attributes = BTreeMap::new();
    for _ in 0..count {
        let key_bytes = body.try_get_u16_le().ok()? as usize;
        let key = std::str::from_utf8(take(body, key_bytes)?).ok()?.to_owned();
        let value_bytes = body.try_get_u32_le().ok()? as usize;
        let value = take(body, value_bytes)?.to_vec();
        attributes.insert(key, value);
    }
    Some(Control { journal_id, generation, clean, trimmed, synced, attributes })
}

fn take<'a>(body: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (taken, rest) = body.split_at_checked(bytes)?;
    *body = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_file_reads_back_with_reserve_behind_it_and_no_flipped_bit_passes() {
        let mut control = Control::new(Uuid::from_u128(9));
        control.generation = 4;
        control.synced = Sequence::new(4, 10);
        control.attributes.insert("claim".into(), vec![1, 2, 3]);
        control.attributes.insert("empty".into(), Vec::new());
        let encoded = encode_control(&control);
        let mut padded = encoded.clone();
        padded.resize(4096, 0);
        assert_eq!(decode_control(&padded), Ok(control));
        for bit in 0..encoded.len() * 8 {
            let mut bytes = encoded.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_control(&bytes).is_err(), "bit {bit}");
        }
    }
}
