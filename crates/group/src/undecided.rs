//! Instances whose last transaction awaited the backend's decision when this process started.
//!
//! It may have been accepted, and acknowledged, before the start; the store shows what was before
//! it until the lanes hear again. Owns the list of them, filled once from the journal's tail. Must
//! never let a read through that could take an acknowledged change back: it waits for the decision,
//! or hears that the backend cannot be asked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cachetier_model::RootKey;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::GroupError;

pub(crate) struct Undecided {
    /// How many, for reads that must not take a lock.
    count: AtomicUsize,
    /// The last undecided sequence of each.
    by_key: Mutex<HashMap<RootKey, u64>>,
    /// Grows with every decision.
    decided: watch::Sender<u64>,
}

impl Undecided {
    pub(crate) fn new(by_key: HashMap<RootKey, u64>) -> Self {
        let count = AtomicUsize::new(by_key.len());
        Self { count, by_key: Mutex::new(by_key), decided: watch::Sender::new(0) }
    }

    /// What the backend made of everything of the instance up to `sequence` is known.
    pub(crate) fn decided(&self, key: &RootKey, sequence: u64) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut by_key = self.by_key.lock();
        if by_key.get(key).is_some_and(|last| *last <= sequence) {
            by_key.remove(key);
        }
        self.count.store(by_key.len(), Ordering::Release);
        drop(by_key);
        self.decided.send_modify(|version| *version += 1);
    }

    /// Returns once nothing of the instance is undecided; errs after `patience`.
    pub(crate) async fn wait(
        &self,
        key: &RootKey,
        patience: impl FnOnce() -> Duration,
    ) -> Result<(), GroupError> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let deadline = Instant::now() + patience();
        let mut decided = self.decided.subscribe();
        while self.by_key.lock().contains_key(key) {
            let changed = tokio::time::timeout_at(deadline, decided.changed()).await;
            if !matches!(changed, Ok(Ok(()))) {
                return Err(GroupError::BackendAway {
                    reason: "the last change of this instance may have been accepted before this \
                             start, and only the backend can tell"
                        .into(),
                });
            }
        }
        Ok(())
    }
}
