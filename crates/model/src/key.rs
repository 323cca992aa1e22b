//! Canonical keys: equal bytes exactly when the backend calls the keys equal (R21).

use crate::slot::SlotId;
use crate::value::{Value, ValueError, ValueRef};
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

/// Canonical bytes of a root key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RootKey(Bytes);

/// Canonical bytes of a lookup key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LookupKey(Bytes);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("key column {position} is NULL; key columns must have a value")]
    Null { position: usize },
    #[error("the key has {expected} columns, {given} values were given")]
    Arity { expected: usize, given: usize },
    #[error("key column {position}: {source}")]
    Value { position: usize, source: ValueError },
    #[error("the stored key bytes are not a canonical key")]
    Malformed,
}

impl RootKey {
    /// Encodes key values, in the order of the root table's primary key.
    pub fn encode(values: &[Value]) -> Result<Self, KeyError> {
        encode(values).map(Self)
    }

    /// The key values, canonical (numeric without trailing zeros, char without padding).
    pub fn decode(&self) -> Result<Vec<Value>, KeyError> {
        decode(&self.0)
    }

    pub fn from_bytes(bytes: Bytes) -> Self {
        Self(bytes)
    }

    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    pub fn slot(&self) -> SlotId {
        SlotId::of_key(&self.0)
    }

    /// The same on every node and in every release; the slot is its top twelve bits.
    pub fn hash64(&self) -> u64 {
        xxh3_64(&self.0)
    }

    /// Names the instance where its key must not be shown.
    pub fn fingerprint(&self) -> String {
        format!("{:016x}", self.hash64())
    }
}

impl LookupKey {
    pub fn encode(values: &[Value]) -> Result<Self, KeyError> {
        encode(values).map(Self)
    }

    pub fn decode(&self) -> Result<Vec<Value>, KeyError> {
        decode(&self.0)
    }

    pub fn from_bytes(bytes: Bytes) -> Self {
        Self(bytes)
    }

    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }
}

// One tag byte per value, then its bytes; variable-length values carry a u32 length. The first
// byte of a tag never changes meaning: keys are hashed into slots and stored in journals.
const TAG_BOOL: u8 = 1;
const TAG_INT: u8 = 2;
const TAG_FLOAT8: u8 = 3;
const TAG_TEXT: u8 = 4;
const TAG_BYTES: u8 = 5;
const TAG_UUID: u8 = 6;
const TAG_DATE: u8 = 7;
const TAG_TIME: u8 = 8;
const TAG_TIMESTAMP: u8 = 9;
const TAG_TIMESTAMPTZ: u8 = 10;
const TAG_FLOAT4: u8 = 11;

fn encode(values: &[Value]) -> Result<Bytes, KeyError> {
    let mut out = Vec::with_capacity(values.len() * 9);
    for (position, value) in values.iter().enumerate() {
        canonical_bytes(value.as_value_ref(), &mut |bytes| out.extend_from_slice(bytes))
            .ok_or(KeyError::Null { position })?;
    }
    Ok(Bytes::from(out))
}

/// The bytes of one canonical value in a key, piece by piece; `None` for NULL.
#[inline]
pub fn canonical_bytes(value: ValueRef<'_>, push: &mut impl FnMut(&[u8])) -> Option<()> {
    match value {
        ValueRef::Null => return None,
        ValueRef::Int(v) => fixed(push, TAG_INT, &v.to_be_bytes()),
        ValueRef::Bool(b) => push(&[TAG_BOOL, u8::from(b)]),
        ValueRef::Float4(v) => fixed(push, TAG_FLOAT4, &canonical_f32(v).to_be_bytes()),
        ValueRef::Float8(v) => fixed(push, TAG_FLOAT8, &canonical_f64(v).to_be_bytes()),
        ValueRef::Text(s) => sized(push, TAG_TEXT, s.as_bytes()),
        ValueRef::Bytes(b) => sized(push, TAG_BYTES, b),
        ValueRef::Uuid(u) => fixed(push, TAG_UUID, &u),
        ValueRef::Date(d) => fixed(push, TAG_DATE, &d.to_be_bytes()),
        ValueRef::Time(t) => fixed(push, TAG_TIME, &t.to_be_bytes()),
        ValueRef::Timestamp(t) => fixed(push, TAG_TIMESTAMP, &t.to_be_bytes()),
        ValueRef::TimestampTz(t) => fixed(push, TAG_TIMESTAMPTZ, &t.to_be_bytes()),
    }
    Some(())
}

fn canonical_f32(v: f32) -> f32 {
    if v.is_nan() {
        f32::NAN
    } else if v == 0.0 {
        0.0
    } else {
        v
    }
}

fn canonical_f64(v: f64) -> f64 {
    if v.is_nan() {
        f64::NAN
    } else if v == 0.0 {
        0.0
    } else {
        v
    }
}

#[inline]
fn fixed(push: &mut impl FnMut(&[u8]), tag: u8, bytes: &[u8]) {
    push(&[tag]);
    push(bytes);
}

#[inline]
fn sized(push: &mut impl FnMut(&[u8]), tag: u8, bytes: &[u8]) {
    let [a, b, c, d] = (bytes.len() as u32).to_be_bytes();
    push(&[tag, a, b, c, d]);
    push(bytes);
}

fn decode(mut input: &[u8]) -> Result<Vec<Value>, KeyError> {
    let mut values = Vec::new();
    while let Some((tag, rest)) = input.split_first() {
        input = rest;
        let value = match *tag {
            TAG_BOOL => Value::Bool(take::<1>(&mut input)? != [0]),
            TAG_INT => Value::Int(i64::from_be_bytes(take(&mut input)?)),
            TAG_FLOAT4 => Value::Float4(f32::from_be_bytes(take(&mut input)?)),
            TAG_FLOAT8 => Value::Float8(f64::from_be_bytes(take(&mut input)?)),
            TAG_TEXT => {
                let text = take_sized(&mut input)?;
                let text = std::str::from_utf8(text).map_err(|_| KeyError::Malformed)?;
                Value::Text(text.into())
            }
            TAG_BYTES => Value::Bytes(take_sized(&mut input)?.into()),
            TAG_UUID => Value::Uuid(take(&mut input)?),
            TAG_DATE => Value::Date(i32::from_be_bytes(take(&mut input)?)),
            TAG_TIME => Value::Time(i64::from_be_bytes(take(&mut input)?)),
            TAG_TIMESTAMP => Value::Timestamp(i64::from_be_bytes(take(&mut input)?)),
            TAG_TIMESTAMPTZ => Value::TimestampTz(i64::from_be_bytes(take(&mut input)?)),
            _ => return Err(KeyError::Malformed),
        };
        values.push(value);
    }
    Ok(values)
}

fn take<const N: usize>(input: &mut &[u8]) -> Result<[u8; N], KeyError> {
    let (head, rest) = input.split_first_chunk::<N>().ok_or(KeyError::Malformed)?;
    *input = rest;
    Ok(*head)
}

fn take_sized<'a>(input: &mut &'a [u8]) -> Result<&'a [u8], KeyError> {
    let length = u32::from_be_bytes(take(input)?) as usize;
    let (head, rest) = input.split_at_checked(length).ok_or(KeyError::Malformed)?;
    *input = rest;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_round_trip_and_nulls_are_refused() {
        let values = vec![
            Value::Int(-7),
            Value::Text("é".into()),
            Value::Uuid([9; 16]),
            Value::Bytes([0, 255].into()),
        ];
        let key = RootKey::encode(&values).unwrap();
        assert_eq!(key.decode().unwrap(), values);
        assert_eq!(
            RootKey::encode(&[Value::Int(1), Value::Null]),
            Err(KeyError::Null { position: 1 })
        );
    }

    #[test]
    fn damaged_key_bytes_are_an_error_and_not_a_panic() {
        for bytes in [&b"\x02\x00"[..], b"\x04\xff\xff\xff\xffabc", b"\x63", b"\x04\0\0\0\x01\xff"]
        {
            let key = RootKey::from_bytes(Bytes::copy_from_slice(bytes));
            assert_eq!(key.decode(), Err(KeyError::Malformed));
        }
    }
}
