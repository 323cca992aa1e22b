//! The segment files of an open journal, oldest first.
//!
//! Owns the list and its arithmetic. The writer changes it; readers copy from it. Never touches
//! a file.

use std::collections::VecDeque;
use std::path::PathBuf;

use crate::Sequence;

/// One segment file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub path: PathBuf,
    /// Sequence of its first frame.
    pub first: Sequence,
    /// Sequence of the last frame it holds, or of the last before it if it holds none.
    pub last: Sequence,
    /// Size of the file.
    pub bytes: u64,
}

/// See the module. The last one may be active.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments {
    list: VecDeque<Segment>,
}

impl Segments {
    pub fn new(list: Vec<Segment>) -> Self {
        Self { list: list.into() }
    }

    pub fn count(&self) -> usize {
        self.list.len()
    }

    pub fn bytes(&self) -> u64 {
        self.list.iter().map(|segment| segment.bytes).sum()
    }

    pub fn push(&mut self, segment: Segment) {
        self.list.push_back(segment);
    }

    /// The active one, while there is one.
    pub fn newest_mut(&mut self) -> Option<&mut Segment> {
        self.list.back_mut()
    }

    /// All that may hold frames from `from` on.
    pub fn holding(&self, from: Sequence) -> Vec<Segment> {
        self.list.iter().filter(|segment| segment.last >= from).cloned().collect()
    }

    /// The oldest ones whose frames are all at or before `upto`; the newest only if `all`.
    pub fn droppable(&self, upto: Sequence, all: bool) -> Vec<Segment> {
        let kept = usize::from(!all);
        let candidates = self.list.len().saturating_sub(kept);
        let old = self.list.iter().take(candidates);
        old.take_while(|segment| segment.last <= upto).cloned().collect()
    }

    /// Forgets the oldest one.
    pub fn drop_oldest(&mut self) {
        self.list.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(first: u64, last: u64) -> Segment {
        let at = |counter| Sequence::new(1, counter);
        Segment { path: PathBuf::new(), first: at(first), last: at(last), bytes: 10 }
    }

    #[test]
    fn only_whole_old_segments_are_droppable_and_never_the_active_one() {
        let segments = Segments::new(vec![segment(1, 5), segment(6, 9), segment(10, 12)]);
        let droppable = |upto, all| segments.droppable(Sequence::new(1, upto), all).len();
        assert_eq!(droppable(4, false), 0);
        assert_eq!(droppable(8, false), 1);
        assert_eq!(droppable(99, false), 2);
        assert_eq!(droppable(99, true), 3);
        assert_eq!(segments.holding(Sequence::new(1, 6)).len(), 2);
    }
}
