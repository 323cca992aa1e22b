//! A started group: everything that needs the tables' schema.
//!
//! Owns the engine, the lanes and the misses, and the small steps that reads and writes share:
//! whether a slot may be served, and when an answer may be seen. Must never hold a lock across an
//! await.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cachetier_engine::Engine;
use cachetier_journal::Sequence;
use cachetier_model::{GroupSchema, RootKey, SlotId, SlotSet};
use cachetier_write_through::{WaitError, WriteThrough};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::answers::Answers;
use crate::aside::Aside;
use crate::calls::BacklogFigures;
use crate::decisions::Decisions;
use crate::error::GroupError;
use crate::load::Tickets;
use crate::ownership::SlotState;
use crate::read_through::ReadThrough;
use crate::rejects::RejectAccount;
use crate::restore::Annulled;
use crate::shared::Shared;
use crate::undecided::Undecided;

pub(crate) struct Core {
    pub shared: Arc<Shared>,
    pub schema: Arc<GroupSchema>,
    pub schema_version: u64,
    pub engine: Arc<Engine>,
    pub lanes: WriteThrough,
    /// Served slots that the backend forgot to be this node's: taken again, with what is in memory.
    pub forgotten_slots: Mutex<SlotSet>,
    /// The same of an earlier process: what its journal holds of them is in memory, and not served
    /// before they are taken again.
    pub restored_slots: Mutex<SlotSet>,
    pub misses: Arc<ReadThrough>,
    pub decisions: Decisions,
    pub tickets: Tickets,
    /// Transactions that never happened, of the frames still in the journal.
    pub annulled: Annulled,
    /// The token of this process, once the backend gave one.
    pub token: OnceLock<u64>,
    pub rejects: RejectAccount,
    /// What awaited the backend's decision when this process started.
    pub undecided: Undecided,
    /// Instances quarantined on the journal's word alone, until the claim tells.
    pub suspected: Mutex<HashSet<RootKey>>,
    /// Bounds reads past the store.
    pub bypass: tokio::sync::Semaphore,
    /// Bounds the calls that wait for their turn to read past the store.
    pub bypass_waiting: tokio::sync::Semaphore,
    /// What the lanes passed without the backend taking it.
    pub aside: Aside,
    /// Answers of transactions with an idempotency key.
    pub answers: Arc<Answers>,
}

impl Core {
    pub(crate) fn hold_timeout(&self) -> Duration {
        Duration::from_millis(self.shared.config.bypass.hold_timeout_ms)
    }

    /// Returns once the slot is served here; errs when it is another node's, or on its way for
    /// longer than `deadline`.
    pub(crate) async fn serving(&self, slot: SlotId, deadline: Instant) -> Result<(), GroupError> {
        self.shared.check_alive()?;
        if self.shared.slots.state(slot) == SlotState::Serving {
            return Ok(());
        }
        let mut changes = self.shared.slots.watch();
        loop {
            match self.shared.slots.state(slot) {
                SlotState::Serving => return Ok(()),
                SlotState::Acquiring => {
                    let changed = tokio::time::timeout_at(deadline, changes.changed()).await;
                    if !matches!(changed, Ok(Ok(()))) {
                        return Err(self.moving(slot));
                    }
                }
                SlotState::Foreign | SlotState::Leaving | SlotState::Released => {
                    return Err(self.not_owner(slot));
                }
            }
        }
    }

    pub(crate) fn not_owner(&self, slot: SlotId) -> GroupError {
        let topology = self.shared.topology.borrow().clone();
        match topology {
            Some(topology) => GroupError::NotOwner { slot, owner: topology.owner(slot).cloned() },
            None => {
                GroupError::Starting { reason: "no topology was given to this node yet".into() }
            }
        }
    }

    pub(crate) fn moving(&self, slot: SlotId) -> GroupError {
        GroupError::SlotMoving { slot, retry_after: Duration::from_millis(200) }
    }

    /// Waits until what an answer depends on is durable at the group's level (R7).
    pub(crate) async fn visible(&self, as_of: u64) -> Result<(), GroupError> {
        if as_of == 0 {
            return Ok(());
        }
        let sequence = Sequence::from_stored(as_of)
            .ok_or_else(|| GroupError::internal("a position that no journal can give out"))?;
        if sequence <= self.shared.journal.durable() {
            return Ok(());
        }
        self.shared
            .journal
            .wait_durable(sequence)
            .await
            .map_err(|doubt| GroupError::InDoubt { reason: doubt.reason })
    }

    /// Waits until everything appended so far is durable: for answers that depend on more than
    /// one instance.
    pub(crate) async fn all_visible(&self) -> Result<(), GroupError> {
        self.visible(self.shared.journal.stats().appended.get()).await
    }

    /// True once the backend has the transaction of this slot, confirmed; false after `timeout`.
    pub(crate) async fn reached(
        &self,
        slot: SlotId,
        sequence: u64,
        timeout: Duration,
    ) -> Result<bool, GroupError> {
        match self.lanes.wait_flushed(slot, sequence, timeout).await {
            Ok(()) => Ok(true),
            Err(WaitError::TimedOut) => Ok(false),
            Err(WaitError::Stopped) => {
                Err(GroupError::InDoubt { reason: "this node stops".into() })
            }
        }
    }

    /// The same for a position whose slot is not known: when every lane has passed it. Errs when
    /// the lanes passed it without the backend having taken it.
    pub(crate) async fn all_reached(
        &self,
        sequence: u64,
        timeout: Duration,
    ) -> Result<bool, GroupError> {
        let mut marks = self.lanes.watch();
        let reached = marks.wait_for(|m| !m.lanes.is_empty() && m.confirmed >= sequence);
        let reached = tokio::time::timeout(timeout, reached).await.map(|marks| marks.map(|_| ()));
        match reached {
            Ok(Ok(())) => match self.is_aside(sequence).await? {
                true => Err(GroupError::SetAside),
                false => Ok(true),
            },
            Ok(Err(_)) => Err(GroupError::InDoubt { reason: "this node stops".into() }),
            Err(_) => Ok(false),
        }
    }

    pub(crate) fn token(&self) -> Option<u64> {
        self.token.get().copied()
    }

    pub(crate) fn writes_stopped(&self) -> bool {
        self.shared.writes_stopped.load(Ordering::Acquire)
    }

    pub(crate) fn backlog(&self) -> BacklogFigures {
        let backlog = self.lanes.backlog();
        BacklogFigures {
            // commits that a crash of the backend could take back count as waiting
            transactions: backlog.transactions.max(u64::from(backlog.unconfirmed_lanes)),
            bytes: backlog.bytes,
            oldest: backlog.oldest_age,
            flush_rows_per_second: backlog.rows_per_second,
        }
    }
}
