//! Acknowledged transactions that the lanes passed without the backend taking them: set aside
//! behind a reject, or lost with their slots.
//!
//! Owns what the answer to "is it in the backend?" needs beside the lanes' marks, which pass such a
//! transaction all the same. Filled by the start and by `flush_events`, emptied by replays and as
//! frames leave the journal: never more than the journal holds.

use std::collections::HashMap;

use cachetier_model::RootKey;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

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

    /// The backend has everything of the instance up to a sequence after all.
    pub(crate) fn accepted(&self, key: &RootKey, upto: u64) {
        let mut by_instance = self.by_instance.lock();
        if by_instance.is_empty() {
            return;
        }
        if let Some(sequences) = by_instance.get_mut(key) {
            sequences.retain(|sequence| *sequence > upto);
            if sequences.is_empty() {
                by_instance.remove(key);
            }
        }
    }

    /// The journal let these frames go: nobody can ask for them any more.
    pub(crate) fn trimmed(&self, upto: u64) {
        self.by_instance.lock().retain(|_, sequences| {
            sequences.retain(|sequence| *sequence > upto);
            !sequences.is_empty()
        });
    }

    /// Whether a sequence that the marks passed is one of these. The lanes tell before the marks
    /// move, so what they told is waited for.
    pub(crate) async fn holds(&self, sequence: u64) -> bool {
        let (caught_up, told) = oneshot::channel();
        if self.events.send(caught_up).await.is_ok() {
            let _stopped = told.await;
        }
        self.by_instance.lock().values().any(|sequences| sequences.contains(&sequence))
    }
}
