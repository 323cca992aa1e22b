//! What went wrong, and what it proves about the request.
//!
//! Owns the machine-readable reasons that travel in the trailer `cachetier-error-bin`.

use crate::convert::ConvertError;
use crate::tls::TlsError;
use cachetier_proto::v1::{ErrorDetail, PipelineError};
use prost::Message;
use std::time::Duration;
use tonic::{Code, ConnectError, Status};

/// Binary trailer that carries an [`ErrorDetail`].
pub const ERROR_DETAIL_TRAILER: &str = "cachetier-error-bin";

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $text:literal,)*) => {
        /// Machine-readable reason of a refusal.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $variant,)*
            /// A reason this version does not know.
            Other,
        }

        impl Reason {
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                    Self::Other => "OTHER",
                }
            }

            pub fn parse(text: &str) -> Self {
                match text {
                    $($text => Self::$variant,)*
                    _ => Self::Other,
                }
            }
        }
    };
}

reasons! {
    /// Another node owns the slot.
    NotOwner = "NOT_OWNER",
    /// The slot is on its way to this node.
    SlotMoving = "SLOT_MOVING",
    /// The owner cannot be reached and the policy does not let others answer.
    OwnerAway = "OWNER_AWAY",
    /// The node has no topology yet, or is still starting.
    Starting = "STARTING",
    /// The write-behind queue is at its bound.
    BacklogFull = "BACKLOG_FULL",
    /// The journal's volume is at its bound.
    JournalFull = "JOURNAL_FULL",
    /// The store is at its bound.
    MemoryFull = "MEMORY_FULL",
    /// Too many requests of this kind at once.
    Busy = "BUSY",
    /// The transaction may or may not have happened.
    InDoubt = "IN_DOUBT",
    /// The backend refused an earlier transaction of this instance for good.
    Quarantined = "QUARANTINED",
    /// The backend refused this transaction.
    BackendRefused = "BACKEND_REFUSED",
    /// The owner is away, and the backend has not yet what the read asked to be there.
    PositionNotReached = "POSITION_NOT_REACHED",
    /// The backend is needed and cannot be reached.
    BackendAway = "BACKEND_AWAY",
    /// The node takes no writes any more.
    Draining = "DRAINING",
    /// Another writer has this node's journal or tables.
    Fenced = "FENCED",
    /// The journal failed; the process must be replaced.
    Latched = "LATCHED",
    GuardFailed = "GUARD_FAILED",
    /// The idempotency key was used for another request.
    KeyReused = "KEY_REUSED",
    RowCount = "ROW_COUNT",
    PrimaryKey = "PRIMARY_KEY",
    ForeignKey = "FOREIGN_KEY",
    Unique = "UNIQUE",
    NotNull = "NOT_NULL",
    /// A value does not fit its column.
    Value = "VALUE",
    /// No such table, column or lookup key.
    Schema = "SCHEMA",
    /// The request itself is malformed.
    Request = "REQUEST",
    /// The certificate's role may not do this.
    Role = "ROLE",
    /// No cache instance has this key.
    NotFound = "NOT_FOUND",
    /// No such load or reject.
    Unknown = "UNKNOWN",
    /// Another node was needed and did not answer.
    PeerAway = "PEER_AWAY",
    /// The topology is another group's.
    ForeignTopology = "FOREIGN_TOPOLOGY",
    Internal = "INTERNAL",
}

impl Reason {
    /// The node proved that nothing happened, and another try (elsewhere, or later) may succeed.
    pub fn retry_is_safe(self) -> bool {
        matches!(
            self,
            Self::NotOwner | Self::SlotMoving | Self::OwnerAway | Self::Starting | Self::Draining
        )
    }

    /// Said of a transaction with an idempotency key, it proves that no earlier try of it happened:
    /// the owner looked for the key before it came to this.
    pub fn settles_key(self) -> bool {
        matches!(
            self,
            Self::GuardFailed
                | Self::KeyReused
                | Self::RowCount
                | Self::PrimaryKey
                | Self::ForeignKey
                | Self::Unique
                | Self::NotNull
                | Self::BackendRefused
                | Self::BacklogFull
                | Self::JournalFull
                | Self::MemoryFull
                | Self::Quarantined
        )
    }
}

/// A node's refusal.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Address of the node that answered.
    pub node: String,
    pub code: Code,
    pub reason: Reason,
    pub message: String,
    pub detail: ErrorDetail,
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing was sent, so nothing happened.
    #[error("cannot reach {node}: {message}")]
    Unreachable { node: String, message: String },
    /// The node is there and took nothing of this request, so nothing happened.
    #[error("nothing was sent to {node}: {message}")]
    Unsent { node: String, message: String },
    /// The connection broke or the time ran out with the request under way.
    #[error("no answer from {node}: {message}")]
    Interrupted { node: String, message: String },
    #[error("{} ({} at {})", .0.message, .0.reason.as_str(), .0.node)]
    Refused(Box<Refusal>),
    #[error("the request does not fit the group's tables: {0}")]
    Convert(#[from] ConvertError),
    #[error("{node} sent an answer this client does not understand: {message}")]
    Protocol { node: String, message: String },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("no node address was given")]
    NoNodes,
}

impl ClientError {
    /// Sorts a gRPC status of `node`.
    pub fn from_status(node: &str, status: Status) -> Self {
        let detail = detail_of(&status);
        if detail.is_none() && is_connect_failure(&status) {
            let message = deepest(&status);
            return Self::Unreachable { node: node.to_owned(), message };
        }
        let transport = std::error::Error::source(&status).is_some();
        let ran_out = matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled);
        if detail.is_none() && (transport || ran_out || status.code() == Code::Unavailable) {
            let message = if transport { deepest(&status) } else { status.message().to_owned() };
            return Self::Interrupted { node: node.to_owned(), message };
        }
        let detail = detail.unwrap_or_default();
        Self::Refused(Box::new(Refusal {
            node: node.to_owned(),
            code: status.code(),
            reason: Reason::parse(&detail.reason),
            message: status.message().to_owned(),
            detail,
        }))
    }

    /// A refusal that came on a pipeline.
    pub(crate) fn from_pipeline(node: &str, error: PipelineError) -> Self {
        let code = Code::from_i32(error.code.try_into().unwrap_or(Code::Unknown as i32));
        let node = node.to_owned();
        if error.detail.is_none() && code == Code::DeadlineExceeded {
            return Self::Interrupted { node, message: error.message };
        }
        let detail = error.detail.unwrap_or_default();
        Self::Refused(Box::new(Refusal {
            node,
            code,
            reason: Reason::parse(&detail.reason),
            message: error.message,
            detail,
        }))
    }

    /// The refusal, when a node answered with one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    pub fn reason(&self) -> Option<Reason> {
        self.refusal().map(|r| r.reason)
    }

    /// A write that ended so may or may not have happened.
    pub fn in_doubt(&self) -> bool {
        match self {
            Self::Interrupted { .. } | Self::Protocol { .. } => true,
            Self::Refused(refusal) => {
                matches!(refusal.reason, Reason::InDoubt | Reason::Latched | Reason::Other)
            }
            _ => false,
        }
    }

    /// The node's hint when to try again.
    pub fn retry_after(&self) -> Option<Duration> {
        let ms = self.refusal()?.detail.retry_after_ms;
        (ms > 0).then(|| Duration::from_millis(ms))
    }
}

/// An error with its causes in one line, each said once: many errors repeat their source's words in
/// their own.
pub fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut said: Vec<String> = Vec::new();
    for cause in sources(error) {
        let text = cause.to_string();
        if !text.is_empty() && !said.iter().any(|before| says(before, &text)) {
            said.push(text);
        }
    }
    said.join(": ")
}

/// Whether `text` stands in `whole`, and not as a part of longer words.
fn says(whole: &str, text: &str) -> bool {
    let part_of_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    whole.match_indices(text).any(|(at, _)| {
        let (before, after) = (whole.get(..at), whole.get(at + text.len()..));
        !part_of_word(before.and_then(|b| b.chars().next_back()))
            && !part_of_word(after.and_then(|a| a.chars().next()))
    })
}

/// The detail trailer of a status, if it carries one.
pub fn detail_of(status: &Status) -> Option<ErrorDetail> {
    let bytes = status.metadata().get_bin(ERROR_DETAIL_TRAILER)?.to_bytes().ok()?;
    ErrorDetail::decode(bytes).ok()
}

fn is_connect_failure(status: &Status) -> bool {
    sources(status).any(|e| e.is::<ConnectError>())
}

pub(crate) fn deepest(status: &Status) -> String {
    let parts: Vec<String> = sources(status).skip(1).map(ToString::to_string).collect();
    match parts.last() {
        Some(last) if parts.len() > 1 => {
            format!("{}: {last}", parts.get(parts.len() - 2).map_or("", String::as_str))
        }
        Some(last) => last.clone(),
        None => status.message().to_owned(),
    }
}

fn sources<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |e| e.source())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::metadata::{MetadataMap, MetadataValue};

    #[test]
    fn a_refusal_carries_its_reason_through_the_trailer() {
        let detail = ErrorDetail {
            reason: Reason::BacklogFull.as_str().to_owned(),
            retry_after_ms: 250,
            ..ErrorDetail::default()
        };
        let mut metadata = MetadataMap::new();
        let value = MetadataValue::from_bytes(&detail.encode_to_vec());
        metadata.insert_bin(ERROR_DETAIL_TRAILER, value);
        let status = Status::with_metadata(Code::ResourceExhausted, "full", metadata);
        let error = ClientError::from_status("n:1", status);
        assert_eq!(error.reason(), Some(Reason::BacklogFull));
        assert_eq!(error.retry_after(), Some(Duration::from_millis(250)));
        assert!(!error.in_doubt());
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Link {
        text: &'static str,
        source: Option<Box<Link>>,
    }

    #[test]
    fn no_cause_is_said_twice() {
        let chain = |texts: &[&'static str]| {
            let mut source = None;
            for text in texts.iter().rev().copied() {
                source = Some(Box::new(Link { text, source }));
            }
            causes(&*source.unwrap())
        };
        assert_eq!(chain(&["cannot list", "api: refused", "refused"]), "cannot list: api: refused");
        assert_eq!(chain(&["a", "b: c", "d"]), "a: b: c: d");
        assert_eq!(chain(&["a", "connect", "connect"]), "a: connect");
        assert_eq!(chain(&["cannot act", "act"]), "cannot act");
        assert_eq!(chain(&["exactly", "act"]), "exactly: act");
    }

    /// The node's clock may be the quicker of the two: a read is asked again all the same.
    #[test]
    fn a_time_limit_that_the_node_saw_pass_first_is_an_interruption() {
        let code = Code::DeadlineExceeded as u32;
        let late = PipelineError { code, message: "late".to_owned(), detail: None };
        let late = ClientError::from_pipeline("n:1", late);
        assert!(matches!(late, ClientError::Interrupted { .. }) && late.in_doubt());
    }

    #[test]
    fn an_unanswered_write_is_in_doubt_and_an_unreached_node_is_not() {
        let lost = ClientError::from_status("n:1", Status::unavailable("reset"));
        assert!(lost.in_doubt());
        let unreached = ClientError::Unreachable { node: "n:1".into(), message: String::new() };
        assert!(!unreached.in_doubt());
    }
}
