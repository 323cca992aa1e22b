//! How far the journal has come, as its followers see it.

use std::sync::Arc;

use crate::Sequence;

/// Positions that only grow: `appended ≥ written ≥ synced` and `appended ≥ durable ≥ synced`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// Last sequence given out when this was published.
    pub appended: Sequence,
    /// Last sequence handed to the file: survives a killed process.
    pub written: Sequence,
    /// Last sequence that keeps the promise of the durability level: `synced` at Sync, `written`
    /// at Relaxed. This is what an acknowledgement waits for.
    pub durable: Sequence,
    /// Last sequence that survives a power cut. Only these may leave for the backend or an image.
    pub synced: Sequence,
    /// Everything up to here was dropped from the journal.
    pub trimmed: Sequence,
    /// Set once and for good when a sync or write failed, or the journal was closed.
    pub stopped: Option<Stopped>,
    /// Why new frames are refused now; heals by itself.
    pub blocked: Option<Arc<str>>,
}

/// Why a journal takes nothing more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Closed on request, everything accepted was synced.
    Closed,
    /// A write or sync failed. One way.
    Latched(Arc<str>),
}
