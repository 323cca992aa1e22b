//! The one table from errors of the group to gRPC codes and details.

use cachetier_client::convert::{ConvertError, topology_to_wire};
use cachetier_client::{ClientError, ERROR_DETAIL_TRAILER, Reason};
use cachetier_group::{Disposition, GroupError};
use cachetier_model::Topology;
use cachetier_proto::v1::{ErrorDetail, PipelineError};
use prost::Message;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

/// The status of a failed call; `topology` goes along when the caller asked the wrong node.
pub fn from_group(error: &GroupError, topology: Option<&Topology>) -> Status {
    let facts = error.facts();
    let code = code(error.disposition(), facts.reason);
    let wrong_node = matches!(error, GroupError::NotOwner { .. });
    let detail = ErrorDetail {
        reason: facts.reason.to_owned(),
        table: facts.table.unwrap_or_default(),
        constraint: facts.constraint.unwrap_or_default(),
        column: facts.column.unwrap_or_default(),
        retry_after_ms: facts.retry_after.map_or(0, |d| d.as_millis() as u64),
        backlog_bytes: facts.backlog_bytes,
        topology: topology.filter(|_| wrong_node).map(topology_to_wire),
        operation: facts.operation.map_or(-1, |o| o as i32),
    };
    with_detail(code, error.to_string(), &detail)
}

fn code(disposition: Disposition, reason: &str) -> Code {
    match (disposition, reason) {
        (Disposition::Reject, "NOT_FOUND" | "UNKNOWN") => Code::NotFound,
        (Disposition::Reject, "PRIMARY_KEY" | "UNIQUE") => Code::AlreadyExists,
        (Disposition::Reject, "VALUE" | "NOT_NULL" | "SCHEMA" | "REQUEST" | "FOREIGN_TOPOLOGY") => {
            Code::InvalidArgument
        }
        (Disposition::Reject, _) => Code::FailedPrecondition,
        (Disposition::Busy, _) => Code::ResourceExhausted,
        (Disposition::Retry, _) => Code::Unavailable,
        (Disposition::Fenced, _) => Code::Aborted,
        // never UNAVAILABLE: generic clients repeat that, and this may have happened
        (Disposition::Fatal, "IN_DOUBT") => Code::Unknown,
        (Disposition::Fatal, _) => Code::Internal,
    }
}

/// A request that does not fit the tables.
pub fn from_convert(error: &ConvertError) -> Status {
    let (table, column) = error.place();
    let reason = match error {
        ConvertError::Value { .. } | ConvertError::KeyLength { .. } => Reason::Value,
        ConvertError::Missing { .. } | ConvertError::Operands { .. } | ConvertError::Shape(_) => {
            Reason::Request
        }
        ConvertError::IdempotencyKey(_) => Reason::Request,
        _ => Reason::Schema,
    };
    let detail = ErrorDetail {
        reason: reason.as_str().to_owned(),
        table: table.to_owned(),
        column: column.to_owned(),
        operation: -1,
        ..ErrorDetail::default()
    };
    with_detail(Code::InvalidArgument, error.to_string(), &detail)
}

/// What a peer said to a forwarded call, passed on as it is.
pub fn from_peer(error: &ClientError) -> Status {
    match error {
        ClientError::Refused(refusal) => {
            with_detail(refusal.code, refusal.message.clone(), &refusal.detail)
        }
        other if other.in_doubt() => refuse(Code::Unknown, Reason::InDoubt, other.to_string()),
        other => refuse(Code::Unavailable, Reason::OwnerAway, other.to_string()),
    }
}

pub fn refuse(code: Code, reason: Reason, message: impl Into<String>) -> Status {
    let reason = reason.as_str().to_owned();
    with_detail(code, message.into(), &ErrorDetail { reason, operation: -1, ..Default::default() })
}

/// The request lacks something.
pub fn missing(what: &'static str) -> Status {
    from_convert(&ConvertError::Missing { what })
}

fn with_detail(code: Code, message: String, detail: &ErrorDetail) -> Status {
    let mut metadata = MetadataMap::new();
    let value = MetadataValue::from_bytes(&detail.encode_to_vec());
    metadata.insert_bin(ERROR_DETAIL_TRAILER, value);
    Status::with_metadata(code, message, metadata)
}

/// The same on a pipeline.
pub fn to_pipeline(status: &Status) -> PipelineError {
    PipelineError {
        code: status.code() as u32,
        message: status.message().to_owned(),
        detail: cachetier_client::error::detail_of(status),
    }
}

/// The outcome of a call for the metrics.
pub fn outcome<T>(answer: &Result<T, Status>) -> &'static str {
    match answer {
        Ok(_) => "OK",
        Err(status) => cachetier_client::error::detail_of(status)
            .map_or(Reason::Other, |d| Reason::parse(&d.reason))
            .as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn an_outcome_nobody_knows_is_never_a_code_that_clients_repeat() {
        let status = from_group(&GroupError::InDoubt { reason: "sync failed".into() }, None);
        assert_eq!(status.code(), Code::Unknown);
        assert!(ClientError::from_status("n", status).in_doubt());
    }

    #[test]
    fn every_reason_of_the_group_is_known_to_the_client() {
        let errors = [
            GroupError::Starting { reason: "x".into() },
            GroupError::Draining,
            GroupError::BacklogFull { backlog_bytes: 7, retry_after: Duration::from_millis(3) },
            GroupError::JournalFull { reason: "x".into() },
            GroupError::MemoryFull,
            GroupError::Busy { what: "x", retry_after: Duration::ZERO },
            GroupError::InDoubt { reason: "x".into() },
            GroupError::Latched { reason: "x".into() },
            GroupError::Fenced { reason: "x".into() },
            GroupError::BackendAway { reason: "x".into() },
            GroupError::Quarantined,
            GroupError::SetAside,
            GroupError::NotFound,
            GroupError::ForeignTopology { found: String::new(), expected: String::new() },
            GroupError::Unknown { what: "load", id: String::new() },
            GroupError::PeerAway { node: String::new(), reason: "x".into() },
            GroupError::Internal { reason: "x".into() },
        ];
        for error in errors {
            let known = Reason::parse(error.reason());
            assert_ne!(known, Reason::Other, "{}", error.reason());
            let sent = ClientError::from_status("n", from_group(&error, None));
            assert_eq!(sent.reason(), Some(known));
        }
    }
}
