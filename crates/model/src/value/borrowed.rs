//! A value without owning it: what the store hands to whoever encodes an answer.

use super::{ColumnType, Value, decimal};

/// [`Value`], borrowed. Copied freely; valid only as long as what it was read from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueRef<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Float4(f32),
    Float8(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    Uuid([u8; 16]),
    Date(i32),
    Time(i64),
    Timestamp(i64),
    TimestampTz(i64),
}

impl ValueRef<'_> {
    pub fn is_null(self) -> bool {
        matches!(self, ValueRef::Null)
    }

    /// The same value, owned; allocates for texts and byte strings only.
    #[inline]
    pub fn to_value(self) -> Value {
        match self {
            ValueRef::Null => Value::Null,
            ValueRef::Bool(v) => Value::Bool(v),
            ValueRef::Int(v) => Value::Int(v),
            ValueRef::Float4(v) => Value::Float4(v),
            ValueRef::Float8(v) => Value::Float8(v),
            ValueRef::Text(v) => Value::Text(v.into()),
            ValueRef::Bytes(v) => Value::Bytes(v.into()),
            ValueRef::Uuid(v) => Value::Uuid(v),
            ValueRef::Date(v) => Value::Date(v),
            ValueRef::Time(v) => Value::Time(v),
            ValueRef::Timestamp(v) => Value::Timestamp(v),
            ValueRef::TimestampTz(v) => Value::TimestampTz(v),
        }
    }
}

impl Value {
    #[inline]
    pub fn as_value_ref(&self) -> ValueRef<'_> {
        match self {
            Value::Null => ValueRef::Null,
            Value::Bool(v) => ValueRef::Bool(*v),
            Value::Int(v) => ValueRef::Int(*v),
            Value::Float4(v) => ValueRef::Float4(*v),
            Value::Float8(v) => ValueRef::Float8(*v),
            Value::Text(v) => ValueRef::Text(v),
            Value::Bytes(v) => ValueRef::Bytes(v),
            Value::Uuid(v) => ValueRef::Uuid(*v),
            Value::Date(v) => ValueRef::Date(*v),
            Value::Time(v) => ValueRef::Time(*v),
            Value::Timestamp(v) => ValueRef::Timestamp(*v),
            Value::TimestampTz(v) => ValueRef::TimestampTz(*v),
        }
    }
}

impl ColumnType {
    /// The form of a checked value whose equality is the backend's equality of keys: numeric
    /// without trailing zeros, char without padding, floats without a negative zero.
    pub fn canonical_ref<'v>(&self, value: ValueRef<'v>) -> ValueRef<'v> {
        match (self, value) {
            (ColumnType::Numeric { .. }, ValueRef::Text(text)) => {
                ValueRef::Text(decimal::without_trailing_zeros(text))
            }
            (ColumnType::Char { .. }, ValueRef::Text(text)) => {
                ValueRef::Text(text.trim_end_matches(' '))
            }
            (_, ValueRef::Float4(0.0)) => ValueRef::Float4(0.0),
            (_, ValueRef::Float8(0.0)) => ValueRef::Float8(0.0),
            _ => value,
        }
    }
}
