//! Exit codes, in one table.

use cachetier_client::{ClientError, Reason};
use std::process::ExitCode;

/// Shown by `--help`.
pub const TABLE: &str = "Exit codes:
  0  done; for `get` also when the instance does not exist
  1  failed
  2  wrong usage
  3  the group refused: a guard, an expected row count, a key, a value, a role
  4  the answer is not good: differences found, not drained, not loaded
  5  no node, or no API server, could be reached";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    Failed = 1,
    Refused = 3,
    NotGood = 4,
    Unreachable = 5,
}

impl Exit {
    pub fn good(good: bool) -> Self {
        if good { Self::Done } else { Self::NotGood }
    }

    pub fn of_error(error: &anyhow::Error) -> Self {
        error.chain().find_map(of_cause).unwrap_or(Self::Failed)
    }
}

fn of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Exit> {
    if let Some(error) = cause.downcast_ref::<ClientError>() {
        return Some(match error {
            ClientError::Unreachable { .. }
            | ClientError::Unsent { .. }
            | ClientError::Interrupted { .. } => Exit::Unreachable,
            ClientError::Refused(refusal) if refused_for_good(refusal.reason) => Exit::Refused,
            _ => Exit::Failed,
        });
    }
    match cause.downcast_ref::<kube::Error>() {
        Some(kube::Error::HyperError(_) | kube::Error::Service(_)) => Some(Exit::Unreachable),
        _ => None,
    }
}

fn refused_for_good(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::GuardFailed
            | Reason::RowCount
            | Reason::PrimaryKey
            | Reason::ForeignKey
            | Reason::Unique
            | Reason::NotNull
            | Reason::Value
            | Reason::Schema
            | Reason::Request
            | Reason::Role
            | Reason::Quarantined
            | Reason::BackendRefused
    )
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}
