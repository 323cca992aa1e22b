//! Requests and answers in the caller's terms: names of tables and columns, exact values.
//!
//! Plain data; the conversion to and from the wire is in [`crate::convert`].

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

pub use cachetier_model::{Comparison, Row, Value};

/// Which cache instance.
#[derive(Clone, Debug, PartialEq)]
pub enum Key {
    /// Values of the root table's primary key, in key order.
    Root(Vec<Value>),
    /// Values of a declared lookup key.
    Lookup { columns: Vec<String>, values: Vec<Value> },
}

impl Key {
    pub fn root(values: impl IntoIterator<Item = Value>) -> Self {
        Self::Root(values.into_iter().collect())
    }

    /// A lookup key of one column.
    pub fn lookup(column: impl Into<String>, value: Value) -> Self {
        Self::Lookup { columns: vec![column.into()], values: vec![value] }
    }
}

/// `column comparison values`.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    pub column: String,
    pub comparison: Comparison,
    pub values: Vec<Value>,
}

impl Condition {
    pub fn new(column: impl Into<String>, comparison: Comparison, value: Value) -> Self {
        Self { column: column.into(), comparison, values: vec![value] }
    }

    pub fn equal(column: impl Into<String>, value: Value) -> Self {
        Self::new(column, Comparison::Equal, value)
    }
}

/// Rows of one table; no columns means all, no conditions means every row of the instance.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct TableRead {
    pub table: String,
    pub columns: Vec<String>,
    pub conditions: Vec<Condition>,
}

impl TableRead {
    pub fn whole(table: impl Into<String>) -> Self {
        Self { table: table.into(), ..Self::default() }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Read {
    pub key: Key,
    /// Empty: every table whole.
    pub tables: Vec<TableRead>,
    /// Refuse an answer that went around the store.
    pub no_bypass: bool,
    /// What a write of this instance was answered with: the answer holds it, or the read is refused
    /// (`POSITION_NOT_REACHED`). Matters while the owner is away.
    pub min_position: Option<Position>,
}

impl Read {
    /// The whole instance.
    pub fn whole(key: Key) -> Self {
        Self::tables(key, Vec::new())
    }

    pub fn tables(key: Key, tables: Vec<TableRead>) -> Self {
        Self { key, tables, no_bypass: false, min_position: None }
    }

    /// See the field.
    #[must_use]
    pub fn not_before(mut self, position: Position) -> Self {
        self.min_position = Some(position);
        self
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct ReadAnswer {
    pub found: bool,
    /// One entry per requested table; every table for a whole read.
    pub tables: Vec<TableRows>,
    pub source: Source,
    /// For a bypass: how far the owner's journal was in the backend; what it acknowledged after that
    /// is missing.
    pub confirmed: Option<Position>,
}

impl ReadAnswer {
    /// The rows of a table; none when it was not asked for.
    pub fn rows(&self, table: &str) -> &[Row] {
        self.tables.iter().find(|t| t.table == table).map_or(&[], |t| &t.rows)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct TableRows {
    pub table: String,
    pub rows: Vec<Row>,
}

/// Where an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Cache,
    ReadThrough,
    Bypass,
}

/// A place in one node's journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    pub journal: String,
    pub sequence: u64,
}

impl fmt::Display for Position {
    /// `JOURNAL:SEQUENCE`, as it is read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.journal, self.sequence)
    }
}

/// A text that is no position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a position is JOURNAL:SEQUENCE, as a transaction's answer says it")]
pub struct NoPosition;

impl FromStr for Position {
    type Err = NoPosition;

    fn from_str(text: &str) -> Result<Self, NoPosition> {
        let (journal, sequence) = text.rsplit_once(':').ok_or(NoPosition)?;
        let sequence = sequence.parse().map_err(|_| NoPosition)?;
        let journal = Some(journal).filter(|journal| !journal.is_empty()).ok_or(NoPosition)?;
        Ok(Self { journal: journal.to_owned(), sequence })
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Guard {
    pub table: String,
    pub conditions: Vec<Condition>,
    /// No such row may exist, instead of at least one must.
    pub absent: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    Insert(Insert),
    Update(Update),
    Upsert(Insert),
    Delete(Delete),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Insert {
    pub table: String,
    /// Root key columns may be left out; every other column without a value is NULL.
    pub values: Vec<(String, Value)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    pub table: String,
    pub conditions: Vec<Condition>,
    pub set: Vec<(String, Value)>,
    /// Required number of rows, else nothing happens.
    pub expect: Option<u32>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Delete {
    pub table: String,
    pub conditions: Vec<Condition>,
    pub expect: Option<u32>,
}

/// When a transaction is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answer {
    /// Durable at the group's level.
    #[default]
    Durable,
    /// Accepted by the backend.
    Flushed,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Transact {
    pub key: Key,
    pub guards: Vec<Guard>,
    pub operations: Vec<Operation>,
    pub answer: Answer,
    /// 1 to 64 bytes, one for each transaction: a repeated one is answered as the first was, and not
    /// applied again. The client then repeats it by itself while its outcome is unknown. Needs the
    /// root key, and a group with an `idempotencyWindow`.
    pub idempotency_key: Option<Bytes>,
}

impl Transact {
    pub fn new(key: Key, operations: Vec<Operation>) -> Self {
        let answer = Answer::Durable;
        Self { key, guards: Vec::new(), operations, answer, idempotency_key: None }
    }

    /// See the field.
    #[must_use]
    pub fn with_idempotency_key(mut self, key: impl Into<Bytes>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct TransactAnswer {
    /// `None` when nothing changed.
    pub position: Option<Position>,
    /// Rows affected, per operation.
    pub rows: Vec<u32>,
}
