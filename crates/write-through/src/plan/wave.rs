//! The planner: transactions in, waves of statements out.

use super::net_effect::{Impossible, Net};
use super::order::Sensitive;
use super::{Statement, Wave};
use bytes::Bytes;
use cachetier_model::{ChangeKind, ColumnId, GroupSchema, RootKey, RowChange, TableId};
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("a change names table number {0}, which the schema does not have")]
    UnknownTable(TableId),
    #[error("a changed row of table {table} has no valid primary key")]
    BadKey { table: String },
    #[error("two changes of one row of table {table} cannot follow each other")]
    Inconsistent { table: String },
}

/// Plans one batch: `changes` of all its transactions in commit order.
pub fn plan<'a>(
    schema: &GroupSchema,
    changes: impl IntoIterator<Item = &'a RowChange>,
) -> Result<Vec<Wave<'a>>, PlanError> {
    let sensitive: Vec<Sensitive> =
        schema.tables.iter().map(|t| Sensitive::of(schema, t)).collect();
    let mut waves = Vec::new();
    let mut open = Open::default();
    for change in changes {
        let table = schema.table(change.table).ok_or(PlanError::UnknownTable(change.table))?;
        let rules = sensitive.get(change.table).ok_or(PlanError::UnknownTable(change.table))?;
        let key = identity(schema, change)?;
        let at = (change.table, key);
        let alone = rules.moves_parent(change);
        let deleted = open.rows.get(&at).filter(|n| n.kind == ChangeKind::Delete).map(|n| n.row);
        let returns_elsewhere =
            deleted.is_some_and(|before| rules.returns_elsewhere(before, change));
        let deleted = deleted.is_some();
        let moves = rules.moves_unique(change, deleted);
        let taken_by_other =
            moves && open.moved.get(&change.table).is_some_and(|other| *other != at.1);
        if (alone && !open.rows.is_empty()) || taken_by_other || returns_elsewhere {
            waves.push(std::mem::take(&mut open).close(schema));
        }
        if moves {
            open.moved.insert(change.table, at.1.clone());
        }
        let net = match open.rows.remove(&at) {
            None => Some(Net::of(change)),
            Some(net) => net
                .then(change, table)
                .map_err(|Impossible| PlanError::Inconsistent { table: table.name.clone() })?,
        };
        if let Some(net) = net {
            open.rows.insert(at, net);
        }
        if alone {
            waves.push(std::mem::take(&mut open).close(schema));
        }
    }
    waves.push(open.close(schema));
    waves.retain(|w| !w.statements.is_empty());
    Ok(waves)
}

/// Bytes that are equal exactly for the same row of the backend.
fn identity(schema: &GroupSchema, change: &RowChange) -> Result<Bytes, PlanError> {
    let table = schema.table(change.table).ok_or(PlanError::UnknownTable(change.table))?;
    let bad = || PlanError::BadKey { table: table.name.clone() };
    let values = table.key_of(&change.row).map_err(|_| bad())?;
    Ok(RootKey::encode(&values).map_err(|_| bad())?.as_bytes().clone())
}

/// A wave being filled.
#[derive(Default)]
struct Open<'a> {
    rows: BTreeMap<(TableId, Bytes), Net<'a>>,
    /// Per table, the one row that moved a unique value in this wave.
    moved: BTreeMap<TableId, Bytes>,
}

impl<'a> Open<'a> {
    fn close(self, schema: &GroupSchema) -> Wave<'a> {
        let mut deletes: BTreeMap<TableId, Statement<'a>> = BTreeMap::new();
        let mut updates: BTreeMap<(TableId, Vec<ColumnId>), Statement<'a>> = BTreeMap::new();
        let mut inserts: BTreeMap<TableId, Statement<'a>> = BTreeMap::new();
        for ((table, _), Net { kind, row, set }) in self.rows {
            let statement = |set| Statement { table, kind, set, rows: Vec::new() };
            let target = match kind {
                ChangeKind::Delete => deletes.entry(table).or_insert_with(|| statement(set)),
                ChangeKind::Insert => inserts.entry(table).or_insert_with(|| statement(set)),
                ChangeKind::Update if set.is_empty() => continue,
                ChangeKind::Update => {
                    updates.entry((table, set.clone())).or_insert_with(|| statement(set))
                }
            };
            target.rows.push(row);
        }
        let mut statements: Vec<Statement<'a>> = deletes.into_values().rev().collect();
        for table in 0..schema.tables.len() {
            let of_table = updates.keys().filter(|(t, _)| *t == table).cloned();
            let sets: Vec<_> = of_table.collect();
            statements.extend(sets.iter().filter_map(|set| updates.remove(set)));
            statements.extend(inserts.remove(&table));
        }
        Wave { statements }
    }
}
