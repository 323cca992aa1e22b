//! One transaction's way: load, check, journal, queue, wait until it is durable, answer.
//!
//! Owns the order of those steps; the act that the engine calls under the slot's lock is `sink`.
//! Must never answer before the durability level is reached, nor before the backend decided what
//! only the backend can decide.

use std::time::Duration;

use cachetier_engine::{CommitRefused, Committed, ReadAnswer, TransactError};
use cachetier_model::{
    Comparison, Condition, Guard, Instance, LookupId, LookupKey, ReadPlan, RootKey, RowChange,
    TableRead, Transaction,
};
use cachetier_write_through::{RejectCause, is_held};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::answers::{Claim, Request};
use crate::calls::{AnswerWhen, KeySelector, Position, TransactCall, Transacted};
use crate::core::Core;
use crate::decisions::Decision;
use crate::error::{GroupError, RefusalReason};
use crate::ownership::SlotState;
use crate::refusals;
use crate::repeats::Admitted;
use crate::shared::Tally;

mod sink;

use sink::Sink;
pub(crate) use sink::from_append;

/// The longest a caller waits for the backend's decision; then the outcome is unknown to it.
const DECISION_WAIT_MAX: Duration = Duration::from_secs(60);
/// First and longest wait before an undecided instance is looked at again.
const UNDECIDED_PAUSE_MIN: Duration = Duration::from_millis(2);
const UNDECIDED_PAUSE_MAX: Duration = Duration::from_millis(500);

impl Core {
    pub(crate) async fn transact(&self, call: TransactCall) -> Result<Transacted, GroupError> {
        let outcome = self.try_transact(call).await;
        match &outcome {
            Ok(_) => Tally::add(&self.shared.tally.writes, 1),
            Err(error) => {
                Tally::add(&self.shared.tally.writes_refused, 1);
                if matches!(error, GroupError::MemoryFull) {
                    *self.shared.memory_refused.lock() = Some(Instant::now());
                }
            }
        }
        outcome
    }

    async fn try_transact(&self, call: TransactCall) -> Result<Transacted, GroupError> {
        let mut transaction = call.transaction;
        let keyed = call.idempotency_key;
        let keyed =
            keyed.map(|key| self.keyed_request(key, &call.key, &transaction)).transpose()?;
        let (root, lookup_guard) = match call.key {
            KeySelector::Root(root) => (root, None),
            KeySelector::Lookup { lookup, key } => {
                let root = self.find_root(lookup, &key).await?.ok_or(GroupError::NotFound)?;
                let guard = self.lookup_guard(lookup, &key)?;
                transaction.guards.push(guard);
                (root, Some(transaction.guards.len() - 1))
            }
        };
        self.slow_down().await;
        let committed = self.commit(&root, &transaction, call.answer, keyed.as_ref()).await;
        match committed {
            Err(GroupError::Refused(refusal))
                if refusal.reason == RefusalReason::GuardFailed
                    && lookup_guard.is_some()
                    && refusal.operation == lookup_guard =>
            {
                Err(GroupError::NotFound)
            }
            other => other,
        }
    }

    /// A queue that is nearly full slows writers down before it refuses them.
    async fn slow_down(&self) {
        let wait = self.lanes.slowdown();
        if wait.is_zero() {
            return;
        }
        Tally::add(&self.shared.tally.writes_slowed, 1);
        Tally::add(&self.shared.tally.write_slowdown_micros, wait.as_micros() as u64);
        tokio::time::sleep(wait).await;
    }

    /// The instance found by a lookup key must still have it.
    fn lookup_guard(&self, lookup: LookupId, key: &LookupKey) -> Result<Guard, GroupError> {
        let unknown = || GroupError::refused(RefusalReason::Schema, "unknown lookup key");
        let columns = &self.schema.lookups.get(lookup).ok_or_else(unknown)?.columns;
        let values = key.decode().map_err(|_| unknown())?;
        let conditions = (columns.iter().zip(values))
            .map(|(column, value)| Condition {
                column: *column,
                comparison: Comparison::Equal,
                values: vec![value],
            })
            .collect();
        Ok(Guard::Exists { table: 0, conditions })
    }

    async fn commit(
        &self,
        root: &RootKey,
        transaction: &Transaction,
        answer: AnswerWhen,
        keyed: Option<&Request>,
    ) -> Result<Transacted, GroupError> {
        let slot = root.slot();
        let deadline = Instant::now() + self.hold_timeout();
        let urgent = answer == AnswerWhen::Flushed;
        // keeps what a miss learned valid until the transaction is in
        let mut learned = None;
        let mut settled = None;
        let mut claim: Option<Claim> = None;
        loop {
            self.serving(slot, deadline).await?;
            if let Some(request) = keyed
                && !claim.as_ref().is_some_and(Claim::is_held)
            {
                match self.admit(request).await? {
                    Admitted::First(first) => claim = Some(first),
                    Admitted::Again(known) => {
                        return self.answer_again(request, known, urgent).await;
                    }
                }
            }
            let claimed = claim.as_ref();
            let sink = Sink::new(self, urgent, claimed);
            let done = self.engine.transact(root, transaction, &sink);
            let decision = sink.finish();
            match done {
                Ok(committed) => {
                    if committed.sequence == 0
                        && let Some(claim) = claimed
                    {
                        match self.remember_nothing(claim, &committed.rows)? {
                            Some(word) => self.visible(word).await?,
                            None => continue,
                        }
                    }
                    return self.answer(root, committed, decision, urgent).await;
                }
                Err(TransactError::NotLoaded) => {
                    if cachetier_defects::on("r15-write-without-load") {
                        self.misses.assume_absent(root)?;
                        continue;
                    }
                    let fetched = self.misses.fetch(root).await?;
                    if !fetched.installed && self.shared.slots.state(slot) == SlotState::Serving {
                        return Err(GroupError::MemoryFull);
                    }
                    learned = Some(fetched);
                }
                // watched from before another look, so that no decision is missed
                Err(TransactError::AwaitingBackend) => match &mut settled {
                    None => settled = Some(Undecided::new(self.decisions.watch())),
                    Some(settled) => settled.wait().await?,
                },
                Err(TransactError::Refused(refused)) => {
                    self.after_refusal(refused, deadline).await?;
                }
                Err(refusal) => {
                    self.visible_refusal(root, &refusal).await?;
                    return Err(refusals::explain(&self.schema, transaction, refusal));
                }
            }
            let _ = &learned;
        }
    }

    /// Writes a loaded, clean instance to the backend once more: `changes` make the backend's rows its
    /// own. Answers when the backend has it; false when it is not what was compared any more.
    pub(crate) async fn write_again(
        &self,
        key: &RootKey,
        instance: &Instance,
        changes: &[RowChange],
    ) -> Result<bool, GroupError> {
        self.serving(key.slot(), Instant::now() + self.hold_timeout()).await?;
        let sink = Sink::new(self, true, None);
        let written = self.engine.write_again(key, instance, changes, &sink);
        let decision = sink.finish();
        let Some(committed) = written.map_err(|refused| match refused {
            TransactError::Refused(refused) => match refused.0.downcast::<GroupError>() {
                Ok(error) => *error,
                Err(other) => GroupError::internal(other),
            },
            other => refusals::explain(&self.schema, &Transaction::default(), other),
        })?
        else {
            return Ok(false);
        };
        self.answer(key, committed, decision, true).await.map(|_| true)
    }

    /// Decides whether a refused commit is tried again: a slot on its way and a busy journal are.
    async fn after_refusal(
        &self,
        refused: CommitRefused,
        deadline: Instant,
    ) -> Result<(), GroupError> {
        match refused.0.downcast::<GroupError>().map(|error| *error) {
            Ok(GroupError::SlotMoving { .. }) => Ok(()),
            Ok(busy @ GroupError::Busy { .. }) => {
                let mut progress = self.shared.journal.watch();
                match tokio::time::timeout_at(deadline, progress.changed()).await {
                    Ok(Ok(())) => Ok(()),
                    _ => Err(busy),
                }
            }
            Ok(error) => Err(error),
            Err(other) => Err(GroupError::internal(other)),
        }
    }

    /// A refusal tells about the instance's state, which must be durable before anyone hears of
    /// it (R7).
    async fn visible_refusal(
        &self,
        root: &RootKey,
        refusal: &TransactError,
    ) -> Result<(), GroupError> {
        if matches!(refusal, TransactError::LookupTaken { .. }) {
            return self.all_visible().await;
        }
        self.visible(self.last_change(root)).await
    }

    /// The instance's last change that is not flushed; 0 when there is none.
    fn last_change(&self, root: &RootKey) -> u64 {
        let plan = ReadPlan {
            tables: vec![TableRead { table: 0, columns: vec![0], conditions: Vec::new() }],
        };
        match self.engine.read(root, &plan) {
            Ok(ReadAnswer::Found { as_of, .. } | ReadAnswer::Absent { as_of }) => as_of,
            _ => 0,
        }
    }

    /// A transaction that changed nothing rests on what it saw: that is durable before the answer,
    /// and in the backend where the caller waits for that.
    pub(crate) async fn rest_on_what_is(
        &self,
        root: &RootKey,
        urgent: bool,
    ) -> Result<(), GroupError> {
        let seen = self.last_change(root);
        self.visible(seen).await?;
        if !urgent || seen == 0 {
            return Ok(());
        }
        if !self.reached(root.slot(), seen, DECISION_WAIT_MAX).await? {
            return Err(not_yet_flushed());
        }
        match self.aside.holds(seen).await {
            true => Err(GroupError::InDoubt { reason: set_aside(None).into() }),
            false => Ok(()),
        }
    }

    async fn answer(
        &self,
        root: &RootKey,
        committed: Committed,
        decision: Option<oneshot::Receiver<Decision>>,
        urgent: bool,
    ) -> Result<Transacted, GroupError> {
        let position = Position { journal: self.shared.journal.id(), sequence: committed.sequence };
        if committed.sequence == 0 {
            self.rest_on_what_is(root, urgent).await?;
            return Ok(Transacted { position, rows: committed.rows });
        }
        self.visible(committed.sequence).await?;
        let decision = decision.filter(|_| !cachetier_defects::on("r16-answer-before-backend"));
        if let Some(decision) = decision {
            self.decided(decision).await?;
        }
        if urgent {
            // accepted; and so that a crash of the backend cannot take it back
            let reached = self.reached(root.slot(), committed.sequence, DECISION_WAIT_MAX).await?;
            if !reached {
                return Err(not_yet_flushed());
            }
        }
        Ok(Transacted { position, rows: committed.rows })
    }

    async fn decided(&self, decision: oneshot::Receiver<Decision>) -> Result<(), GroupError> {
        let unknown = |reason: &str| GroupError::InDoubt { reason: reason.into() };
        match tokio::time::timeout(DECISION_WAIT_MAX, decision).await {
            Ok(Ok(Decision::Accepted { noted })) => self.visible(noted).await,
            Ok(Ok(Decision::Refused { cause, annulled })) => {
                self.visible(annulled).await?;
                if is_held(&cause.sqlstate) {
                    return Err(GroupError::Busy {
                        what: "a row that somebody keeps locked in the backend",
                        retry_after: Duration::from_secs(1),
                    });
                }
                Err(refusals::from_backend(&cause))
            }
            Ok(Ok(Decision::SetAside(cause))) => Err(unknown(&set_aside(cause.as_deref()))),
            Ok(Ok(Decision::Lost)) => {
                Err(unknown("another node took the slot before the backend decided"))
            }
            Ok(Err(_)) => Err(unknown("this node stopped before the backend decided")),
            Err(_) => Err(unknown(
                "the backend has not decided yet; the transaction stays queued and will be sent",
            )),
        }
    }
}

/// Neither done nor undone: an administrator decides.
pub(crate) fn not_yet_flushed() -> GroupError {
    let reason = "durable here, and not yet in the backend; it stays queued".into();
    GroupError::InDoubt { reason }
}

fn set_aside(cause: Option<&RejectCause>) -> String {
    let why = match cause {
        Some(cause) if is_held(&cause.sqlstate) => {
            return "a row of the transaction stays locked in the backend; it was set aside, and is \
                    applied when the lock is gone"
                .to_owned();
        }
        Some(cause) => format!(
            "the backend refused the transaction for good (SQLSTATE {}, table {:?}, constraint {:?})",
            cause.sqlstate, cause.table, cause.constraint
        ),
        None => "the backend refused an earlier transaction of the instance for good".to_owned(),
    };
    format!("{why}; it was set aside until an administrator replays or discards it")
}

/// Waits of one caller for a decision on an earlier transaction of its instance. The store also
/// says "undecided" when it only met a busy slot too often, for which no decision ever comes:
/// every wait is short at first, and grows.
struct Undecided {
    settled: watch::Receiver<u64>,
    until: Instant,
    pause: Duration,
}

impl Undecided {
    fn new(settled: watch::Receiver<u64>) -> Self {
        Self { settled, until: Instant::now() + DECISION_WAIT_MAX, pause: UNDECIDED_PAUSE_MIN }
    }

    /// Returns at the next decision of any transaction, or when it is time to look again.
    async fn wait(&mut self) -> Result<(), GroupError> {
        if Instant::now() >= self.until {
            return Err(GroupError::Busy {
                what: "an earlier transaction of this instance waits for the backend",
                retry_after: Duration::from_secs(1),
            });
        }
        let _decided_or_not = tokio::time::timeout(self.pause, self.settled.changed()).await;
        self.pause = (self.pause * 2).min(UNDECIDED_PAUSE_MAX);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_caller_that_met_a_busy_slot_looks_again_without_any_decision() {
        let (_sender, settled) = watch::channel(0);
        let mut undecided = Undecided::new(settled);
        let waited = tokio::time::timeout(Duration::from_secs(5), undecided.wait()).await;
        assert!(matches!(waited, Ok(Ok(()))), "no decision comes: {waited:?}");
        undecided.until = Instant::now();
        assert!(matches!(undecided.wait().await, Err(GroupError::Busy { .. })));
    }
}
