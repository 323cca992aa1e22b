//! Slots: the 4,096 hash buckets of root keys, the unit of ownership, locking, loading and moving.
//!
//! The hash is part of every persisted format: it must never change.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// Number of slots of every group, fixed for ever.
pub const SLOT_COUNT: u16 = 4_096;

/// One slot, `0..SLOT_COUNT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SlotId(u16);

impl SlotId {
    /// The slot with this number, or `None` outside `0..SLOT_COUNT`.
    pub fn new(number: u16) -> Option<Self> {
        (number < SLOT_COUNT).then_some(Self(number))
    }

    /// The slot of a canonical key: the top twelve bits of its XXH3 hash, so that skew in the low
    /// bits of keys spreads evenly.
    pub fn of_key(canonical: &[u8]) -> Self {
        Self((xxh3_64(canonical) >> 52) as u16)
    }

    pub fn number(self) -> u16 {
        self.0
    }

    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// All slots, ascending.
    pub fn all() -> impl Iterator<Item = SlotId> {
        (0..SLOT_COUNT).map(SlotId)
    }
}

const WORDS: usize = SLOT_COUNT as usize / 64;

/// A set of slots as a 4,096-bit map: 512 bytes, the form stored in the backend's writer rows.
#[derive(Clone, PartialEq, Eq)]
pub struct SlotSet {
    words: Box<[u64; WORDS]>,
}

impl Default for SlotSet {
    fn default() -> Self {
        Self::empty()
    }
}

impl std::fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SlotSet({})", self.len())
    }
}

#[allow(clippy::indexing_slicing, reason = "SlotId is < SLOT_COUNT by construction")]
impl SlotSet {
    pub fn empty() -> Self {
        Self { words: Box::new([0; WORDS]) }
    }

    pub fn full() -> Self {
        Self { words: Box::new([u64::MAX; WORDS]) }
    }

    pub fn insert(&mut self, slot: SlotId) -> bool {
        let (word, bit) = (slot.index() / 64, 1 << (slot.index() % 64));
        let fresh = self.words[word] & bit == 0;
        self.words[word] |= bit;
        fresh
    }

    pub fn remove(&mut self, slot: SlotId) -> bool {
        let (word, bit) = (slot.index() / 64, 1 << (slot.index() % 64));
        let present = self.words[word] & bit != 0;
        self.words[word] &= !bit;
        present
    }

    pub fn contains(&self, slot: SlotId) -> bool {
        self.words[slot.index() / 64] & (1 << (slot.index() % 64)) != 0
    }

    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|w| *w == 0)
    }

    pub fn iter(&self) -> impl Iterator<Item = SlotId> + '_ {
        SlotId::all().filter(|s| self.contains(*s))
    }

    pub fn union_with(&mut self, other: &SlotSet) {
        self.words.iter_mut().zip(other.words.iter()).for_each(|(a, b)| *a |= b);
    }

    pub fn subtract(&mut self, other: &SlotSet) {
        self.words.iter_mut().zip(other.words.iter()).for_each(|(a, b)| *a &= !b);
    }

    pub fn intersect_with(&mut self, other: &SlotSet) {
        self.words.iter_mut().zip(other.words.iter()).for_each(|(a, b)| *a &= b);
    }

    /// 512 bytes, slot 0 in the lowest bit of byte 0.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    /// The inverse of [`SlotSet::to_bytes`]; `None` unless exactly 512 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != WORDS * 8 {
            return None;
        }
        let mut set = Self::empty();
        for (word, chunk) in set.words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(chunk.try_into().ok()?);
        }
        Some(set)
    }
}

impl FromIterator<SlotId> for SlotSet {
    fn from_iter<I: IntoIterator<Item = SlotId>>(slots: I) -> Self {
        let mut set = Self::empty();
        slots.into_iter().for_each(|s| {
            set.insert(s);
        });
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slot_of_a_key_never_changes() {
        assert_eq!(SlotId::of_key(b"").number(), 0x2d0);
        assert_eq!(SlotId::of_key(&1_i64.to_be_bytes()), SlotId::of_key(&1_i64.to_be_bytes()));
    }

    #[test]
    fn a_slot_set_round_trips_through_its_bytes() {
        let set: SlotSet = [0, 1, 63, 64, 4095].into_iter().filter_map(SlotId::new).collect();
        assert_eq!(SlotSet::from_bytes(&set.to_bytes()), Some(set.clone()));
        assert_eq!(set.len(), 5);
        assert_eq!(SlotSet::from_bytes(&[0; 511]), None);
    }

    #[test]
    fn consecutive_keys_spread_over_slots() {
        let mut counts = vec![0_u32; usize::from(SLOT_COUNT)];
        for id in 0..409_600_i64 {
            counts[SlotId::of_key(&id.to_be_bytes()).index()] += 1;
        }
        assert!(counts.iter().all(|c| (40..=180).contains(c)), "mean is 100 per slot");
    }
}
