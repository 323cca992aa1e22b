//! Acknowledged transactions that the lanes passed without the backend taking them: set aside
//! behind a reject, or lost with their slots.
//!
//! Owns what the answer to "is it in the backend?" needs beside the lanes' marks, which pass such a
//! transaction all the same. Filled by the start and by `flush_events`, emptied by replays and as
//! frames leave the journal: never more than the journal holds. What an earlier process set aside is
//! asked of the backend, where it waits; what an administrator discarded after that process nobody
//! knows any more.

use std::collections::HashMap;

use cachetier_journal::{Journal, Sequence};
use cachetier_model::RootKey;
use cachetier_write_through::BackendError;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::core::Core;
use crate::error::GroupError;
use crate::frames::{self, Payload};

/// Answered when every event that was sent before it is handled.
pub(crate) type CaughtUp = oneshot::Sender<()>;

pub(crate) struct Aside {
    /// Sequences, ascending.
    by_instance: Mutex<HashMap<RootKey, Vec<u64>>>,
    events: mpsc::Sender<CaughtUp>,
}

impl Aside {
    pub(crate) fn new(found: HashMap<RootKey, Vec<u64>>, events: mpsc::Sender<CaughtUp>) -> Self {
        Self { by_instance: Mutex::new(found), events }
    }

    pub(crate) fn add(&self, key: &RootKey, sequences: &[u64]) {
        self.by_instance.lock().entry(key.clone()).or_default().extend(sequences);
    }

    /// The backend has everything of the instance up to a sequence after all. True when the last of it
    /// that was set aside is among it.
    pub(crate) fn accepted(&self, key: &RootKey, upto: u64) -> bool {
        let mut by_instance = self.by_instance.lock();
        if by_instance.is_empty() {
            return false;
        }
        let Some(sequences) = by_instance.get_mut(key) else { return false };
        sequences.retain(|sequence| *sequence > upto);
        let none_left = sequences.is_empty();
        if none_left {
            by_instance.remove(key);
        }
        none_left
    }

    /// The journal let these frames go: nobody can ask for them any more.
    pub(crate) fn trimmed(&self, upto: u64) {
        self.by_instance.lock().retain(|_, sequences| {
            sequences.retain(|sequence| *sequence > upto);
            !sequences.is_empty()
        });
    }

    /// Returns once everything that the lanes told by now is handled.
    pub(crate) async fn caught_up(&self) {
        let (caught_up, told) = oneshot::channel();
        if self.events.send(caught_up).await.is_ok() {
            let _stopped = told.await;
        }
    }

    /// Whether a sequence that the marks passed is one of these. The lanes tell before the marks
    /// move, so what they told is waited for.
    pub(crate) async fn holds(&self, sequence: u64) -> bool {
        self.caught_up().await;
        self.by_instance.lock().values().any(|sequences| sequences.contains(&sequence))
    }
}

impl Core {
    /// Whether a sequence that every lane passed is not in the backend all the same.
    pub(crate) async fn is_aside(&self, sequence: u64) -> Result<bool, GroupError> {
        if self.aside.holds(sequence).await {
            return Ok(true);
        }
        let stored = Sequence::from_stored(sequence).unwrap_or_default();
        if stored.generation() == self.shared.generation {
            return Ok(false);
        }
        let journal = self.shared.journal.clone();
        let key = self.shared.labour.run(move || instance_of(&journal, stored)).await;
        match key.map_err(GroupError::internal)? {
            Some(key) if self.is_quarantined(&key) => self.is_in_tail(&key, sequence).await,
            _ => Ok(false),
        }
    }

    async fn is_in_tail(&self, key: &RootKey, sequence: u64) -> Result<bool, GroupError> {
        let away = |e: BackendError| GroupError::BackendAway { reason: e.to_string().into() };
        let backend = &self.shared.backend;
        let heads = backend.list_rejects(&self.shared.config.group.uid, u32::MAX).await;
        let head = heads.map_err(away)?.into_iter().find(|head| head.key == *key);
        let Some(head) = head else { return Ok(false) };
        let tail = backend.reject_tail(head.id).await.map_err(away)?;
        Ok(tail.iter().any(|e| e.node == self.shared.node.name && e.sequence == sequence))
    }
}

/// The instance of a transaction, if the journal still has it. Blocks.
fn instance_of(journal: &Journal, sequence: Sequence) -> Option<RootKey> {
    let frame = journal.read_from(sequence).ok()?.next()?.ok()?;
    match frames::decode(frame.kind, &frame.payload).ok()? {
        Payload::Transaction(transaction) if frame.sequence == sequence => Some(transaction.key),
        _ => None,
    }
}
