//! Reading a section: where its parts stand is found once, then any cell is read from its place.
//!
//! Nothing is allocated (past sixteen groups or eight texts per table, one list), and only what is
//! asked for is decoded. Damaged bytes give wrong values, never a panic.

use super::column::{Group, Nulls, TextColumn, TextKind, UUID_BYTES};
use super::{FLAG_EXPLICIT_KEY, FLAG_NULLS, Head, TableLayout, read_head};
use crate::layout::integer::{IntegerKind, Span};
use crate::layout::text::{Packed, Scratch, TextSpan};
use cachetier_model::{ColumnId, Row, TableSchema, ValueRef};
use std::cell::Cell;

/// Where a column stands in the sections of its table.
#[derive(Clone, Debug)]
pub(super) struct Place {
    source: Source,
    /// Position among the nullable columns.
    nullable: Option<usize>,
    /// Column of the root row that has the value when the section does not store it.
    implied: Option<ColumnId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Integer { group: usize, lane: usize },
    Text(usize),
}

impl Place {
    pub(super) fn compile(
        table: &TableSchema,
        groups: &[Group],
        texts: &[TextColumn],
        nullable: &[ColumnId],
        implied: &[(ColumnId, ColumnId)],
    ) -> Vec<Self> {
        let integer = |id: ColumnId| {
            groups.iter().enumerate().find_map(|(group, g)| {
                let lane = g.columns.iter().position(|member| member.column == id)?;
                Some(Source::Integer { group, lane })
            })
        };
        let text = |id: ColumnId| texts.iter().position(|text| text.column == id);
        (0..table.columns.len())
            .map(|id| Self {
                source: integer(id).unwrap_or_else(|| Source::Text(text(id).unwrap_or(0))),
                nullable: nullable.iter().position(|n| *n == id),
                implied: implied.iter().find(|(here, _)| *here == id).map(|(_, there)| *there),
            })
            .collect()
    }
}

/// Columns side by side that are read together.
#[derive(Clone, Copy, Debug)]
pub(super) enum Run {
    /// Plain integers of one group.
    Integers {
        group: usize,
        first: ColumnId,
        count: usize,
    },
    Column(ColumnId),
}

impl Run {
    pub(super) fn compile(places: &[Place], groups: &[Group]) -> Vec<Self> {
        let mut runs = Vec::new();
        let mut id = 0;
        while let Some(place) = places.get(id) {
            match place.source {
                Source::Integer { group, lane: 0 } if place.implied.is_none() => {
                    let columns = groups.get(group).map_or(&[][..], |g| &g.columns);
                    let plain = columns.iter().enumerate().all(|(lane, member)| {
                        member.column == id + lane && matches!(member.kind, IntegerKind::Int)
                    });
                    if plain && !columns.is_empty() {
                        runs.push(Run::Integers { group, first: id, count: columns.len() });
                        id += columns.len();
                        continue;
                    }
                }
                _ => {}
            }
            runs.push(Run::Column(id));
            id += 1;
        }
        runs
    }
}

/// One section, its parts located.
#[derive(Debug)]
pub(crate) struct View<'a> {
    layout: &'a TableLayout,
    bytes: &'a [u8],
    body: &'a [u8],
    rows: usize,
    explicit: bool,
    nulls: Nulls<'a>,
    spans: Parts<Span, 16>,
    texts: Parts<TextAt, 4>,
    /// Where the section ends in `body`.
    end: usize,
}

/// A few parts in place, more on the heap.
#[derive(Clone, Debug)]
struct Parts<T, const N: usize> {
    few: [T; N],
    more: Vec<T>,
}

impl<T: Default, const N: usize> Parts<T, N> {
    #[inline]
    fn new() -> Self {
        Self { few: std::array::from_fn(|_| T::default()), more: Vec::new() }
    }

    /// Parts are set in order.
    #[inline]
    fn set(&mut self, index: usize, part: T) {
        match self.few.get_mut(index) {
            Some(place) => *place = part,
            None => self.more.push(part),
        }
    }

    #[inline]
    fn get(&self, index: usize) -> Option<&T> {
        if index < N { self.few.get(index) } else { self.more.get(index - N) }
    }
}

/// A text column, and where the last value asked for was: rows are mostly read in order.
#[derive(Clone, Debug, Default)]
struct TextAt {
    span: TextSpan,
    last: Cell<Memo>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Memo {
    row: u32,
    at: u32,
}

impl TextAt {
    fn new(span: TextSpan) -> Self {
        Self { span, last: Cell::new(Memo { row: 0, at: span.start() as u32 }) }
    }

    /// The value of a row that has one.
    fn value<'a>(
        &self,
        body: &'a [u8],
        row: usize,
        nulls: Nulls<'_>,
        nullable: Option<usize>,
    ) -> Packed<'a> {
        let mut memo = self.last.get();
        if memo.row as usize > row {
            memo = Memo { row: 0, at: self.span.start() as u32 };
        }
        let values = nulls.present(memo.row as usize..row, nullable);
        let at = self.span.advance(body, memo.at as usize, values);
        self.last.set(Memo { row: row as u32, at: at as u32 });
        self.span.value(body, at)
    }
}

impl TableLayout {
    /// The section that `bytes` begins with.
    #[inline]
    pub(in crate::layout) fn view<'a>(&'a self, bytes: &'a [u8]) -> View<'a> {
        let (head, at) = read_head(bytes);
        let body = bytes.get(at..).unwrap_or_default();
        let mut view = View {
            layout: self,
            bytes,
            body,
            rows: head.rows,
            explicit: head.flags & FLAG_EXPLICIT_KEY != 0,
            nulls: self.nulls(head, body),
            spans: Parts::new(),
            texts: Parts::new(),
            end: 0,
        };
        if head.rows > 0 {
            view.locate();
        }
        view
    }

    #[inline]
    fn nulls<'a>(&self, head: Head, body: &'a [u8]) -> Nulls<'a> {
        match head.flags & FLAG_NULLS {
            0 => Nulls::none(),
            _ => Nulls::new(body, self.nullable.len()),
        }
    }

    /// Bytes of the section that `bytes` begins with.
    pub(in crate::layout) fn skip(&self, bytes: &[u8]) -> usize {
        let (head, at) = read_head(bytes);
        if head.rows == 0 {
            return at;
        }
        let body = bytes.get(at..).unwrap_or_default();
        let nulls = self.nulls(head, body);
        let end = self.walk(
            body,
            head.rows,
            nulls,
            head.flags & FLAG_EXPLICIT_KEY != 0,
            |_, _| {},
            |_, _| {},
        );
        at + end.min(body.len())
    }

    /// Finds the parts of a section with rows, in order; returns where it ends.
    #[inline]
    fn walk(
        &self,
        body: &[u8],
        rows: usize,
        nulls: Nulls<'_>,
        explicit: bool,
        mut integers: impl FnMut(usize, Span),
        mut texts: impl FnMut(usize, TextSpan),
    ) -> usize {
        let mut bit = if nulls.any() { rows * self.nullable.len() } else { 0 };
        for (number, group) in self.groups(explicit).iter().enumerate() {
            let span = Span::begin(body, bit);
            bit = span.end(rows * group.columns.len());
            integers(number, span);
        }
        let mut at = bit.div_ceil(8);
        for (number, column) in self.texts(explicit).iter().enumerate() {
            let present = nulls.present(0..rows, column.nullable);
            let span = if column.kind == TextKind::Uuid || present == 0 {
                TextSpan::bare(at, UUID_BYTES)
            } else {
                TextSpan::begin(body, at)
            };
            at = span.end(body, present);
            texts(number, span);
        }
        at
    }

    /// One value of the root row, when nothing else of it is wanted.
    pub(in crate::layout) fn root_value<'s>(
        &'s self,
        section: &'s [u8],
        column: ColumnId,
        scratch: &'s mut Scratch,
    ) -> ValueRef<'s> {
        let Some(place) = self.places.get(column) else { return ValueRef::Null };
        let Source::Text(wanted) = place.source else {
            let kind = self.kind(column);
            return match (kind, self.root_integer(section, column)) {
                (Some(kind), Some(Some(integer))) => kind.value(integer),
                _ => ValueRef::Null,
            };
        };
        let (head, at) = read_head(section);
        let body = section.get(at..).unwrap_or_default();
        let nulls = self.nulls(head, body);
        if head.rows == 0 || nulls.is_null(0, place.nullable) {
            return ValueRef::Null;
        }
        let mut found = None;
        self.walk(
            body,
            1,
            nulls,
            false,
            |_, _| {},
            |number, span| {
                if number == wanted {
                    found = Some(span);
                }
            },
        );
        match (found, self.texts.get(wanted)) {
            (Some(span), Some(column)) => column.value(span.value(body, span.start()), scratch),
            _ => ValueRef::Null,
        }
    }

    fn kind(&self, column: ColumnId) -> Option<&IntegerKind> {
        let Source::Integer { group, lane } = self.places.get(column)?.source else { return None };
        Some(&self.groups.get(group)?.columns.get(lane)?.kind)
    }

    /// One integer of the root row, NULL as `None`; nothing behind it is looked at.
    #[inline]
    pub(in crate::layout) fn root_integer(
        &self,
        section: &[u8],
        column: ColumnId,
    ) -> Option<Option<i64>> {
        let place = self.places.get(column)?;
        let Source::Integer { group, lane } = place.source else { return None };
        let (head, at) = read_head(section);
        let body = section.get(at..)?;
        let nulls = self.nulls(head, body);
        if nulls.is_null(0, place.nullable) {
            return Some(None);
        }
        let mut bit = if nulls.any() { self.nullable.len() } else { 0 };
        for before in self.groups.get(..group)? {
            bit = Span::begin(body, bit).end(before.columns.len());
        }
        Some(Some(Span::begin(body, bit).value(body, lane)))
    }
}

impl<'a> View<'a> {
    #[inline]
    fn locate(&mut self) {
        let (spans, texts) = (&mut self.spans, &mut self.texts);
        self.end = self.layout.walk(
            self.body,
            self.rows,
            self.nulls,
            self.explicit,
            |number, span| spans.set(number, span),
            |number, span| texts.set(number, TextAt::new(span)),
        );
    }

    /// The same section after values of it were overwritten where they lie, so that nothing has to
    /// be located again.
    pub(crate) fn over<'b>(&self, bytes: &'b [u8]) -> View<'b>
    where
        'a: 'b,
    {
        let body = bytes.get(self.body_start()..).unwrap_or_default();
        View {
            layout: self.layout,
            bytes,
            body,
            rows: self.rows,
            explicit: self.explicit,
            nulls: self.nulls.over(body),
            spans: self.spans.clone(),
            texts: self.texts.clone(),
            end: self.end,
        }
    }

    pub(super) fn layout(&self) -> &'a TableLayout {
        self.layout
    }

    pub(super) fn span(&self, group: usize) -> Option<Span> {
        self.spans.get(group).copied()
    }

    /// Where the section itself has a value; `None`: NULL, or the root row has it.
    pub(super) fn place(&self, column: ColumnId, row: usize) -> Option<Source> {
        let place = self.layout.places.get(column)?;
        let stored = place.implied.is_none() || self.explicit;
        (stored && !self.nulls.is_null(row, place.nullable)).then_some(place.source)
    }

    pub(super) fn packed_text(&self, row: usize, number: usize) -> Option<Packed<'a>> {
        let (column, place) = self.layout.texts.get(number).zip(self.texts.get(number))?;
        Some(place.value(self.body, row, self.nulls, column.nullable))
    }

    /// Where the body begins in the section.
    pub(super) fn body_start(&self) -> usize {
        self.bytes.len() - self.body.len()
    }

    pub(crate) fn columns(&self) -> usize {
        self.layout.columns
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of the section.
    pub(crate) fn length(&self) -> usize {
        self.body_start() + self.end.min(self.body.len())
    }

    /// The value in a row, wherever the section or the root row (`None` for the root itself) has
    /// it.
    #[inline]
    pub(crate) fn value<'s>(
        &'s self,
        root: Option<&'s View<'_>>,
        row: usize,
        column: ColumnId,
        scratch: &'s mut Scratch,
    ) -> ValueRef<'s> {
        let Some(place) = self.layout.places.get(column) else { return ValueRef::Null };
        match (place.implied, root) {
            (Some(there), Some(root)) if !self.explicit => root.cell(0, there, scratch),
            _ => self.cell(row, column, scratch),
        }
    }

    /// A value the section itself has.
    #[inline]
    fn cell<'s>(&'s self, row: usize, column: ColumnId, scratch: &'s mut Scratch) -> ValueRef<'s> {
        let Some(place) = self.layout.places.get(column) else { return ValueRef::Null };
        if self.nulls.is_null(row, place.nullable) {
            return ValueRef::Null;
        }
        match place.source {
            Source::Integer { group, lane } => {
                let columns = self.layout.groups.get(group).map_or(&[][..], |g| &g.columns);
                match (self.spans.get(group), columns.get(lane)) {
                    (Some(span), Some(member)) => {
                        member.kind.value(span.value(self.body, row * columns.len() + lane))
                    }
                    _ => ValueRef::Null,
                }
            }
            Source::Text(number) => self.text(row, number, scratch),
        }
    }

    fn text<'s>(&'s self, row: usize, number: usize, scratch: &'s mut Scratch) -> ValueRef<'s> {
        let column = self.layout.texts.get(number).zip(self.packed_text(row, number));
        column.map_or(ValueRef::Null, |(column, packed)| column.value(packed, scratch))
    }

    /// Calls `each` with every value of a row, in column order.
    #[inline]
    pub(crate) fn each_value(
        &self,
        root: Option<&View<'_>>,
        row: usize,
        scratch: &mut Scratch,
        mut each: impl FnMut(ValueRef<'_>),
    ) {
        for run in &self.layout.runs {
            match *run {
                Run::Integers { group, count, .. } if !self.nulls.any() => {
                    if let Some(span) = self.spans.get(group) {
                        span.for_each(self.body, row * count, count, |v| each(ValueRef::Int(v)));
                    }
                }
                Run::Integers { first, count, .. } => {
                    for column in first..first + count {
                        each(self.cell(row, column, scratch));
                    }
                }
                Run::Column(column) => each(self.value(root, row, column, scratch)),
            }
        }
    }

    pub(crate) fn to_row(&self, root: Option<&View<'_>>, row: usize, scratch: &mut Scratch) -> Row {
        let mut values = Row::with_capacity(self.layout.columns);
        for run in &self.layout.runs {
            match *run {
                Run::Integers { group, count, .. } if !self.nulls.any() => {
                    if let Some(span) = self.spans.get(group) {
                        span.append(self.body, row * count, count, &mut values);
                    }
                }
                Run::Integers { first, count, .. } => {
                    for column in first..first + count {
                        values.push(self.cell(row, column, scratch).to_value());
                    }
                }
                Run::Column(column) => {
                    values.push(self.value(root, row, column, scratch).to_value());
                }
            }
        }
        values
    }
}
