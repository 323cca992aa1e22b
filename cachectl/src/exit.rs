//! Exit codes, in one table.

use crate::reach::cluster::ApiServerError;
use cachetier_client::tls::TlsError;
use cachetier_client::{ClientError, Reason};
use std::process::ExitCode;

/// Shown by `--help`.
pub const TABLE: &str = "Exit codes:
  0  done; for `get` also when the instance does not exist
  1  failed
  2  wrong usage: an argument, a file, a table, a column or a value that does not fit
  3  refused: a guard, an expected row count, a key, a value, a role
  4  the answer is not good: differences found, not drained, not loaded, not ready, not dropped
  5  no node, or no API server, could be reached
  6  it is not known whether the transaction happened";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    Failed = 1,
    Misused = 2,
    Refused = 3,
    NotGood = 4,
    Unreachable = 5,
    InDoubt = 6,
}

/// A mistake of whoever typed the command, in the words of the error within.
#[derive(Debug)]
pub struct Misuse(anyhow::Error);

impl std::fmt::Display for Misuse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Misuse {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

/// For `map_err`, where everything that can be wrong was typed.
pub fn misuse(error: anyhow::Error) -> anyhow::Error {
    Misuse(error).into()
}

/// Said of a write whose answer did not come.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("it is not known whether the transaction happened; read the instance before trying again")]
pub struct InDoubt;

impl Exit {
    pub fn good(good: bool) -> Self {
        if good { Self::Done } else { Self::NotGood }
    }

    pub fn of_error(error: &anyhow::Error) -> Self {
        if error.downcast_ref::<InDoubt>().is_some() {
            return Self::InDoubt;
        }
        if error.downcast_ref::<Misuse>().is_some() {
            return Self::Misused;
        }
        error.chain().find_map(of_cause).unwrap_or(Self::Failed)
    }
}

fn of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Exit> {
    if let Some(error) = cause.downcast_ref::<ClientError>() {
        return Some(of_client(error));
    }
    match cause.downcast_ref::<ApiServerError>().map(ApiServerError::cause) {
        Some(kube::Error::HyperError(_) | kube::Error::Service(_)) => Some(Exit::Unreachable),
        Some(kube::Error::Api(answer)) if matches!(answer.code, 401 | 403) => Some(Exit::Refused),
        _ => None,
    }
}

pub fn of_client(error: &ClientError) -> Exit {
    match error {
        ClientError::Unreachable { .. }
        | ClientError::Unsent { .. }
        | ClientError::Interrupted { .. } => Exit::Unreachable,
        ClientError::Refused(refusal) if refused_for_good(refusal.reason) => Exit::Refused,
        ClientError::Convert(_) | ClientError::NoNodes => Exit::Misused,
        // the directory was named by whoever typed the command
        ClientError::Tls(TlsError::Read { .. }) => Exit::Misused,
        ClientError::Refused(_) | ClientError::Protocol { .. } | ClientError::Tls(_) => {
            Exit::Failed
        }
    }
}

fn refused_for_good(reason: Reason) -> bool {
    match reason {
        Reason::GuardFailed
        | Reason::KeyReused
        | Reason::RowCount
        | Reason::PrimaryKey
        | Reason::ForeignKey
        | Reason::Unique
        | Reason::NotNull
        | Reason::Value
        | Reason::Schema
        | Reason::Request
        | Reason::Role
        | Reason::NotFound
        | Reason::Quarantined
        | Reason::BackendRefused => true,
        // passes by itself, or is mended elsewhere
        Reason::NotOwner
        | Reason::SlotMoving
        | Reason::OwnerAway
        | Reason::Starting
        | Reason::BacklogFull
        | Reason::JournalFull
        | Reason::MemoryFull
        | Reason::Busy
        | Reason::InDoubt
        | Reason::BackendAway
        | Reason::PositionNotReached
        | Reason::Draining
        | Reason::Fenced
        | Reason::Latched
        | Reason::Unknown
        | Reason::PeerAway
        | Reason::ForeignTopology
        | Reason::Internal
        | Reason::Other => false,
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn every_code_is_in_the_table_and_the_table_has_no_other() {
        let all = [
            Exit::Done,
            Exit::Failed,
            Exit::Misused,
            Exit::Refused,
            Exit::NotGood,
            Exit::Unreachable,
            Exit::InDoubt,
        ];
        let listed: Vec<u8> =
            TABLE.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
        assert_eq!(listed, all.map(|exit| exit as u8));
    }

    #[test]
    fn doubt_and_misuse_are_told_apart_through_whatever_was_said_around_them() {
        let node = || "n:1".to_owned();
        let lost = || ClientError::Interrupted { node: node(), message: String::new() };
        let doubtful = anyhow::Error::from(lost()).context(InDoubt).context("outer");
        assert_eq!(Exit::of_error(&doubtful), Exit::InDoubt);
        assert_eq!(Exit::of_error(&lost().into()), Exit::Unreachable);
        let typed = misuse(anyhow!("inner").context("no such column"));
        assert_eq!(cachetier_client::causes(typed.as_ref()), "no such column: inner");
        assert_eq!(Exit::of_error(&typed.context("outer")), Exit::Misused);
        assert_eq!(Exit::of_error(&anyhow!("anything")), Exit::Failed);
    }
}
