//! From the driver's errors to reasons: by SQLSTATE where the server spoke, else by what failed.

use crate::error::{BackendError, Disposition, Reason};
use std::error::Error as _;
use tokio_postgres::error::DbError;

/// The SQLSTATE of every statement after the one that failed.
pub(super) const IN_FAILED_TRANSACTION: &str = "25P02";

pub(super) fn from_driver(act: &'static str, error: &tokio_postgres::Error) -> BackendError {
    if let Some(db) = error.as_db_error() {
        return from_server(act, db);
    }
    let text = error.to_string();
    let cause = error.source().map(|s| s.to_string()).unwrap_or_default();
    let (reason, message) = if text.starts_with("error performing TLS handshake") {
        (Reason::TlsFailed, format!("no TLS session with the backend: {cause}"))
    } else if text.starts_with("authentication error") || cause == "password missing" {
        (Reason::AuthenticationFailed, format!("cannot log in with the given credentials: {cause}"))
    } else if text.starts_with("invalid con") {
        // "… connection string" or "… configuration"
        (Reason::Configuration, format!("the backend's connection settings are wrong: {cause}"))
    } else if text.starts_with("error serializing parameter") {
        (Reason::ValueRefused, "a value does not fit its column's type".to_owned())
    } else if text.starts_with("error deserializing") || text.starts_with("invalid column") {
        (Reason::SchemaDrift, "the backend answered with another type than expected".to_owned())
    } else if cause == "database does not allow writes" {
        (Reason::BackendNotReady, "none of the backend's hosts that answer takes writes".to_owned())
    } else if text.starts_with("error connecting to server") {
        (Reason::BackendUnreachable, format!("no connection to the backend: {cause}"))
    } else {
        (Reason::BackendUnreachable, format!("the connection to the backend broke: {text}"))
    };
    BackendError::new(act, reason, message)
}

/// Of a BEGIN of ours: the one feature that it asks for and that a server may not support is to
/// write while it is a standby.
pub(super) fn from_begin(act: &'static str, error: &tokio_postgres::Error) -> BackendError {
    const NOT_SUPPORTED: &str = "0A000";
    let mut fault = from_driver(act, error);
    if fault.sqlstate.as_deref() == Some(NOT_SUPPORTED) {
        fault.reason = Reason::BackendNotReady;
    }
    fault
}

fn from_server(act: &'static str, db: &DbError) -> BackendError {
    let code = db.code().code();
    let reason = reason_of(code);
    let message = if reason.disposition() == Disposition::Reject {
        // the server's words may quote the row
        refusal(reason).to_owned()
    } else {
        format!("{} (SQLSTATE {code})", db.message())
    };
    BackendError {
        sqlstate: Some(code.into()),
        table: db.table().map(Into::into),
        constraint: db.constraint().map(Into::into),
        detail: Some(match db.detail() {
            Some(detail) => format!("{}: {detail}", db.message()).into(),
            None => db.message().into(),
        }),
        ..BackendError::new(act, reason, message)
    }
}

fn refusal(reason: Reason) -> &'static str {
    match reason {
        Reason::ConstraintViolated => "the backend refused the row: a constraint is violated",
        Reason::ValueRefused => "the backend refused the row: a value is not valid",
        _ => "a trigger or function of the backend refused the row",
    }
}

/// What an SQLSTATE means for whoever sent the statement.
pub(super) fn reason_of(code: &str) -> Reason {
    match code {
        "40001" | "40P01" | "55P03" | "57014" | "25P03" | "55006" | "57P05" => Reason::BackendBusy,
        "25006" | "57P01" | "57P02" | "57P03" | "57P04" | "55000" => Reason::BackendNotReady,
        "53300" => Reason::BackendOverloaded,
        "42501" => Reason::PrivilegeMissing,
        "42P01" | "3F000" => Reason::TableMissing,
        "42703" => Reason::ColumnMissing,
        "3D000" => Reason::DatabaseMissing,
        IN_FAILED_TRANSACTION => Reason::Internal,
        "XX001" | "XX002" => Reason::Internal,
        _ => match code.get(..2).unwrap_or_default() {
            "08" => Reason::BackendUnreachable,
            "53" | "58" | "F0" | "XX" => Reason::BackendOverloaded,
            "40" => Reason::BackendBusy,
            "28" => Reason::AuthenticationFailed,
            "23" | "44" => Reason::ConstraintViolated,
            "21" | "22" | "54" => Reason::ValueRefused,
            "0A" | "42" => Reason::SchemaDrift,
            "25" | "2D" | "3B" | "34" | "24" | "26" => Reason::Internal,
            // raised by PL/pgSQL, by an external routine, or under a code of the user's own
            _ => Reason::TriggerRefused,
        },
    }
}

/// An answer that did not come in time: its outcome is unknown.
pub(super) fn timed_out(act: &'static str) -> BackendError {
    BackendError::new(act, Reason::BackendUnreachable, "the backend did not answer in time")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_told_apart_by_its_sqlstate() {
        use Disposition::{Reject, Retry, StopAndAsk};
        for (code, disposition) in [
            ("08006", Retry),
            ("40001", Retry),
            ("40P01", Retry),
            ("57P01", Retry),
            ("25006", Retry),
            ("53300", Retry),
            ("53100", Retry),
            ("55P03", Retry),
            ("57014", Retry),
            ("23505", Reject),
            ("23503", Reject),
            ("23514", Reject),
            ("23502", Reject),
            ("22001", Reject),
            ("22003", Reject),
            ("P0001", Reject),
            ("MY001", Reject),
            ("42501", StopAndAsk),
            ("42P01", StopAndAsk),
            ("42703", StopAndAsk),
            ("42804", StopAndAsk),
            ("28P01", StopAndAsk),
            ("3D000", StopAndAsk),
        ] {
            assert_eq!(reason_of(code).disposition(), disposition, "{code}");
        }
    }
}
