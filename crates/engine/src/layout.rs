//! The packed form of a whole instance, compiled from the schema.
//!
//! One section per table, root first, back to back; no pointers, no child index, no lengths: a
//! section's end follows from its head, its width codes and its text headers. The bytes live in
//! memory only (journals carry `cachetier_model::codec`), so the form may change freely.

mod bits;
mod integer;
mod key;
mod table;
mod text;

pub(crate) use key::{KeyShape, hash_key};

use crate::EngineError;
use cachetier_model::{ColumnId, GroupSchema, Instance, Row, TableId, Value, ValueError};
use smallvec::SmallVec;
use table::{Misfit, TableLayout};

#[derive(Clone, Debug)]
pub(crate) struct Layout {
    tables: Vec<TableLayout>,
    root_key: Vec<ColumnId>,
}

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

/// The sections of one packed instance.
pub(crate) struct Sections<'a> {
    packed: &'a [u8],
    /// Start of each section after the first, then the end.
    ends: SmallVec<[u32; 8]>,
}

impl<'a> Sections<'a> {
    pub(crate) fn get(&self, table: TableId) -> &'a [u8] {
        let start = match table.checked_sub(1) {
            None => 0,
            Some(before) => self.ends.get(before).map_or(self.packed.len(), |e| *e as usize),
        };
        let end = self.ends.get(table).map_or(self.packed.len(), |e| *e as usize);
        self.packed.get(start..end).unwrap_or_default()
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
        for table in 0..self.tables.len() {
            let rows = instance.tables.get(table).map_or(&[][..], Vec::as_slice);
            self.encode_table(table, rows, root, out)?;
        }
        Ok(())
    }

    pub(crate) fn encode_table(
        &self,
        table: TableId,
        rows: &[Row],
        root: Option<&Row>,
        out: &mut Vec<u8>,
    ) -> Result<(), CellMisfit> {
        let Some(layout) = self.tables.get(table) else { return Ok(()) };
        let root = if table == 0 { None } else { root };
        layout.encode(rows, root, out).map_err(|Misfit { column }| CellMisfit { table, column })
    }

    /// Where the sections of tables `0..=last` begin; the last one is given with all that follows.
    pub(crate) fn sections<'a>(&self, packed: &'a [u8], last: TableId) -> Sections<'a> {
        self.measure(packed, last)
    }

    fn measure<'a>(&self, packed: &'a [u8], tables: usize) -> Sections<'a> {
        let mut ends = SmallVec::new();
        let mut at = 0;
        for layout in self.tables.iter().take(tables) {
            at += layout.section_length(packed.get(at..).unwrap_or_default());
            ends.push(at as u32);
        }
        Sections { packed, ends }
    }

    pub(crate) fn all_sections<'a>(&self, packed: &'a [u8]) -> Sections<'a> {
        self.measure(packed, self.tables.len())
    }

    pub(crate) fn table_count(&self) -> usize {
        self.tables.len()
    }

    pub(crate) fn row_count(&self, table: TableId, section: &[u8]) -> usize {
        self.tables.get(table).map_or(0, |layout| layout.row_count(section))
    }

    pub(crate) fn decode_table(
        &self,
        table: TableId,
        section: &[u8],
        root: Option<&Row>,
    ) -> Vec<Row> {
        self.tables.get(table).map_or_else(Vec::new, |layout| layout.decode(section, root))
    }

    /// The root row.
    pub(crate) fn decode_root(&self, packed: &[u8]) -> Row {
        self.decode_table(0, packed, None).pop().unwrap_or_default()
    }

    pub(crate) fn decode(&self, packed: &[u8]) -> Instance {
        let sections = self.all_sections(packed);
        let root = self.decode_root(packed);
        let mut tables = Vec::with_capacity(self.tables.len());
        for table in 1..self.tables.len() {
            tables.push(self.decode_table(table, sections.get(table), Some(&root)));
        }
        tables.insert(0, vec![root]);
        Instance { tables }
    }

    /// The root row cut off after its last key column, the other columns NULL: all that decoding
    /// a child table needs of it.
    pub(crate) fn root_keys(&self, packed: &[u8]) -> Row {
        let columns = self.root_key.iter().max().map_or(0, |last| last + 1);
        let mut row = vec![Value::Null; columns];
        for id in &self.root_key {
            if let Some(cell) = row.get_mut(*id) {
                *cell = self.root_cell(packed, *id);
            }
        }
        row
    }

    /// One cell of the root row.
    pub(crate) fn root_cell(&self, packed: &[u8], column: ColumnId) -> Value {
        self.tables.first().map_or(Value::Null, |layout| layout.cell(packed, column))
    }
}

#[cfg(test)]
mod tests;
