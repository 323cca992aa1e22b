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

/// Rows one transaction may touch here; the general way has no such bound.
const TOUCHED_MAX: usize = 64;

type Checked = SmallVec<[(ColumnId, Value); 2]>;

/// A row with values written to it.
struct Touched {
    table: TableId,
    row: usize,
    columns: SmallVec<[ColumnId; 4]>,
}

pub(crate) struct InPlace<'a> {
    schema: &'a GroupSchema,
    layout: &'a Layout,
    before: &'a [u8],
    root: View<'a>,
    /// Where each table's section begins. Overwriting never moves one.
    starts: SmallVec<[u32; 8]>,
    after: Vec<u8>,
    touched: SmallVec<[Touched; 2]>,
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
        let plain = transaction.operations.iter().all(|operation| match operation {
            Operation::Update { table, set, .. } => {
                set.iter().all(|(column, _)| rules.is_plain(*table, *column))
            }
            _ => false,
        });
        if !plain {
            return Ok(None);
        }
        let Some(mut work) = Self::begin(schema, layout, before) else { return Ok(None) };
        work.transact(transaction)
    }

    fn begin(schema: &'a GroupSchema, layout: &'a Layout, before: &'a [u8]) -> Option<Self> {
        let root = layout.root(before)?;
        let mut starts = SmallVec::new();
        starts.push(0);
        let mut at = root.length();
        for table in 1..layout.table_count() {
            starts.push(at as u32);
            at += layout.section_length(table, before.get(at..)?);
        }
        let (after, touched) = (before.to_vec(), SmallVec::new());
        Some(Self { schema, layout, before, root, starts, after, touched })
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

    fn guard_holds(&self, guard: &Guard) -> Option<bool> {
        let (table, conditions, wanted) = match guard {
            Guard::Exists { table, conditions } => (*table, conditions, true),
            Guard::Absent { table, conditions } => (*table, conditions, false),
        };
        let conditions = Conditions::prepare(self.schema.table(table)?, conditions).ok()?;
        let view = self.view(table, self.before)?;
        let mut scratch = Scratch::new();
        let holds = |row| conditions.hold_packed(&view, self.root_of(table), row, &mut scratch);
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
        let mut values = Checked::new();
        for (column, value) in set {
            values.push((*column, checked_cell(operation, schema, *column, value).ok()?));
        }
        let (mut rows, mut patches) =
            (SmallVec::<[usize; 4]>::new(), SmallVec::<[Patch; 2]>::new());
        let view = self.view(table, &self.after)?;
        let mut scratch = Scratch::new();
        for row in 0..view.rows() {
            if conditions.hold_packed(&view, self.root_of(table), row, &mut scratch) {
                rows.push(row);
                for (column, value) in &values {
                    patches.push(view.patch(row, *column, value)?);
                }
            }
        }
        drop(view);
        if self.touched.len() + rows.len() > TOUCHED_MAX {
            return None;
        }
        let section = self.after.get_mut(*self.starts.get(table)? as usize..)?;
        patches.into_iter().for_each(|patch| patch.apply(section));
        let found = rows.len() as u32;
        rows.into_iter().for_each(|row| self.touch(table, row, &values));
        Some(found)
    }

    fn touch(&mut self, table: TableId, row: usize, values: &Checked) {
        let columns = values.iter().map(|(column, _)| *column);
        match self.touched.iter_mut().find(|t| t.table == table && t.row == row) {
            Some(touched) => touched.columns.extend(columns),
            None => self.touched.push(Touched { table, row, columns: columns.collect() }),
        }
    }

    /// The net changes, parents first, rows in key order.
    fn changes(&mut self) -> Vec<RowChange> {
        self.touched.sort_unstable_by_key(|touched| (touched.table, touched.row));
        let mut changes = Vec::with_capacity(self.touched.len());
        let mut scratch = Scratch::new();
        for Touched { table, row, columns } in &mut self.touched {
            columns.sort_unstable();
            columns.dedup();
            let start = self.starts.get(*table).map_or(0, |start| *start as usize);
            let before = self.layout.view(*table, self.before.get(start..).unwrap_or_default());
            let after = self.layout.view(*table, self.after.get(start..).unwrap_or_default());
            let (Some(before), Some(after)) = (before, after) else { continue };
            let mut other = Scratch::new();
            columns.retain(|column| {
                let old = before.value(None, *row, *column, &mut scratch);
                !identical(old, after.value(None, *row, *column, &mut other))
            });
            if columns.is_empty() {
                continue;
            }
            // the root row of the child's implied key never changes here
            let root = (*table > 0).then_some(&self.root);
            let (table, row) = (*table, after.to_row(root, *row, &mut scratch));
            let changed = columns.to_vec();
            changes.push(RowChange { table, kind: ChangeKind::Update, row, changed });
        }
        changes
    }

    fn view<'v>(&'v self, table: TableId, packed: &'v [u8]) -> Option<View<'v>> {
        self.layout.view(table, packed.get(*self.starts.get(table)? as usize..)?)
    }

    fn root_of(&self, table: TableId) -> Option<&View<'a>> {
        (table > 0).then_some(&self.root)
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
