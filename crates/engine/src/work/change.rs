//! Insert, update, upsert.

use super::{Work, by_primary_key, foreign_key};
use crate::condition::Conditions;
use crate::layout::Scratch;
use crate::{EngineError, TransactError};
use cachetier_model::key::canonical_bytes;
use cachetier_model::schema::ParentKey;
use cachetier_model::{ColumnId, Condition, RootKey, Row, TableId, TableSchema, Value};
use std::cmp::Ordering;
use std::rc::Rc;

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
                    rows.insert(place, Rc::new(row));
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
            let old = Rc::clone(old);
            let mut new = Row::clone(&old);
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
            *row = Rc::new(new);
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
        if belongs(schema, &checked, self.key) {
            Ok(checked)
        } else {
            Err(TransactError::WrongInstance { operation, table: schema.name.clone() })
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
        let exists = match (self.tables.get(parent), self.packed) {
            (Some(None), Some(_)) => self.packed_parent_exists(parent, key, row),
            _ => self.rows(parent).iter().any(|candidate| refers_to(schema, row, candidate)),
        };
        if exists { Ok(()) } else { Err(foreign_key(operation, schema)) }
    }

    /// The same for a parent table that nothing was unpacked of.
    fn packed_parent_exists(&mut self, parent: TableId, key: &ParentKey, row: &Row) -> bool {
        let (layout, Some(schema)) = (self.layout, self.schema.table(parent)) else {
            return false;
        };
        let Some(sections) = self.sections() else { return false };
        let (own, above);
        let view = if parent == 0 {
            above = None;
            sections.root()
        } else {
            above = sections.root();
            own = layout.view(parent, sections.get(parent));
            own.as_ref()
        };
        let Some(view) = view else { return false };
        let mut scratch = Scratch::new();
        (0..view.rows()).any(|number| {
            key.columns.iter().zip(&key.parent_columns).all(|(here, there)| {
                let (Some(value), Some(column)) = (row.get(*here), schema.column(*there)) else {
                    return false;
                };
                let parent = view.value(above, number, *there, &mut scratch);
                let order = column.column_type.compare_refs(value.as_value_ref(), parent);
                order == Some(Ordering::Equal)
            })
        })
    }
}

/// Whether the row's root key columns are this key.
fn belongs(schema: &TableSchema, row: &Row, key: &RootKey) -> bool {
    let mut rest = Some(&key.as_bytes()[..]);
    for id in &schema.root_key {
        let (Some(value), Some(column)) = (row.get(*id), schema.columns.get(*id)) else {
            return false;
        };
        let value = column.column_type.canonical_ref(value.as_value_ref());
        let whole = canonical_bytes(value, &mut |piece| {
            rest = rest.and_then(|rest| rest.strip_prefix(piece));
        });
        if whole.is_none() {
            return false;
        }
    }
    rest.is_some_and(<[u8]>::is_empty)
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
