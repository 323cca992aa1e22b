//! Tables in memory that refuse what the database would refuse.
//!
//! Unique keys are checked row by row while a statement runs, foreign keys at its end, as the
//! database does with constraints that are not deferrable.

use crate::error::{BackendError, Reason};
use crate::plan::Statement;
use bytes::Bytes;
use cachetier_model::{
    ChangeKind, ColumnId, GroupSchema, RootKey, Row, TableId, TableSchema, Value,
};
use std::collections::BTreeMap;

/// Rows per table, by canonical primary key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Store {
    pub tables: Vec<BTreeMap<Bytes, Row>>,
}

impl Store {
    pub fn of(schema: &GroupSchema) -> Self {
        Self { tables: vec![BTreeMap::new(); schema.tables.len()] }
    }

    /// Runs one statement; answers the rows affected, or an error after which the caller throws
    /// this copy away.
    pub fn run(
        &mut self,
        schema: &GroupSchema,
        statement: &Statement<'_>,
    ) -> Result<u64, BackendError> {
        let table = schema.table(statement.table).ok_or_else(|| refused("42P01", "", ""))?;
        let mut affected = 0;
        for row in &statement.rows {
            let key = key_of(table, row)?;
            let rows =
                self.tables.get_mut(statement.table).ok_or_else(|| refused("42P01", "", ""))?;
            match statement.kind {
                ChangeKind::Insert => {
                    if rows.contains_key(&key) {
                        let constraint = &table.primary_key_constraint;
                        return Err(refused("23505", &table.name, constraint));
                    }
                    self.check_unique(statement.table, table, &key, row)?;
                    self.put(statement.table, key, (*row).clone());
                    affected += 1;
                }
                ChangeKind::Update => {
                    let Some(old) = rows.get(&key) else { continue };
                    let mut new = old.clone();
                    for column in &statement.set {
                        if let (Some(to), Some(from)) = (new.get_mut(*column), row.get(*column)) {
                            *to = from.clone();
                        }
                    }
                    self.check_unique(statement.table, table, &key, &new)?;
                    self.put(statement.table, key, new);
                    affected += 1;
                }
                ChangeKind::Delete => affected += u64::from(rows.remove(&key).is_some()),
            }
        }
        self.check_references(schema)?;
        Ok(affected)
    }

    fn put(&mut self, table: TableId, key: Bytes, row: Row) {
        if let Some(rows) = self.tables.get_mut(table) {
            rows.insert(key, row);
        }
    }

    fn check_unique(
        &self,
        id: TableId,
        table: &TableSchema,
        key: &Bytes,
        row: &Row,
    ) -> Result<(), BackendError> {
        for unique in &table.unique_keys {
            let Some(values) = values(table, &unique.columns, row) else { continue };
            let taken = self.tables.get(id).into_iter().flatten().any(|(other, taken)| {
                other != key
                    && self::values(table, &unique.columns, taken).as_ref() == Some(&values)
            });
            if taken {
                return Err(refused("23505", &table.name, &unique.constraint));
            }
        }
        Ok(())
    }

    fn check_references(&self, schema: &GroupSchema) -> Result<(), BackendError> {
        for (table, rows) in schema.tables.iter().zip(&self.tables) {
            let (Some(parent), Some(key)) = (table.parent, &table.parent_key) else { continue };
            let above = schema.table(parent).zip(self.tables.get(parent));
            let Some((above, parents)) = above else { continue };
            for row in rows.values() {
                let Some(wanted) = values(table, &key.columns, row) else { continue };
                let found = parents
                    .values()
                    .any(|p| values(above, &key.parent_columns, p).as_ref() == Some(&wanted));
                if !found {
                    return Err(refused("23503", &table.name, &key.constraint));
                }
            }
        }
        Ok(())
    }
}

/// Canonical values, or `None` when one is NULL.
fn values(table: &TableSchema, columns: &[ColumnId], row: &Row) -> Option<Vec<Value>> {
    table.canonical(columns, row).ok().filter(|v| v.iter().all(|v| !v.is_null()))
}

pub(crate) fn key_of(table: &TableSchema, row: &Row) -> Result<Bytes, BackendError> {
    let bad = |_| refused("23502", &table.name, "");
    let values = table.key_of(row).map_err(bad)?;
    Ok(RootKey::encode(&values).map_err(bad)?.as_bytes().clone())
}

pub(super) fn refused(sqlstate: &str, table: &str, constraint: &str) -> BackendError {
    BackendError {
        sqlstate: Some(sqlstate.into()),
        table: Some(table.into()),
        constraint: Some(constraint.into()),
        ..BackendError::new("flush", Reason::ConstraintViolated, "a constraint is violated")
    }
}
