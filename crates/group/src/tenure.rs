//! Which stay of each slot at this node it is: an image of an earlier stay is worth nothing.
//!
//! Owns the numbers; `move_slots` renews them in the same durable note that says which slots are
//! held, so that no image has to be removed in time. Must never do I/O.

use cachetier_model::{SLOT_COUNT, SlotId, SlotSet};
use serde::{Deserialize, Serialize};

/// The present stay of each slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tenures {
    by_slot: Box<[u64]>,
    last: u64,
}

/// As noted in the journal: runs of slots with the same number, and the process that noted it. One
/// that knows nothing of images leaves a gap in these generations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TenureNote {
    pub generation: u32,
    pub runs: Vec<(u16, u64)>,
}

impl Default for Tenures {
    fn default() -> Self {
        Self { by_slot: vec![0; usize::from(SLOT_COUNT)].into(), last: 0 }
    }
}

impl Tenures {
    pub(crate) fn of(&self, slot: SlotId) -> u64 {
        self.by_slot.get(slot.index()).copied().unwrap_or(0)
    }

    /// A new stay begins for these slots.
    pub(crate) fn renew(&mut self, slots: &SlotSet) {
        if slots.is_empty() {
            return;
        }
        self.last += 1;
        for (slot, number) in SlotId::all().zip(self.by_slot.iter_mut()) {
            if slots.contains(slot) {
                *number = self.last;
            }
        }
    }

    pub(crate) fn note(&self, generation: u32) -> TenureNote {
        let mut runs: Vec<(u16, u64)> = Vec::new();
        for number in &self.by_slot {
            match runs.last_mut() {
                Some((length, last)) if last == number => *length += 1,
                _ => runs.push((1, *number)),
            }
        }
        TenureNote { generation, runs }
    }

    /// The numbers for the process of this generation: where another kind of process was between,
    /// every stay is a new one.
    pub(crate) fn recall(note: Option<TenureNote>, generation: u32) -> Self {
        let mut tenures = Self::default();
        let Some(note) = note else { return tenures };
        let numbers = note
            .runs
            .iter()
            .flat_map(|(length, number)| std::iter::repeat_n(*number, usize::from(*length)));
        for (place, number) in tenures.by_slot.iter_mut().zip(numbers) {
            *place = number;
        }
        tenures.last = tenures.by_slot.iter().copied().max().unwrap_or(0);
        if note.generation.checked_add(1) != Some(generation) {
            tenures.renew(&SlotSet::full());
        }
        tenures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(slots: std::ops::Range<u16>) -> SlotSet {
        slots.filter_map(SlotId::new).collect()
    }

    #[test]
    fn r20_a_slot_that_comes_back_begins_a_new_stay_and_the_note_keeps_it() {
        let slot = SlotId::new(70).unwrap();
        let mut tenures = Tenures::default();
        tenures.renew(&set(0..100));
        let first = tenures.of(slot);
        tenures.renew(&set(50..90));
        assert_ne!(tenures.of(slot), first);
        assert_eq!(tenures.of(SlotId::new(10).unwrap()), first);
        assert_eq!(Tenures::recall(Some(tenures.note(4)), 5), tenures);
    }

    #[test]
    fn r20_a_process_without_images_in_between_ends_every_stay() {
        let mut tenures = Tenures::default();
        tenures.renew(&set(0..100));
        let later = Tenures::recall(Some(tenures.note(4)), 6);
        assert!(SlotId::all().all(|slot| later.of(slot) > tenures.of(slot)));
    }
}
