//! The rows of one table inside a packed instance: a section.
//!
//! Section: head byte (row count, flags), NULL bitmap if any, integer groups as one bit string,
//! text columns. A child's root key columns are implied by the root row and stored only when they
//! are written differently there (numeric `1.0` and `1.00` are one key).

mod column;

use super::bits::{BitReader, BitWriter};
use cachetier_model::{ColumnId, Row, TableSchema, Value};
use column::{Group, Nulls, TextColumn};

const FLAG_NULLS: u8 = 1;
const FLAG_EXPLICIT_KEY: u8 = 2;
const COUNT_SHIFT: u32 = 2;
/// Row counts below this stand in the head byte; this value says that a varint follows.
const COUNT_LONG: usize = 63;
/// Root columns that share one width code.
const ROOT_GROUP: usize = 5;

#[derive(Clone, Debug)]
pub(super) struct TableLayout {
    columns: usize,
    nullable: Vec<ColumnId>,
    groups: Vec<Group>,
    texts: Vec<TextColumn>,
    /// (column here, column of the root) of the implied root key; empty for the root.
    implied: Vec<(ColumnId, ColumnId)>,
    /// Groups and texts of the implied columns, for sections that store them.
    key_groups: Vec<Group>,
    key_texts: Vec<TextColumn>,
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
        Self {
            columns: table.columns.len(),
            groups: Group::compile(table, &own, group_size, &nullable),
            texts: TextColumn::compile(table, &own, &nullable),
            key_groups: Group::compile(table, &keys, 1, &nullable),
            key_texts: TextColumn::compile(table, &keys, &nullable),
            nullable,
            implied,
        }
    }

    fn groups(&self, explicit: bool) -> impl Iterator<Item = &Group> {
        self.groups.iter().chain(self.key_groups.iter().filter(move |_| explicit))
    }

    fn texts(&self, explicit: bool) -> impl Iterator<Item = &TextColumn> {
        self.texts.iter().chain(self.key_texts.iter().filter(move |_| explicit))
    }

    /// Appends the section of these rows; each must have a value per column.
    pub(super) fn encode(
        &self,
        rows: &[Row],
        root: Option<&Row>,
        out: &mut Vec<u8>,
    ) -> Result<(), Misfit> {
        let null = |row: &Row, id: &ColumnId| row.get(*id).is_none_or(Value::is_null);
        let nulls = rows.iter().any(|row| self.nullable.iter().any(|id| null(row, id)));
        let explicit = rows.iter().any(|row| {
            let implied = |here: &ColumnId, there: &ColumnId| {
                row.get(*here) == root.and_then(|root| root.get(*there))
            };
            !self.implied.iter().all(|(here, there)| implied(here, there))
        });
        write_head(out, rows.len(), nulls, explicit);
        if rows.is_empty() {
            return Ok(());
        }
        let mut bits = BitWriter::new(out);
        if nulls {
            for row in rows {
                self.nullable.iter().for_each(|id| bits.push(u64::from(null(row, id)), 1));
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

    pub(super) fn row_count(&self, section: &[u8]) -> usize {
        read_head(section).0.rows
    }

    /// Bytes of the section that `bytes` begins with.
    pub(super) fn section_length(&self, bytes: &[u8]) -> usize {
        let (head, at) = read_head(bytes);
        if head.rows == 0 {
            return at;
        }
        let body = bytes.get(at..).unwrap_or_default();
        let mut bits = BitReader::new(body);
        let nulls = self.nulls(head, body, &mut bits);
        let explicit = head.flags & FLAG_EXPLICIT_KEY != 0;
        self.groups(explicit).for_each(|group| group.skip(&mut bits, head.rows));
        let mut rest = body.get(bits.bytes_read()..).unwrap_or_default();
        for column in self.texts(explicit) {
            rest = column.skip(rest, head.rows, nulls);
        }
        bytes.len() - rest.len()
    }

    /// The rows of a section; `root` is the decoded root row, for the implied key.
    pub(super) fn decode(&self, section: &[u8], root: Option<&Row>) -> Vec<Row> {
        let (head, at) = read_head(section);
        let empty = || (0..self.columns).map(|_| Value::Null).collect();
        let mut rows: Vec<Row> = (0..head.rows).map(|_| empty()).collect();
        if rows.is_empty() {
            return rows;
        }
        let body = section.get(at..).unwrap_or_default();
        let mut bits = BitReader::new(body);
        let nulls = self.nulls(head, body, &mut bits);
        let explicit = head.flags & FLAG_EXPLICIT_KEY != 0;
        self.groups(explicit).for_each(|group| group.read(&mut bits, &mut rows, nulls));
        let mut rest = body.get(bits.bytes_read()..).unwrap_or_default();
        let mut scratch = Vec::with_capacity(32);
        for column in self.texts(explicit) {
            rest = column.read(rest, &mut rows, nulls, &mut scratch);
        }
        if let (false, Some(root)) = (explicit, root) {
            for (here, there) in &self.implied {
                let Some(value) = root.get(*there) else { continue };
                rows.iter_mut()
                    .filter_map(|row| row.get_mut(*here))
                    .for_each(|cell| cell.clone_from(value));
            }
        }
        rows
    }

    /// One cell of a section with one row: the root's.
    pub(super) fn cell(&self, section: &[u8], column: ColumnId) -> Value {
        let (head, at) = read_head(section);
        let body = section.get(at..).unwrap_or_default();
        let mut bits = BitReader::new(body);
        let nulls = self.nulls(head, body, &mut bits);
        for group in &self.groups {
            if let Some(value) = group.cell(&mut bits, column, nulls) {
                return value;
            }
        }
        let mut rest = body.get(bits.bytes_read()..).unwrap_or_default();
        for text in &self.texts {
            if text.is(column) {
                return text.cell(rest, nulls);
            }
            rest = text.skip(rest, head.rows, nulls);
        }
        Value::Null
    }

    /// The NULL bitmap stands first in the bit string; steps over it.
    fn nulls<'a>(&self, head: Head, body: &'a [u8], bits: &mut BitReader<'a>) -> Nulls<'a> {
        if head.flags & FLAG_NULLS == 0 {
            return Nulls::none();
        }
        bits.skip(head.rows * self.nullable.len());
        Nulls::new(body, self.nullable.len())
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
    }
    (head, at.min(section.len()))
}
