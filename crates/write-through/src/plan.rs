//! From transactions in commit order to the statements of one backend transaction.
//!
//! Pure: no IO, no clock. Owns the net effect per row, the grouping into set-based statements and
//! their order. Input are the pending transactions of one batch, output is a list of waves.

use cachetier_model::{ChangeKind, ColumnId, Row, TableId};

mod net_effect;
mod order;
mod wave;

pub use wave::{PlanError, plan};

/// Statements in the order they are to run. A batch is one wave unless a unique value moves
/// between rows within it: then each wave carries what may be summed up without a wrong conflict.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wave<'a> {
    pub statements: Vec<Statement<'a>>,
}

/// One set-based statement.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement<'a> {
    pub table: TableId,
    pub kind: ChangeKind,
    /// Columns an update sets; empty for inserts (all columns) and deletes (key only).
    pub set: Vec<ColumnId>,
    pub rows: Vec<&'a Row>,
}

#[cfg(test)]
mod tests;
