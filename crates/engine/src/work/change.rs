//! Insert, update, upsert.

use super::{Work, by_primary_key, foreign_key};
use crate::condition::Conditions;
use crate::{EngineError, TransactError};
use cachetier_model::{ColumnId, Condition, Row, TableId, TableSchema, Value};
use std::cmp::Ordering;

impl Work<'_> {
    pub(super) fn insert(
        &mut self,
        operation: usize,
        table: TableId,
        row: &Row,
    ) -> Result<u32, TransactError> {
        let schema = self.schema(table)?;
        let row = self.checked_row(operation, table, row)?;
        match self.place_of(table, schema, &row) {
            Ok(_) => Err(TransactError::PrimaryKey {
                operation,
                table: schema.name.clone(),
                constraint: schema.primary_key_constraint.clone(),
            }),
            Err(place) => {
                self.parent_exists(operation, schema, &row)?;
                if let Some(rows) = self.rows_mut(table) {
                    rows.insert(place, row);
                }
                Ok(1)
            }
        }
    }

    pub(super) fn upsert(
        &mut self,
        operation: usize,
        table: TableId,
        row: &Row,
    ) -> Result<u32, TransactError> {
        let schema = self.schema(table)?;
        let mut new = self.checked_row(operation, table, row)?;
        let Ok(place) = self.place_of(table, schema, &new) else {
            return self.insert(operation, table, row);
        };
        let Some(old) = self.rows(table).get(place).cloned() else { return Ok(0) };
        // key columns keep the form in which they are stored
        for id in schema.primary_key.iter().chain(&schema.root_key) {
            if let (Some(new), Some(old)) = (new.get_mut(*id), old.get(*id)) {
                new.clone_from(old);
            }
        }
        self.replace(operation, table, place, &old, new)?;
        Ok(1)
    }

    pub(super) fn update(
        &mut self,
        operation: usize,
        table: TableId,
        conditions: &[Condition],
        set: &[(ColumnId, Value)],
    ) -> Result<u32, TransactError> {
        let schema = self.schema(table)?;
        let conditions = Conditions::prepare(schema, conditions)?;
        let mut found = 0;
        for place in 0..self.rows(table).len() {
            let Some(old) = self.rows(table).get(place) else { break };
            if !conditions.hold(old) {
                continue;
            }
            found += 1;
            let old = old.clone();
            let mut new = old.clone();
            for (id, value) in set {
                let value = checked_cell(operation, schema, *id, value)?;
                let Some((cell, column)) = new.get_mut(*id).zip(schema.columns.get(*id)) else {
                    continue;
                };
                if schema.primary_key.contains(id) || schema.root_key.contains(id) {
                    if column.column_type.compare(cell, &value) != Some(Ordering::Equal) {
                        return Err(TransactError::KeyChange {
                            operation,
                            table: schema.name.clone(),
                            column: column.name.clone(),
                        });
                    }
                    continue;
                }
                *cell = value;
            }
            self.replace(operation, table, place, &old, new)?;
        }
        Ok(found)
    }

    /// Puts `new` (checked, of the same key) in place of `old`.
    fn replace(
        &mut self,
        operation: usize,
        table: TableId,
        place: usize,
        old: &Row,
        new: Row,
    ) -> Result<(), TransactError> {
        let schema = self.schema(table)?;
        if let Some(key) = &schema.parent_key
            && key.columns.iter().any(|id| old.get(*id) != new.get(*id))
        {
            self.parent_exists(operation, schema, &new)?;
        }
        let children: Vec<TableId> = self.schema.children(table).collect();
        for child in children {
            let child_schema = self.schema(child)?;
            let Some(key) = &child_schema.parent_key else { continue };
            let moved = key.parent_columns.iter().any(|id| {
                let column = schema.columns.get(*id);
                let cells = old.get(*id).zip(new.get(*id)).zip(column);
                cells.is_some_and(|((a, b), c)| {
                    a != b && c.column_type.compare(a, b) != Some(Ordering::Equal)
                })
            });
            if moved && !self.children_of(child, old).is_empty() {
                return Err(foreign_key(operation, child_schema));
            }
        }
        if let Some(row) = self.rows_mut(table).and_then(|rows| rows.get_mut(place)) {
            *row = new;
        }
        Ok(())
    }

    /// Where a row of this key is, or would go.
    fn place_of(
        &mut self,
        table: TableId,
        schema: &TableSchema,
        row: &Row,
    ) -> Result<usize, usize> {
        self.rows(table).binary_search_by(|other| by_primary_key(schema, other, row))
    }

    /// The row as it is stored, if every value is acceptable and it belongs to this instance.
    fn checked_row(
        &mut self,
        operation: usize,
        table: TableId,
        row: &Row,
    ) -> Result<Row, TransactError> {
        let schema = self.schema(table)?;
        if row.len() != schema.columns.len() {
            return Err(EngineError::Unknown(format!(
                "{} values for a row of table {}, which has {} columns",
                row.len(),
                schema.name,
                schema.columns.len()
            ))
            .into());
        }
        let checked = row
            .iter()
            .enumerate()
            .map(|(id, value)| checked_cell(operation, schema, id, value))
            .collect::<Result<Row, _>>()?;
        match self.schema.root_key_of_row(table, &checked) {
            Ok(key) if key == *self.key => Ok(checked),
            _ => Err(TransactError::WrongInstance { operation, table: schema.name.clone() }),
        }
    }

    fn parent_exists(
        &mut self,
        operation: usize,
        schema: &TableSchema,
        row: &Row,
    ) -> Result<(), TransactError> {
        let (Some(parent), Some(key)) = (schema.parent, &schema.parent_key) else { return Ok(()) };
        if key.columns.iter().any(|id| row.get(*id).is_none_or(Value::is_null)) {
            return Ok(());
        }
        let references = |candidate: &Row| refers_to(schema, row, candidate);
        if self.rows(parent).iter().any(references) {
            Ok(())
        } else {
            Err(foreign_key(operation, schema))
        }
    }
}

/// Whether the child row's foreign key names the parent row.
pub(super) fn refers_to(child: &TableSchema, row: &Row, parent: &Row) -> bool {
    let Some(key) = &child.parent_key else { return false };
    key.columns.iter().zip(&key.parent_columns).all(|(here, there)| {
        let cells = row.get(*here).zip(parent.get(*there)).zip(child.columns.get(*here));
        cells.is_some_and(|((a, b), column)| {
            column.column_type.compare(a, b) == Some(Ordering::Equal)
        })
    })
}

/// The value as the column stores it.
pub(super) fn checked_cell(
    operation: usize,
    schema: &TableSchema,
    id: ColumnId,
    value: &Value,
) -> Result<Value, TransactError> {
    let column = schema
        .columns
        .get(id)
        .ok_or_else(|| EngineError::Unknown(format!("column {id} of table {}", schema.name)))?;
    if value.is_null() && column.not_null {
        return Err(TransactError::NotNull {
            operation,
            table: schema.name.clone(),
            column: column.name.clone(),
        });
    }
    column.column_type.check(value).map_err(|source| TransactError::Value {
        operation,
        table: schema.name.clone(),
        column: column.name.clone(),
        source,
    })
}
