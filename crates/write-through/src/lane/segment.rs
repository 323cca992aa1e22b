//! A run of transactions in commit order, sent as one backend transaction or taken apart.

use crate::pending::Pending;

#[derive(Debug)]
pub(super) struct Segment {
    pub entries: Vec<Pending>,
    /// Read back from the journal: counted nowhere in the queue.
    pub resent: bool,
    /// A refusal for a unique or foreign key was already tried again after the other lanes had
    /// caught up.
    pub tried_again: bool,
    /// Part of a batch whose rows were locked, or took too long, several times.
    pub held: bool,
}

impl Segment {
    pub(super) fn new(entries: Vec<Pending>, resent: bool) -> Self {
        Self { entries, resent, tried_again: false, held: false }
    }

    pub(super) fn held_before(self) -> Self {
        Self { held: true, ..self }
    }

    pub(super) fn last_sequence(&self) -> u64 {
        self.entries.last().map_or(0, |p| p.sequence)
    }

    /// Both halves, in order; only for more than one entry.
    pub(super) fn halves(mut self) -> (Self, Self) {
        let second = self.entries.split_off(self.entries.len() / 2);
        (Self::new(self.entries, self.resent), Self::new(second, self.resent))
    }
}
