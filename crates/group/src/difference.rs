//! How two copies of one instance differ: counts, columns, and the changes that make one the other;
//! pure, table by table, row by primary key.
//!
//! Values are equal when they are the same to the byte; NaN equals NaN.

use std::collections::{BTreeMap, BTreeSet};

use cachetier_model::{
    ChangeKind, ColumnId, GroupSchema, Instance, RootKey, Row, RowChange, TableId, TableSchema,
    Value,
};

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

/// Names of the columns of a table whose values differ in rows that both have.
pub(crate) fn columns(
    schema: &GroupSchema,
    table: TableId,
    here: &Instance,
    there: &Instance,
) -> Vec<String> {
    let mut differing = BTreeSet::new();
    let (Some(of), Some(here), Some(there)) =
        (schema.table(table), here.tables.get(table), there.tables.get(table))
    else {
        return Vec::new();
    };
    let others = by_key(of, there);
    for (key, row) in by_key(of, here) {
        let other = others.get(&key);
        differing.extend(other.into_iter().flat_map(|other| changed(row, other)));
    }
    differing.iter().filter_map(|id| of.column(*id)).map(|c| c.name.clone()).collect()
}

/// The changes that make `there` what is `here`: deletes children first, then inserts and updates
/// parents first.
pub(crate) fn changes(schema: &GroupSchema, here: &Instance, there: &Instance) -> Vec<RowChange> {
    let none = Vec::new();
    let (mut gone, mut put) = (Vec::new(), Vec::new());
    for (table, of) in schema.tables.iter().enumerate() {
        let mut others = by_key(of, there.tables.get(table).unwrap_or(&none));
        for (key, row) in by_key(of, here.tables.get(table).unwrap_or(&none)) {
            let (kind, changed) = match others.remove(&key) {
                None => (ChangeKind::Insert, Vec::new()),
                Some(other) => (ChangeKind::Update, changed(row, other)),
            };
            if kind == ChangeKind::Insert || !changed.is_empty() {
                put.push(RowChange { table, kind, row: row.clone(), changed });
            }
        }
        let deleted = others.into_values().map(|row| RowChange {
            table,
            kind: ChangeKind::Delete,
            row: row.clone(),
            changed: Vec::new(),
        });
        gone.extend(deleted);
    }
    gone.reverse();
    gone.extend(put);
    gone
}

fn changed(here: &Row, there: &Row) -> Vec<ColumnId> {
    let pairs = here.iter().zip(there).enumerate();
    pairs.filter(|(_, (a, b))| !same_value(a, b)).map(|(column, _)| column).collect()
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
