//! What can go wrong at the backend, told apart by what must happen next.
//!
//! Owns the reasons and their dispositions. A [`BackendError`]'s display form never carries
//! subscriber data; what the backend itself said is kept in `detail`, which may, and which goes
//! only into the reject record that an administrator asks for.

use std::fmt;

/// What a caller must do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Passes by itself: try again with backoff for as long as it takes.
    Retry,
    /// The statement's content is refused for good.
    Reject,
    /// A human must change something; try again slowly, so that fixing the cause heals it.
    StopAndAsk,
    /// Another writer has what was ours: final for this process.
    Fenced,
}

/// Why, in the words of conditions and problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// No connection, or it broke.
    BackendUnreachable,
    /// Serialization failure, deadlock, lock timeout, statement timeout.
    BackendBusy,
    /// The server is starting, stopping or in recovery, or read-only in a failover.
    BackendNotReady,
    /// Out of connections, memory or disk.
    BackendOverloaded,
    CredentialsMissing,
    AuthenticationFailed,
    TlsFailed,
    DatabaseMissing,
    PrivilegeMissing,
    TableMissing,
    ColumnMissing,
    /// The tables are not what the schema says.
    SchemaDrift,
    /// A table cannot be cached as it is.
    SchemaRefused,
    BookkeepingMissing,
    /// Another group has these tables.
    TablesClaimed,
    /// The writer row belongs to another journal.
    ForeignJournal,
    /// The journal is an old copy: a later start of it has claimed already.
    StaleJournal,
    /// The writer row or position that the journal knows is not in the backend.
    PositionMissing,
    /// The position is older than what the journal still holds.
    PositionTooOld,
    StaleTopology,
    Fenced,
    ConstraintViolated,
    ValueRefused,
    /// Fewer or more rows were affected than sent.
    RowCountMismatch,
    /// A trigger or function of the backend raised the error.
    TriggerRefused,
    /// A trigger stored something other than what was sent.
    RowChangedByTrigger,
    NotFound,
    Configuration,
    Internal,
}

impl Reason {
    pub fn disposition(self) -> Disposition {
        use Reason::*;
        match self {
            BackendUnreachable | BackendBusy | BackendNotReady | BackendOverloaded => {
                Disposition::Retry
            }
            ConstraintViolated | ValueRefused | RowCountMismatch | TriggerRefused
            | RowChangedByTrigger => Disposition::Reject,
            Fenced | ForeignJournal | StaleJournal => Disposition::Fenced,
            CredentialsMissing | AuthenticationFailed | TlsFailed | DatabaseMissing
            | PrivilegeMissing | TableMissing | ColumnMissing | SchemaDrift | SchemaRefused
            | BookkeepingMissing | TablesClaimed | PositionMissing | PositionTooOld
            | StaleTopology | NotFound | Configuration | Internal => Disposition::StopAndAsk,
        }
    }

    /// The CamelCase form used in conditions.
    pub fn as_str(self) -> &'static str {
        use Reason::*;
        match self {
            BackendUnreachable => "BackendUnreachable",
            BackendBusy => "BackendBusy",
            BackendNotReady => "BackendNotReady",
            BackendOverloaded => "BackendOverloaded",
            CredentialsMissing => "CredentialsMissing",
            AuthenticationFailed => "AuthenticationFailed",
            TlsFailed => "TlsFailed",
            DatabaseMissing => "DatabaseMissing",
            PrivilegeMissing => "PrivilegeMissing",
            TableMissing => "TableMissing",
            ColumnMissing => "ColumnMissing",
            SchemaDrift => "SchemaDrift",
            SchemaRefused => "SchemaRefused",
            BookkeepingMissing => "BookkeepingMissing",
            TablesClaimed => "TablesClaimed",
            ForeignJournal => "ForeignJournal",
            StaleJournal => "StaleJournal",
            PositionMissing => "PositionMissing",
            PositionTooOld => "PositionTooOld",
            StaleTopology => "StaleTopology",
            Fenced => "Fenced",
            ConstraintViolated => "ConstraintViolated",
            ValueRefused => "ValueRefused",
            RowCountMismatch => "RowCountMismatch",
            TriggerRefused => "TriggerRefused",
            RowChangedByTrigger => "RowChangedByTrigger",
            NotFound => "NotFound",
            Configuration => "Configuration",
            Internal => "Internal",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether an SQLSTATE says that a row stayed locked, or that a statement took too long: nothing
/// is wrong with what was sent.
pub fn is_held(sqlstate: &str) -> bool {
    matches!(sqlstate, "55P03" | "57014")
}

/// One failed act at the backend.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{act} failed: {message}")]
pub struct BackendError {
    /// What was being done, e.g. `flush`, `discover tables`.
    pub act: &'static str,
    pub reason: Reason,
    /// One sentence, without subscriber data: what is wrong and, where known, what to do.
    pub message: String,
    pub sqlstate: Option<Box<str>>,
    pub table: Option<Box<str>>,
    pub constraint: Option<Box<str>>,
    /// The backend's own words. May contain subscriber data: never log it.
    pub detail: Option<Box<str>>,
}

impl BackendError {
    pub fn new(act: &'static str, reason: Reason, message: impl Into<String>) -> Self {
        Self {
            act,
            reason,
            message: message.into(),
            sqlstate: None,
            table: None,
            constraint: None,
            detail: None,
        }
    }

    pub fn disposition(&self) -> Disposition {
        self.reason.disposition()
    }
}
