//! Values in the server's binary format, both ways: the one place where it is spoken.
//!
//! Pure. Parameters go as one array per column; rows come from queries and from binary COPY.

mod array;
pub(super) mod numeric;
mod spans;

use bytes::{BufMut, BytesMut};
use cachetier_model::{ColumnId, ColumnType, Row, Value};
use std::error::Error;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BinaryError {
    #[error("a value of another kind was given for {0}")]
    Kind(String),
    #[error("a value is out of the range of {0}")]
    Range(String),
    #[error("the backend sent {got} bytes for {sql_type}")]
    Length { sql_type: String, got: usize },
    #[error("the backend sent malformed {0}")]
    Malformed(&'static str),
}

/// The element type in which a column's values travel. Labels of an enum travel as text and are
/// cast in the statement, because their type's number is the database's own; so do arrays, because
/// an array of arrays would be one array of more dimensions.
pub(super) fn element_type(column_type: &ColumnType) -> Type {
    match column_type {
        ColumnType::Bool => Type::BOOL,
        ColumnType::Int2 => Type::INT2,
        ColumnType::Int4 => Type::INT4,
        ColumnType::Int8 => Type::INT8,
        ColumnType::Float4 => Type::FLOAT4,
        ColumnType::Float8 => Type::FLOAT8,
        ColumnType::Numeric { .. } => Type::NUMERIC,
        ColumnType::Char { .. } => Type::BPCHAR,
        ColumnType::Varchar { .. } => Type::VARCHAR,
        ColumnType::Text | ColumnType::Enum { .. } | ColumnType::Array { .. } => Type::TEXT,
        ColumnType::Interval => Type::INTERVAL,
        ColumnType::Inet => Type::INET,
        ColumnType::Bytea => Type::BYTEA,
        ColumnType::Date => Type::DATE,
        ColumnType::Time => Type::TIME,
        ColumnType::Timestamp => Type::TIMESTAMP,
        ColumnType::TimestampTz => Type::TIMESTAMPTZ,
        ColumnType::Uuid => Type::UUID,
        ColumnType::Json => Type::JSON,
        ColumnType::Jsonb => Type::JSONB,
    }
}

pub(super) fn array_type(column_type: &ColumnType) -> Type {
    match column_type {
        ColumnType::Bool => Type::BOOL_ARRAY,
        ColumnType::Int2 => Type::INT2_ARRAY,
        ColumnType::Int4 => Type::INT4_ARRAY,
        ColumnType::Int8 => Type::INT8_ARRAY,
        ColumnType::Float4 => Type::FLOAT4_ARRAY,
        ColumnType::Float8 => Type::FLOAT8_ARRAY,
        ColumnType::Numeric { .. } => Type::NUMERIC_ARRAY,
        ColumnType::Char { .. } => Type::BPCHAR_ARRAY,
        ColumnType::Varchar { .. } => Type::VARCHAR_ARRAY,
        ColumnType::Text | ColumnType::Enum { .. } | ColumnType::Array { .. } => Type::TEXT_ARRAY,
        ColumnType::Interval => Type::INTERVAL_ARRAY,
        ColumnType::Inet => Type::INET_ARRAY,
        ColumnType::Bytea => Type::BYTEA_ARRAY,
        ColumnType::Date => Type::DATE_ARRAY,
        ColumnType::Time => Type::TIME_ARRAY,
        ColumnType::Timestamp => Type::TIMESTAMP_ARRAY,
        ColumnType::TimestampTz => Type::TIMESTAMPTZ_ARRAY,
        ColumnType::Uuid => Type::UUID_ARRAY,
        ColumnType::Json => Type::JSON_ARRAY,
        ColumnType::Jsonb => Type::JSONB_ARRAY,
    }
}

/// Appends one value that is not NULL.
pub(super) fn encode(
    column_type: &ColumnType,
    value: &Value,
    out: &mut BytesMut,
) -> Result<(), BinaryError> {
    let range = || BinaryError::Range(column_type.sql_name());
    match (column_type, value) {
        (ColumnType::Bool, Value::Bool(v)) => out.put_u8(u8::from(*v)),
        (ColumnType::Int2, Value::Int(v)) => out.put_i16(i16::try_from(*v).map_err(|_| range())?),
        (ColumnType::Int4, Value::Int(v)) => out.put_i32(i32::try_from(*v).map_err(|_| range())?),
        (ColumnType::Int8, Value::Int(v)) => out.put_i64(*v),
        (ColumnType::Float4, Value::Float4(v)) => out.put_f32(*v),
        (ColumnType::Float8, Value::Float8(v)) => out.put_f64(*v),
        (ColumnType::Numeric { .. }, Value::Text(text)) => {
            numeric::encode(text, out).ok_or_else(range)?;
        }
        (
            ColumnType::Char { .. }
            | ColumnType::Varchar { .. }
            | ColumnType::Text
            | ColumnType::Enum { .. }
            | ColumnType::Array { .. }
            | ColumnType::Json,
            Value::Text(text),
        ) => out.put_slice(text.as_bytes()),
        (ColumnType::Interval, Value::Text(text)) => {
            spans::encode_interval(text, out).ok_or_else(range)?;
        }
        (ColumnType::Inet, Value::Text(text)) => {
            spans::encode_inet(text, out).ok_or_else(range)?;
        }
        (ColumnType::Jsonb, Value::Text(text)) => {
            out.put_u8(1);
            out.put_slice(text.as_bytes());
        }
        (ColumnType::Bytea, Value::Bytes(bytes)) => out.put_slice(bytes),
        (ColumnType::Date, Value::Date(v)) => out.put_i32(*v),
        (ColumnType::Time, Value::Time(v))
        | (ColumnType::Timestamp, Value::Timestamp(v))
        | (ColumnType::TimestampTz, Value::TimestampTz(v)) => out.put_i64(*v),
        (ColumnType::Uuid, Value::Uuid(v)) => out.put_slice(v),
        _ => return Err(BinaryError::Kind(column_type.sql_name())),
    }
    Ok(())
}

/// Reads one value; `None` is NULL.
pub(super) fn decode(column_type: &ColumnType, raw: Option<&[u8]>) -> Result<Value, BinaryError> {
    let Some(raw) = raw else { return Ok(Value::Null) };
    Ok(match column_type {
        ColumnType::Bool => Value::Bool(fixed::<1>(column_type, raw)? != [0]),
        ColumnType::Int2 => Value::Int(i64::from(i16::from_be_bytes(fixed(column_type, raw)?))),
        ColumnType::Int4 => Value::Int(i64::from(i32::from_be_bytes(fixed(column_type, raw)?))),
        ColumnType::Int8 => Value::Int(i64::from_be_bytes(fixed(column_type, raw)?)),
        ColumnType::Float4 => Value::Float4(f32::from_be_bytes(fixed(column_type, raw)?)),
        ColumnType::Float8 => Value::Float8(f64::from_be_bytes(fixed(column_type, raw)?)),
        ColumnType::Numeric { .. } => {
            let text = numeric::decode(raw).ok_or(BinaryError::Malformed("numeric"))?;
            Value::Text(text.into())
        }
        ColumnType::Char { .. }
        | ColumnType::Varchar { .. }
        | ColumnType::Text
        | ColumnType::Enum { .. }
        | ColumnType::Json => text(raw)?,
        ColumnType::Interval => {
            spans::decode_interval(raw).ok_or(BinaryError::Malformed("interval"))?
        }
        ColumnType::Inet => spans::decode_inet(raw).ok_or(BinaryError::Malformed("inet"))?,
        ColumnType::Array { element } => array::decode(element, raw)?,
        ColumnType::Jsonb => match raw.split_first() {
            Some((1, rest)) => text(rest)?,
            _ => return Err(BinaryError::Malformed("jsonb")),
        },
        ColumnType::Bytea => Value::Bytes(raw.into()),
        ColumnType::Date => Value::Date(i32::from_be_bytes(fixed(column_type, raw)?)),
        ColumnType::Time => Value::Time(i64::from_be_bytes(fixed(column_type, raw)?)),
        ColumnType::Timestamp => Value::Timestamp(i64::from_be_bytes(fixed(column_type, raw)?)),
        ColumnType::TimestampTz => Value::TimestampTz(i64::from_be_bytes(fixed(column_type, raw)?)),
        ColumnType::Uuid => Value::Uuid(fixed(column_type, raw)?),
    })
}

fn text(raw: &[u8]) -> Result<Value, BinaryError> {
    let text = std::str::from_utf8(raw).map_err(|_| BinaryError::Malformed("text"))?;
    Ok(Value::Text(text.into()))
}

fn fixed<const N: usize>(column_type: &ColumnType, raw: &[u8]) -> Result<[u8; N], BinaryError> {
    raw.try_into()
        .map_err(|_| BinaryError::Length { sql_type: column_type.sql_name(), got: raw.len() })
}

/// One column of many rows as an array parameter.
#[derive(Debug)]
pub(super) struct ArrayParam<'a> {
    pub column_type: &'a ColumnType,
    pub rows: &'a [&'a Row],
    pub column: ColumnId,
}

impl ToSql for ArrayParam<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let dimensions = i32::from(!self.rows.is_empty());
        out.put_i32(dimensions);
        let flags_at = out.len();
        out.put_i32(0);
        out.put_u32(element_type(self.column_type).oid());
        if dimensions == 1 {
            out.put_i32(i32::try_from(self.rows.len())?);
            out.put_i32(1);
        }
        let mut nulls = false;
        for row in self.rows {
            match row.get(self.column) {
                None | Some(Value::Null) => {
                    nulls = true;
                    out.put_i32(-1);
                }
                Some(value) => sized(self.column_type, value, out)?,
            }
        }
        if let Some(flag) = out.get_mut(flags_at + 3) {
            *flag = u8::from(nulls);
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// One value as a parameter.
#[derive(Debug)]
pub(super) struct ScalarParam<'a> {
    pub column_type: &'a ColumnType,
    pub value: &'a Value,
}

impl ToSql for ScalarParam<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        if self.value.is_null() {
            return Ok(IsNull::Yes);
        }
        encode(self.column_type, self.value, out)?;
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

fn sized(
    column_type: &ColumnType,
    value: &Value,
    out: &mut BytesMut,
) -> Result<(), Box<dyn Error + Sync + Send>> {
    let at = out.len();
    out.put_i32(0);
    encode(column_type, value, out)?;
    let length = i32::try_from(out.len() - at - 4)?.to_be_bytes();
    if let Some(place) = out.get_mut(at..at + 4) {
        place.copy_from_slice(&length);
    }
    Ok(())
}

/// A column of an answer, as it came.
pub(super) struct Raw<'a>(pub &'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Raw(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}
