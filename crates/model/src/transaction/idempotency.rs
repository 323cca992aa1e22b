//! What makes a repeated transaction known again: the key its caller gave it, and a digest of what
//! it asks for.
//!
//! Owns the bounds of a key and the bytes a digest is made of. Pure; who remembers them, and for how
//! long, is decided elsewhere.

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use super::{Comparison, Condition, Guard, Operation, Transaction};
use crate::codec::{put_value, put_varint};
use crate::value::Value;

/// The longest key.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 64;

/// A caller's name for one transaction of one instance; 1 to 64 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdempotencyKey(Bytes);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an idempotency key has 1 to {IDEMPOTENCY_KEY_BYTES_MAX} bytes; this one has {0}")]
pub struct IdempotencyKeyError(usize);

impl IdempotencyKey {
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, IdempotencyKeyError> {
        let bytes = bytes.into();
        match bytes.len() {
            1..=IDEMPOTENCY_KEY_BYTES_MAX => Ok(Self(bytes)),
            length => Err(IdempotencyKeyError(length)),
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Transaction {
    /// A digest of everything it asks for: two transactions of one digest are the same one. Stable
    /// across processes and releases, since journals keep it; columns and tables count by their
    /// number, so a change of the tables makes it another one.
    pub fn digest(&self) -> u128 {
        let mut out = Vec::with_capacity(128);
        put_varint(&mut out, self.guards.len() as u64);
        for guard in &self.guards {
            let (tag, table, conditions) = match guard {
                Guard::Exists { table, conditions } => (0, table, conditions),
                Guard::Absent { table, conditions } => (1, table, conditions),
            };
            out.push(tag);
            put_varint(&mut out, *table as u64);
            put_conditions(&mut out, conditions);
        }
        put_varint(&mut out, self.operations.len() as u64);
        self.operations.iter().for_each(|operation| put_operation(&mut out, operation));
        xxh3_128(&out)
    }
}

fn put_operation(out: &mut Vec<u8>, operation: &Operation) {
    match operation {
        Operation::Insert { table, row } => {
            out.push(0);
            put_varint(out, *table as u64);
            put_values(out, row);
        }
        Operation::Update { table, conditions, set, expect } => {
            out.push(1);
            put_varint(out, *table as u64);
            put_conditions(out, conditions);
            put_varint(out, set.len() as u64);
            for (column, value) in set {
                put_varint(out, *column as u64);
                put_value(out, value);
            }
            put_expected(out, *expect);
        }
        Operation::Upsert { table, row } => {
            out.push(2);
            put_varint(out, *table as u64);
            put_values(out, row);
        }
        Operation::Delete { table, conditions, expect } => {
            out.push(3);
            put_varint(out, *table as u64);
            put_conditions(out, conditions);
            put_expected(out, *expect);
        }
    }
}

fn put_expected(out: &mut Vec<u8>, expect: Option<u32>) {
    put_varint(out, expect.map_or(0, |rows| u64::from(rows) + 1));
}

fn put_conditions(out: &mut Vec<u8>, conditions: &[Condition]) {
    put_varint(out, conditions.len() as u64);
    for condition in conditions {
        put_varint(out, condition.column as u64);
        out.push(match condition.comparison {
            Comparison::Equal => 0,
            Comparison::NotEqual => 1,
            Comparison::Less => 2,
            Comparison::LessOrEqual => 3,
            Comparison::Greater => 4,
            Comparison::GreaterOrEqual => 5,
            Comparison::In => 6,
            Comparison::IsNull => 7,
            Comparison::IsNotNull => 8,
        });
        put_values(out, &condition.values);
    }
}

fn put_values(out: &mut Vec<u8>, values: &[Value]) {
    put_varint(out, values.len() as u64);
    values.iter().for_each(|value| put_value(out, value));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(value: i64, expect: Option<u32>) -> Transaction {
        let set = vec![(1, Value::Int(value))];
        let operation = Operation::Update { table: 0, conditions: Vec::new(), set, expect };
        Transaction { guards: Vec::new(), operations: vec![operation] }
    }

    #[test]
    fn r26_a_digest_tells_requests_apart_and_stays_what_it_is() {
        let one = update(7, Some(1));
        assert_eq!(one.digest(), one.clone().digest());
        let guarded = Transaction {
            guards: vec![Guard::Absent { table: 1, conditions: Vec::new() }],
            ..one.clone()
        };
        let deletes = Transaction {
            guards: Vec::new(),
            operations: vec![Operation::Delete { table: 0, conditions: Vec::new(), expect: None }],
        };
        let others = [update(8, Some(1)), update(7, None), update(7, Some(0)), guarded, deletes];
        for other in others {
            assert_ne!(one.digest(), other.digest(), "{other:?}");
        }
        // journals of earlier processes hold it
        assert_eq!(one.digest(), 340_505_139_816_615_066_095_052_656_773_570_170);
    }

    #[test]
    fn a_key_has_1_to_64_bytes() {
        assert!(IdempotencyKey::new(vec![0; 64]).is_ok());
        assert_eq!(IdempotencyKey::new(vec![0; 65]), Err(IdempotencyKeyError(65)));
        let empty = IdempotencyKey::new(Vec::new()).unwrap_err().to_string();
        assert_eq!(empty, "an idempotency key has 1 to 64 bytes; this one has 0");
    }
}
