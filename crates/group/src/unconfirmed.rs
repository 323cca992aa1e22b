//! Instances whose changes the backend has committed, and could still lose (R11): a pure account.
//!
//! Owns what the lanes told of until their marks confirm it. An instance counts as clean from then
//! on and not before: it may be evicted, and must never be read again from a backend that has lost
//! its last change. Holds nothing that the store does not hold as changed.

use std::collections::{HashMap, VecDeque};

use cachetier_model::RootKey;
use cachetier_write_through::FlushMarks;

/// Batches of a lane that are told apart: what comes while so many wait is confirmed together.
const BATCHES_MAX: usize = 256;

/// Committed batches of a lane that are confirmed together.
#[derive(Debug)]
struct Batch {
    upto: u64,
    /// Instances, each with its last sequence.
    keys: HashMap<RootKey, u64>,
}

/// Per lane, in commit order.
#[derive(Debug, Default)]
pub(crate) struct Unconfirmed {
    lanes: Vec<VecDeque<Batch>>,
}

impl Unconfirmed {
    pub(crate) fn committed(&mut self, lane: u16, upto: u64, keys: Vec<(RootKey, u64)>) {
        let lane = usize::from(lane);
        if self.lanes.len() <= lane {
            self.lanes.resize_with(lane + 1, VecDeque::new);
        }
        let Some(batches) = self.lanes.get_mut(lane) else { return };
        let full = batches.len() >= BATCHES_MAX;
        match batches.back_mut().filter(|_| full) {
            Some(last) => {
                last.upto = upto;
                last.keys.extend(keys);
            }
            None => batches.push_back(Batch { upto, keys: keys.into_iter().collect() }),
        }
    }

    /// The backend lost what the lane had committed above `to`; it will be told of again.
    pub(crate) fn rewound(&mut self, lane: u16, to: u64) {
        let Some(batches) = self.lanes.get_mut(usize::from(lane)) else { return };
        for batch in batches.iter_mut().filter(|batch| batch.upto > to) {
            // of several batches the first ones may be there
            batch.upto = to;
            batch.keys.retain(|_, sequence| *sequence <= to);
        }
        batches.retain(|batch| !batch.keys.is_empty());
    }

    /// Takes out what no crash of the backend takes back any more.
    pub(crate) fn confirmed(&mut self, marks: &FlushMarks) -> Vec<(RootKey, u64)> {
        let mut keys = Vec::new();
        for (lane, batches) in self.lanes.iter_mut().enumerate() {
            let confirmed = marks.lanes.get(lane).map_or(marks.confirmed, |mark| mark.confirmed);
            while let Some(batch) = batches.pop_front_if(|batch| batch.upto <= confirmed) {
                keys.extend(batch.keys);
            }
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cachetier_model::Value;
    use cachetier_write_through::LaneMark;

    fn key(number: i64) -> RootKey {
        RootKey::encode(&[Value::Int(number)]).unwrap()
    }

    fn marks(confirmed: &[u64]) -> FlushMarks {
        let lane = |confirmed: &u64| LaneMark { confirmed: *confirmed, ..LaneMark::default() };
        FlushMarks { lanes: confirmed.iter().map(lane).collect(), ..FlushMarks::default() }
    }

    #[test]
    fn r11_a_change_is_clean_when_its_own_lane_has_confirmed_it() {
        let mut unconfirmed = Unconfirmed::default();
        unconfirmed.committed(0, 10, vec![(key(1), 10)]);
        unconfirmed.committed(1, 11, vec![(key(2), 11)]);
        unconfirmed.committed(0, 20, vec![(key(1), 20)]);
        assert_eq!(unconfirmed.confirmed(&marks(&[9, 10])), []);
        assert_eq!(unconfirmed.confirmed(&marks(&[10, 10])), [(key(1), 10)]);
        assert_eq!(unconfirmed.confirmed(&marks(&[19, 11])), [(key(2), 11)]);
        assert_eq!(unconfirmed.confirmed(&marks(&[20, 11])), [(key(1), 20)]);
    }

    #[test]
    fn r11_what_the_backend_lost_is_not_clean_however_far_the_marks_come() {
        let mut unconfirmed = Unconfirmed::default();
        unconfirmed.committed(0, 10, vec![(key(1), 10)]);
        unconfirmed.committed(0, 20, vec![(key(2), 20)]);
        unconfirmed.rewound(0, 10);
        assert_eq!(unconfirmed.confirmed(&marks(&[30])), [(key(1), 10)]);
    }

    #[test]
    fn what_waits_is_bounded_by_the_instances_and_a_loss_spares_what_was_there() {
        let mut unconfirmed = Unconfirmed::default();
        let last = 10 * BATCHES_MAX as u64;
        for sequence in 1..=last {
            // one hot instance, and one that changed once, where batches are long together
            let other = (sequence == last - 5).then(|| (key(2), sequence));
            let keys = std::iter::once((key(1), sequence)).chain(other).collect();
            unconfirmed.committed(0, sequence, keys);
        }
        let batches = &unconfirmed.lanes[0];
        assert_eq!(batches.len(), BATCHES_MAX);
        assert!(batches.iter().all(|batch| batch.keys.len() <= 2));
        unconfirmed.rewound(0, last - 3);
        let clean = unconfirmed.confirmed(&marks(&[last]));
        assert!(
            clean.contains(&(key(2), last - 5)),
            "it is there, and nobody will tell of it again"
        );
        assert!(!clean.contains(&(key(1), last)), "its last change was lost");
    }
}
