//! What the journal holds that the backend may not have, while no core knows it better: before the
//! tables are known, or when they never will be.
//!
//! Owns a count of the journal's tail above the positions noted in it. Those are confirmed ones
//! (R11), so the count may be too high and is never too low. Must never say "nothing waits" before
//! the tail was read.

use std::collections::BTreeSet;
use std::sync::Arc;

use cachetier_journal::{Journal, Sequence};

use crate::calls::BacklogFigures;
use crate::frames::Payload;
use crate::restore::Tail;
use crate::shared::Shared;

/// What is said before the tail was read, or when it cannot be.
const SOMETHING: BacklogFigures = BacklogFigures { transactions: 1, ..BacklogFigures::NONE };

impl Shared {
    /// The backlog as far as the journal alone tells it.
    pub(crate) fn tail_backlog(&self) -> BacklogFigures {
        if let Some(counted) = self.tail.get() {
            return *counted;
        }
        let flushed = self.notebook.lanes().ok().and_then(|lanes| lanes.into_iter().min());
        let upto = Sequence::from_stored(flushed.unwrap_or(0)).unwrap_or_default();
        let stats = self.journal.stats();
        if stats.appended <= upto { BacklogFigures::NONE } else { SOMETHING }
    }

    /// Counts the tail, once: for a start that does not succeed at once.
    pub(crate) async fn count_tail(self: &Arc<Self>) {
        if self.tail.get().is_some() {
            return;
        }
        let (journal, positions) = (self.journal.clone(), self.notebook.lanes());
        let counted = self.labour.run(move || count(&journal, &positions.ok()?)).await;
        let counted = counted.ok().flatten().unwrap_or_else(|| {
            tracing::warn!(node = %self.node.name, "the journal's tail cannot be counted");
            SOMETHING
        });
        let _counted_before = self.tail.set(counted);
    }
}

/// `None` when the journal cannot be read.
fn count(journal: &Journal, positions: &[u64]) -> Option<BacklogFigures> {
    let tail = Tail { journal, positions, schema_version: 0 };
    let mut figures = BacklogFigures::NONE;
    let mut undecided = BTreeSet::new();
    tail.each(|sequence, payload, bytes| {
        match payload {
            Payload::Transaction(frame) if !tail.is_flushed(sequence, &frame.key) => {
                figures.transactions += 1;
                figures.bytes += bytes;
                if frame.awaits_backend {
                    undecided.insert(sequence);
                }
            }
            // it never happened
            Payload::Annul { sequence } if undecided.remove(&sequence) => {
                figures.transactions = figures.transactions.saturating_sub(1);
            }
            _ => {}
        }
        Ok(())
    })
    .ok()?;
    Some(figures)
}
