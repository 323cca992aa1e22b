//! What the lanes report, carried into the store and to the callers that wait.
//!
//! One task, events in order. It must never wait for the backend: the lanes wait for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cachetier_model::{RootKey, SlotSet};
use cachetier_write_through::{Disposition, FlushEvent, Reason, RejectCause};
use tokio::sync::mpsc;

use crate::aside::CaughtUp;
use crate::core::Core;
use crate::decisions::Decision;
use crate::frames;
use crate::status::{Ended, Problem};
use crate::unconfirmed::Unconfirmed;

impl Core {
    pub(crate) async fn follow_lanes(
        self: Arc<Self>,
        mut events: mpsc::Receiver<FlushEvent>,
        mut questions: mpsc::Receiver<CaughtUp>,
    ) {
        let mut unconfirmed = Unconfirmed::default();
        let mut marks = self.lanes.watch();
        loop {
            tokio::select! {
                // who asks hears when everything told before is handled
                biased;
                event = events.recv() => match event {
                    Some(event) => self.on_flush_event(event, &mut unconfirmed).await,
                    None => return,
                },
                changed = marks.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let confirmed = unconfirmed.confirmed(&marks.borrow_and_update());
                    for (key, upto) in &confirmed {
                        self.engine.flushed(key, *upto);
                    }
                }
                Some(caught_up) = questions.recv() => {
                    let _asker_left = caught_up.send(());
                }
            }
        }
    }

    async fn on_flush_event(&self, event: FlushEvent, unconfirmed: &mut Unconfirmed) {
        match event {
            FlushEvent::Flushed { lane, upto, keys, accepted, resent, known } => {
                self.on_flushed(&keys, &accepted, resent);
                if known {
                    self.read_known_again(&keys);
                }
                if resent {
                    self.forget_sent_again(&keys);
                }
                unconfirmed.committed(lane, upto, keys);
            }
            FlushEvent::Refused { key, sequence, cause, .. } => {
                self.on_refused(&key, sequence, cause);
            }
            FlushEvent::Rejected { lane, key, sequences, cause } => {
                self.on_rejected(lane, &key, &sequences, cause.as_ref());
            }
            FlushEvent::SlotsLost { lane, slots } => self.on_slots_lost(lane, &slots).await,
            FlushEvent::SlotsForgotten { lane, slots } => self.on_slots_forgotten(lane, &slots),
            FlushEvent::Dropped { lane, transactions } => self.on_dropped(lane, &transactions),
            FlushEvent::Stopped { .. } => self.shared.end(Ended::TaskEnded("lane")),
            FlushEvent::Rewound { lane, from, to } => {
                unconfirmed.rewound(lane, to);
                tracing::warn!(node = %self.shared.node.name, lane, from, to,
                    "the backend lost commits; they are sent again");
            }
            FlushEvent::Fenced { reason, message } => {
                self.shared.fence(reason.as_str(), &message);
            }
            FlushEvent::BackendDown { disposition, reason, message } => {
                self.on_backend_down(disposition, reason, message);
            }
            FlushEvent::BackendUp => {
                self.shared.problems.heal("backend");
            }
        }
    }

    /// The backend lacked these commits for a while. What was loaded then is older than what was
    /// acknowledged, and looks like any other clean instance: it is read again.
    fn forget_sent_again(&self, keys: &[(RootKey, u64)]) {
        for (key, _) in keys {
            self.read_again(key);
        }
    }

    fn read_again(&self, key: &RootKey) {
        if self.engine.forget_clean(key) {
            self.shared.tally.instances_forgotten.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The backend has these since before the claim, which waited for its log: what it made of them
    /// it knows best.
    fn read_known_again(&self, keys: &[(RootKey, u64)]) {
        for (key, upto) in keys {
            self.engine.flushed(key, *upto);
            self.read_again(key);
        }
    }

    fn on_flushed(&self, keys: &[(RootKey, u64)], accepted: &[(RootKey, u64)], resent: bool) {
        for (key, sequence) in accepted {
            self.engine.decided(key, *sequence, true);
            let noted = self.note_acceptance(*sequence);
            self.decisions.settle(*sequence, Decision::Accepted { noted });
            self.undecided.decided(key, *sequence);
        }
        for (key, upto) in keys {
            if self.aside.accepted(key, *upto) && resent {
                self.reject_is_void(key);
            }
        }
    }

    /// The backend lost the reject with other commits, and took the transactions when they were sent
    /// again: nobody has to decide about them any more.
    fn reject_is_void(&self, key: &RootKey) {
        if !self.is_quarantined(key) {
            return;
        }
        self.answers.resolved(key, false);
        self.engine.forget(key);
        self.rejects.changed();
        tracing::warn!(node = %self.shared.node.name,
            "the backend lost a reject, and took its transactions when they were sent again");
    }

    /// Never acknowledged, never happened: the journal says so before the caller hears of it.
    fn on_refused(&self, key: &RootKey, sequence: u64, cause: RejectCause) {
        self.annulled.lock().insert(sequence);
        let annulled = self.journal_word(frames::KIND_ANNUL, &frames::annul(sequence));
        if annulled == 0 {
            self.shared.images.word_lost(key.slot(), sequence);
        }
        self.engine.decided(key, sequence, false);
        self.undecided.decided(key, sequence);
        self.answers.refused(sequence);
        self.decisions.settle(sequence, Decision::Refused { cause: Box::new(cause), annulled });
    }

    fn on_rejected(
        &self,
        lane: u16,
        key: &RootKey,
        sequences: &[u64],
        cause: Option<&RejectCause>,
    ) {
        self.engine.quarantine(key);
        self.suspected.lock().remove(key);
        sequences.iter().for_each(|sequence| self.undecided.decided(key, *sequence));
        self.aside.add(key, sequences);
        if self.journal_word(frames::KIND_REJECTED, &frames::rejected(key, sequences)) == 0 {
            let last = sequences.iter().copied().max().unwrap_or(0);
            self.shared.images.word_lost(key.slot(), last);
        }
        self.shared.tally.rejects.fetch_add(sequences.len() as u64, Ordering::Relaxed);
        self.rejects.changed();
        for sequence in sequences {
            self.answers.set_aside(*sequence);
            self.decisions.settle(*sequence, Decision::SetAside(cause.cloned().map(Box::new)));
        }
        if let Some(cause) = cause {
            let (sqlstate, table, constraint) =
                (cause.sqlstate.as_str(), cause.table.as_str(), cause.constraint.as_str());
            tracing::warn!(node = %self.shared.node.name, lane, sqlstate, table, constraint,
                transactions = sequences.len(), "the backend rejected an instance's transactions");
        }
    }

    async fn on_slots_lost(&self, lane: u16, slots: &SlotSet) {
        // the event may have waited while the slots were taken back: those stay
        let slots = &self.lanes.still_lost(slots);
        if slots.is_empty() {
            return;
        }
        let unexpected = self.forget_slots(slots).await;
        if unexpected.is_empty() {
            tracing::info!(node = %self.shared.node.name, lane, slots = slots.len(), "slots left");
        } else {
            tracing::error!(node = %self.shared.node.name, lane, slots = unexpected.len(),
                "slots were taken from this node by force");
        }
    }

    /// The backend is of a time before these slots were taken. Those that are served are taken again as
    /// they are; the others were on their way out, and are lost.
    fn on_slots_forgotten(&self, lane: u16, slots: &SlotSet) {
        let (mut again, mut others) = (slots.clone(), slots.clone());
        self.intersect_with_taken_again(&mut again);
        others.subtract(&again);
        self.lanes.slots_given_up(&others);
        self.restored_slots.lock().subtract(&others);
        tracing::debug!(node = %self.shared.node.name, lane, slots = again.len(), "slots forgotten");
        let _news = self.take_again(&again);
        // wakes the slot mover
        self.shared.slots.apply(|_| ());
    }

    /// Slots of this node that the backend does not know of. True if some are news.
    pub(crate) fn take_again(&self, slots: &SlotSet) -> bool {
        if slots.is_empty() {
            return false;
        }
        self.lanes.await_slots(slots);
        let mut forgotten = self.forgotten_slots.lock();
        let before = forgotten.len();
        forgotten.union_with(slots);
        let news = forgotten.len() > before;
        if news {
            tracing::warn!(node = %self.shared.node.name, slots = slots.len(),
                "the backend lost a takeover; the slots are taken again");
        }
        news
    }

    fn on_dropped(&self, lane: u16, transactions: &[(RootKey, u64)]) {
        for (key, sequence) in transactions {
            self.aside.add(key, &[*sequence]);
            self.answers.set_aside(*sequence);
            self.decisions.settle(*sequence, Decision::Lost);
            self.undecided.decided(key, *sequence);
        }
        let message = format!(
            "{} transactions of slots that were reassigned by force will never reach the backend; \
             they stay in this node's journal for inspection",
            transactions.len()
        );
        self.shared.problems.raise("lost", Problem::new("UnflushedLost", message, true));
        tracing::error!(node = %self.shared.node.name, lane, transactions = transactions.len(),
            "transactions of reassigned slots were dropped");
    }

    fn on_backend_down(&self, disposition: Disposition, reason: Reason, message: String) {
        let text = match disposition {
            Disposition::StopAndAsk => format!("{message}. Writes stay in the journal until then"),
            _ => format!("{message}; writes stay in the journal, and are sent when it is back"),
        };
        self.shared.problems.raise("backend", Problem::new(reason.as_str(), text, true));
    }

    /// Appends a frame that is no transaction. When the journal takes nothing (full, latched),
    /// nothing is lost: the backend's position has passed the transaction already.
    pub(crate) fn journal_word(&self, kind: u8, payload: &[u8]) -> u64 {
        match self.shared.journal.append(kind, payload) {
            Ok(sequence) => {
                self.lanes.note(sequence.get());
                sequence.get()
            }
            Err(error) => {
                tracing::debug!(reason = %error, "a word about a transaction was not journaled");
                0
            }
        }
    }
}
