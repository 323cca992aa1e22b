//! Reads of one instance, and lookups.

use super::Engine;
use crate::condition::Conditions;
use crate::layout::hash_key;
use crate::{EngineError, ReadAnswer, Resolved};
use cachetier_model::{ColumnId, LookupId, LookupKey, ReadPlan, RootKey, Row, SlotId, TableRead};
use cachetier_model::{TableId, Value};
use smallvec::SmallVec;

/// One table of a plan, checked.
struct Wanted<'a> {
    table: TableId,
    columns: &'a [ColumnId],
    conditions: Conditions<'a>,
}

impl Engine {
    /// Rows of one instance. Takes the slot's lock for reading.
    pub fn read(&self, key: &RootKey, plan: &ReadPlan) -> Result<ReadAnswer, EngineError> {
        let mut wanted = SmallVec::<[Wanted<'_>; 1]>::new();
        for table in &plan.tables {
            wanted.push(self.wanted(table)?);
        }
        let target = self.target(key);
        let slot = self.slot_of(target.hash).read();
        let state = slot.state(key);
        if state.is_some_and(|s| s.quarantined) {
            return Ok(ReadAnswer::Quarantined);
        }
        let as_of = state.map_or(0, |s| s.dirty);
        Ok(match slot.record(target) {
            Some(packed) if plan.tables.is_empty() => {
                ReadAnswer::Found { tables: self.layout.decode(packed).tables, as_of }
            }
            Some(packed) => ReadAnswer::Found { tables: self.select(packed, &wanted), as_of },
            None if state.is_some_and(|s| s.absent) => ReadAnswer::Absent { as_of },
            None => ReadAnswer::NotLoaded,
        })
    }

    fn wanted<'a>(&'a self, read: &'a TableRead) -> Result<Wanted<'a>, EngineError> {
        let schema = self
            .schema
            .tables
            .get(read.table)
            .ok_or_else(|| EngineError::Unknown(format!("table number {}", read.table)))?;
        if let Some(id) = read.columns.iter().find(|id| **id >= schema.columns.len()) {
            return Err(EngineError::Unknown(format!("column {id} of table {}", schema.name)));
        }
        let conditions = Conditions::prepare(schema, &read.conditions)?;
        Ok(Wanted { table: read.table, columns: &read.columns, conditions })
    }

    fn select(&self, packed: &[u8], wanted: &[Wanted<'_>]) -> Vec<Vec<Row>> {
        let last = wanted.iter().map(|w| w.table).max().unwrap_or(0);
        let keys = if last > 0 { self.layout.root_keys(packed) } else { Vec::new() };
        let sections = self.layout.sections(packed, last);
        let table = |wanted: &Wanted<'_>| {
            let section = sections.get(wanted.table);
            let mut rows = self.layout.decode_table(wanted.table, section, Some(&keys));
            if !wanted.conditions.is_empty() {
                rows.retain(|row| wanted.conditions.hold(row));
            }
            if !wanted.columns.is_empty() {
                rows.iter_mut().for_each(|row| *row = project(row, wanted.columns));
            }
            rows
        };
        wanted.iter().map(table).collect()
    }

    /// The loaded instance with this lookup key. A miss says nothing about the backend. Changes
    /// that wait for the backend (R16) are not seen.
    pub fn resolve(&self, lookup: LookupId, key: &LookupKey) -> Resolved {
        let Some((index, shape)) = self.lookups.get(lookup).zip(self.lookup_shapes.get(lookup))
        else {
            return Resolved::default();
        };
        for short in index.candidates(hash_key(key.as_bytes())) {
            let Some(slot) = self.slots.get((short >> 20) as usize) else { continue };
            let slot = slot.read();
            let accept = |packed: &[u8]| shape.matches(&self.layout, packed, key.as_bytes());
            let Some(packed) = slot.candidate(short, accept) else { continue };
            let Some(root) = self.root_shape.root_key(&self.layout, packed) else { continue };
            let as_of = slot.state(&root).map_or(0, |s| s.dirty);
            return Resolved { root: Some(root), as_of };
        }
        Resolved::default()
    }

    /// Instances of the slot with a change the backend does not have yet.
    pub fn slot_dirty(&self, slot: SlotId) -> usize {
        self.slot(slot).read().states.values().filter(|s| s.is_unflushed()).count()
    }
}

fn project(row: &mut Row, columns: &[ColumnId]) -> Row {
    let mut projected = Row::with_capacity(columns.len());
    for (at, id) in columns.iter().enumerate() {
        let repeated = columns.iter().skip(at + 1).any(|later| later == id);
        let cell = row.get_mut(*id);
        projected.push(match cell {
            Some(cell) if repeated => cell.clone(),
            Some(cell) => std::mem::replace(cell, Value::Null),
            None => Value::Null,
        });
    }
    projected
}
