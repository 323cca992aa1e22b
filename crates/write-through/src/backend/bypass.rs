//! What a read past the store finds: the rows, and how far their owner's writes have come (R25).

use cachetier_model::Instance;

/// One instance and the group's writers, from one snapshot.
#[derive(Clone, Debug, Default)]
pub struct BypassRead {
    /// `None`: there is no root row.
    pub instance: Option<Instance>,
    /// One entry per node of the group: its writer row of the lane that the instance's slot is in.
    pub writers: Vec<WriterMark>,
    /// A change of the instance is set aside in the backend's bookkeeping: acknowledged, and not in it.
    pub set_aside: bool,
}

/// The writer row of one lane, as a reader past the store sees it.
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
    /// journal that has the slot no more had flushed everything of it when it let go (R23): its row says
    /// so, unless the backend lost that, too.
    pub fn holds(&self, journal: &str, sequence: u64) -> Option<bool> {
        let of_journal = self.writers.iter().find(|writer| writer.journal == journal);
        of_journal.map(|writer| writer.position >= sequence)
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
        BypassRead { writers: writers.iter().map(mark).collect(), ..BypassRead::default() }
    }

    #[test]
    fn r25_a_position_is_reached_when_the_row_of_its_journal_says_so_wherever_the_slot_is() {
        let read = read(&[("a", 7, true), ("b", 3, false)]);
        assert_eq!(read.owner().unwrap().position, 7);
        assert_eq!(read.holds("a", 7), Some(true));
        assert_eq!(read.holds("a", 8), Some(false));
        assert_eq!(read.holds("b", 3), Some(true));
        assert_eq!(
            read.holds("b", 4),
            Some(false),
            "the backend lost what was flushed before b let go"
        );
        assert_eq!(read.holds("c", 1), None);
    }
}
