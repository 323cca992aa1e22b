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
    /// The last try was patient: this one tells whether the row is locked still.
    pub hasty: bool,
    /// It may have been committed together with other lanes' segments, waiting for the log or not.
    pub tried_synced: Option<bool>,
}

impl Segment {
    pub(super) fn new(entries: Vec<Pending>, resent: bool) -> Self {
        let (tried_again, held, hasty) = (false, false, false);
        Self { entries, resent, tried_again, held, hasty, tried_synced: None }
    }

    pub(super) fn held_before(self) -> Self {
        Self { held: true, ..self }
    }

    pub(super) fn last_sequence(&self) -> u64 {
        self.entries.last().map_or(0, |p| p.sequence)
    }

    pub(super) fn rows(&self) -> usize {
        self.entries.iter().map(|p| p.changes.len()).sum()
    }

    /// Both halves, in order; only for more than one entry.
    pub(super) fn halves(self) -> Vec<Self> {
        self.parts(2)
    }

    /// About this many parts of equal size, in order.
    pub(super) fn parts(self, count: usize) -> Vec<Self> {
        let (size, resent) = (self.entries.len().div_ceil(count.max(1)).max(1), self.resent);
        let mut entries = self.entries.into_iter();
        let mut parts = Vec::new();
        loop {
            let part: Vec<Pending> = entries.by_ref().take(size).collect();
            if part.is_empty() {
                return parts;
            }
            parts.push(Self::new(part, resent));
        }
    }

    /// The first `count` entries, and the rest.
    pub(super) fn cut(mut self, count: usize) -> (Self, Self) {
        let rest = self.entries.split_off(count.min(self.entries.len()));
        let rest = Self { entries: rest, ..Self::new(Vec::new(), self.resent) };
        (self, rest)
    }
}
