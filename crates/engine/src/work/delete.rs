//! Delete, with the actions of the foreign keys that point at what goes.

use super::change::{checked_cell, refers_to};
use super::{Work, foreign_key};
use crate::TransactError;
use crate::condition::Conditions;
use cachetier_model::schema::ReferentialAction;
use cachetier_model::{Condition, Row, TableId, Value};
use std::rc::Rc;

impl Work<'_> {
    pub(super) fn delete(
        &mut self,
        operation: usize,
        table: TableId,
        conditions: &[Condition],
    ) -> Result<u32, TransactError> {
        let conditions = Conditions::prepare(self.schema(table)?, conditions)?;
        let places: Vec<usize> = (0..self.rows(table).len())
            .filter(|place| self.rows(table).get(*place).is_some_and(|row| conditions.hold(row)))
            .collect();
        self.remove(operation, table, &places)?;
        Ok(places.len() as u32)
    }

    /// Removes rows and applies the foreign keys' actions below them. The recursion follows the
    /// tree of tables, so its depth is bounded by the schema's.
    fn remove(
        &mut self,
        operation: usize,
        table: TableId,
        places: &[usize],
    ) -> Result<(), TransactError> {
        if places.is_empty() {
            return Ok(());
        }
        let mut removed = Vec::with_capacity(places.len());
        if let Some(rows) = self.rows_mut(table) {
            for place in
                places.iter().rev().filter(|place| **place < rows.len()).collect::<Vec<_>>()
            {
                removed.push(rows.remove(*place));
            }
        }
        let children: Vec<TableId> = self.schema.children(table).collect();
        for child in children {
            let mut below = Vec::new();
            for parent in &removed {
                below.extend(self.children_of(child, parent));
            }
            below.sort_unstable();
            below.dedup();
            if !below.is_empty() {
                self.parent_gone(operation, child, &below)?;
            }
        }
        Ok(())
    }

    fn parent_gone(
        &mut self,
        operation: usize,
        child: TableId,
        places: &[usize],
    ) -> Result<(), TransactError> {
        let schema = self.schema(child)?;
        let Some(key) = &schema.parent_key else { return Ok(()) };
        match key.on_delete {
            ReferentialAction::Cascade => self.remove(operation, child, places),
            ReferentialAction::SetNull => {
                for id in &key.columns {
                    checked_cell(operation, schema, *id, &Value::Null)?;
                    let rows = self.rows_mut(child);
                    for (place, row) in rows.into_iter().flatten().enumerate() {
                        if places.contains(&place)
                            && let Some(cell) = Rc::make_mut(row).get_mut(*id)
                        {
                            *cell = Value::Null;
                        }
                    }
                }
                Ok(())
            }
            // what the default would be is the backend's secret
            ReferentialAction::NoAction
            | ReferentialAction::Restrict
            | ReferentialAction::SetDefault => Err(foreign_key(operation, schema)),
        }
    }

    /// Places of the child table's rows that name this parent row.
    pub(super) fn children_of(&mut self, child: TableId, parent: &Row) -> Vec<usize> {
        let Some(schema) = self.schema.tables.get(child) else { return Vec::new() };
        let rows = self.rows(child).iter().enumerate();
        rows.filter(|(_, row)| refers_to(schema, row, parent)).map(|(place, _)| place).collect()
    }
}
