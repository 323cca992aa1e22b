//! Columns of a section: groups of integers and single text columns.

use super::Misfit;
use crate::layout::bits::{BitReader, BitWriter};
use crate::layout::integer::{GroupReader, IntegerKind, write_group};
use crate::layout::text::{ColumnReader, write_column};
use cachetier_model::{ColumnId, ColumnType, Row, TableSchema, Value};
use smallvec::SmallVec;

/// Which cells of a section are NULL.
#[derive(Clone, Copy)]
pub(super) struct Nulls<'a> {
    bitmap: &'a [u8],
    per_row: usize,
}

impl<'a> Nulls<'a> {
    pub(super) fn none() -> Self {
        Self { bitmap: &[], per_row: 0 }
    }

    pub(super) fn new(bitmap: &'a [u8], per_row: usize) -> Self {
        Self { bitmap, per_row }
    }

    /// `position` of the column among the nullable ones.
    #[inline]
    fn is_null(self, row: usize, position: Option<usize>) -> bool {
        match position {
            Some(position) if self.per_row > 0 => {
                let bit = row * self.per_row + position;
                self.bitmap.get(bit >> 3).is_some_and(|byte| byte >> (bit & 7) & 1 == 1)
            }
            _ => false,
        }
    }
}

/// Integer columns that share one width.
#[derive(Clone, Debug)]
pub(super) struct Group {
    columns: Vec<IntegerColumn>,
    first: ColumnId,
    /// Their kind, when the columns stand side by side in the table.
    uniform: Option<IntegerKind>,
}

#[derive(Clone, Debug)]
struct IntegerColumn {
    column: ColumnId,
    kind: IntegerKind,
    nullable: Option<usize>,
}

impl Group {
    /// Runs of up to `size` integer columns of one type, in column order.
    pub(super) fn compile(
        table: &TableSchema,
        columns: &[ColumnId],
        size: usize,
        nullable: &[ColumnId],
    ) -> Vec<Self> {
        let mut groups: Vec<(ColumnType, Self)> = Vec::new();
        for id in columns {
            let Some(column) = table.columns.get(*id) else { continue };
            let Some(kind) = IntegerKind::of(&column.column_type) else { continue };
            let nullable = nullable.iter().position(|n| n == id);
            let member = IntegerColumn { column: *id, kind, nullable };
            match groups.last_mut() {
                Some((run, group)) if *run == column.column_type && group.columns.len() < size => {
                    if *id != group.first + group.columns.len() {
                        group.uniform = None;
                    }
                    group.columns.push(member);
                }
                _ => {
                    let uniform = Some(member.kind.clone());
                    let group = Self { columns: vec![member], first: *id, uniform };
                    groups.push((column.column_type.clone(), group));
                }
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    pub(super) fn write(&self, rows: &[Row], bits: &mut BitWriter<'_>) -> Result<(), Misfit> {
        let mut integers = SmallVec::<[i64; 16]>::new();
        for row in rows {
            for member in &self.columns {
                let value = row.get(member.column).unwrap_or(&Value::Null);
                let misfit = Misfit { column: member.column };
                integers.push(member.kind.to_integer(value).ok_or(misfit)?);
            }
        }
        write_group(bits, &integers);
        Ok(())
    }

    #[inline]
    pub(super) fn skip(&self, bits: &mut BitReader<'_>, rows: usize) {
        GroupReader::begin(bits).skip(bits, rows * self.columns.len());
    }

    #[inline]
    pub(super) fn read(&self, bits: &mut BitReader<'_>, rows: &mut [Row], nulls: Nulls<'_>) {
        let group = GroupReader::begin(bits);
        if nulls.per_row == 0
            && let Some(kind) = &self.uniform
        {
            for row in rows {
                let Some(cells) = row.get_mut(self.first..self.first + self.columns.len()) else {
                    continue;
                };
                let mut cells = cells.iter_mut();
                // one loop per kind: most groups are plain integers
                if matches!(kind, IntegerKind::Int) {
                    group.for_each(bits, self.columns.len(), |integer| {
                        cells.next().into_iter().for_each(|cell| *cell = Value::Int(integer));
                    });
                } else {
                    group.for_each(bits, self.columns.len(), |integer| {
                        cells.next().into_iter().for_each(|cell| *cell = kind.value(integer));
                    });
                }
            }
            return;
        }
        for (number, row) in rows.iter_mut().enumerate() {
            for member in &self.columns {
                let integer = group.next(bits);
                if nulls.is_null(number, member.nullable) {
                    continue;
                }
                if let Some(cell) = row.get_mut(member.column) {
                    *cell = member.kind.value(integer);
                }
            }
        }
    }

    /// The column's value in row 0, or `None` (and the group stepped over) if it is elsewhere.
    #[inline]
    pub(super) fn cell(
        &self,
        bits: &mut BitReader<'_>,
        column: ColumnId,
        nulls: Nulls<'_>,
    ) -> Option<Value> {
        let group = GroupReader::begin(bits);
        let Some(at) = self.columns.iter().position(|m| m.column == column) else {
            group.skip(bits, self.columns.len());
            return None;
        };
        group.skip(bits, at);
        let member = self.columns.get(at)?;
        let integer = group.next(bits);
        let null = nulls.is_null(0, member.nullable);
        Some(if null { Value::Null } else { member.kind.value(integer) })
    }
}

#[derive(Clone, Debug)]
pub(super) struct TextColumn {
    column: ColumnId,
    kind: TextKind,
    nullable: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextKind {
    Text,
    /// Padded to this many characters; stored without the padding.
    Padded(usize),
    Bytes,
    /// Sixteen bytes without a header.
    Uuid,
}

const UUID_BYTES: usize = 16;

impl TextColumn {
    pub(super) fn compile(
        table: &TableSchema,
        columns: &[ColumnId],
        nullable: &[ColumnId],
    ) -> Vec<Self> {
        let text = |id: &ColumnId| {
            let column_type = &table.columns.get(*id)?.column_type;
            let kind = match column_type {
                _ if IntegerKind::of(column_type).is_some() => return None,
                ColumnType::Char { length } => TextKind::Padded(*length as usize),
                ColumnType::Bytea => TextKind::Bytes,
                ColumnType::Uuid => TextKind::Uuid,
                _ => TextKind::Text,
            };
            let nullable = nullable.iter().position(|n| n == id);
            Some(Self { column: *id, kind, nullable })
        };
        columns.iter().filter_map(text).collect()
    }

    pub(super) fn is(&self, column: ColumnId) -> bool {
        self.column == column
    }

    pub(super) fn write(&self, rows: &[Row], out: &mut Vec<u8>) -> Result<(), Misfit> {
        let mut values = SmallVec::<[&[u8]; 8]>::new();
        for row in rows {
            match (self.kind, row.get(self.column).unwrap_or(&Value::Null)) {
                (_, Value::Null) => {}
                (TextKind::Text, Value::Text(text)) => values.push(text.as_bytes()),
                (TextKind::Padded(_), Value::Text(text)) => {
                    values.push(text.trim_end_matches(' ').as_bytes());
                }
                (TextKind::Bytes, Value::Bytes(bytes)) => values.push(bytes),
                (TextKind::Uuid, Value::Uuid(bytes)) => out.extend_from_slice(bytes),
                _ => return Err(Misfit { column: self.column }),
            }
        }
        if self.kind != TextKind::Uuid {
            write_column(out, &values);
        }
        Ok(())
    }

    fn present(&self, rows: usize, nulls: Nulls<'_>) -> usize {
        (0..rows).filter(|row| !nulls.is_null(*row, self.nullable)).count()
    }

    /// What follows the column.
    pub(super) fn skip<'a>(&self, bytes: &'a [u8], rows: usize, nulls: Nulls<'_>) -> &'a [u8] {
        let present = self.present(rows, nulls);
        if self.kind == TextKind::Uuid {
            return bytes.get(present * UUID_BYTES..).unwrap_or_default();
        }
        if present == 0 {
            return bytes;
        }
        let mut reader = ColumnReader::begin(bytes);
        reader.skip(present);
        reader.rest()
    }

    /// Fills the column's cells and returns what follows it.
    pub(super) fn read<'a>(
        &self,
        bytes: &'a [u8],
        rows: &mut [Row],
        nulls: Nulls<'_>,
        scratch: &mut Vec<u8>,
    ) -> &'a [u8] {
        let mut reader: Option<ColumnReader<'a>> = None;
        let mut rest = bytes;
        for (number, row) in rows.iter_mut().enumerate() {
            if nulls.is_null(number, self.nullable) {
                continue;
            }
            let Some(cell) = row.get_mut(self.column) else { continue };
            if self.kind == TextKind::Uuid {
                let (head, after) = rest.split_first_chunk().unwrap_or((&[0; UUID_BYTES], &[]));
                *cell = Value::Uuid(*head);
                rest = after;
                continue;
            }
            scratch.clear();
            reader.get_or_insert_with(|| ColumnReader::begin(bytes)).next(scratch);
            *cell = self.value(scratch);
        }
        reader.map_or(rest, |reader| reader.rest())
    }

    /// The value in row 0.
    pub(super) fn cell(&self, bytes: &[u8], nulls: Nulls<'_>) -> Value {
        if nulls.is_null(0, self.nullable) {
            return Value::Null;
        }
        if self.kind == TextKind::Uuid {
            return Value::Uuid(bytes.first_chunk().copied().unwrap_or_default());
        }
        let mut out = Vec::with_capacity(32);
        ColumnReader::begin(bytes).next(&mut out);
        self.value(&out)
    }

    fn value(&self, bytes: &[u8]) -> Value {
        match self.kind {
            TextKind::Bytes => Value::Bytes(bytes.into()),
            TextKind::Padded(length) => {
                let text = text(bytes);
                match length.saturating_sub(text.chars().count()) {
                    0 => Value::Text(text.into()),
                    missing => Value::Text(format!("{text}{}", " ".repeat(missing)).into()),
                }
            }
            _ => Value::Text(text(bytes).into()),
        }
    }
}

/// What was packed was text; nothing else comes out.
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}
