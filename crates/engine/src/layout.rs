//! The packed form of a whole instance, compiled from the schema.
//!
//! One section per table, root first, back to back; no pointers, no child index, no lengths: a
//! section's end follows from its head, its width codes and its text headers. The bytes live in
//! memory only (journals carry `cachetier_model::codec`), so the form may change freely.

mod ascii;
mod bits;
mod integer;
mod key;
mod table;
mod text;

pub(crate) use key::{KeyShape, hash_key};
pub(crate) use table::{Patch, View};
pub(crate) use text::Scratch;

use crate::EngineError;
use cachetier_model::{ColumnId, GroupSchema, Instance, Row, TableId, Value, ValueError, ValueRef};
use smallvec::SmallVec;
use std::borrow::Borrow;
use table::{Misfit, TableLayout};

#[derive(Clone, Debug)]
pub(crate) struct Layout {
    tables: Vec<TableLayout>,
    /// Primary key of the root table.
    root_key: Vec<ColumnId>,
}

/// Values of the root's primary key as its row has them, which is what children imply.
pub(crate) type RootKeyValues = SmallVec<[Value; 2]>;

/// A value that does not fit the type of its column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CellMisfit {
    pub(crate) table: TableId,
    pub(crate) column: ColumnId,
}

impl CellMisfit {
    /// Names the column; what passed its type's check always fits.
    pub(crate) fn error(self, schema: &GroupSchema) -> EngineError {
        let table = schema.tables.get(self.table);
        let column = table.and_then(|t| t.columns.get(self.column));
        EngineError::Value {
            table: table.map_or_else(String::new, |t| t.name.clone()),
            column: column.map_or_else(String::new, |c| c.name.clone()),
            source: ValueError::Kind {
                sql_type: column.map_or_else(String::new, |c| c.column_type.sql_name()),
            },
        }
    }
}

/// Where the sections of one packed instance end, and its root row.
pub(crate) struct Sections<'a> {
    packed: &'a [u8],
    root: Option<View<'a>>,
    ends: SmallVec<[u32; 8]>,
}

impl<'a> Sections<'a> {
    pub(crate) fn root(&self) -> Option<&View<'a>> {
        self.root.as_ref()
    }

    pub(crate) fn start(&self, table: TableId) -> usize {
        match table.checked_sub(1) {
            None => 0,
            Some(before) => self.ends.get(before).map_or(self.packed.len(), |e| *e as usize),
        }
    }

    pub(crate) fn get(&self, table: TableId) -> &'a [u8] {
        let end = self.ends.get(table).map_or(self.packed.len(), |e| *e as usize);
        self.packed.get(self.start(table)..end).unwrap_or_default()
    }
}

impl Layout {
    pub(crate) fn compile(schema: &GroupSchema) -> Self {
        let root = schema.root();
        let tables = schema.tables.iter().enumerate();
        Self {
            tables: tables
                .map(|(id, t)| TableLayout::compile(t, if id == 0 { None } else { root }))
                .collect(),
            root_key: root.map_or_else(Vec::new, |root| root.primary_key.clone()),
        }
    }

    /// Appends a whole existing instance.
    pub(crate) fn encode(&self, instance: &Instance, out: &mut Vec<u8>) -> Result<(), CellMisfit> {
        let root = instance.tables.first().and_then(|rows| rows.first());
        let root_key = root.map_or_else(RootKeyValues::new, |row| self.root_key_of(row));
        for table in 0..self.tables.len() {
            let rows = instance.tables.get(table).map_or(&[][..], Vec::as_slice);
            self.encode_table(table, rows, &root_key, out)?;
        }
        Ok(())
    }

    pub(crate) fn root_key_of(&self, root: &Row) -> RootKeyValues {
        self.root_key.iter().map(|id| root.get(*id).cloned().unwrap_or(Value::Null)).collect()
    }

    pub(crate) fn root_key_of_packed(&self, packed: &[u8]) -> RootKeyValues {
        let mut scratch = Scratch::new();
        let mut value = |id: &ColumnId| self.root_value(packed, *id, &mut scratch).to_value();
        self.root_key.iter().map(&mut value).collect()
    }

    pub(crate) fn encode_table<R: Borrow<Row>>(
        &self,
        table: TableId,
        rows: &[R],
        root_key: &[Value],
        out: &mut Vec<u8>,
    ) -> Result<(), CellMisfit> {
        let Some(layout) = self.tables.get(table) else { return Ok(()) };
        layout.encode(rows, root_key, out).map_err(|Misfit { column }| CellMisfit { table, column })
    }

    pub(crate) fn sections<'a>(&'a self, packed: &'a [u8]) -> Sections<'a> {
        let root = self.root(packed);
        let mut at = root.as_ref().map_or(0, View::length);
        let mut ends = SmallVec::new();
        ends.push(at as u32);
        for layout in self.tables.iter().skip(1) {
            at += layout.skip(packed.get(at..).unwrap_or_default());
            ends.push(at as u32);
        }
        Sections { packed, root, ends }
    }

    pub(crate) fn table_count(&self) -> usize {
        self.tables.len()
    }

    /// The section of a table, which `bytes` begins with. Without rows for an unknown table.
    #[inline]
    pub(crate) fn view<'a>(&'a self, table: TableId, bytes: &'a [u8]) -> Option<View<'a>> {
        let layout = self.tables.get(table)?;
        Some(layout.view(bytes))
    }

    /// Bytes of the table's section that `bytes` begins with.
    pub(crate) fn skip(&self, table: TableId, bytes: &[u8]) -> usize {
        self.tables.get(table).map_or(0, |layout| layout.skip(bytes))
    }

    /// The root row's section, which every packed instance begins with.
    #[inline]
    pub(crate) fn root<'a>(&'a self, packed: &'a [u8]) -> Option<View<'a>> {
        self.view(0, packed)
    }

    /// One plain integer of the root row.
    #[inline]
    pub(crate) fn root_integer(&self, packed: &[u8], column: ColumnId) -> Option<i64> {
        self.tables.first()?.root_integer(packed, column).flatten()
    }

    /// One value of the root row.
    pub(crate) fn root_value<'s>(
        &'s self,
        packed: &'s [u8],
        column: ColumnId,
        scratch: &'s mut Scratch,
    ) -> ValueRef<'s> {
        self.tables.first().map_or(ValueRef::Null, |t| t.root_value(packed, column, scratch))
    }

    pub(crate) fn decode_table(&self, table: TableId, sections: &Sections<'_>) -> Vec<Row> {
        let mut scratch = Scratch::new();
        let mut rows = |view: &View<'_>, root| {
            (0..view.rows()).map(|row| view.to_row(root, row, &mut scratch)).collect()
        };
        let root = sections.root();
        if table == 0 {
            return root.map_or_else(Vec::new, |root| rows(root, None));
        }
        let view = self.view(table, sections.get(table));
        view.map_or_else(Vec::new, |view| rows(&view, root))
    }

    /// The whole instance.
    pub(crate) fn decode(&self, packed: &[u8]) -> Instance {
        let mut scratch = Scratch::new();
        let mut tables = Vec::with_capacity(self.tables.len());
        let Some(root) = self.root(packed) else { return Instance::default() };
        let mut rest = packed;
        for table in 0..self.tables.len() {
            let Some(view) = self.view(table, rest) else { break };
            let root = (table > 0).then_some(&root);
            let rows = (0..view.rows()).map(|row| view.to_row(root, row, &mut scratch));
            tables.push(rows.collect());
            rest = rest.get(view.length()..).unwrap_or_default();
        }
        Instance { tables }
    }
}

#[cfg(test)]
mod tests;
