//! Errors of this crate's boundary, each naming the act that failed.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::Sequence;

/// What a caller should do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The call itself is wrong and will be again.
    Reject,
    /// No room now; later, perhaps.
    Busy,
    /// This process must not go on with this journal.
    Fatal,
}

/// Why a journal could not be opened, read or administered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// An option is outside its bounds.
    #[error("journal option {field}: {fix}")]
    Options { field: &'static str, fix: String },
    /// Another process holds the directory.
    #[error("journal directory {} is in use by another process; stop that one first", dir.display())]
    InUse { dir: PathBuf },
    /// The file system refused an act.
    #[error("cannot {act} {}", path.display())]
    Io {
        act: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Synced data is unreadable or missing. Never skipped silently.
    #[error(
        "journal damaged: {} at offset {offset}: {what}. Choices: restore the file from a copy; \
         or cut the journal there and lose everything from that position on; or discard the \
         journal and load from the backend again",
        file.display()
    )]
    Damaged { file: PathBuf, offset: u64, what: String },
    /// A file of a version this program does not know.
    #[error("{} has format version {version}; this program knows up to {known}", file.display())]
    Version { file: PathBuf, version: u8, known: u8 },
    /// The segments belong to another journal than the control file.
    #[error(
        "{} belongs to journal {found}, this directory to {expected}: a foreign file was copied in; \
         remove it",
        file.display()
    )]
    Foreign { file: PathBuf, found: uuid::Uuid, expected: uuid::Uuid },
    /// Every generation was used.
    #[error(
        "journal was opened {opened} times, which is all it can be; drain it and begin a new one"
    )]
    GenerationsExhausted { opened: u32 },
    /// A position that was trimmed away was asked for.
    #[error("position {from} was trimmed; the journal holds what comes after {trimmed}")]
    Trimmed { from: Sequence, trimmed: Sequence },
    /// An attribute or its value is too large.
    #[error("attribute {key:?} makes the control file {bytes} bytes long; at most {bytes_max}")]
    ControlTooLarge { key: String, bytes: usize, bytes_max: usize },
    /// The journal stopped for good.
    #[error("journal is latched: {reason}")]
    Latched { reason: Arc<str> },
    /// The journal was closed.
    #[error("journal is closed")]
    Closed,
}

impl JournalError {
    /// What to do about it.
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Options { .. } | Self::Trimmed { .. } | Self::ControlTooLarge { .. } => {
                Disposition::Reject
            }
            Self::Io { source, .. } if is_no_room(source) => Disposition::Busy,
            _ => Disposition::Fatal,
        }
    }
}

/// Why a frame was not accepted. Nothing of it was kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The group-commit buffer is full; it empties with the next commit.
    #[error("journal queue holds {queued_bytes} of {queue_bytes} bytes; retry shortly")]
    Busy { queued_bytes: usize, queue_bytes: usize },
    /// No space on the volume, below the capacity, or the volume is read-only.
    #[error("journal takes no writes: {reason}")]
    Full { reason: Arc<str> },
    /// A sync or a write failed; this process acknowledges nothing more.
    #[error("journal is latched: {reason}")]
    Latched { reason: Arc<str> },
    /// The payload can never fit.
    #[error("frame of {bytes} bytes is longer than the {bytes_max} a journal frame may have")]
    TooLarge { bytes: usize, bytes_max: usize },
    /// Kind 0 marks the journal's own frames.
    #[error("frame kind 0 is the journal's own; use 1 to 255")]
    ReservedKind,
    /// The journal was closed.
    #[error("journal is closed")]
    Closed,
}

impl AppendError {
    /// What to do about it.
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Busy { .. } | Self::Full { .. } => Disposition::Busy,
            Self::TooLarge { .. } | Self::ReservedKind => Disposition::Reject,
            Self::Latched { .. } | Self::Closed => Disposition::Fatal,
        }
    }
}

/// The frame was accepted and the journal cannot say whether it survives: neither kept nor lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("in doubt: {reason}")]
pub struct InDoubt {
    /// Why the journal stopped before it could confirm the frame.
    pub reason: Arc<str>,
}

/// True for errors that mean "no room or no permission to write now" and may heal.
pub(crate) fn is_no_room(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::ReadOnlyFilesystem
    )
}

/// Attaches act and path to an I/O error.
pub(crate) trait IoContext<T> {
    fn during(self, act: &'static str, path: &std::path::Path) -> Result<T, JournalError>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn during(self, act: &'static str, path: &std::path::Path) -> Result<T, JournalError> {
        self.map_err(|source| JournalError::Io { act, path: path.to_owned(), source })
    }
}
