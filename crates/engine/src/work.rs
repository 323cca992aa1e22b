//! One transaction applied to one instance, in memory of its own.
//!
//! Takes the packed instance and the request, unpacks only the tables it touches, enforces what
//! the backend would enforce (keys, foreign keys with their actions, NOT NULL, types, expected row
//! counts), and yields the net change per row and the new packed instance. Pure: the slot, the
//! journal and everyone else see nothing of it until the caller commits the result.

mod change;
mod delete;
mod diff;
mod in_place;
mod rules;

pub(crate) use in_place::InPlace;
pub(crate) use rules::Rules;

use crate::condition::Conditions;
use crate::layout::{Layout, Sections};
use crate::{EngineError, TransactError};
use cachetier_model::{
    GroupSchema, Guard, Operation, RootKey, Row, RowChange, TableId, TableSchema, Transaction,
};
use std::cmp::Ordering;
use std::rc::Rc;

/// The instance while a transaction works on it.
pub(crate) struct Work<'a> {
    schema: &'a GroupSchema,
    layout: &'a Layout,
    key: &'a RootKey,
    packed: Option<&'a [u8]>,
    sections: Option<Sections<'a>>,
    tables: Vec<Option<WorkTable>>,
}

#[derive(Default)]
struct WorkTable {
    /// In key order; shared with `before` until changed.
    rows: Vec<Rc<Row>>,
    /// The rows as they were, once something changed.
    before: Option<Vec<Rc<Row>>>,
}

/// What a transaction did.
pub(crate) struct Outcome {
    /// Rows affected per operation.
    pub(crate) rows: Vec<u32>,
    pub(crate) changes: Vec<RowChange>,
    /// The packed instance afterwards; `None`: it does not exist.
    pub(crate) packed: Option<Vec<u8>>,
    /// It takes the room of the one before.
    pub(crate) in_place: bool,
}

impl<'a> Work<'a> {
    /// `packed`: the instance as it is, `None` when it does not exist.
    pub(crate) fn new(
        schema: &'a GroupSchema,
        layout: &'a Layout,
        key: &'a RootKey,
        packed: Option<&'a [u8]>,
    ) -> Self {
        let tables = (0..schema.tables.len()).map(|_| None).collect();
        Self { schema, layout, key, packed, sections: None, tables }
    }

    pub(crate) fn run(mut self, transaction: &Transaction) -> Result<Outcome, TransactError> {
        for (index, guard) in transaction.guards.iter().enumerate() {
            if !self.guard_holds(guard)? {
                return Err(TransactError::GuardFailed { index });
            }
        }
        let mut rows = Vec::with_capacity(transaction.operations.len());
        for (operation, what) in transaction.operations.iter().enumerate() {
            rows.push(self.apply(operation, what)?);
        }
        self.no_orphans(transaction.operations.len().saturating_sub(1))?;
        let changes = self.changes();
        let packed = if changes.is_empty() { None } else { self.pack()? };
        Ok(Outcome { rows, changes, packed, in_place: false })
    }

    fn guard_holds(&mut self, guard: &Guard) -> Result<bool, TransactError> {
        let (table, conditions, wanted) = match guard {
            Guard::Exists { table, conditions } => (*table, conditions, true),
            Guard::Absent { table, conditions } => (*table, conditions, false),
        };
        let conditions = Conditions::prepare(self.schema(table)?, conditions)?;
        Ok(self.rows(table).iter().any(|row| conditions.hold(row)) == wanted)
    }

    fn apply(&mut self, operation: usize, what: &Operation) -> Result<u32, TransactError> {
        match what {
            Operation::Insert { table, row } => self.insert(operation, *table, row),
            Operation::Upsert { table, row } => self.upsert(operation, *table, row),
            Operation::Update { table, conditions, set, expect } => {
                let found = self.update(operation, *table, conditions, set)?;
                expected(operation, *expect, found)
            }
            Operation::Delete { table, conditions, expect } => {
                let found = self.delete(operation, *table, conditions)?;
                expected(operation, *expect, found)
            }
        }
    }

    fn schema(&self, table: TableId) -> Result<&'a TableSchema, EngineError> {
        self.schema
            .tables
            .get(table)
            .ok_or_else(|| EngineError::Unknown(format!("table number {table}")))
    }

    /// The rows of a table, unpacked on first use. Empty for a table that does not exist.
    fn rows(&mut self, table: TableId) -> &[Rc<Row>] {
        self.table(table).map_or(&[], |t| &t.rows)
    }

    /// The rows of a table, to be changed.
    fn rows_mut(&mut self, table: TableId) -> Option<&mut Vec<Rc<Row>>> {
        let table = self.table(table)?;
        if table.before.is_none() {
            table.before = Some(table.rows.clone());
        }
        Some(&mut table.rows)
    }

    fn table(&mut self, table: TableId) -> Option<&mut WorkTable> {
        let place = self.tables.get_mut(table)?;
        if place.is_none() {
            let rows = match self.packed {
                None => Vec::new(),
                Some(packed) => {
                    let layout = self.layout;
                    let sections = self.sections.get_or_insert_with(|| layout.sections(packed));
                    layout.decode_table(table, sections).into_iter().map(Rc::new).collect()
                }
            };
            *place = Some(WorkTable { rows, before: None });
        }
        place.as_mut()
    }

    /// Where the tables of the packed instance are.
    fn sections(&mut self) -> Option<&Sections<'a>> {
        if let (None, Some(packed)) = (&self.sections, self.packed) {
            self.sections = Some(self.layout.sections(packed));
        }
        self.sections.as_ref()
    }

    /// A row without its root would not belong to any instance.
    fn no_orphans(&mut self, operation: usize) -> Result<(), TransactError> {
        let exists = match self.tables.first() {
            Some(Some(root)) => !root.rows.is_empty(),
            _ => self.packed.is_some(),
        };
        if exists {
            return Ok(());
        }
        for id in 1..self.schema.tables.len() {
            if !self.rows(id).is_empty() {
                let table = self.schema(id)?;
                return Err(foreign_key(operation, table));
            }
        }
        Ok(())
    }

    /// The packed instance: changed tables encoded anew, the others copied.
    fn pack(&mut self) -> Result<Option<Vec<u8>>, TransactError> {
        let root_key = match (self.tables.first(), self.packed) {
            (Some(Some(root)), _) => match root.rows.first() {
                Some(root) => self.layout.root_key_of(root),
                None => return Ok(None),
            },
            (_, Some(packed)) => self.layout.root_key_of_packed(packed),
            _ => return Ok(None),
        };
        self.sections();
        let mut out = Vec::with_capacity(self.packed.map_or(256, |p| p.len() + 64));
        for (id, table) in self.tables.iter().enumerate() {
            match (table, &self.sections) {
                (None | Some(WorkTable { before: None, .. }), Some(sections)) => {
                    out.extend_from_slice(sections.get(id));
                }
                (table, _) => {
                    let rows = table.as_ref().map_or(&[][..], |t| &t.rows);
                    self.layout
                        .encode_table(id, rows, &root_key, &mut out)
                        .map_err(|misfit| misfit.error(self.schema))?;
                }
            }
        }
        Ok(Some(out))
    }
}

fn expected(operation: usize, expect: Option<u32>, found: u32) -> Result<u32, TransactError> {
    match expect {
        Some(expected) if expected != found => {
            Err(TransactError::RowCount { operation, expected, found })
        }
        _ => Ok(found),
    }
}

fn foreign_key(operation: usize, table: &TableSchema) -> TransactError {
    TransactError::ForeignKey {
        operation,
        table: table.name.clone(),
        constraint: table.parent_key.as_ref().map_or_else(String::new, |k| k.constraint.clone()),
    }
}

/// Order of two rows by primary key, as the backend orders it (text: by bytes).
pub(crate) fn by_primary_key(table: &TableSchema, a: &Row, b: &Row) -> Ordering {
    for id in &table.primary_key {
        let cells = a.get(*id).zip(b.get(*id)).zip(table.columns.get(*id));
        let Some(((a, b), column)) = cells else { continue };
        match column.column_type.compare(a, b) {
            None | Some(Ordering::Equal) => {}
            Some(order) => return order,
        }
    }
    Ordering::Equal
}
