//! What a caller may ask of one cache instance, and what a committed transaction changed.

use crate::instance::Row;
use crate::schema::{ColumnId, TableId};
use crate::value::Value;

mod idempotency;

pub use idempotency::{IDEMPOTENCY_KEY_BYTES_MAX, IdempotencyKey, IdempotencyKeyError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    IsNull,
    IsNotNull,
}

/// `column op values`; one value for the binary comparisons, any number for `In`, none for the
/// NULL tests. Comparisons with NULL are never true, as in SQL.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    pub column: ColumnId,
    pub comparison: Comparison,
    pub values: Vec<Value>,
}

/// Rows of one table that satisfy all conditions (none: every row).
#[derive(Clone, Debug, PartialEq)]
pub struct TableRead {
    pub table: TableId,
    /// Columns to return, in this order; empty means all.
    pub columns: Vec<ColumnId>,
    pub conditions: Vec<Condition>,
}

/// What to read from one instance; empty means every table whole.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ReadPlan {
    pub tables: Vec<TableRead>,
}

/// A condition on the instance that must hold, else nothing of the transaction happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Guard {
    Exists { table: TableId, conditions: Vec<Condition> },
    Absent { table: TableId, conditions: Vec<Condition> },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// `row` has a value per column.
    Insert { table: TableId, row: Row },
    /// Changes columns of the rows that match; `expect` is the required number of rows.
    Update {
        table: TableId,
        conditions: Vec<Condition>,
        set: Vec<(ColumnId, Value)>,
        expect: Option<u32>,
    },
    /// Insert, or replace the row of the same primary key.
    Upsert { table: TableId, row: Row },
    /// Deletes the rows that match; children follow by the foreign key's action.
    Delete { table: TableId, conditions: Vec<Condition>, expect: Option<u32> },
}

/// All or nothing on one instance.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Transaction {
    pub guards: Vec<Guard>,
    pub operations: Vec<Operation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    Insert,
    Update,
    Delete,
}

/// The effect of a transaction on one row, for the journal and the backend.
#[derive(Clone, Debug, PartialEq)]
pub struct RowChange {
    pub table: TableId,
    pub kind: ChangeKind,
    /// The row after the change; for a delete, the row before it.
    pub row: Row,
    /// Columns whose value changed (updates only), ascending. Key columns never change.
    pub changed: Vec<ColumnId>,
}
