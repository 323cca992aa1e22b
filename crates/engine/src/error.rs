//! Why the engine refuses. Messages name tables, columns and constraints, never a value.

use cachetier_model::ValueError;

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("the schema cannot be cached: {0}")]
    Schema(String),
    #[error("the request names {0}, which the group's schema does not have")]
    Unknown(String),
    #[error("table {table}, column {column}: {source}")]
    Value { table: String, column: String, source: ValueError },
    #[error(
        "table {table}, column {column}: ordering comparisons need a column whose collation orders \
         by bytes (COLLATE \"C\"); use equality, or read all rows"
    )]
    NotOrdered { table: String, column: String },
    #[error("table {table}, column {column}: type {sql_type} has no such comparison")]
    NotComparable { table: String, column: String, sql_type: String },
    #[error("the comparison on table {table}, column {column} takes {expected} values")]
    Operands { table: String, column: String, expected: &'static str },
    #[error("a row of table {table} does not belong to the instance it was given for")]
    WrongInstance { table: String },
    #[error("{0} loads are open at the same time, which is the limit; close some")]
    TooManyTickets(usize),
    #[error("memory capacity of {capacity_bytes} bytes is below the minimum of {minimum_bytes}")]
    Capacity { capacity_bytes: u64, minimum_bytes: u64 },
    #[error("the image of an instance cannot be decoded")]
    Image(#[from] cachetier_model::codec::CodecError),
}

/// Why the sink did not take a commit: the journal or the queue is full, the node is latched, …
/// The engine passes it on untouched; the caller that made the sink downcasts it.
#[derive(Debug, thiserror::Error)]
#[error("the commit was refused: {0}")]
pub struct CommitRefused(pub Box<dyn std::error::Error + Send + Sync>);

/// Why a transaction did not happen. Nothing of it did. `operation` counts from 0.
#[derive(Debug, thiserror::Error)]
pub enum TransactError {
    #[error("the instance is not loaded; load it first")]
    NotLoaded,
    #[error("the instance is quarantined: an earlier change of it was refused by the backend")]
    Quarantined,
    #[error("an earlier transaction of this instance waits for the backend's decision")]
    AwaitingBackend,
    #[error("guard {index} does not hold")]
    GuardFailed { index: usize },
    #[error("operation {operation}: table {table} has a row with this key ({constraint})")]
    PrimaryKey { operation: usize, table: String, constraint: String },
    #[error("operation {operation}: table {table} violates foreign key {constraint}")]
    ForeignKey { operation: usize, table: String, constraint: String },
    #[error("operation {operation}: table {table}, column {column} must have a value")]
    NotNull { operation: usize, table: String, column: String },
    #[error("operation {operation}: table {table}, column {column}: {source}")]
    Value { operation: usize, table: String, column: String, source: ValueError },
    #[error(
        "operation {operation}: table {table}, column {column} is part of the key, which never changes; delete and insert instead"
    )]
    KeyChange { operation: usize, table: String, column: String },
    #[error("operation {operation}: a row of table {table} belongs to another instance")]
    WrongInstance { operation: usize, table: String },
    #[error("operation {operation}: {expected} rows were expected, {found} match")]
    RowCount { operation: usize, expected: u32, found: u32 },
    #[error("another instance has this lookup key ({constraint})")]
    LookupTaken { constraint: String },
    #[error("the memory budget is used up; raise memory.capacity or delete rows")]
    MemoryFull,
    #[error(transparent)]
    Refused(CommitRefused),
    /// The request itself is wrong: an unknown table or column, a comparison the type lacks.
    #[error(transparent)]
    Request(#[from] EngineError),
}
