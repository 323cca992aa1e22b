//! Overwriting one cell of a packed section where it lies, when the new value takes as much room.

use super::column::TextKind;
use super::view::{Source, View};
use crate::layout::integer::Span;
use cachetier_model::{ColumnId, Value};

/// How one cell is overwritten.
#[derive(Debug)]
pub(crate) struct Patch {
    pub(crate) column: ColumnId,
    /// Where the section's body begins in the section.
    body: usize,
    what: What,
}

#[derive(Debug)]
enum What {
    Integer { span: Span, index: usize, value: i64 },
    Bytes { at: usize, bytes: Vec<u8> },
}

impl View<'_> {
    /// `None` when the value takes another form or more room than the old one, or one of them is
    /// NULL.
    pub(crate) fn patch(&self, row: usize, column: ColumnId, value: &Value) -> Option<Patch> {
        let place = self.place(column, row)?;
        if value.is_null() {
            return None;
        }
        let what = match place {
            Source::Integer { group, lane } => {
                let columns = &self.layout().groups.get(group)?.columns;
                let value = columns.get(lane)?.kind.to_integer(value)?;
                let span = self.span(group)?;
                let index = row * columns.len() + lane;
                span.fits(value).then_some(What::Integer { span, index, value })?
            }
            Source::Text(number) => {
                let text = self.layout().texts.get(number)?;
                let old = self.packed_text(row, number)?;
                let bytes = match (text.kind, value) {
                    (TextKind::Text, Value::Text(text)) => old.patch(text.as_bytes())?,
                    (TextKind::Padded(_), Value::Text(text)) => {
                        old.patch(text.trim_end_matches(' ').as_bytes())?
                    }
                    (TextKind::Bytes, Value::Bytes(bytes)) => old.patch(bytes)?,
                    (TextKind::Uuid, Value::Uuid(bytes)) => bytes.to_vec(),
                    _ => return None,
                };
                What::Bytes { at: old.start(), bytes }
            }
        };
        Some(Patch { column, body: self.body_start(), what })
    }
}

impl Patch {
    /// Overwrites; `section` is what the view was made of.
    pub(crate) fn apply(&self, section: &mut [u8]) {
        let body = section.get_mut(self.body..).unwrap_or_default();
        match &self.what {
            What::Integer { span, index, value } => span.write(body, *index, *value),
            What::Bytes { at, bytes } => {
                if let Some(place) = body.get_mut(*at..*at + bytes.len()) {
                    place.copy_from_slice(bytes);
                }
            }
        }
    }

    /// Whether the cell is the same in two forms of the section.
    pub(crate) fn is_same(&self, one: &[u8], other: &[u8]) -> bool {
        let (one, other) = (one.get(self.body..), other.get(self.body..));
        let (Some(one), Some(other)) = (one, other) else { return false };
        match &self.what {
            What::Integer { span, index, .. } => {
                span.value(one, *index) == span.value(other, *index)
            }
            What::Bytes { at, bytes } => {
                one.get(*at..*at + bytes.len()) == other.get(*at..*at + bytes.len())
            }
        }
    }
}
