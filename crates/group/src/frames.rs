//! What one journal frame says: the byte form of committed transactions and of later words about
//! them.
//!
//! Owns the payload layouts, each with its own version byte; documented in
//! `docs/journal-format.md` is only the frame around them. Decoding never panics.
//!
//! ```text
//! Transaction  version=1 | schema u64 | flags u8 | key length u32 | key
//!              | changes length u32 | changes | image (to the end)
//! Annul        version=1 | sequence u64
//! Rejected     version=1 | key length u32 | key | sequence u64, any number
//! ```
//! Numbers are little-endian; `changes` and `image` are in the model's codec. Every transaction
//! carries the whole instance after it, so any one frame restores its instance (R4).

use bytes::Bytes;
use cachetier_model::{RootKey, RowChange, codec};

use crate::error::GroupError;

pub(crate) const KIND_TRANSACTION: u8 = 1;
/// A transaction that the backend refused and that was never acknowledged: not to be replayed.
pub(crate) const KIND_ANNUL: u8 = 2;
/// Acknowledged transactions that were set aside in the backend: the instance is quarantined, until
/// a later transaction of it proves that they were decided about.
pub(crate) const KIND_REJECTED: u8 = 3;

const VERSION: u8 = 1;
const FLAG_AWAITS_BACKEND: u8 = 1;

/// A committed transaction as the journal keeps it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TransactionFrame {
    pub schema: u64,
    pub awaits_backend: bool,
    pub key: RootKey,
    pub changes: Vec<RowChange>,
    /// The whole instance afterwards.
    pub image: Bytes,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Payload {
    Transaction(TransactionFrame),
    Annul { sequence: u64 },
    Rejected { key: RootKey, sequences: Vec<u64> },
}

/// Begins a transaction's payload; the image is appended by the caller.
pub(crate) fn begin_transaction(
    out: &mut Vec<u8>,
    schema: u64,
    awaits_backend: bool,
    key: &RootKey,
    changes: &[RowChange],
) {
    out.push(VERSION);
    out.extend_from_slice(&schema.to_le_bytes());
    out.push(if awaits_backend { FLAG_AWAITS_BACKEND } else { 0 });
    put_sized(out, key.as_bytes());
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    codec::encode_changes(changes, out);
    let length = (out.len() - at - 4) as u32;
    if let Some(place) = out.get_mut(at..at + 4) {
        place.copy_from_slice(&length.to_le_bytes());
    }
}

pub(crate) fn annul(sequence: u64) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.extend_from_slice(&sequence.to_le_bytes());
    out
}

pub(crate) fn rejected(key: &RootKey, sequences: &[u64]) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_sized(&mut out, key.as_bytes());
    sequences.iter().for_each(|s| out.extend_from_slice(&s.to_le_bytes()));
    out
}

/// Reads a payload; unknown kinds and versions are errors that name the way out.
pub(crate) fn decode(kind: u8, payload: &Bytes) -> Result<Payload, GroupError> {
    parse(kind, payload).ok_or_else(|| {
        GroupError::internal(format!(
            "a journal frame of kind {kind} is unreadable; a newer release may have written it: \
             start that release, or inspect the journal with cachectl"
        ))
    })
}

fn parse(kind: u8, payload: &Bytes) -> Option<Payload> {
    let mut input = payload.clone();
    if take_byte(&mut input)? != VERSION {
        return None;
    }
    match kind {
        KIND_TRANSACTION => {
            let schema = take_u64(&mut input)?;
            let flags = take_byte(&mut input)?;
            let key = RootKey::from_bytes(take_sized(&mut input)?);
            let changes = codec::decode_changes(&take_sized(&mut input)?).ok()?;
            let awaits_backend = flags & FLAG_AWAITS_BACKEND != 0;
            let frame = TransactionFrame { schema, awaits_backend, key, changes, image: input };
            Some(Payload::Transaction(frame))
        }
        KIND_ANNUL => Some(Payload::Annul { sequence: take_u64(&mut input)? }),
        KIND_REJECTED => {
            let key = RootKey::from_bytes(take_sized(&mut input)?);
            let mut sequences = Vec::with_capacity(input.len() / 8);
            while !input.is_empty() {
                sequences.push(take_u64(&mut input)?);
            }
            Some(Payload::Rejected { key, sequences })
        }
        _ => None,
    }
}

fn put_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn take(input: &mut Bytes, length: usize) -> Option<Bytes> {
    (length <= input.len()).then(|| input.split_to(length))
}

fn take_byte(input: &mut Bytes) -> Option<u8> {
    take(input, 1)?.first().copied()
}

fn take_u64(input: &mut Bytes) -> Option<u64> {
    Some(u64::from_le_bytes(take(input, 8)?.as_ref().try_into().ok()?))
}

fn take_sized(input: &mut Bytes) -> Option<Bytes> {
    let length = u32::from_le_bytes(take(input, 4)?.as_ref().try_into().ok()?);
    take(input, length as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cachetier_model::{ChangeKind, Value};

    fn sample() -> (TransactionFrame, Vec<u8>) {
        let key = RootKey::encode(&[Value::Int(7)]).unwrap();
        let changes = vec![RowChange {
            table: 0,
            kind: ChangeKind::Update,
            row: vec![Value::Int(7), Value::Text("x".into())],
            changed: vec![1],
        }];
        let mut bytes = Vec::new();
        begin_transaction(&mut bytes, 42, true, &key, &changes);
        bytes.extend_from_slice(b"image");
        let image = Bytes::from_static(b"image");
        (TransactionFrame { schema: 42, awaits_backend: true, key, changes, image }, bytes)
    }

    #[test]
    fn frames_round_trip() {
        let (frame, bytes) = sample();
        let key = frame.key.clone();
        let decoded = decode(KIND_TRANSACTION, &bytes.into()).unwrap();
        assert_eq!(decoded, Payload::Transaction(frame));
        let decoded = decode(KIND_ANNUL, &annul(9).into()).unwrap();
        assert_eq!(decoded, Payload::Annul { sequence: 9 });
        let decoded = decode(KIND_REJECTED, &rejected(&key, &[1, 2]).into()).unwrap();
        assert_eq!(decoded, Payload::Rejected { key, sequences: vec![1, 2] });
    }

    #[test]
    fn damaged_frames_are_errors_and_never_panic() {
        let (_, bytes) = sample();
        for kind in 0..5 {
            for length in 0..bytes.len() {
                let mut cut = bytes[..length].to_vec();
                let _ = decode(kind, &Bytes::from(cut.clone()));
                if let Some(byte) = cut.last_mut() {
                    *byte = 0xff;
                }
                let _ = decode(kind, &Bytes::from(cut));
            }
        }
        assert!(decode(9, &bytes.into()).is_err());
    }
}
