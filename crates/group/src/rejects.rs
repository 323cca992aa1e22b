//! Transactions that the backend refused for good: listed, replayed or dropped by an
//! administrator (R17). And those whose rows stayed locked for too long: set aside in the same way,
//! so that others pass, and applied by this node once the lock is gone.
//!
//! The backend's bookkeeping is their home; this module shows it and keeps a small account for the
//! status. Must never show a subscriber's values.

use std::sync::Arc;
use std::time::Duration;

use cachetier_engine::ReadAnswer;
use cachetier_model::{ColumnId, ReadPlan, RootKey, SlotId, SlotSet};
use cachetier_write_through::{BackendError, Disposition, Reason, RejectEntry, is_held};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::calls::{RejectFigure, RejectedChange, RejectedTransaction};
use crate::core::Core;
use crate::error::GroupError;
use crate::ownership::SlotState;
use crate::status::Problem;

const POLL: Duration = Duration::from_secs(30);
/// How often locked rows are tried again, and how many of them.
const HELD_POLL: Duration = Duration::from_secs(5);
const HELD_AT_ONCE: usize = 32;
/// The longest a decision about a reject waits for the transactions behind it.
const FOLLOWERS_WAIT: Duration = Duration::from_secs(5);
/// Rejects counted for the status, at most.
const COUNT_MAX: u32 = 10_000;

/// The status's account.
#[derive(Default)]
pub(crate) struct RejectAccount {
    figures: Mutex<(u64, f64)>,
    changed: Notify,
}

impl RejectAccount {
    /// Number of rejects, and the age of the oldest in seconds.
    pub(crate) fn figures(&self) -> (u64, f64) {
        *self.figures.lock()
    }

    pub(crate) fn changed(&self) {
        self.changed.notify_one();
    }
}

impl Core {
    pub(crate) async fn list_rejects(&self, limit: u32) -> Result<Vec<RejectFigure>, GroupError> {
        let uid = &self.shared.config.group.uid;
        let entries = self.shared.backend.list_rejects(uid, limit.max(1)).await;
        Ok(entries
            .map_err(away)?
            .into_iter()
            .filter(|entry| self.is_here(entry))
            .map(figure)
            .collect())
    }

    /// A reject of this node with what it and those behind it were to do.
    pub(crate) async fn show_reject(
        &self,
        id: u64,
    ) -> Result<(RejectFigure, Vec<RejectedTransaction>), GroupError> {
        let tail = self.shared.backend.reject_tail(id).await.map_err(away)?;
        let head = tail.first().filter(|head| self.is_here(head)).ok_or_else(|| no_reject(id))?;
        let transactions = tail.iter().map(|entry| self.rejected(entry)).collect();
        Ok((figure(head.clone()), transactions))
    }

    fn is_here(&self, entry: &RejectEntry) -> bool {
        let state = self.shared.slots.state(entry.key.slot());
        matches!(state, SlotState::Serving | SlotState::Leaving)
    }

    fn rejected(&self, entry: &RejectEntry) -> RejectedTransaction {
        let changes = entry.changes.iter().filter_map(|change| {
            let table = self.schema.table(change.table)?;
            let name = |column: &ColumnId| Some(table.columns.get(*column)?.name.clone());
            Some(RejectedChange {
                table: table.name.clone(),
                kind: change.kind,
                columns: change.changed.iter().filter_map(name).collect(),
            })
        });
        RejectedTransaction { sequence: entry.sequence, changes: changes.collect() }
    }

    /// Decides about a reject and its tail; answers the number of transactions.
    pub(crate) async fn resolve_reject(&self, id: u64, discard: bool) -> Result<u32, GroupError> {
        let transactions = self.decide(id, discard).await?;
        tracing::info!(node = %self.shared.node.name, reject = id, discard, transactions,
            "reject resolved by an administrator");
        Ok(transactions)
    }

    async fn decide(&self, id: u64, discard: bool) -> Result<u32, GroupError> {
        let tail = self.shared.backend.reject_tail(id).await.map_err(away)?;
        let key = tail.first().map(|head| head.key.clone()).ok_or_else(|| no_reject(id))?;
        if self.shared.slots.state(key.slot()) != SlotState::Serving {
            return Err(self.not_owner(key.slot()));
        }
        if !self.is_quarantined(&key) {
            return Err(undecided());
        }
        self.followers_are_aside(key.slot()).await?;
        if self.shared.slots.state(key.slot()) != SlotState::Serving {
            return Err(self.not_owner(key.slot()));
        }
        // a start must know that it was set aside, also when the backend has forgotten it by then
        if self.settled_positions().await.is_none() {
            return Err(undecided());
        }
        let fence = self.lanes.fence(key.slot()).ok_or_else(|| GroupError::BackendAway {
            reason: "this node has no claim at the backend yet".into(),
        })?;
        let resolved = match discard {
            true => self.shared.backend.discard_reject(id, &fence).await,
            false => self.shared.backend.replay_reject(id, &fence).await,
        };
        let transactions = resolved.map_err(|error| match (error.reason, error.disposition()) {
            (Reason::StaleTopology, _) => self.not_owner(key.slot()),
            (_, Disposition::Reject) => crate::refusals::from_backend(&(&error).into()),
            _ => away(error),
        })?;
        if !discard {
            self.aside.accepted(&key, u64::MAX);
        }
        self.answers.resolved(&key, discard);
        // the lanes first: what is written after the instance is back must not be set aside
        self.lanes.release_quarantine(&key);
        self.engine.forget(&key);
        self.rejects.changed();
        Ok(transactions)
    }

    /// Applies what was set aside because somebody held its rows. True while some of it is left.
    async fn apply_held(&self, rejects: &[RejectFigure]) -> bool {
        let mut left = false;
        for reject in rejects.iter().filter(|r| is_held(&r.sqlstate)).take(HELD_AT_ONCE) {
            match self.decide(reject.id, false).await {
                Ok(transactions) => tracing::info!(node = %self.shared.node.name,
                    reject = reject.id, transactions, "transactions of a locked row were applied"),
                Err(error) => {
                    left = true;
                    tracing::debug!(node = %self.shared.node.name, reject = reject.id,
                        reason = %error, "transactions of a locked row wait on");
                }
            }
        }
        left
    }

    /// The figures in the status grow old: said, so that nobody takes them for new.
    fn cannot_count(&self, error: &GroupError) {
        let message = format!(
            "rejects could not be counted ({error}); the number in the status is an old one. Look \
             whether the role may read cachetier.reject"
        );
        if self
            .shared
            .problems
            .raise("rejects-count", Problem::new("RejectsUnknown", message, false))
        {
            tracing::warn!(node = %self.shared.node.name, reason = %error, "rejects not counted");
        }
    }

    pub(crate) fn is_quarantined(&self, key: &RootKey) -> bool {
        matches!(self.engine.read(key, &ReadPlan::default()), Ok(ReadAnswer::Quarantined))
    }

    /// Waits until whatever was written to a quarantined instance before it was quarantined has
    /// been set aside too. Nothing new can come for it meanwhile; other instances of the slot may
    /// go on, so either the slot's queue is empty or what was appended by now has passed.
    async fn followers_are_aside(&self, slot: SlotId) -> Result<(), GroupError> {
        let appended = self.shared.journal.stats().appended.get();
        let slots: SlotSet = std::iter::once(slot).collect();
        let mut marks = self.lanes.watch();
        let deadline = Instant::now() + FOLLOWERS_WAIT;
        loop {
            marks.mark_unchanged();
            let passed = marks.borrow().confirmed_of(slot) >= appended;
            if passed || self.lanes.backlog_of(&slots) == 0 {
                return Ok(());
            }
            let changed = tokio::time::timeout_at(deadline, marks.changed()).await;
            if !matches!(changed, Ok(Ok(()))) {
                return Err(undecided());
            }
        }
    }

    /// Keeps the status's account.
    pub(crate) async fn watch_rejects(self: Arc<Self>) {
        let mut pause = POLL;
        loop {
            // asked only when something may have changed, or seldom
            tokio::select! {
                () = self.shared.shutdown.cancelled() => return,
                () = self.rejects.changed.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
            if self.token().is_none() {
                continue;
            }
            let rejects = match self.list_rejects(COUNT_MAX).await {
                Ok(rejects) => rejects,
                Err(error) => {
                    self.cannot_count(&error);
                    continue;
                }
            };
            self.shared.problems.heal("rejects-count");
            pause = if self.apply_held(&rejects).await { HELD_POLL } else { POLL };
            let count: u64 = rejects.iter().map(|r| 1 + u64::from(r.following)).sum();
            let oldest = rejects.iter().map(|r| r.age.as_secs_f64()).fold(0.0, f64::max);
            *self.rejects.figures.lock() = (count, oldest);
            if count == 0 {
                self.shared.problems.heal("rejects");
            } else {
                let message = format!(
                    "the backend refused {count} transactions of {} instances for good; look with \
                     `cachectl rejects list`, then replay or discard them",
                    rejects.len()
                );
                self.shared.problems.raise("rejects", Problem::new("Rejects", message, false));
            }
        }
    }
}

fn undecided() -> GroupError {
    GroupError::Busy {
        what: "transactions behind the reject that have not reached the backend yet",
        retry_after: Duration::from_secs(1),
    }
}

fn no_reject(id: u64) -> GroupError {
    GroupError::Unknown { what: "reject", id: id.to_string() }
}

fn away(error: BackendError) -> GroupError {
    GroupError::BackendAway { reason: error.to_string().into() }
}

fn figure(entry: RejectEntry) -> RejectFigure {
    RejectFigure {
        id: entry.id,
        node: entry.node,
        sequence: entry.sequence,
        sqlstate: entry.sqlstate,
        table: entry.table,
        constraint: entry.constraint,
        message: entry.message,
        age: Duration::from_secs_f64(entry.age_seconds.max(0.0)),
        following: entry.following,
        key_hash: entry.key.fingerprint(),
    }
}
