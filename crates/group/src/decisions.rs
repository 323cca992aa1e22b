//! Callers that wait for the backend's word on a transaction: its decision (R16), or that it is there.
//!
//! Owns one waiter per undecided transaction. Filled while the transaction is journaled, emptied
//! by `flush_events`; a waiter that went away changes nothing.

use cachetier_write_through::RejectCause;
use dashmap::DashMap;
use tokio::sync::{oneshot, watch};

/// What became of a transaction at the backend.
#[derive(Debug)]
pub(crate) enum Decision {
    /// `noted`: the journal frame that says so, where a repeated call may ask (R26).
    Accepted { noted: u64 },
    /// Refused: it never happened. `annulled` is the journal frame that says so.
    Refused { cause: Box<RejectCause>, annulled: u64 },
    /// Refused for good after it was acknowledged here, or behind such a one: set aside for an
    /// administrator (R17). The cause is that of the first.
    SetAside(Option<Box<RejectCause>>),
    /// Nobody can tell any more: the slot was taken by another node.
    Lost,
}

pub(crate) struct Decisions {
    waiting: DashMap<u64, oneshot::Sender<Decision>>,
    /// Grows with every decision; calls that found an undecided instance watch it.
    settled: watch::Sender<u64>,
}

impl Decisions {
    pub(crate) fn new() -> Self {
        Self { waiting: DashMap::new(), settled: watch::Sender::new(0) }
    }

    pub(crate) fn expect(&self, sequence: u64) -> oneshot::Receiver<Decision> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.insert(sequence, sender);
        receiver
    }

    pub(crate) fn settle(&self, sequence: u64, decision: Decision) {
        if let Some((_, waiter)) = self.waiting.remove(&sequence) {
            let _gone = waiter.send(decision);
        }
        self.settled.send_modify(|version| *version += 1);
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.settled.subscribe()
    }
}
