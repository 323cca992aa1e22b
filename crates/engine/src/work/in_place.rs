//! Transactions that only overwrite values where they lie: most updates.
//!
//! Works on a copy of the packed record and touches nothing but the cells that change. Whatever
//! is not plainly that (a key column, a NULL, a value that takes another form, a condition that is
//! wrong) is left to the general way, which also words the errors.

use super::rules::Rules;
use super::{Outcome, expected};
use crate::TransactError;
use crate::condition::Conditions;
use crate::layout::{Layout, Patch, Scratch, View};
use crate::work::change::checked_cell;
use cachetier_model::{
    ChangeKind, ColumnId, Condition, GroupSchema, Guard, Operation, RowChange, TableId,
    Transaction, Value, ValueRef,
};
use smallvec::SmallVec;

/// Cells one transaction may overwrite here; the general way has no such bound.
const OVERWRITTEN_MAX: usize = 128;

/// A cell that was written to.
struct Overwritten {
    table: TableId,
    row: usize,
    patch: Patch,
}

pub(crate) struct InPlace<'a> {
    schema: &'a GroupSchema,
    layout: &'a Layout,
    before: &'a [u8],
    /// The root row, when rows below it are looked at.
    root: Option<View<'a>>,
    /// Where each table's section begins, as far as is needed. Overwriting never moves one.
    starts: SmallVec<[u32; 8]>,
    /// The section last looked at, as it was before.
    located: Option<(TableId, View<'a>)>,
    after: Vec<u8>,
    overwritten: SmallVec<[Overwritten; 2]>,
}

impl<'a> InPlace<'a> {
    /// `None`: not for this way.
    pub(crate) fn run(
        schema: &'a GroupSchema,
        layout: &'a Layout,
        rules: &'a Rules,
        before: &'a [u8],
        transaction: &Transaction,
    ) -> Result<Option<Outcome>, TransactError> {
        let mut last = 0;
        for operation in &transaction.operations {
            let Operation::Update { table, set, .. } = operation else { return Ok(None) };
            if !set.iter().all(|(column, _)| rules.is_plain(*table, *column)) {
                return Ok(None);
            }
            last = last.max(*table);
        }
        for guard in &transaction.guards {
            let (Guard::Exists { table, .. } | Guard::Absent { table, .. }) = guard;
            last = last.max(*table);
        }
        match Self::begin(schema, layout, before, last) {
            Some(mut work) => work.transact(transaction),
            None => Ok(None),
        }
    }

    fn begin(
        schema: &'a GroupSchema,
        layout: &'a Layout,
        before: &'a [u8],
        last: TableId,
    ) -> Option<Self> {
        let mut starts = SmallVec::new();
        let mut at = 0;
        starts.push(0);
        for table in 0..last {
            at += layout.skip(table, before.get(at..)?);
            starts.push(at as u32);
        }
        let root = if last > 0 { layout.root(before) } else { None };
        let (after, overwritten) = (before.to_vec(), SmallVec::new());
        Some(Self { schema, layout, before, root, starts, located: None, after, overwritten })
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<Option<Outcome>, TransactError> {
        for (index, guard) in transaction.guards.iter().enumerate() {
            match self.guard_holds(guard) {
                Some(true) => {}
                Some(false) => return Err(TransactError::GuardFailed { index }),
                None => return Ok(None),
            }
        }
        let mut rows = Vec::with_capacity(transaction.operations.len());
        for (number, operation) in transaction.operations.iter().enumerate() {
            let Operation::Update { table, conditions, set, expect } = operation else {
                return Ok(None);
            };
            match self.update(number, *table, conditions, set) {
                Some(found) => rows.push(expected(number, *expect, found)?),
                None => return Ok(None),
            }
        }
        let changes = self.changes();
        let packed = (!changes.is_empty()).then(|| std::mem::take(&mut self.after));
        Ok(Some(Outcome { rows, changes, packed, in_place: true }))
    }

    fn guard_holds(&mut self, guard: &Guard) -> Option<bool> {
        let (table, conditions, wanted) = match guard {
            Guard::Exists { table, conditions } => (*table, conditions, true),
            Guard::Absent { table, conditions } => (*table, conditions, false),
        };
        let conditions = Conditions::prepare(self.schema.table(table)?, conditions).ok()?;
        self.locate(table)?;
        let (_, view) = self.located.as_ref()?;
        let mut scratch = Scratch::new();
        let holds = |row| conditions.hold_packed(view, self.root.as_ref(), row, &mut scratch);
        Some((0..view.rows()).any(holds) == wanted)
    }

    /// Rows found, all of them overwritten; `None` when one could not be.
    fn update(
        &mut self,
        operation: usize,
        table: TableId,
        conditions: &[Condition],
        set: &[(ColumnId, Value)],
    ) -> Option<u32> {
        let schema = self.schema.table(table)?;
        let conditions = Conditions::prepare(schema, conditions).ok()?;
        let mut values = SmallVec::<[(ColumnId, Value); 2]>::new();
        for (column, value) in set {
            values.push((*column, checked_cell(operation, schema, *column, value).ok()?));
        }
        let (mut found, first) = (0, self.overwritten.len());
        let mut overwritten = std::mem::take(&mut self.overwritten);
        self.locate(table)?;
        let (_, before) = self.located.as_ref()?;
        let after;
        let view = if first == 0 {
            before
        } else {
            after = before.over(self.section(table)?);
            &after
        };
        let mut scratch = Scratch::new();
        for row in 0..view.rows() {
            if conditions.hold_packed(view, self.root.as_ref(), row, &mut scratch) {
                found += 1;
                for (column, value) in &values {
                    let patch = view.patch(row, *column, value)?;
                    overwritten.push(Overwritten { table, row, patch });
                }
            }
        }
        if overwritten.len() > OVERWRITTEN_MAX {
            return None;
        }
        let section = self.after.get_mut(*self.starts.get(table)? as usize..)?;
        overwritten.iter().skip(first).for_each(|cell| cell.patch.apply(section));
        self.overwritten = overwritten;
        Some(found)
    }

    /// The net changes, parents first, rows in key order.
    fn changes(&mut self) -> Vec<RowChange> {
        let mut cells = std::mem::take(&mut self.overwritten);
        cells.sort_unstable_by_key(|cell| (cell.table, cell.row, cell.patch.column));
        cells.retain(|cell| !self.is_same(cell));
        let mut changes: Vec<RowChange> = Vec::with_capacity(cells.len().min(4));
        let mut scratch = Scratch::new();
        for row in cells.chunk_by(|a, b| (a.table, a.row) == (b.table, b.row)) {
            let Some(first) = row.first() else { continue };
            let located = self.locate(first.table).and(self.located.as_ref());
            let after = located.zip(self.section(first.table));
            let Some(view) = after.map(|((_, before), after)| before.over(after)) else { continue };
            let mut changed: Vec<ColumnId> = row.iter().map(|cell| cell.patch.column).collect();
            changed.dedup();
            changes.push(RowChange {
                table: first.table,
                kind: ChangeKind::Update,
                // the root row's key, which children share, never changes here
                row: view.to_row(self.root.as_ref(), first.row, &mut scratch),
                changed,
            });
        }
        changes
    }

    /// Whether the cell is, in the end, what it was.
    fn is_same(&self, cell: &Overwritten) -> bool {
        let start = self.starts.get(cell.table).map_or(0, |start| *start as usize);
        let sections = self.before.get(start..).zip(self.after.get(start..));
        sections.is_some_and(|(before, after)| cell.patch.is_same(before, after))
    }

    /// Finds the parts of a table's section, unless they were found last.
    fn locate(&mut self, table: TableId) -> Option<()> {
        if self.located.as_ref().is_none_or(|(located, _)| *located != table) {
            let section = self.before.get(*self.starts.get(table)? as usize..)?;
            self.located = Some((table, self.layout.view(table, section)?));
        }
        Some(())
    }

    /// A table's section as it is now, and what follows it.
    fn section(&self, table: TableId) -> Option<&[u8]> {
        self.after.get(*self.starts.get(table)? as usize..)
    }
}

/// Equal bit for bit: a NaN is itself, and a negative zero is not zero.
pub(super) fn identical(a: ValueRef<'_>, b: ValueRef<'_>) -> bool {
    match (a, b) {
        (ValueRef::Float4(a), ValueRef::Float4(b)) => a.to_bits() == b.to_bits(),
        (ValueRef::Float8(a), ValueRef::Float8(b)) => a.to_bits() == b.to_bits(),
        _ => a == b,
    }
}
