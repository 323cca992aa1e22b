//! A small HLR: subscribers with facilities and forwardings.

use super::server::Database;
use super::table;
use cachetier_model::node_config::TableConfig;
use cachetier_model::{ChangeKind, GroupSchema, RootKey, Row, RowChange, Value};

pub const DDL: &str = "
CREATE TABLE subscriber (
  s_id bigint PRIMARY KEY, sub_nbr varchar(15) NOT NULL UNIQUE, bit_1 smallint,
  vlr_location bigint);
CREATE TABLE special_facility (
  s_id bigint NOT NULL REFERENCES subscriber, sf_type smallint NOT NULL, data_b char(5),
  PRIMARY KEY (s_id, sf_type));
CREATE TABLE call_forwarding (
  s_id bigint NOT NULL, sf_type smallint NOT NULL, start_time smallint NOT NULL,
  numberx varchar(15), PRIMARY KEY (s_id, sf_type, start_time),
  FOREIGN KEY (s_id, sf_type) REFERENCES special_facility);
";

pub const SUBSCRIBER: usize = 0;
pub const FACILITY: usize = 1;
pub const FORWARDING: usize = 2;

pub fn tables() -> Vec<TableConfig> {
    vec![
        table("subscriber", None, &[&["sub_nbr"]]),
        table("special_facility", Some("subscriber"), &[]),
        table("call_forwarding", Some("special_facility"), &[]),
    ]
}

pub async fn create(database: &Database) {
    database.run(DDL).await;
}

pub fn key(id: i64) -> RootKey {
    RootKey::encode(&[Value::Int(id)]).unwrap()
}

fn text(text: impl Into<String>) -> Value {
    Value::Text(text.into().into())
}

pub fn subscriber(id: i64, number: &str, vlr: i64) -> Row {
    vec![Value::Int(id), text(number), Value::Int(1), Value::Int(vlr)]
}

pub fn facility(id: i64, kind: i64, data: &str) -> Row {
    vec![Value::Int(id), Value::Int(kind), text(format!("{data:<5}"))]
}

pub fn forwarding(id: i64, kind: i64, start: i64, number: &str) -> Row {
    vec![Value::Int(id), Value::Int(kind), Value::Int(start), text(number)]
}

pub fn insert(table: usize, row: Row) -> RowChange {
    RowChange { table, kind: ChangeKind::Insert, row, changed: Vec::new() }
}

pub fn update(table: usize, row: Row, changed: &[usize]) -> RowChange {
    RowChange { table, kind: ChangeKind::Update, row, changed: changed.to_vec() }
}

pub fn delete(table: usize, row: Row) -> RowChange {
    RowChange { table, kind: ChangeKind::Delete, row, changed: Vec::new() }
}

/// Sets `vlr_location`.
pub fn locate(id: i64, number: &str, vlr: i64) -> RowChange {
    update(SUBSCRIBER, subscriber(id, number, vlr), &[3])
}

pub fn number_of(id: i64) -> String {
    format!("{id:015}")
}

/// Fills the database with subscribers 1..=count.
pub async fn populate(database: &Database, count: i64) {
    database
        .run(&format!(
            "INSERT INTO subscriber SELECT n, lpad(n::text, 15, '0'), 1, 0 \
             FROM generate_series(1, {count}) n; \
             INSERT INTO special_facility SELECT n, f, 'AAAAA' FROM generate_series(1, {count}) n, \
             generate_series(1, 2) f; \
             INSERT INTO call_forwarding SELECT n, 1, 8, '5' FROM generate_series(1, {count}) n; \
             ANALYZE subscriber, special_facility, call_forwarding"
        ))
        .await;
}

pub fn table_name(schema: &GroupSchema, table: usize) -> &str {
    &schema.tables[table].name
}
