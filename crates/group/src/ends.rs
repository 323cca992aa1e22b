//! Where the frames of earlier processes end: what a power cut took from behind them never was.
//!
//! Owns the list of last frames that the starts found; noted in the journal with each start. Must never
//! do I/O.

use cachetier_journal::Sequence;
use serde::{Deserialize, Serialize};

/// So many starts are remembered. What is older than all of them is believed.
const ENDS_MAX: usize = 128;

/// The last frame that each start found, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ends(Vec<u64>);

impl Ends {
    /// A process starts, and this is the last frame there is.
    pub(crate) fn found(&mut self, last: Sequence) {
        if self.0.last().is_none_or(|end| *end < last.get()) {
            self.0.push(last.get());
        }
        let surplus = self.0.len().saturating_sub(ENDS_MAX);
        self.0.drain(..surplus);
    }

    /// Whether a frame of an earlier process outlived it.
    pub(crate) fn hold(&self, sequence: Sequence) -> bool {
        let of = |end: &u64| Sequence::from_stored(*end).map_or(0, Sequence::generation);
        let Some(first) = self.0.first() else { return true };
        let within = |end: &u64| of(end) == sequence.generation() && sequence.get() <= *end;
        sequence.generation() < of(first) || self.0.iter().any(within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r25_a_position_behind_the_end_of_its_process_is_not_there_whatever_was_written_since() {
        let mut ends = Ends::default();
        assert!(ends.hold(Sequence::new(1, 9)), "noted by nobody");
        for last in [(2, 10), (2, 10), (4, 7)] {
            ends.found(Sequence::new(last.0, last.1));
        }
        let held = [(1, 99), (2, 1), (2, 10), (4, 7)];
        assert!(held.iter().all(|(g, c)| ends.hold(Sequence::new(*g, *c))));
        let lost = [(2, 11), (3, 1), (4, 8), (5, 1)];
        assert!(!lost.iter().any(|(g, c)| ends.hold(Sequence::new(*g, *c))));
        let again: Ends = serde_json::from_slice(&serde_json::to_vec(&ends).unwrap()).unwrap();
        assert_eq!(again, ends);
    }

    #[test]
    fn the_list_is_bounded_and_what_is_older_is_believed() {
        let mut ends = Ends::default();
        (1..=600).for_each(|generation| ends.found(Sequence::new(generation, 5)));
        assert_eq!(ends.0.len(), ENDS_MAX);
        assert!(ends.hold(Sequence::new(50, 6)));
        assert!(!ends.hold(Sequence::new(550, 6)));
    }
}
