//! The last step of a write: into the journal and the queue, as one act.
//!
//! Owns what is looked at under the queue's lock. Called by the store under the slot's lock; must
//! never wait, and after the journal took the frame must never refuse.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cachetier_engine::{Commit, CommitRefused, CommitSink};
use cachetier_journal::AppendError;
use cachetier_write_through::Draft;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::answers::{Answer, Claim, Fate};
use crate::calls::Position;
use crate::core::Core;
use crate::decisions::Decision;
use crate::error::{GroupError, RefusalReason};
use crate::frames;
use crate::ownership::SlotState;

/// Bytes a queued transaction costs beside its rows.
const PENDING_OVERHEAD_BYTES: u64 = 200;

/// Journals and queues a transaction that passed all its checks. Called under the slot's lock.
pub(super) struct Sink<'a> {
    core: &'a Core,
    urgent: bool,
    /// Of a transaction with an idempotency key.
    claim: Option<&'a Claim>,
    /// Filled when the caller waits for the backend.
    decision: Mutex<Option<oneshot::Receiver<Decision>>>,
    /// The journal's writer was not woken for it.
    unwritten: AtomicBool,
}

impl CommitSink for Sink<'_> {
    fn commit(&self, commit: &Commit<'_>) -> Result<u64, CommitRefused> {
        self.journal_and_queue(commit).map_err(|error| CommitRefused(Box::new(error)))
    }
}

impl<'a> Sink<'a> {
    pub(super) fn new(core: &'a Core, urgent: bool, claim: Option<&'a Claim>) -> Self {
        Self { core, urgent, claim, decision: Mutex::default(), unwritten: AtomicBool::new(false) }
    }

    /// The store let go of the slot. What the caller waits for, if it waits for the backend.
    pub(super) fn finish(self) -> Option<oneshot::Receiver<Decision>> {
        if self.unwritten.into_inner() {
            self.core.shared.write_soon();
        }
        self.decision.into_inner()
    }

    fn journal_and_queue(&self, commit: &Commit<'_>) -> Result<u64, GroupError> {
        let core = self.core;
        let mut payload = Vec::with_capacity(512);
        frames::begin_transaction(
            &mut payload,
            core.schema_version,
            commit.awaits_backend,
            commit.key,
            commit.changes,
            self.claim.map(|claim| (&claim.request, commit.rows)),
        );
        if cachetier_defects::on("r04-image-of-the-root-only") {
            let mut image = commit.image();
            image.tables.iter_mut().skip(1).for_each(Vec::clear);
            cachetier_model::codec::encode_instance(&image, &mut payload);
        } else {
            commit.encode_image(&mut payload);
        }
        let bytes = payload.len() as u64 * 2 + PENDING_OVERHEAD_BYTES;
        let reservation = core.lanes.reserve(bytes).map_err(|full| GroupError::BacklogFull {
            backlog_bytes: full.bytes,
            retry_after: full.retry_after,
        })?;
        let draft = Draft {
            slot: commit.slot,
            key: commit.key.clone(),
            changes: Arc::from(commit.changes),
            awaits_backend: commit.awaits_backend,
            urgent: self.urgent,
        };
        // Under the queue's lock: whoever freezes this slot passes through that lock afterwards,
        // and then either sees this transaction queued or has made it fail here.
        reservation.commit(draft, || {
            self.may_commit(commit)?;
            let journal = &core.shared.journal;
            let appended = journal.append_quietly(frames::KIND_TRANSACTION, &payload);
            let (sequence, unwritten) = appended.map_err(from_append)?;
            self.unwritten.store(unwritten, Ordering::Relaxed);
            let sequence = sequence.get();
            self.remember(commit, sequence)?;
            if commit.awaits_backend || self.urgent {
                *self.decision.lock() = Some(core.decisions.expect(sequence));
            }
            Ok(sequence)
        })
    }

    /// So that from now on a repeated call finds the answer.
    fn remember(&self, commit: &Commit<'_>, sequence: u64) -> Result<(), GroupError> {
        let Some(claim) = self.claim else { return Ok(()) };
        let fate = if commit.awaits_backend { Fate::Undecided } else { Fate::Done };
        let position = Position { journal: self.core.shared.journal.id(), sequence };
        let rows = Arc::from(commit.rows);
        claim.settle(|| Ok(Some(Answer { position, rows, fate, durable_at: sequence }))).map(drop)
    }

    fn may_commit(&self, commit: &Commit<'_>) -> Result<(), GroupError> {
        self.core.shared.check_alive()?;
        if self.claim.is_some_and(|claim| !claim.is_held()) {
            // its slot was away meanwhile, and came back with an answer
            return Err(self.core.moving(commit.slot));
        }
        if self.core.writes_stopped() {
            return Err(GroupError::Draining);
        }
        match self.core.shared.slots.state(commit.slot) {
            SlotState::Serving => Ok(()),
            SlotState::Acquiring => Err(self.core.moving(commit.slot)),
            _ => Err(self.core.not_owner(commit.slot)),
        }
    }
}

pub(crate) fn from_append(error: AppendError) -> GroupError {
    match error {
        AppendError::Busy { .. } => GroupError::Busy {
            what: "bytes waiting for the journal",
            retry_after: Duration::from_millis(20),
        },
        AppendError::Full { reason } => GroupError::JournalFull { reason },
        AppendError::Latched { reason } => GroupError::Latched { reason },
        AppendError::TooLarge { .. } => {
            GroupError::refused(RefusalReason::Value, "the instance is too large for the journal")
        }
        // the group ends, in order: nothing of this happened
        AppendError::Closed => GroupError::Draining,
        other => GroupError::Latched { reason: other.to_string().into() },
    }
}
