//! What a read past the store finds: the rows, and how far their owner's writes have come (R25).

use cachetier_model::Instance;

/// One instance and the group's writers, from one snapshot.
#[derive(Clone, Debug, Default)]
pub struct BypassRead {
    /// `None`: there is no root row.
    pub instance: Option<Instance>,
    /// One entry per writer row of the group.
    pub writers: Vec<WriterMark>,
}

/// A writer row, as a reader past the store sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterMark {
    pub journal: String,
    /// Up to which sequence this lane of the journal is in the backend.
    pub position: u64,
    /// The instance's slot is this row's.
    pub has_slot: bool,
}

impl BypassRead {
    /// Of the node that writes the instance's slot, if there is one.
    pub fn owner(&self) -> Option<&WriterMark> {
        self.writers.iter().find(|writer| writer.has_slot)
    }

    /// Whether a write of this instance is in what was read; `None`: nobody knows its journal. A
    /// journal that has the slot no more had flushed everything of it when it let go (R23).
    pub fn holds(&self, journal: &str, sequence: u64) -> Option<bool> {
        let of_journal = || self.writers.iter().filter(|writer| writer.journal == journal);
        let known = of_journal().next().is_some();
        known.then(|| of_journal().find(|w| w.has_slot).is_none_or(|w| w.position >= sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(writers: &[(&str, u64, bool)]) -> BypassRead {
        let mark = |(journal, position, has_slot): &(&str, u64, bool)| WriterMark {
            journal: (*journal).to_owned(),
            position: *position,
            has_slot: *has_slot,
        };
        BypassRead { instance: None, writers: writers.iter().map(mark).collect() }
    }

    #[test]
    fn r25_the_lane_that_has_the_slot_decides_and_a_journal_that_let_go_of_it_had_flushed() {
        let read = read(&[("a", 90, false), ("a", 7, true), ("b", 3, false)]);
        assert_eq!(read.owner().unwrap().position, 7);
        assert_eq!(read.holds("a", 7), Some(true));
        assert_eq!(read.holds("a", 8), Some(false), "another lane's position says nothing");
        assert_eq!(read.holds("b", 1_000), Some(true));
        assert_eq!(read.holds("c", 1), None);
    }
}
