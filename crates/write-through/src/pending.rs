//! A committed transaction on its way to the backend.
//!
//! Plain data: produced by the group when a transaction is journaled (or restored), consumed by
//! exactly one lane.

use cachetier_model::{RootKey, RowChange, SlotId};
use std::sync::Arc;
use std::time::Instant;

/// A transaction before the journal gave it a sequence.
#[derive(Clone, Debug)]
pub struct Draft {
    pub slot: SlotId,
    pub key: RootKey,
    pub changes: Arc<[RowChange]>,
    /// Somebody waits for the backend's decision (R16): flush at once, commit with a synced log,
    /// and when the backend refuses it, report [`crate::FlushEvent::Refused`] instead of setting
    /// it aside.
    pub awaits_backend: bool,
    /// Somebody waits for the flush, not for the decision: flush at once.
    pub urgent: bool,
}

/// A transaction in the write-behind queue.
#[derive(Clone, Debug)]
pub struct Pending {
    pub sequence: u64,
    pub slot: SlotId,
    pub key: RootKey,
    pub changes: Arc<[RowChange]>,
    pub awaits_backend: bool,
    pub urgent: bool,
    /// The backend had it once, and lost it: whoever waited was told that it happened.
    pub accepted: bool,
    /// What it counts against the queue's bound.
    pub bytes: u64,
    pub since: Instant,
}

impl Pending {
    /// Nobody was told yet that it happened: when the backend refuses it, it did not.
    pub(crate) fn is_undecided(&self) -> bool {
        self.awaits_backend && !self.accepted
    }

    /// Somebody waits to hear what the backend made of it.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaits_backend || self.urgent
    }
}

impl Draft {
    pub fn at(self, sequence: u64, bytes: u64) -> Pending {
        Pending {
            sequence,
            slot: self.slot,
            key: self.key,
            changes: self.changes,
            awaits_backend: self.awaits_backend,
            urgent: self.urgent,
            accepted: false,
            bytes,
            since: tokio::time::Instant::now().into_std(),
        }
    }
}
