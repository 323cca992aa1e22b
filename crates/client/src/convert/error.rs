//! Why a message does not fit the schema.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    #[error("the group has no table {table:?}; its tables are {known}")]
    UnknownTable { table: String, known: String },
    #[error("table {table} has no column {column:?}")]
    UnknownColumn { table: String, column: String },
    #[error("the group has no lookup key over ({columns}); declare it in lookupKeys")]
    UnknownLookup { columns: String },
    #[error("{column} of table {table}: {problem}")]
    Value { table: String, column: String, problem: String },
    #[error("{column} of table {table} has a default in the backend; name it with a value")]
    Omitted { table: String, column: String },
    #[error("{column} of table {table} is named twice")]
    NamedTwice { table: String, column: String },
    #[error("the root key has {expected} columns, {found} values were given")]
    KeyLength { expected: usize, found: usize },
    #[error("{what} is missing from the request")]
    Missing { what: &'static str },
    #[error("the comparison on {column} of table {table} takes {expected}, {found} were given")]
    Operands { table: String, column: String, expected: &'static str, found: usize },
    #[error("the topology is not valid: {0}")]
    Topology(String),
    #[error("idempotency_key: {0}")]
    IdempotencyKey(String),
    #[error("the answer does not fit the schema: {0}")]
    Shape(&'static str),
}

impl ConvertError {
    /// Table and column at fault, where there is one; empty otherwise.
    pub fn place(&self) -> (&str, &str) {
        match self {
            Self::UnknownTable { table, .. } => (table, ""),
            Self::UnknownColumn { table, column }
            | Self::Value { table, column, .. }
            | Self::Omitted { table, column }
            | Self::NamedTwice { table, column }
            | Self::Operands { table, column, .. } => (table, column),
            _ => ("", ""),
        }
    }
}
