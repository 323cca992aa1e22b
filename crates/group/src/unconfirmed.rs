//! Instances whose changes the backend has committed, and could still lose (R11): a pure account.
//!
//! Owns what the lanes told of until their marks confirm it. An instance counts as clean from then
//! on and not before: it may be evicted, and must never be read again from a backend that has lost
//! its last change. Holds nothing that the store does not hold as changed.

use std::collections::VecDeque;

use cachetier_model::RootKey;
use cachetier_write_through::FlushMarks;

/// One committed batch of a lane.
#[derive(Debug)]
struct Batch {
    upto: u64,
    /// Instances, each with the last sequence of it in the batch.
    keys: Vec<(RootKey, u64)>,
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
        if let Some(batches) = self.lanes.get_mut(lane) {
            batches.push_back(Batch { upto, keys });
        }
    }

    /// The backend lost what the lane had committed above `to`; it will be told of again.
    pub(crate) fn rewound(&mut self, lane: u16, to: u64) {
        if let Some(batches) = self.lanes.get_mut(usize::from(lane)) {
            batches.retain(|batch| batch.upto <= to);
        }
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
}
