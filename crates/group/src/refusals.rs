//! One table from the engine's and the backend's refusals to what callers are told.
//!
//! Owns the mapping and nothing else. Texts name tables, columns and constraints, never values.

use cachetier_engine::{EngineError, TransactError};
use cachetier_model::{GroupSchema, Guard, Operation, TableId, Transaction};
use cachetier_write_through::{Reason, RejectCause};

use crate::error::{GroupError, Refusal, RefusalReason};

/// The engine's refusal of a transaction.
pub(crate) fn explain(
    schema: &GroupSchema,
    transaction: &Transaction,
    error: TransactError,
) -> GroupError {
    let message = error.to_string();
    let refuse = |reason, table: Option<String>| Refusal {
        reason,
        table,
        constraint: None,
        column: None,
        operation: None,
        message: message.clone(),
    };
    let refusal = match error {
        TransactError::Quarantined => return GroupError::Quarantined,
        TransactError::MemoryFull => return GroupError::MemoryFull,
        TransactError::NotLoaded | TransactError::AwaitingBackend | TransactError::Refused(_) => {
            return GroupError::internal(message);
        }
        TransactError::GuardFailed { index } => Refusal {
            operation: Some(index),
            ..refuse(RefusalReason::GuardFailed, guard_table(schema, transaction, index))
        },
        TransactError::PrimaryKey { operation, table, constraint } => Refusal {
            operation: Some(operation),
            constraint: Some(constraint),
            ..refuse(RefusalReason::PrimaryKey, Some(table))
        },
        TransactError::ForeignKey { operation, table, constraint } => Refusal {
            operation: Some(operation),
            constraint: Some(constraint),
            ..refuse(RefusalReason::ForeignKey, Some(table))
        },
        TransactError::NotNull { operation, table, column } => Refusal {
            operation: Some(operation),
            column: Some(column),
            ..refuse(RefusalReason::NotNull, Some(table))
        },
        TransactError::Value { operation, table, column, .. }
        | TransactError::KeyChange { operation, table, column } => Refusal {
            operation: Some(operation),
            column: Some(column),
            ..refuse(RefusalReason::Value, Some(table))
        },
        TransactError::WrongInstance { operation, table } => {
            Refusal { operation: Some(operation), ..refuse(RefusalReason::Value, Some(table)) }
        }
        TransactError::RowCount { operation, .. } => Refusal {
            operation: Some(operation),
            ..refuse(RefusalReason::RowCount, operation_table(schema, transaction, operation))
        },
        TransactError::LookupTaken { constraint } => Refusal {
            constraint: Some(constraint),
            ..refuse(RefusalReason::Unique, schema.root().map(|t| t.name.clone()))
        },
        TransactError::Request(error) => return from_engine(error),
    };
    GroupError::Refused(Box::new(refusal))
}

/// The engine could not make sense of a request, or of itself.
pub(crate) fn from_engine(error: EngineError) -> GroupError {
    let message = error.to_string();
    match error {
        EngineError::Value { table, column, .. } => GroupError::Refused(Box::new(Refusal {
            reason: RefusalReason::Value,
            table: Some(table),
            constraint: None,
            column: Some(column),
            operation: None,
            message,
        })),
        EngineError::Schema(_) | EngineError::Capacity { .. } | EngineError::Image(_) => {
            GroupError::internal(message)
        }
        _ => GroupError::refused(RefusalReason::Schema, message),
    }
}

/// The backend's refusal of a transaction that awaited its decision.
pub(crate) fn from_backend(cause: &RejectCause) -> GroupError {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let reason = match (cause.reason, cause.sqlstate.as_str()) {
        (_, "23505") => RefusalReason::Unique,
        (_, "23503") => RefusalReason::ForeignKey,
        (_, "23502") => RefusalReason::NotNull,
        (Reason::ValueRefused, _) => RefusalReason::Value,
        (Reason::RowCountMismatch, _) => RefusalReason::RowCount,
        _ => RefusalReason::Backend,
    };
    GroupError::Refused(Box::new(Refusal {
        reason,
        table: some(&cause.table),
        constraint: some(&cause.constraint),
        column: None,
        operation: None,
        message: format!("the backend refused it: {}{}", cause.message, what_refused(cause)),
    }))
}

/// The constraint, or else the table, where the message does not name it.
fn what_refused(cause: &RejectCause) -> String {
    let unnamed = |name: &String| !name.is_empty() && !cause.message.contains(name.as_str());
    match (unnamed(&cause.constraint), unnamed(&cause.table)) {
        (true, _) if cause.table.is_empty() => format!(" (constraint {})", cause.constraint),
        (true, _) => format!(" (constraint {} of table {})", cause.constraint, cause.table),
        (false, true) => format!(" (table {})", cause.table),
        (false, false) => String::new(),
    }
}

fn guard_table(schema: &GroupSchema, transaction: &Transaction, index: usize) -> Option<String> {
    let table = match transaction.guards.get(index)? {
        Guard::Exists { table, .. } | Guard::Absent { table, .. } => *table,
    };
    table_name(schema, table)
}

fn operation_table(
    schema: &GroupSchema,
    transaction: &Transaction,
    index: usize,
) -> Option<String> {
    let table = match transaction.operations.get(index)? {
        Operation::Insert { table, .. }
        | Operation::Update { table, .. }
        | Operation::Upsert { table, .. }
        | Operation::Delete { table, .. } => *table,
    };
    table_name(schema, table)
}

fn table_name(schema: &GroupSchema, table: TableId) -> Option<String> {
    schema.table(table).map(|t| t.name.clone())
}
