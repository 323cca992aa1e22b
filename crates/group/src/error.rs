//! Errors of the group's boundary: what a caller is told, and what it should do about it.
//!
//! Owns the one list of reasons a call can fail for. Never carries a subscriber's key or value:
//! texts name tables, constraints, columns and figures only.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cachetier_model::node_config::ConfigError;
use cachetier_model::{NodeEntry, SlotId};

/// What a caller should do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The call itself is wrong and will be again.
    Reject,
    /// No room now; nothing happened, try again after a pause.
    Busy,
    /// Nothing happened; try again, perhaps elsewhere.
    Retry,
    /// Another writer owns what this node believed to own.
    Fenced,
    /// The outcome is unknown, or this process cannot go on.
    Fatal,
}

/// Why a transaction was refused by the rules of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    GuardFailed,
    PrimaryKey,
    ForeignKey,
    Unique,
    NotNull,
    Value,
    RowCount,
    /// The backend refused it for another lasting reason.
    Backend,
    /// The call names something the schema does not have.
    Schema,
    /// The call asks for something that this group does not do.
    Request,
    /// The idempotency key was used for another request.
    KeyReused,
}

impl RefusalReason {
    /// The machine-readable word sent to clients.
    pub fn word(self) -> &'static str {
        match self {
            Self::GuardFailed => "GUARD_FAILED",
            Self::PrimaryKey => "PRIMARY_KEY",
            Self::ForeignKey => "FOREIGN_KEY",
            Self::Unique => "UNIQUE",
            Self::NotNull => "NOT_NULL",
            Self::Value => "VALUE",
            Self::RowCount => "ROW_COUNT",
            Self::Backend => "BACKEND_REFUSED",
            Self::Schema => "SCHEMA",
            Self::Request => "REQUEST",
            Self::KeyReused => "KEY_REUSED",
        }
    }
}

/// A refusal, in the words of the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: RefusalReason,
    pub table: Option<String>,
    pub constraint: Option<String>,
    pub column: Option<String>,
    /// Index of the guard or operation within the transaction.
    pub operation: Option<usize>,
    /// One sentence without keys and values.
    pub message: String,
}

/// Why a call was not answered as asked.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    #[error("this node is starting: {reason}")]
    Starting { reason: Arc<str> },
    #[error("slot {} belongs to another node", slot.number())]
    NotOwner { slot: SlotId, owner: Option<NodeEntry> },
    #[error("slot {} is on its way to this node; try again", slot.number())]
    SlotMoving { slot: SlotId, retry_after: Duration },
    #[error("this node takes no writes: it is being drained")]
    Draining,
    #[error("the write-behind queue is full ({backlog_bytes} bytes wait for the backend)")]
    BacklogFull { backlog_bytes: u64, retry_after: Duration },
    #[error("the journal takes no writes: {reason}")]
    JournalFull { reason: Arc<str> },
    #[error("memory for cached rows is full; raise memory.capacity or cache fewer rows")]
    MemoryFull,
    #[error("too much at once: {what}")]
    Busy { what: &'static str, retry_after: Duration },
    #[error("the outcome is unknown: {reason}")]
    InDoubt { reason: Arc<str> },
    #[error(transparent)]
    Configuration(#[from] ConfigError),
    #[error("the journal cannot be opened (journal.directory {}): {reason}", directory.display())]
    JournalUnopened { directory: PathBuf, reason: Arc<str> },
    #[error("this node stopped acknowledging: {reason}")]
    Latched { reason: Arc<str> },
    #[error("this node is fenced: {reason}")]
    Fenced { reason: Arc<str> },
    #[error("the backend cannot be asked: {reason}")]
    BackendAway { reason: Arc<str> },
    #[error("the position asked for is not reached: {reason}")]
    PositionNotReached { reason: &'static str },
    #[error("a refused transaction of this instance waits for an administrator's decision")]
    Quarantined,
    #[error(
        "the backend refused the transaction, or one before it, for good: it was set aside, or lost \
         with its slot"
    )]
    SetAside,
    #[error("no cache instance has this key")]
    NotFound,
    #[error("{}", .0.message)]
    Refused(Box<Refusal>),
    #[error("topology of group {found} offered to a node of group {expected}")]
    ForeignTopology { found: String, expected: String },
    #[error("{what} {id} is not known here")]
    Unknown { what: &'static str, id: String },
    #[error("node {node} did not answer: {reason}")]
    PeerAway { node: String, reason: Arc<str> },
    #[error("internal error: {reason}")]
    Internal { reason: Arc<str> },
}

/// An error with all its causes in one line: what the operating system said comes last.
pub(crate) fn in_full(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// What clients get to know of an error, besides its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorFacts {
    /// Machine-readable word, e.g. `BACKLOG_FULL`.
    pub reason: &'static str,
    pub table: Option<String>,
    pub constraint: Option<String>,
    pub column: Option<String>,
    pub operation: Option<usize>,
    pub retry_after: Option<Duration>,
    pub backlog_bytes: u64,
}

impl GroupError {
    pub(crate) fn internal(reason: impl std::fmt::Display) -> Self {
        Self::Internal { reason: reason.to_string().into() }
    }

    pub(crate) fn refused(reason: RefusalReason, message: impl Into<String>) -> Self {
        Self::Refused(Box::new(Refusal {
            reason,
            table: None,
            constraint: None,
            column: None,
            operation: None,
            message: message.into(),
        }))
    }

    /// What to do about it.
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Refused(_)
            | Self::NotFound
            | Self::Quarantined
            | Self::SetAside
            | Self::Configuration(_)
            | Self::ForeignTopology { .. }
            | Self::Unknown { .. } => Disposition::Reject,
            Self::BacklogFull { .. }
            | Self::JournalFull { .. }
            | Self::MemoryFull
            | Self::Busy { .. } => Disposition::Busy,
            Self::Starting { .. }
            | Self::NotOwner { .. }
            | Self::SlotMoving { .. }
            | Self::Draining
            | Self::BackendAway { .. }
            | Self::PositionNotReached { .. }
            | Self::PeerAway { .. } => Disposition::Retry,
            Self::Fenced { .. } => Disposition::Fenced,
            Self::InDoubt { .. }
            | Self::JournalUnopened { .. }
            | Self::Latched { .. }
            | Self::Internal { .. } => Disposition::Fatal,
        }
    }

    /// The word for clients.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Starting { .. } => "STARTING",
            Self::NotOwner { .. } => "NOT_OWNER",
            Self::SlotMoving { .. } => "SLOT_MOVING",
            Self::Draining => "DRAINING",
            Self::BacklogFull { .. } => "BACKLOG_FULL",
            Self::JournalFull { .. } => "JOURNAL_FULL",
            Self::MemoryFull => "MEMORY_FULL",
            Self::Busy { .. } => "BUSY",
            Self::InDoubt { .. } => "IN_DOUBT",
            Self::Configuration(_) => "CONFIGURATION",
            Self::JournalUnopened { .. } => "JOURNAL_UNOPENED",
            Self::Latched { .. } => "LATCHED",
            Self::Fenced { .. } => "FENCED",
            Self::BackendAway { .. } => "BACKEND_AWAY",
            Self::PositionNotReached { .. } => "POSITION_NOT_REACHED",
            Self::Quarantined => "QUARANTINED",
            Self::SetAside => "BACKEND_REFUSED",
            Self::NotFound => "NOT_FOUND",
            Self::Refused(refusal) => refusal.reason.word(),
            Self::ForeignTopology { .. } => "FOREIGN_TOPOLOGY",
            Self::Unknown { .. } => "UNKNOWN",
            Self::PeerAway { .. } => "PEER_AWAY",
            Self::Internal { .. } => "INTERNAL",
        }
    }

    /// Everything a client may learn.
    pub fn facts(&self) -> ErrorFacts {
        let mut facts = ErrorFacts { reason: self.reason(), ..ErrorFacts::default() };
        match self {
            Self::SlotMoving { retry_after, .. } | Self::Busy { retry_after, .. } => {
                facts.retry_after = Some(*retry_after);
            }
            Self::BacklogFull { backlog_bytes, retry_after } => {
                facts.retry_after = Some(*retry_after);
                facts.backlog_bytes = *backlog_bytes;
            }
            Self::Refused(refusal) => {
                facts.table.clone_from(&refusal.table);
                facts.constraint.clone_from(&refusal.constraint);
                facts.column.clone_from(&refusal.column);
                facts.operation = refusal.operation;
            }
            _ if matches!(self.disposition(), Disposition::Retry | Disposition::Busy) => {
                facts.retry_after = Some(Duration::from_millis(250));
            }
            _ => {}
        }
        facts
    }
}
