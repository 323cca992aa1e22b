//! Byte form of rows, instances and row changes: what journals, moves and copies carry.
//!
//! Self-describing (every value has a tag), so that a frame can be decoded without its schema;
//! versioned by its first byte. Decoding never panics and never allocates more than a small
//! multiple of its input, whatever the bytes are. It is not the layout of the in-memory store.

use crate::instance::{Instance, Row};
use crate::transaction::{ChangeKind, RowChange};
use crate::value::Value;

/// First byte of every encoded instance and change list.
const VERSION: u8 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    #[error("the bytes end in the middle of a value")]
    Truncated,
    #[error("unknown version {0} of encoded rows; a newer release wrote them")]
    Version(u8),
    #[error("unknown value tag {0}")]
    Tag(u8),
    #[error("malformed {0}")]
    Malformed(&'static str),
}

const TAG_NULL: u8 = 0;
const TAG_FALSE: u8 = 1;
const TAG_TRUE: u8 = 2;
const TAG_INT: u8 = 3;
const TAG_FLOAT4: u8 = 4;
const TAG_FLOAT8: u8 = 5;
const TAG_TEXT: u8 = 6;
const TAG_BYTES: u8 = 7;
const TAG_UUID: u8 = 8;
const TAG_DATE: u8 = 9;
const TAG_TIME: u8 = 10;
const TAG_TIMESTAMP: u8 = 11;
const TAG_TIMESTAMPTZ: u8 = 12;

/// Appends a whole instance.
pub fn encode_instance(instance: &Instance, out: &mut Vec<u8>) {
    out.push(VERSION);
    put_varint(out, instance.tables.len() as u64);
    for rows in &instance.tables {
        put_varint(out, rows.len() as u64);
        rows.iter().for_each(|row| put_row(out, row));
    }
}

pub fn decode_instance(bytes: &[u8]) -> Result<Instance, CodecError> {
    let mut input = Input::versioned(bytes)?;
    let tables = input.count()?;
    let mut instance = Instance { tables: Vec::with_capacity(tables.min(64)) };
    for _ in 0..tables {
        let rows = input.count()?;
        instance.tables.push((0..rows).map(|_| input.row()).collect::<Result<_, _>>()?);
    }
    input.end()?;
    Ok(instance)
}

/// Appends one row.
pub fn encode_row(row: &Row, out: &mut Vec<u8>) {
    out.push(VERSION);
    put_row(out, row);
}

pub fn decode_row(bytes: &[u8]) -> Result<Row, CodecError> {
    let mut input = Input::versioned(bytes)?;
    let row = input.row()?;
    input.end()?;
    Ok(row)
}

/// Appends the row changes of one transaction, in order.
pub fn encode_changes(changes: &[RowChange], out: &mut Vec<u8>) {
    out.push(VERSION);
    put_varint(out, changes.len() as u64);
    for change in changes {
        put_varint(out, change.table as u64);
        out.push(match change.kind {
            ChangeKind::Insert => 0,
            ChangeKind::Update => 1,
            ChangeKind::Delete => 2,
        });
        put_row(out, &change.row);
        put_varint(out, change.changed.len() as u64);
        change.changed.iter().for_each(|c| put_varint(out, *c as u64));
    }
}

pub fn decode_changes(bytes: &[u8]) -> Result<Vec<RowChange>, CodecError> {
    let mut input = Input::versioned(bytes)?;
    let count = input.count()?;
    let changes = (0..count).map(|_| input.change()).collect::<Result<_, _>>()?;
    input.end()?;
    Ok(changes)
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_signed(out: &mut Vec<u8>, tag: u8, value: i64) {
    out.push(tag);
    put_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

fn put_row(out: &mut Vec<u8>, row: &Row) {
    put_varint(out, row.len() as u64);
    row.iter().for_each(|value| put_value(out, value));
}

pub(crate) fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.push(TAG_NULL),
        Value::Bool(false) => out.push(TAG_FALSE),
        Value::Bool(true) => out.push(TAG_TRUE),
        Value::Int(v) => put_signed(out, TAG_INT, *v),
        Value::Float4(v) => {
            out.push(TAG_FLOAT4);
            out.extend_from_slice(&v.to_bits().to_le_bytes());
        }
        Value::Float8(v) => {
            out.push(TAG_FLOAT8);
            out.extend_from_slice(&v.to_bits().to_le_bytes());
        }
        Value::Text(text) => put_sized(out, TAG_TEXT, text.as_bytes()),
        Value::Bytes(bytes) => put_sized(out, TAG_BYTES, bytes),
        Value::Uuid(bytes) => {
            out.push(TAG_UUID);
            out.extend_from_slice(bytes);
        }
        Value::Date(v) => put_signed(out, TAG_DATE, i64::from(*v)),
        Value::Time(v) => put_signed(out, TAG_TIME, *v),
        Value::Timestamp(v) => put_signed(out, TAG_TIMESTAMP, *v),
        Value::TimestampTz(v) => put_signed(out, TAG_TIMESTAMPTZ, *v),
    }
}

fn put_sized(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    fn versioned(bytes: &'a [u8]) -> Result<Self, CodecError> {
        match bytes.split_first() {
            Some((&VERSION, rest)) => Ok(Self { rest }),
            Some((version, _)) => Err(CodecError::Version(*version)),
            None => Err(CodecError::Truncated),
        }
    }

    fn end(&self) -> Result<(), CodecError> {
        if self.rest.is_empty() { Ok(()) } else { Err(CodecError::Malformed("trailing bytes")) }
    }

    fn byte(&mut self) -> Result<u8, CodecError> {
        let (byte, rest) = self.rest.split_first().ok_or(CodecError::Truncated)?;
        self.rest = rest;
        Ok(*byte)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(CodecError::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    fn varint(&mut self) -> Result<u64, CodecError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                return Err(CodecError::Malformed("integer"));
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(CodecError::Malformed("integer"))
    }

    fn signed(&mut self) -> Result<i64, CodecError> {
        let raw = self.varint()?;
        Ok((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }

    /// A count of things that take at least one byte each, so it cannot exceed what is left.
    fn count(&mut self) -> Result<usize, CodecError> {
        let count = self.varint()?;
        if count > self.rest.len() as u64 {
            return Err(CodecError::Truncated);
        }
        Ok(count as usize)
    }

    fn sized(&mut self) -> Result<&'a [u8], CodecError> {
        let length = self.count()?;
        let (head, rest) = self.rest.split_at_checked(length).ok_or(CodecError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    fn row(&mut self) -> Result<Row, CodecError> {
        let columns = self.count()?;
        (0..columns).map(|_| self.value()).collect()
    }

    fn value(&mut self) -> Result<Value, CodecError> {
        Ok(match self.byte()? {
            TAG_NULL => Value::Null,
            TAG_FALSE => Value::Bool(false),
            TAG_TRUE => Value::Bool(true),
            TAG_INT => Value::Int(self.signed()?),
            TAG_FLOAT4 => Value::Float4(f32::from_bits(u32::from_le_bytes(self.fixed()?))),
            TAG_FLOAT8 => Value::Float8(f64::from_bits(u64::from_le_bytes(self.fixed()?))),
            TAG_TEXT => {
                let text = std::str::from_utf8(self.sized()?)
                    .map_err(|_| CodecError::Malformed("text"))?;
                Value::Text(text.into())
            }
            TAG_BYTES => Value::Bytes(self.sized()?.into()),
            TAG_UUID => Value::Uuid(self.fixed()?),
            TAG_DATE => Value::Date(
                i32::try_from(self.signed()?).map_err(|_| CodecError::Malformed("date"))?,
            ),
            TAG_TIME => Value::Time(self.signed()?),
            TAG_TIMESTAMP => Value::Timestamp(self.signed()?),
            TAG_TIMESTAMPTZ => Value::TimestampTz(self.signed()?),
            tag => return Err(CodecError::Tag(tag)),
        })
    }

    fn change(&mut self) -> Result<RowChange, CodecError> {
        let table = usize::try_from(self.varint()?).map_err(|_| CodecError::Malformed("table"))?;
        let kind = match self.byte()? {
            0 => ChangeKind::Insert,
            1 => ChangeKind::Update,
            2 => ChangeKind::Delete,
            _ => return Err(CodecError::Malformed("kind of change")),
        };
        let row = self.row()?;
        let count = self.count()?;
        let changed = (0..count)
            .map(|_| usize::try_from(self.varint()?).map_err(|_| CodecError::Malformed("column")))
            .collect::<Result<_, _>>()?;
        Ok(RowChange { table, kind, row, changed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_value() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(Value::Int),
            (-1e30_f32..1e30).prop_map(Value::Float4),
            (-1e300_f64..1e300).prop_map(Value::Float8),
            ".{0,20}".prop_map(|s| Value::Text(s.into())),
            prop::collection::vec(any::<u8>(), 0..20).prop_map(|b| Value::Bytes(b.into())),
            any::<[u8; 16]>().prop_map(Value::Uuid),
            any::<i32>().prop_map(Value::Date),
            any::<i64>().prop_map(Value::Time),
            any::<i64>().prop_map(Value::Timestamp),
            any::<i64>().prop_map(Value::TimestampTz),
        ]
    }

    fn any_row() -> impl Strategy<Value = Row> {
        prop::collection::vec(any_value(), 0..6)
    }

    proptest! {
        #[test]
        fn instances_and_changes_round_trip(
            tables in prop::collection::vec(prop::collection::vec(any_row(), 0..4), 0..4),
            row in any_row(),
            changed in prop::collection::vec(0_usize..1_000, 0..4),
        ) {
            let instance = Instance { tables };
            let mut bytes = Vec::new();
            encode_instance(&instance, &mut bytes);
            prop_assert_eq!(decode_instance(&bytes), Ok(instance));
            let changes = vec![RowChange { table: 3, kind: ChangeKind::Update, row, changed }];
            let mut bytes = Vec::new();
            encode_changes(&changes, &mut bytes);
            prop_assert_eq!(decode_changes(&bytes), Ok(changes));
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_instance(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            let _ = (decode_instance(&bytes), decode_changes(&bytes), decode_row(&bytes));
        }
    }

    #[test]
    fn a_cut_or_newer_encoding_is_an_error_that_says_so() {
        let mut bytes = Vec::new();
        encode_row(&vec![Value::Int(7), Value::Text("é".into())], &mut bytes);
        for end in 0..bytes.len() {
            assert!(decode_row(&bytes[..end]).is_err());
        }
        bytes[0] = 9;
        assert_eq!(decode_row(&bytes), Err(CodecError::Version(9)));
    }
}
