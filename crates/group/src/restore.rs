//! Start: from the journal's tail back into the store and the write-behind queue, in order.
//!
//! Only frames above their lane's flushed position are taken: those below may be older than what
//! the backend has by now. Two passes over the tail: later frames say which transactions never
//! happened. Also reads frames again for a backend that lost commits (R11).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use cachetier_engine::Engine;
use cachetier_journal::{Journal, JournalError, Sequence};
use cachetier_model::RootKey;
use cachetier_write_through::service::lane_of;
use cachetier_write_through::{Pending, Replay, ReplayError, WriteThrough};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::error::{GroupError, in_full};
use crate::frames::{self, Payload, TransactionFrame};
use crate::host::Labour;
use crate::status::Problem;

/// Sequences of transactions that never happened, of the frames still in the journal.
pub(crate) type Annulled = Arc<Mutex<BTreeSet<u64>>>;

/// What the tail held.
#[derive(Debug, Default)]
pub(crate) struct Restored {
    pub transactions: u64,
    pub bytes: u64,
    /// Instances with rejects, by the journal's account.
    pub quarantined: HashSet<RootKey>,
    /// Instances whose last transaction awaits the backend's decision, with its sequence.
    pub undecided: HashMap<RootKey, u64>,
    /// Transactions set aside, by the journal's account.
    pub aside: HashMap<RootKey, Vec<u64>>,
}

impl Restored {
    fn note_undecided(&mut self, frame: &TransactionFrame, sequence: u64) {
        if frame.awaits_backend && !cachetier_defects::on("restart-forgets-acceptance") {
            self.undecided.insert(frame.key.clone(), sequence);
        } else {
            // a later transaction was committed, so the earlier one had been accepted
            self.undecided.remove(&frame.key);
        }
    }
}

/// Where the tail begins, per lane.
pub(crate) struct Tail<'a> {
    pub journal: &'a Journal,
    /// Flushed position per lane; empty when nothing was ever flushed.
    pub positions: &'a [u64],
    pub schema_version: u64,
}

impl Tail<'_> {
    /// Everything at or below was flushed in every lane.
    pub(crate) fn flushed(&self) -> u64 {
        self.positions.iter().copied().min().unwrap_or(0)
    }

    pub(crate) fn is_flushed(&self, sequence: u64, key: &RootKey) -> bool {
        let lane = lane_of(key.slot(), self.positions.len() as u16);
        self.positions.get(usize::from(lane)).is_some_and(|position| sequence <= *position)
    }

    /// Reads the tail into engine and queue. Blocks. `settled`: up to where every word about what the
    /// backend made of it is in the journal, so that what is there and was not undone had been accepted.
    pub(crate) fn restore(
        &self,
        settled: &Tail<'_>,
        engine: &Engine,
        lanes: &WriteThrough,
        annulled: &Annulled,
    ) -> Result<Restored, Problem> {
        let mut restored = Restored::default();
        self.each(|sequence, payload, _| {
            match payload {
                Payload::Annul { sequence } => {
                    annulled.lock().insert(sequence);
                }
                Payload::Rejected { key, sequences } => {
                    restored.aside.entry(key.clone()).or_default().extend(sequences);
                    restored.quarantined.insert(key);
                }
                // see `repeats`
                Payload::Answered { .. } => {}
                Payload::Transaction(frame) => {
                    self.check_schema(sequence, &frame)?;
                    // a quarantined instance takes no writes: the reject was resolved before this
                    restored.quarantined.remove(&frame.key);
                }
            }
            Ok(())
        })?;
        self.each(|sequence, payload, bytes| {
            match payload {
                Payload::Transaction(frame) if self.pending(sequence, &frame, annulled) => {
                    let key = frame.key.clone();
                    engine
                        .restore(&key, &frame.image, sequence, frame.awaits_backend)
                        .map_err(|error| unreadable(&in_full(&error)))?;
                    restored.note_undecided(&frame, sequence);
                    restored.transactions += 1;
                    restored.bytes += bytes;
                    let accepted = settled.is_flushed(sequence, &key);
                    let pending = to_pending(sequence, frame, bytes, accepted);
                    lanes.enqueue(pending).map_err(|error| unreadable(&in_full(&error)))?;
                }
                _ => lanes.note(sequence),
            }
            Ok(())
        })?;
        Ok(restored)
    }

    /// What was set aside above the position is sent again too: the position and the reject were
    /// written together, so a backend without the one lost the other.
    fn pending(&self, sequence: u64, frame: &TransactionFrame, annulled: &Annulled) -> bool {
        !self.is_flushed(sequence, &frame.key) && !annulled.lock().contains(&sequence)
    }

    /// Unflushed frames of another table layout cannot be sent: somebody must decide (R5).
    fn check_schema(&self, sequence: u64, frame: &TransactionFrame) -> Result<(), Problem> {
        if frame.schema == self.schema_version || self.is_flushed(sequence, &frame.key) {
            return Ok(());
        }
        Err(Problem::new(
            "SchemaDrift",
            "the tables in the backend changed while changes written under the old layout were \
             not flushed; put the old layout back, let the node flush, then change it again",
            true,
        ))
    }

    /// Every frame above the lowest position, in order.
    pub(crate) fn each(
        &self,
        visit: impl FnMut(u64, Payload, u64) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        self.each_after(self.flushed(), visit)
    }

    /// Every frame after this one, in order.
    pub(crate) fn each_after(
        &self,
        after: u64,
        mut visit: impl FnMut(u64, Payload, u64) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        let Some(from) = Sequence::from_stored(after + 1) else {
            return Err(unreadable("the backend holds a position no journal gives out"));
        };
        let reader = match self.journal.read_from(from) {
            Ok(reader) => reader,
            Err(JournalError::Trimmed { .. }) => return Err(too_old()),
            Err(error) => return Err(unreadable(&in_full(&error))),
        };
        for frame in reader {
            let frame = frame.map_err(|error| unreadable(&in_full(&error)))?;
            let payload = frames::decode(frame.kind, &frame.payload);
            let payload = payload.map_err(|error| unreadable(&in_full(&error)))?;
            visit(frame.sequence.get(), payload, frame.payload.len() as u64)?;
        }
        Ok(())
    }
}

fn to_pending(sequence: u64, frame: TransactionFrame, bytes: u64, accepted: bool) -> Pending {
    Pending {
        sequence,
        slot: frame.key.slot(),
        key: frame.key,
        changes: Arc::from(frame.changes),
        awaits_backend: frame.awaits_backend,
        urgent: false,
        accepted,
        bytes: bytes * 2,
        since: Instant::now().into_std(),
    }
}

pub(crate) fn unreadable(what: &str) -> Problem {
    Problem::new("JournalUnreadable", format!("the journal's tail cannot be read: {what}"), true)
}

fn too_old() -> Problem {
    Problem::new(
        "PositionTooOld",
        "the backend holds an older position than this journal can send again from: a backup was \
         restored, or commits were lost beyond journal.keepFlushed; restore a newer state of the \
         backend, or discard this journal and load the group anew",
        true,
    )
}

/// Frames again, for lanes whose backend went back.
pub(crate) struct JournalReplay {
    pub journal: Journal,
    pub annulled: Annulled,
    pub labour: Labour,
}

impl Replay for JournalReplay {
    fn read_after(
        &self,
        after: u64,
        upto: u64,
        bytes_max: u64,
    ) -> BoxFuture<'_, Result<Vec<Pending>, ReplayError>> {
        let (journal, annulled) = (self.journal.clone(), Arc::clone(&self.annulled));
        Box::pin(async move {
            let read =
                self.labour.run(move || read_again(&journal, &annulled, after, upto, bytes_max));
            read.await.unwrap_or_else(|error| Err(ReplayError::Failed(error.to_string())))
        })
    }
}

fn read_again(
    journal: &Journal,
    annulled: &Annulled,
    after: u64,
    upto: u64,
    bytes_max: u64,
) -> Result<Vec<Pending>, ReplayError> {
    let failed = |error: &dyn std::error::Error| ReplayError::Failed(in_full(error));
    let from = Sequence::from_stored(after + 1).ok_or(ReplayError::TooOld)?;
    let reader = match journal.read_from(from) {
        Ok(reader) => reader,
        Err(JournalError::Trimmed { .. }) => return Err(ReplayError::TooOld),
        Err(error) => return Err(failed(&error)),
    };
    let (mut found, mut bytes) = (Vec::new(), 0);
    for frame in reader {
        let frame = frame.map_err(|error| failed(&error))?;
        let sequence = frame.sequence.get();
        if sequence > upto || bytes > bytes_max {
            break;
        }
        let payload = frames::decode(frame.kind, &frame.payload);
        let payload = payload.map_err(|error: GroupError| failed(&error))?;
        if let Payload::Transaction(transaction) = payload
            && !annulled.lock().contains(&sequence)
        {
            let size = frame.payload.len() as u64;
            bytes += size;
            found.push(to_pending(sequence, transaction, size, true));
        }
    }
    Ok(found)
}
