//! Rows of the store to the wire's bytes, with nothing in between.
//!
//! Owns the encoding of `TableRows` beside the generated one, which the tests compare it with. Runs
//! under a slot's lock: must never wait.

use super::answers::position;
use bytes::Bytes;
use cachetier_group::{ReadFound, RowSink, Source};
use cachetier_model::{ColumnType, GroupSchema, TableId, ValueRef};
use cachetier_proto::v1;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};

/// Field numbers of `types.proto`.
mod field {
    pub const TABLE_NAME: u32 = 1;
    pub const TABLE_ROWS: u32 = 2;
    pub const ROW_VALUES: u32 = 1;
    pub const NULL: u32 = 1;
    pub const BOOLEAN: u32 = 2;
    pub const INTEGER: u32 = 3;
    pub const REAL: u32 = 4;
    pub const TEXT: u32 = 5;
    pub const BYTES: u32 = 6;
}

/// A whole subscriber of the largest example takes about 500 bytes.
const USUAL_BYTES: usize = 512;

/// Collects the encoded rows of one answer.
pub struct EncodedRows<'a> {
    schema: &'a GroupSchema,
    /// The tables, one behind the other.
    bytes: Vec<u8>,
    /// Where each table ends.
    ends: Vec<usize>,
    /// The row under way, without its length.
    row: Vec<u8>,
}

impl<'a> EncodedRows<'a> {
    pub fn new(schema: &'a GroupSchema) -> Self {
        let (bytes, row) = (Vec::with_capacity(USUAL_BYTES), Vec::with_capacity(USUAL_BYTES / 2));
        Self { schema, bytes, ends: Vec::new(), row }
    }

    pub fn answer(self, found: ReadFound) -> v1::ReadResponse {
        let source = match found.source {
            Source::Cache => v1::Source::Cache,
            Source::ReadThrough => v1::Source::ReadThrough,
            Source::Bypass => v1::Source::Bypass,
        };
        let tables = if found.found { self.tables() } else { Vec::new() };
        let confirmed = found.confirmed.map(position);
        v1::ReadResponse { found: found.found, tables, source: source.into(), confirmed }
    }

    fn tables(self) -> Vec<Bytes> {
        let mut rest = Bytes::from(self.bytes);
        let mut before = 0;
        let table = |end: usize| {
            let length = end - std::mem::replace(&mut before, end);
            rest.split_to(length)
        };
        self.ends.into_iter().map(table).collect()
    }
}

impl RowSink for EncodedRows<'_> {
    fn table(&mut self, table: TableId) {
        let name = self.schema.table(table).map_or("", |t| t.name.as_str());
        if !name.is_empty() {
            delimited(&mut self.bytes, field::TABLE_NAME, name.as_bytes());
        }
    }

    fn row(&mut self, _values: usize) {
        self.row.clear();
    }

    fn value(&mut self, value: ValueRef<'_>) {
        encode_value(&mut self.row, value);
    }

    fn row_end(&mut self) {
        delimited(&mut self.bytes, field::TABLE_ROWS, &self.row);
    }

    fn table_end(&mut self) {
        self.ends.push(self.bytes.len());
    }
}

fn delimited(bytes: &mut Vec<u8>, field: u32, content: &[u8]) {
    encode_key(field, WireType::LengthDelimited, bytes);
    encode_varint(content.len() as u64, bytes);
    bytes.extend_from_slice(content);
}

/// One value as an element of a row.
fn encode_value(row: &mut Vec<u8>, value: ValueRef<'_>) {
    match value {
        ValueRef::Null => varint_value(row, field::NULL, 1),
        ValueRef::Bool(b) => varint_value(row, field::BOOLEAN, b.into()),
        ValueRef::Int(i) => varint_value(row, field::INTEGER, zigzag(i)),
        ValueRef::Float4(f) => real(row, f.into()),
        ValueRef::Float8(f) => real(row, f),
        ValueRef::Text(text) => content_value(row, field::TEXT, text.as_bytes()),
        ValueRef::Bytes(bytes) => content_value(row, field::BYTES, bytes),
        ValueRef::Uuid(_) => formatted(row, &ColumnType::Uuid, value),
        ValueRef::Date(_) => formatted(row, &ColumnType::Date, value),
        ValueRef::Time(_) => formatted(row, &ColumnType::Time, value),
        ValueRef::Timestamp(_) => formatted(row, &ColumnType::Timestamp, value),
        ValueRef::TimestampTz(_) => formatted(row, &ColumnType::TimestampTz, value),
    }
}

fn zigzag(i: i64) -> u64 {
    ((i << 1) ^ (i >> 63)).cast_unsigned()
}

/// The element's own key and length; every field number of a value takes one byte.
fn element(row: &mut Vec<u8>, length: usize) {
    encode_key(field::ROW_VALUES, WireType::LengthDelimited, row);
    encode_varint(length as u64, row);
}

fn varint_value(row: &mut Vec<u8>, field: u32, number: u64) {
    element(row, 1 + encoded_len_varint(number));
    encode_key(field, WireType::Varint, row);
    encode_varint(number, row);
}

fn real(row: &mut Vec<u8>, number: f64) {
    element(row, 1 + size_of::<f64>());
    encode_key(field::REAL, WireType::SixtyFourBit, row);
    row.extend_from_slice(&number.to_le_bytes());
}

fn content_value(row: &mut Vec<u8>, field: u32, content: &[u8]) {
    element(row, 1 + encoded_len_varint(content.len() as u64) + content.len());
    delimited(row, field, content);
}

fn formatted(row: &mut Vec<u8>, column_type: &ColumnType, value: ValueRef<'_>) {
    content_value(row, field::TEXT, column_type.format(&value.to_value()).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use cachetier_client::convert::value_to_wire;
    use cachetier_model::Value;
    use prost::Message;

    fn no_tables() -> GroupSchema {
        GroupSchema { backend_schema: String::new(), tables: Vec::new(), lookups: Vec::new() }
    }

    fn values() -> Vec<Value> {
        let numbers = [0, 1, -1, 63, 64, -64, 300, i64::MAX, i64::MIN].map(Value::Int);
        let texts = ["", "a", &"x".repeat(127), &"y".repeat(20_000)].map(|t| Value::Text(t.into()));
        let bytes = [&b""[..], &[0, 255]].map(|b| Value::Bytes(b.into()));
        let others = [
            Value::Null,
            Value::Bool(false),
            Value::Bool(true),
            Value::Float4(1.5),
            Value::Float8(-0.0),
            Value::Float8(f64::INFINITY),
            Value::Uuid([7; 16]),
            Value::Date(-3),
            Value::Time(1),
            Value::Timestamp(i64::MAX),
            Value::TimestampTz(12_345_678),
        ];
        numbers.into_iter().chain(texts).chain(bytes).chain(others).collect()
    }

    fn encode(schema: &GroupSchema, tables: &[Vec<Vec<Value>>]) -> v1::ReadResponse {
        let mut rows = EncodedRows::new(schema);
        for (id, table) in tables.iter().enumerate() {
            rows.table(id);
            for row in table {
                rows.row(row.len());
                row.iter().for_each(|v| rows.value(v.as_value_ref()));
                rows.row_end();
            }
            rows.table_end();
        }
        rows.answer(ReadFound { found: true, source: Source::Cache, confirmed: None })
    }

    #[test]
    fn every_value_is_encoded_as_the_generated_message_would() {
        let schema = no_tables();
        let row = values();
        let tables = vec![vec![row.clone(), vec![]], vec![], vec![vec![Value::Int(1)]; 3]];
        let answer = encode(&schema, &tables);
        let expected: Vec<v1::TableRows> = tables
            .iter()
            .map(|rows| v1::TableRows {
                table: String::new(),
                rows: rows
                    .iter()
                    .map(|row| v1::Row { values: row.iter().map(value_to_wire).collect() })
                    .collect(),
            })
            .collect();
        assert_eq!(answer.decode_tables().unwrap(), expected);
        let bytes: Vec<Vec<u8>> = expected.iter().map(Message::encode_to_vec).collect();
        assert_eq!(answer.tables, bytes);
    }

    #[test]
    fn an_instance_that_is_not_there_has_no_tables() {
        let schema = no_tables();
        let mut rows = EncodedRows::new(&schema);
        rows.table(0);
        rows.table_end();
        let answer =
            rows.answer(ReadFound { found: false, source: Source::Bypass, confirmed: None });
        assert!(!answer.found && answer.tables.is_empty());
        assert_eq!(answer.source(), v1::Source::Bypass);
    }
}
