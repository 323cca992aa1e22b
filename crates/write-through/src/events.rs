//! What the lanes tell the group, in order per lane.
//!
//! An event is sent before the marks that it explains move, so that whoever waits for a mark finds
//! the event's effect already queued.

use crate::error::{BackendError, Disposition, Reason};
use cachetier_model::{RootKey, SlotSet};

#[derive(Clone, Debug)]
pub enum FlushEvent {
    /// One flush transaction committed. `keys`: each instance in it with its last sequence.
    Flushed {
        lane: u16,
        upto: u64,
        keys: Vec<(RootKey, u64)>,
        /// Transactions in it whose callers await the backend, for its decision or for the flush:
        /// accepted.
        accepted: Vec<(RootKey, u64)>,
        /// The backend had lost it, and has it again.
        resent: bool,
        /// The backend had it when this process claimed. A word about it may be lost: that it was
        /// set aside, and given up meanwhile.
        known: bool,
    },
    /// An awaited transaction (R16) was refused: it never happened. Nothing is set aside.
    Refused {
        lane: u16,
        key: RootKey,
        sequence: u64,
        cause: RejectCause,
    },
    /// Transactions were set aside durably; the instance is quarantined (R17). `cause` is `None`
    /// when they follow an earlier reject.
    Rejected {
        lane: u16,
        key: RootKey,
        sequences: Vec<u64>,
        cause: Option<RejectCause>,
    },
    /// The writer row no longer has these slots: another node took them. What is queued for them
    /// can never commit.
    SlotsLost {
        lane: u16,
        slots: SlotSet,
    },
    /// The backend went back to a time before these slots were taken: it has to be told again, and the
    /// lane waits until it was. Said again for as long as that lasts.
    SlotsForgotten {
        lane: u16,
        slots: SlotSet,
    },
    /// Transactions of slots that are not this node's (any more): dropped, never committed.
    Dropped {
        lane: u16,
        transactions: Vec<(RootKey, u64)>,
    },
    /// The backend holds an older position than remembered: it lost commits (crash with
    /// asynchronous commit, failover to a lagging standby). The lane sends them again.
    Rewound {
        lane: u16,
        from: u64,
        to: u64,
    },
    /// Final: another process writes under this journal. All lanes stand still.
    Fenced {
        reason: Reason,
        message: String,
    },
    /// A lane ended although nobody told it to: the process must be replaced.
    Stopped {
        lane: u16,
    },
    BackendDown {
        disposition: Disposition,
        reason: Reason,
        message: String,
    },
    BackendUp,
}

/// Why the backend refused a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectCause {
    pub reason: Reason,
    pub sqlstate: String,
    pub table: String,
    pub constraint: String,
    /// Without subscriber data.
    pub message: String,
    /// The backend's own words; may contain subscriber data: never log it.
    pub detail: String,
}

impl From<&BackendError> for RejectCause {
    fn from(error: &BackendError) -> Self {
        Self {
            reason: error.reason,
            sqlstate: error.sqlstate.clone().unwrap_or_default().into(),
            table: error.table.clone().unwrap_or_default().into(),
            constraint: error.constraint.clone().unwrap_or_default().into(),
            message: error.message.clone(),
            detail: error.detail.clone().unwrap_or_default().into(),
        }
    }
}

/// Whether the lanes reach the backend, and if not why. Watched by the group's status.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum BackendHealth {
    /// Nothing was tried yet.
    #[default]
    Unknown,
    Up,
    Down {
        disposition: Disposition,
        reason: Reason,
        message: String,
    },
}
