//! Columns of a section: groups of integers and single text columns.

use super::Misfit;
use crate::layout::bits::BitWriter;
use crate::layout::integer::{IntegerKind, write_group};
use crate::layout::text::{Packed, Scratch, write_column};
use cachetier_model::{ColumnId, ColumnType, Row, TableSchema, Value, ValueRef};
use smallvec::SmallVec;
use std::borrow::Borrow;
use std::ops::Range;

/// Which cells of a section are NULL.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nulls<'a> {
    bitmap: &'a [u8],
    /// Nullable columns; 0 when the section has no NULL.
    per_row: usize,
}

impl<'a> Nulls<'a> {
    pub(super) fn none() -> Self {
        Self { bitmap: &[], per_row: 0 }
    }

    pub(super) fn new(bitmap: &'a [u8], per_row: usize) -> Self {
        Self { bitmap, per_row }
    }

    /// The same of another body of the same form.
    pub(super) fn over<'b>(self, body: &'b [u8]) -> Nulls<'b> {
        if self.any() { Nulls::new(body, self.per_row) } else { Nulls::none() }
    }

    pub(super) fn any(self) -> bool {
        self.per_row > 0
    }

    /// `position` of the column among the nullable ones.
    #[inline]
    pub(super) fn is_null(self, row: usize, position: Option<usize>) -> bool {
        match position {
            Some(position) if self.per_row > 0 => {
                let bit = row * self.per_row + position;
                self.bitmap.get(bit >> 3).is_some_and(|byte| byte >> (bit & 7) & 1 == 1)
            }
            _ => false,
        }
    }

    /// How many of these rows have a value.
    #[inline]
    pub(super) fn present(self, rows: Range<usize>, position: Option<usize>) -> usize {
        match position {
            Some(_) if self.per_row > 0 => rows.filter(|row| !self.is_null(*row, position)).count(),
            _ => rows.len(),
        }
    }
}

/// Integer columns that share one width.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) columns: Vec<IntegerColumn>,
}

#[derive(Clone, Debug)]
pub(super) struct IntegerColumn {
    pub(super) column: ColumnId,
    pub(super) kind: IntegerKind,
}

impl Group {
    /// Runs of up to `size` integer columns of one type, in column order.
    pub(super) fn compile(table: &TableSchema, columns: &[ColumnId], size: usize) -> Vec<Self> {
        let mut groups: Vec<(ColumnType, Self)> = Vec::new();
        for id in columns {
            let Some(column) = table.columns.get(*id) else { continue };
            let Some(kind) = IntegerKind::of(&column.column_type) else { continue };
            let member = IntegerColumn { column: *id, kind };
            match groups.last_mut() {
                Some((run, group)) if *run == column.column_type && group.columns.len() < size => {
                    group.columns.push(member);
                }
                _ => groups.push((column.column_type.clone(), Self { columns: vec![member] })),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    pub(super) fn write<R: Borrow<Row>>(
        &self,
        rows: &[R],
        bits: &mut BitWriter<'_>,
    ) -> Result<(), Misfit> {
        let mut integers = SmallVec::<[i64; 16]>::new();
        for row in rows {
            for member in &self.columns {
                let value = row.borrow().get(member.column).unwrap_or(&Value::Null);
                let misfit = Misfit { column: member.column };
                integers.push(member.kind.to_integer(value).ok_or(misfit)?);
            }
        }
        write_group(bits, &integers);
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub(super) struct TextColumn {
    pub(super) column: ColumnId,
    pub(super) kind: TextKind,
    pub(super) nullable: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextKind {
    Text,
    /// Padded to this many characters; stored without the padding.
    Padded(usize),
    Bytes,
    /// Sixteen bytes without a header.
    Uuid,
}

pub(super) const UUID_BYTES: usize = 16;

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

    pub(super) fn write<R: Borrow<Row>>(
        &self,
        rows: &[R],
        out: &mut Vec<u8>,
    ) -> Result<(), Misfit> {
        let mut values = SmallVec::<[&[u8]; 8]>::new();
        for row in rows {
            match (self.kind, row.borrow().get(self.column).unwrap_or(&Value::Null)) {
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

    /// The value of these packed bytes.
    #[inline]
    pub(super) fn value<'s>(&self, packed: Packed<'s>, scratch: &'s mut Scratch) -> ValueRef<'s> {
        match self.kind {
            TextKind::Text => ValueRef::Text(packed.text(scratch)),
            TextKind::Padded(length) => ValueRef::Text(packed.padded(length, scratch)),
            TextKind::Bytes => ValueRef::Bytes(packed.bytes(scratch)),
            TextKind::Uuid => {
                ValueRef::Uuid(packed.raw().first_chunk().copied().unwrap_or_default())
            }
        }
    }
}
