//! The rows of one table inside a packed instance: a section.
//!
//! Section: head byte (row count, flags), NULL bitmap if any, integer groups as one bit string,
//! text columns. A child's root key columns are implied by the root row and stored only when they
//! are written differently there (numeric `1.0` and `1.00` are one key).

mod column;
mod patch;
mod view;

pub(crate) use patch::Patch;
pub(crate) use view::View;

use super::bits::BitWriter;
use cachetier_model::{ColumnId, Row, TableSchema, Value};
use column::{Group, TextColumn};
use std::borrow::Borrow;
use view::{Place, Run};

const FLAG_NULLS: u8 = 1;
const FLAG_EXPLICIT_KEY: u8 = 2;
const COUNT_SHIFT: u32 = 2;
/// Row counts below this stand in the head byte; this value says that a varint follows.
const COUNT_LONG: usize = 63;
/// Root columns that share one width code.
const ROOT_GROUP: usize = 5;

#[derive(Clone, Debug)]
pub(crate) struct TableLayout {
    columns: usize,
    nullable: Vec<ColumnId>,
    /// The table's own columns, then those of the implied key, for sections that store them.
    groups: Vec<Group>,
    groups_own: usize,
    texts: Vec<TextColumn>,
    texts_own: usize,
    /// (column here, column of the root) of the implied root key; empty for the root.
    implied: Vec<(ColumnId, ColumnId)>,
    /// Where each column stands.
    places: Vec<Place>,
    /// All columns in order, those of one group taken together.
    runs: Vec<Run>,
}

/// The value of a column is of another kind than its type, or an unknown enum label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Misfit {
    pub(super) column: ColumnId,
}

#[derive(Clone, Copy)]
struct Head {
    rows: usize,
    flags: u8,
}

impl TableLayout {
    pub(super) fn compile(table: &TableSchema, root: Option<&TableSchema>) -> Self {
        let implied: Vec<(ColumnId, ColumnId)> = match root {
            Some(root) => {
                table.root_key.iter().copied().zip(root.primary_key.iter().copied()).collect()
            }
            None => Vec::new(),
        };
        let is_key = |id: &ColumnId| implied.iter().any(|(here, _)| here == id);
        let (keys, own): (Vec<_>, Vec<_>) = (0..table.columns.len()).partition(is_key);
        let nullable: Vec<ColumnId> = own
            .iter()
            .copied()
            .filter(|id| table.columns.get(*id).is_some_and(|c| !c.not_null))
            .collect();
        let group_size = if root.is_none() { ROOT_GROUP } else { 1 };
        let mut groups = Group::compile(table, &own, group_size);
        let mut texts = TextColumn::compile(table, &own, &nullable);
        let (groups_own, texts_own) = (groups.len(), texts.len());
        groups.extend(Group::compile(table, &keys, 1));
        texts.extend(TextColumn::compile(table, &keys, &nullable));
        let places = Place::compile(table, &groups, &texts, &nullable, &implied);
        Self {
            columns: table.columns.len(),
            runs: Run::compile(&places, &groups),
            places,
            groups,
            groups_own,
            texts,
            texts_own,
            nullable,
            implied,
        }
    }

    fn groups(&self, explicit: bool) -> &[Group] {
        let count = if explicit { self.groups.len() } else { self.groups_own };
        self.groups.get(..count).unwrap_or_default()
    }

    fn texts(&self, explicit: bool) -> &[TextColumn] {
        let count = if explicit { self.texts.len() } else { self.texts_own };
        self.texts.get(..count).unwrap_or_default()
    }

    /// Appends the section of these rows; each must have a value per column. `root_key`: the values
    /// of the root's primary key, as the root row has them.
    pub(super) fn encode<R: Borrow<Row>>(
        &self,
        rows: &[R],
        root_key: &[Value],
        out: &mut Vec<u8>,
    ) -> Result<(), Misfit> {
        let null = |row: &Row, id: &ColumnId| row.get(*id).is_none_or(Value::is_null);
        let nulls = rows.iter().any(|row| self.nullable.iter().any(|id| null(row.borrow(), id)));
        let explicit = rows.iter().any(|row| {
            let cells = self.implied.iter().map(|(here, _)| row.borrow().get(*here));
            root_key.len() < self.implied.len() || cells.zip(root_key).any(|(c, k)| c != Some(k))
        });
        write_head(out, rows.len(), nulls, explicit);
        if rows.is_empty() {
            return Ok(());
        }
        let mut bits = BitWriter::new(out);
        if nulls {
            for row in rows {
                self.nullable.iter().for_each(|id| bits.push(u64::from(null(row.borrow(), id)), 1));
            }
        }
        for group in self.groups(explicit) {
            group.write(rows, &mut bits)?;
        }
        bits.finish();
        for column in self.texts(explicit) {
            column.write(rows, out)?;
        }
        Ok(())
    }
}

fn write_head(out: &mut Vec<u8>, rows: usize, nulls: bool, explicit: bool) {
    let flags = u8::from(nulls) * FLAG_NULLS + u8::from(explicit) * FLAG_EXPLICIT_KEY;
    out.push((rows.min(COUNT_LONG) as u8) << COUNT_SHIFT | flags);
    if rows >= COUNT_LONG {
        let mut rest = rows - COUNT_LONG;
        while rest >= 0x80 {
            out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    }
}

/// The head and its length in bytes.
#[inline]
fn read_head(section: &[u8]) -> (Head, usize) {
    let first = section.first().copied().unwrap_or(0);
    let mut head = Head { rows: usize::from(first >> COUNT_SHIFT), flags: first & 3 };
    let mut at = 1;
    if head.rows == COUNT_LONG {
        for shift in (0..28).step_by(7) {
            let byte = section.get(at).copied().unwrap_or(0);
            at += 1;
            head.rows += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        // so many rows differ in their keys, by a bit each at least: more of them are no rows
        head.rows = head.rows.min(section.len() * 8);
    }
    (head, at.min(section.len()))
}
