//! The net change per row: what the journal and the backend are told.

use super::in_place::identical;
use super::{Work, WorkTable, by_primary_key};
use cachetier_model::{ChangeKind, ColumnId, Row, RowChange, TableId, TableSchema};
use std::cmp::Ordering;
use std::rc::Rc;

impl Work<'_> {
    /// Deletes children first, then inserts and updates parents first.
    pub(super) fn changes(&self) -> Vec<RowChange> {
        let mut deletes = Vec::new();
        let mut others = Vec::new();
        for (id, (table, schema)) in self.tables.iter().zip(&self.schema.tables).enumerate() {
            if let Some(WorkTable { rows, before: Some(before) }) = table {
                compare(id, schema, before, rows, &mut deletes, &mut others);
            }
        }
        deletes.reverse();
        deletes.append(&mut others);
        deletes
    }
}

/// Merges two lists of rows in key order.
fn compare(
    id: TableId,
    schema: &TableSchema,
    before: &[Rc<Row>],
    after: &[Rc<Row>],
    deletes: &mut Vec<RowChange>,
    others: &mut Vec<RowChange>,
) {
    let change =
        |kind, row: &Row, changed| RowChange { table: id, kind, row: row.clone(), changed };
    let (mut before, mut after) = (before.iter().peekable(), after.iter().peekable());
    loop {
        let order = match (before.peek(), after.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) if Rc::ptr_eq(old, new) => Ordering::Equal,
            (Some(old), Some(new)) => by_primary_key(schema, old, new),
        };
        let old = if order.is_le() { before.next() } else { None };
        let new = if order.is_ge() { after.next() } else { None };
        match (old, new) {
            (Some(old), None) => deletes.push(change(ChangeKind::Delete, old, Vec::new())),
            (None, Some(new)) => others.push(change(ChangeKind::Insert, new, Vec::new())),
            (Some(old), Some(new)) if Rc::ptr_eq(old, new) => {}
            (Some(old), Some(new)) => {
                let changed = changed_columns(old, new);
                let key =
                    |c: &ColumnId| schema.primary_key.contains(c) || schema.root_key.contains(c);
                if changed.iter().any(key) {
                    // the same key written differently (numeric 1.0, 1.00): two changes
                    deletes.push(change(ChangeKind::Delete, old, Vec::new()));
                    others.push(change(ChangeKind::Insert, new, Vec::new()));
                } else if !changed.is_empty() {
                    others.push(change(ChangeKind::Update, new, changed));
                }
            }
            (None, None) => return,
        }
    }
}

fn changed_columns(old: &Row, new: &Row) -> Vec<ColumnId> {
    let cells = old.iter().zip(new).enumerate();
    let changed = cells.filter(|(_, (a, b))| !identical(a.as_value_ref(), b.as_value_ref()));
    changed.map(|(id, _)| id).collect()
}
