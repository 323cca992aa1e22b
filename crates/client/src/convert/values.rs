//! Single values and keys.

use super::error::ConvertError;
use super::names;
use cachetier_model::{Column, ColumnType, GroupSchema, LookupId, TableSchema, Value};
use cachetier_proto::v1;
use cachetier_proto::v1::value::Kind;

/// The wire form of a value; exact for every type.
pub fn value_to_wire(value: &Value) -> v1::Value {
    let kind = match value {
        Value::Null => Kind::Null(true),
        Value::Bool(b) => Kind::Boolean(*b),
        Value::Int(i) => Kind::Integer(*i),
        Value::Float4(f) => Kind::Real(f64::from(*f)),
        Value::Float8(f) => Kind::Real(*f),
        Value::Text(text) => Kind::Text(text.to_string()),
        Value::Bytes(bytes) => Kind::Bytes(bytes.to_vec().into()),
        Value::Uuid(_) => Kind::Text(ColumnType::Uuid.format(value)),
        Value::Date(_) => Kind::Text(ColumnType::Date.format(value)),
        Value::Time(_) => Kind::Text(ColumnType::Time.format(value)),
        Value::Timestamp(_) => Kind::Text(ColumnType::Timestamp.format(value)),
        Value::TimestampTz(_) => Kind::Text(ColumnType::TimestampTz.format(value)),
    };
    v1::Value { kind: Some(kind) }
}

/// The value of a column. Text is taken for every type, in the backend's input form; numbers only
/// for numeric types.
pub fn value_from_wire(
    table: &TableSchema,
    column: &Column,
    wire: &v1::Value,
) -> Result<Value, ConvertError> {
    let fault = |problem: String| ConvertError::Value {
        table: table.name.clone(),
        column: column.name.clone(),
        problem,
    };
    let kind = wire.kind.as_ref().ok_or_else(|| fault("the value has no kind set".to_owned()))?;
    typed(&column.column_type, kind).map_err(fault)
}

fn typed(column_type: &ColumnType, kind: &Kind) -> Result<Value, String> {
    use ColumnType as T;
    let wrong = |given: &str| format!("{given} does not fit {}", column_type.sql_name());
    match (column_type, kind) {
        (_, Kind::Null(_)) => Ok(Value::Null),
        (T::Bool, Kind::Boolean(b)) => Ok(Value::Bool(*b)),
        (T::Int2 | T::Int4 | T::Int8, Kind::Integer(i)) => Ok(Value::Int(*i)),
        (T::Float4, Kind::Real(f)) => Ok(Value::Float4(*f as f32)),
        (T::Float8, Kind::Real(f)) => Ok(Value::Float8(*f)),
        (T::Float4, Kind::Integer(i)) => Ok(Value::Float4(*i as f32)),
        (T::Float8, Kind::Integer(i)) => Ok(Value::Float8(*i as f64)),
        (T::Numeric { .. }, Kind::Integer(i)) => parse(column_type, &i.to_string()),
        (T::Varchar { .. } | T::Text | T::Json | T::Jsonb, Kind::Text(text)) => {
            Ok(Value::Text(text.as_str().into()))
        }
        (_, Kind::Text(text)) => parse(column_type, text),
        (T::Bytea, Kind::Bytes(bytes)) => Ok(Value::Bytes(bytes.to_vec().into_boxed_slice())),
        (_, Kind::Boolean(_)) => Err(wrong("a boolean")),
        (_, Kind::Integer(_)) => Err(wrong("an integer")),
        (_, Kind::Real(_)) => Err(wrong("a floating-point number")),
        (_, Kind::Bytes(_)) => Err(wrong("bytes")),
    }
}

fn parse(column_type: &ColumnType, text: &str) -> Result<Value, String> {
    column_type.parse_text(text).map_err(|e| e.to_string())
}

/// Values of the root table's primary key, in key order.
pub fn key_values_from_wire(
    schema: &GroupSchema,
    wire: &v1::KeyValues,
) -> Result<Vec<Value>, ConvertError> {
    let root = schema.root().ok_or(ConvertError::Missing { what: "the root table" })?;
    if wire.values.len() != root.primary_key.len() {
        return Err(ConvertError::KeyLength {
            expected: root.primary_key.len(),
            found: wire.values.len(),
        });
    }
    root.primary_key
        .iter()
        .zip(&wire.values)
        .map(|(id, value)| {
            let column = root.column(*id).ok_or(ConvertError::Shape("key column"))?;
            value_from_wire(root, column, value)
        })
        .collect()
}

/// Which declared lookup key, and its values.
pub fn lookup_from_wire(
    schema: &GroupSchema,
    wire: &v1::LookupKey,
) -> Result<(LookupId, Vec<Value>), ConvertError> {
    let root = schema.root().ok_or(ConvertError::Missing { what: "the root table" })?;
    let names: Vec<&str> = wire.columns.iter().map(String::as_str).collect();
    let unknown = || ConvertError::UnknownLookup { columns: names.join(", ") };
    let id = schema.lookup_by_columns(&names).ok_or_else(unknown)?;
    if wire.values.len() != names.len() {
        return Err(ConvertError::KeyLength { expected: names.len(), found: wire.values.len() });
    }
    let values = names
        .iter()
        .zip(&wire.values)
        .map(|(name, value)| {
            let (_, column) = names::column(root, name)?;
            value_from_wire(root, column, value)
        })
        .collect::<Result<_, _>>()?;
    Ok((id, values))
}
