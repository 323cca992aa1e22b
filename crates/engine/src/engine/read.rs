//! Reads of one instance, and lookups.

use super::Engine;
use crate::condition::Conditions;
use crate::layout::{Scratch, View, hash_key};
use crate::{CollectRows, EngineError, ReadAnswer, ReadStatus, Resolved, RowSink};
use cachetier_model::TableId;
use cachetier_model::{ColumnId, LookupId, LookupKey, ReadPlan, RootKey, SlotId, TableRead};
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
        let mut rows = CollectRows::default();
        Ok(match self.read_into(key, None, plan, &mut rows)? {
            ReadStatus::Found { as_of } => ReadAnswer::Found { tables: rows.tables, as_of },
            ReadStatus::Absent { as_of } => ReadAnswer::Absent { as_of },
            ReadStatus::Quarantined => ReadAnswer::Quarantined,
            ReadStatus::NotLoaded | ReadStatus::OtherKey { .. } => ReadAnswer::NotLoaded,
        })
    }

    /// [`Engine::read`] whose rows go to the sink as they are unpacked, nothing in between. With
    /// `found_by`, the instance must (still) have that lookup key.
    pub fn read_into<S: RowSink + ?Sized>(
        &self,
        key: &RootKey,
        found_by: Option<(LookupId, &LookupKey)>,
        plan: &ReadPlan,
        sink: &mut S,
    ) -> Result<ReadStatus, EngineError> {
        let mut wanted = SmallVec::<[Wanted<'_>; 2]>::new();
        for table in &plan.tables {
            wanted.push(self.wanted(table)?);
        }
        let target = self.target(key);
        let slot = self.slot_of(target.hash).read();
        let state = slot.state(key);
        if state.is_some_and(|s| s.quarantined) {
            return Ok(ReadStatus::Quarantined);
        }
        let as_of = state.map_or(0, |s| s.dirty);
        let found = if self.evicts() { slot.record_read(target) } else { slot.record(target) };
        let Some(packed) = found else {
            return Ok(match state {
                Some(s) if s.absent => ReadStatus::Absent { as_of },
                _ => ReadStatus::NotLoaded,
            });
        };
        if let Some((lookup, key)) = found_by {
            let shape = self.lookup_shapes.get(lookup);
            if !shape.is_some_and(|s| s.matches(&self.layout, packed, key.as_bytes())) {
                return Ok(ReadStatus::OtherKey { as_of });
            }
        }
        if wanted.is_empty() {
            self.all_rows(packed, sink);
        } else {
            self.wanted_rows(packed, &wanted, sink);
        }
        Ok(ReadStatus::Found { as_of })
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

    fn all_rows<S: RowSink + ?Sized>(&self, packed: &[u8], sink: &mut S) {
        let Some(root) = self.layout.root(packed) else { return };
        let everything = Conditions::none();
        give(&root, None, 0, &[], &everything, sink);
        let mut rest = packed.get(root.length()..).unwrap_or_default();
        for table in 1..self.layout.table_count() {
            let Some(view) = self.layout.view(table, rest) else { return };
            give(&view, Some(&root), table, &[], &everything, sink);
            rest = rest.get(view.length()..).unwrap_or_default();
        }
    }

    fn wanted_rows<S: RowSink + ?Sized>(&self, packed: &[u8], wanted: &[Wanted<'_>], sink: &mut S) {
        let Some(root) = self.layout.root(packed) else { return };
        // sections follow each other without lengths: each is found by walking the ones before
        let (mut at_table, mut at) = (1, root.length());
        for wanted in wanted {
            let Wanted { table, columns, conditions } = wanted;
            if *table == 0 {
                give(&root, None, 0, columns, conditions, sink);
                continue;
            }
            if *table < at_table {
                (at_table, at) = (1, root.length());
            }
            while at_table < *table {
                let rest = packed.get(at..).unwrap_or_default();
                at += self.layout.skip(at_table, rest);
                at_table += 1;
            }
            let rest = packed.get(at..).unwrap_or_default();
            if let Some(view) = self.layout.view(*table, rest) {
                give(&view, Some(&root), *table, columns, conditions, sink);
            }
        }
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

/// Gives the rows of one table that satisfy the conditions, each with the columns asked for (none:
/// with all).
fn give<S: RowSink + ?Sized>(
    view: &View<'_>,
    root: Option<&View<'_>>,
    table: TableId,
    columns: &[ColumnId],
    conditions: &Conditions<'_>,
    sink: &mut S,
) {
    let mut scratch = Scratch::new();
    sink.table(table);
    for row in 0..view.rows() {
        if !conditions.hold_packed(view, root, row, &mut scratch) {
            continue;
        }
        if columns.is_empty() {
            sink.row(view.columns());
            view.each_value(root, row, &mut scratch, |value| sink.value(value));
        } else {
            sink.row(columns.len());
            for column in columns {
                sink.value(view.value(root, row, *column, &mut scratch));
            }
        }
        sink.row_end();
    }
    sink.table_end();
}
