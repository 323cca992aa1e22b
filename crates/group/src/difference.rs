//! How two copies of one instance differ: a pure count, table by table, row by primary key.
//!
//! Values are equal when they are the same to the byte; NaN equals NaN.

use std::collections::BTreeMap;

use cachetier_model::{GroupSchema, Instance, RootKey, Row, TableSchema, Value};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub only_here: u64,
    pub only_there: u64,
    pub different: u64,
}

/// True when both hold the same rows, in whatever order.
pub(crate) fn same(schema: &GroupSchema, here: &Instance, there: &Instance) -> bool {
    let quick = here.tables.len() == there.tables.len()
        && here
            .tables
            .iter()
            .zip(&there.tables)
            .all(|(a, b)| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_row(a, b)));
    quick || count(schema, here, there).iter().all(|c| *c == Count::default())
}

/// One count per table of the schema.
pub(crate) fn count(schema: &GroupSchema, here: &Instance, there: &Instance) -> Vec<Count> {
    let none = Vec::new();
    (schema.tables.iter().enumerate())
        .map(|(id, table)| {
            let here = here.tables.get(id).unwrap_or(&none);
            let there = there.tables.get(id).unwrap_or(&none);
            count_table(table, here, there)
        })
        .collect()
}

fn count_table(table: &TableSchema, here: &[Row], there: &[Row]) -> Count {
    let mut count = Count::default();
    let mut others = by_key(table, there);
    for (key, row) in by_key(table, here) {
        match others.remove(&key) {
            None => count.only_here += 1,
            Some(other) if !same_row(row, other) => count.different += 1,
            Some(_) => {}
        }
    }
    count.only_there = others.len() as u64;
    count
}

fn by_key<'a>(table: &TableSchema, rows: &'a [Row]) -> BTreeMap<RootKey, &'a Row> {
    (rows.iter())
        .filter_map(|row| {
            let values = table.key_of(row).ok()?;
            // the canonical byte form of any key orders and compares like one
            Some((RootKey::encode(&values).ok()?, row))
        })
        .collect()
}

fn same_row(a: &Row, b: &Row) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_value(a, b))
}

fn same_value(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Float4(a), Value::Float4(b)) => {
            a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
        }
        (Value::Float8(a), Value::Float8(b)) => {
            a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
        }
        (a, b) => a == b,
    }
}
