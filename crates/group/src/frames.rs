//! What one journal frame says: the byte form of committed transactions and of later words about
//! them.
//!
//! Owns the payload layouts, each with its own version byte; documented in
//! `docs/journal-format.md` is only the frame around them. Decoding never panics.
//!
//! ```text
//! Transaction  version=1 | schema u64 | flags u8 | key length u32 | key
//!              | changes length u32 | changes | image (to the end)
//!              version=2 has behind the key
//!              | idempotency key length u32 | idempotency key | digest u128 | rows
//! Annul        version=1 | sequence u64
//! Rejected     version=1 | key length u32 | key | sequence u64, any number
//! Answered     version=1 | key length u32 | key | idempotency key length u32 | idempotency key
//!              | digest u128 | fate u8 | journal 16 bytes | sequence u64 | rows
//! rows         count u32 | u32 per operation
//! ```
//! Numbers are little-endian; `changes` and `image` are in the model's codec. Every transaction
//! carries the whole instance after it, so any one frame restores its instance (R4).

use std::sync::Arc;

use bytes::Bytes;
use cachetier_model::{IdempotencyKey, RootKey, RowChange, codec};
use uuid::Uuid;

use crate::answers::{Answer, Fate, Name, Request};
use crate::calls::Position;
use crate::error::GroupError;

pub(crate) const KIND_TRANSACTION: u8 = 1;
/// A transaction that the backend refused and that was never acknowledged: not to be replayed.
pub(crate) const KIND_ANNUL: u8 = 2;
/// Acknowledged transactions that were set aside in the backend: the instance is quarantined, until
/// a later transaction of it proves that they were decided about.
pub(crate) const KIND_REJECTED: u8 = 3;

/// The answer of a transaction with an idempotency key, where its own frame does not tell it: it
/// changed nothing, its slot came from another node, or the backend had to accept it.
pub(crate) const KIND_ANSWERED: u8 = 4;

const VERSION: u8 = 1;
/// A transaction with an idempotency key.
const VERSION_KEYED: u8 = 2;
const FATE_DONE: u8 = 0;
const FATE_SET_ASIDE: u8 = 1;
const FATE_UNKNOWN: u8 = 2;
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
    Answered { request: Request, answer: Answer },
}

/// What the frame of a transaction says of its idempotency key.
pub(crate) struct Keyed {
    pub request: Request,
    pub rows: Arc<[u32]>,
    pub awaits_backend: bool,
}

/// Begins a transaction's payload; the image is appended by the caller.
pub(crate) fn begin_transaction(
    out: &mut Vec<u8>,
    schema: u64,
    awaits_backend: bool,
    key: &RootKey,
    changes: &[RowChange],
    keyed: Option<(&Request, &[u32])>,
) {
    out.push(if keyed.is_some() { VERSION_KEYED } else { VERSION });
    out.extend_from_slice(&schema.to_le_bytes());
    out.push(if awaits_backend { FLAG_AWAITS_BACKEND } else { 0 });
    put_sized(out, key.as_bytes());
    if let Some((request, rows)) = keyed {
        put_sized(out, request.name.key.as_bytes());
        out.extend_from_slice(&request.digest.to_le_bytes());
        put_rows(out, rows);
    }
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

/// The payload of [`KIND_ANSWERED`].
pub(crate) fn answered(request: &Request, answer: &Answer) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_sized(&mut out, request.name.root.as_bytes());
    put_sized(&mut out, request.name.key.as_bytes());
    out.extend_from_slice(&request.digest.to_le_bytes());
    out.push(match answer.fate {
        Fate::Done => FATE_DONE,
        Fate::SetAside => FATE_SET_ASIDE,
        Fate::Undecided | Fate::Unknown => FATE_UNKNOWN,
    });
    out.extend_from_slice(answer.position.journal.as_bytes());
    out.extend_from_slice(&answer.position.sequence.to_le_bytes());
    put_rows(&mut out, &answer.rows);
    out
}

/// The idempotency key of a transaction's frame, without reading its changes.
pub(crate) fn keyed(payload: &Bytes) -> Result<Option<Keyed>, GroupError> {
    let mut input = payload.clone();
    let head = take_head(&mut input);
    head.map(|head| head.keyed).ok_or_else(|| unreadable(KIND_TRANSACTION))
}

fn unreadable(kind: u8) -> GroupError {
    GroupError::internal(format!(
        "a journal frame of kind {kind} is unreadable; a newer release may have written it: start \
         that release, or inspect the journal with cachectl"
    ))
}

/// Reads a payload; unknown kinds and versions are errors that name the way out.
pub(crate) fn decode(kind: u8, payload: &Bytes) -> Result<Payload, GroupError> {
    parse(kind, payload).ok_or_else(|| unreadable(kind))
}

/// A transaction's frame up to its changes.
struct Head {
    schema: u64,
    awaits_backend: bool,
    key: RootKey,
    keyed: Option<Keyed>,
}

fn take_head(input: &mut Bytes) -> Option<Head> {
    let version = take_byte(input)?;
    let schema = take_u64(input)?;
    let awaits_backend = take_byte(input)? & FLAG_AWAITS_BACKEND != 0;
    let key = RootKey::from_bytes(take_sized(input)?);
    let keyed = match version {
        VERSION => None,
        VERSION_KEYED => {
            let request = take_request(input, key.clone())?;
            Some(Keyed { request, rows: take_rows(input)?, awaits_backend })
        }
        _ => return None,
    };
    Some(Head { schema, awaits_backend, key, keyed })
}

fn take_request(input: &mut Bytes, root: RootKey) -> Option<Request> {
    let key = IdempotencyKey::new(take_sized(input)?).ok()?;
    let digest = u128::from_le_bytes(take(input, 16)?.as_ref().try_into().ok()?);
    Some(Request { name: Arc::new(Name { root, key }), digest })
}

fn parse(kind: u8, payload: &Bytes) -> Option<Payload> {
    let mut input = payload.clone();
    if kind == KIND_TRANSACTION {
        let Head { schema, awaits_backend, key, .. } = take_head(&mut input)?;
        let changes = codec::decode_changes(&take_sized(&mut input)?).ok()?;
        let frame = TransactionFrame { schema, awaits_backend, key, changes, image: input };
        return Some(Payload::Transaction(frame));
    }
    if take_byte(&mut input)? != VERSION {
        return None;
    }
    match kind {
        KIND_ANNUL => Some(Payload::Annul { sequence: take_u64(&mut input)? }),
        KIND_REJECTED => {
            let key = RootKey::from_bytes(take_sized(&mut input)?);
            let mut sequences = Vec::with_capacity(input.len() / 8);
            while !input.is_empty() {
                sequences.push(take_u64(&mut input)?);
            }
            Some(Payload::Rejected { key, sequences })
        }
        KIND_ANSWERED => {
            let root = RootKey::from_bytes(take_sized(&mut input)?);
            let request = take_request(&mut input, root)?;
            let fate = match take_byte(&mut input)? {
                FATE_DONE => Fate::Done,
                FATE_SET_ASIDE => Fate::SetAside,
                FATE_UNKNOWN => Fate::Unknown,
                _ => return None,
            };
            let journal = Uuid::from_slice(&take(&mut input, 16)?).ok()?;
            let position = Position { journal, sequence: take_u64(&mut input)? };
            let rows = take_rows(&mut input)?;
            let answer = Answer { position, rows, fate, durable_at: 0 };
            input.is_empty().then_some(Payload::Answered { request, answer })
        }
        _ => None,
    }
}

fn put_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn put_rows(out: &mut Vec<u8>, rows: &[u32]) {
    out.extend_from_slice(&(rows.len() as u32).to_le_bytes());
    rows.iter().for_each(|count| out.extend_from_slice(&count.to_le_bytes()));
}

fn take_rows(input: &mut Bytes) -> Option<Arc<[u32]>> {
    let count = u32::from_le_bytes(take(input, 4)?.as_ref().try_into().ok()?);
    let bytes = take(input, (count as usize).checked_mul(4)?)?;
    bytes.chunks_exact(4).map(|four| Some(u32::from_le_bytes(four.try_into().ok()?))).collect()
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
        begin_transaction(&mut bytes, 42, true, &key, &changes, None);
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
    fn r26_a_transaction_carries_its_idempotency_key_and_an_answer_its_place() {
        let (frame, _) = sample();
        let key = IdempotencyKey::new("a key").unwrap();
        let name = Arc::new(Name { root: frame.key.clone(), key });
        let request = Request { name: Arc::clone(&name), digest: 1 << 100 };
        let mut bytes = Vec::new();
        let keyed_by = Some((&request, &[1, 0][..]));
        begin_transaction(&mut bytes, 42, true, &frame.key, &frame.changes, keyed_by);
        bytes.extend_from_slice(b"image");
        let bytes = Bytes::from(bytes);
        assert_eq!(decode(KIND_TRANSACTION, &bytes).unwrap(), Payload::Transaction(frame));
        let found = keyed(&bytes).unwrap().unwrap();
        assert_eq!((&found.request, &*found.rows), (&request, &[1, 0][..]));
        assert!(found.awaits_backend && keyed(&sample().1.into()).unwrap().is_none());
        let position = Position { journal: Uuid::from_u128(7), sequence: 9 };
        let answer = Answer { position, rows: Arc::from([3]), fate: Fate::SetAside, durable_at: 0 };
        let decoded = decode(KIND_ANSWERED, &answered(&request, &answer).into()).unwrap();
        assert_eq!(decoded, Payload::Answered { request, answer });
    }

    #[test]
    fn damaged_frames_are_errors_and_never_panic() {
        let (_, bytes) = sample();
        for kind in 0..6 {
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
