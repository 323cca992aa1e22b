//! Primary index of one slot: from a key's hash to records, five bytes per entry.
//!
//! Groups of sixteen one-byte tags, probed together, and the four-byte record offsets right behind
//! them, so that a search waits for memory once; no key copies: the
//! caller compares candidates by reading the record, and gives the hash of a record when the table
//! grows. It grows by a sixth, so a well-filled table never holds twice what it needs.

use crate::arena::Offset;
use std::sync::atomic::{AtomicU16, Ordering};

const GROUP: usize = 16;
const EMPTY: u8 = 0;
const REMOVED: u8 = 1;
const USED: u8 = 0x80;

/// The part of a key's hash the index uses: bits 52..32 of it (the top twelve are the slot).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u32);

const PLACE_BITS: u32 = 20;

impl Place {
    pub(crate) fn of_hash(hash: u64) -> Self {
        Self((hash >> 32) as u32 & ((1 << PLACE_BITS) - 1))
    }

    /// From the short hash kept by lookup indexes.
    pub(crate) fn of_short(short: u32) -> Self {
        Self(short & ((1 << PLACE_BITS) - 1))
    }

    fn tag(self) -> u8 {
        USED | self.0 as u8 & 0x7f
    }

    fn home(self, groups: usize) -> usize {
        ((u64::from(self.0) * groups as u64) >> PLACE_BITS) as usize
    }
}

/// Sixteen entries.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Group {
    tags: [u8; GROUP],
    offsets: [u32; GROUP],
}

impl Group {
    const FREE: Self = Self { tags: [EMPTY; GROUP], offsets: [0; GROUP] };

    fn used(&self) -> impl Iterator<Item = Offset> {
        let lanes = self.tags.iter().zip(&self.offsets).filter(|(tag, _)| **tag >= USED);
        lanes.map(|(_, offset)| Offset(*offset))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Index {
    groups: Vec<Group>,
    /// Per group, a bit per lane: read since the clock hand passed. Set under the slot's lock for
    /// reading, cleared under that for writing; only a hint.
    referenced: Vec<AtomicU16>,
    /// The lane the clock hand points at, counted through all groups.
    hand: usize,
    used: usize,
    removed: usize,
}

/// A place in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    group: usize,
    lane: usize,
}

impl Index {
    /// The first candidate that `same` accepts.
    #[inline]
    pub(crate) fn find(
        &self,
        place: Place,
        mut same: impl FnMut(Offset) -> bool,
    ) -> Option<(Entry, Offset)> {
        let groups = self.groups.len();
        if groups == 0 {
            return None;
        }
        let tag = place.tag();
        let mut group = place.home(groups);
        for _ in 0..groups {
            let here = self.groups.get(group)?;
            let mut hits = matching(&here.tags, tag);
            while hits != 0 {
                let lane = hits.trailing_zeros() as usize;
                hits &= hits - 1;
                let offset = Offset(*here.offsets.get(lane)?);
                if same(offset) {
                    return Some((Entry { group, lane }, offset));
                }
            }
            if matching(&here.tags, EMPTY) != 0 {
                return None;
            }
            group = if group + 1 == groups { 0 } else { group + 1 };
        }
        None
    }

    /// Asks for the lines a search begins with.
    pub(crate) fn prefetch(&self, place: Place) {
        if let Some(group) = self.groups.get(place.home(self.groups.len())) {
            crate::prefetch::line(group);
            // a group is longer than a line
            crate::prefetch::line(&group.offsets[GROUP - 1]);
        }
    }

    /// Adds a record that is not in the table yet; there must be room ([`Index::reserve`]).
    pub(crate) fn insert(&mut self, place: Place, offset: Offset) {
        let groups = self.groups.len();
        let mut group = place.home(groups.max(1));
        for _ in 0..groups {
            let Some(here) = self.groups.get_mut(group) else { return };
            let free = here.tags.iter().position(|tag| *tag < USED);
            let lane = free.and_then(|at| here.tags.get_mut(at).zip(here.offsets.get_mut(at)));
            if let Some((tag, place_of)) = lane {
                self.removed -= usize::from(*tag == REMOVED);
                self.used += 1;
                *tag = place.tag();
                *place_of = offset.0;
                return;
            }
            group = if group + 1 == groups { 0 } else { group + 1 };
        }
    }

    pub(crate) fn replace(&mut self, entry: Entry, offset: Offset) {
        let group = self.groups.get_mut(entry.group);
        if let Some(place) = group.and_then(|group| group.offsets.get_mut(entry.lane)) {
            *place = offset.0;
        }
    }

    pub(crate) fn remove(&mut self, entry: Entry) {
        let Some(Group { tags, .. }) = self.groups.get_mut(entry.group) else { return };
        // a group with an empty lane ends every probe anyway
        let ends_here = tags.contains(&EMPTY);
        if let Some(tag) = tags.get_mut(entry.lane) {
            *tag = if ends_here { EMPTY } else { REMOVED };
            self.removed += usize::from(!ends_here);
            self.used -= 1;
        }
    }

    /// Bytes the table would grow by to take one more entry.
    pub(crate) fn growth(&self) -> usize {
        if self.has_room() {
            0
        } else {
            (self.grown_groups() - self.groups.len()) * (size_of::<Group>() + 2)
        }
    }

    fn has_room(&self) -> bool {
        // 15 of 16 lanes; a removed lane counts, because it lengthens probes as a used one does
        (self.used + self.removed + 1) * 16 <= self.groups.len() * GROUP * 15
    }

    fn grown_groups(&self) -> usize {
        let needed = (self.used + 1).div_ceil(GROUP - 1);
        let groups = self.groups.len();
        if needed <= groups - groups / 8 { groups } else { (groups + groups.div_ceil(6)).max(1) }
    }

    /// Makes room for one more entry; `place_of` gives the hash part of a record.
    pub(crate) fn reserve(&mut self, place_of: impl Fn(Offset) -> Place) {
        if !self.has_room() {
            self.rebuild(self.grown_groups(), |offset| (place_of(offset), offset));
        }
    }

    /// Makes room for so many more entries, so that filling the table rebuilds it once.
    pub(crate) fn reserve_many(&mut self, count: usize, place_of: impl Fn(Offset) -> Place) {
        // one more entry must fit into 15 of 16 lanes all the way
        let groups = (self.used + count + 1).div_ceil(GROUP - 1);
        if groups > self.groups.len() {
            self.rebuild(groups, |offset| (place_of(offset), offset));
        }
    }

    /// Rebuilds the table; `moved` gives the hash part and the new offset of a record.
    fn rebuild(&mut self, groups: usize, moved: impl Fn(Offset) -> (Place, Offset)) {
        let mut grown = Self {
            groups: vec![Group::FREE; groups],
            referenced: (0..groups).map(|_| AtomicU16::new(0)).collect(),
            hand: 0,
            used: 0,
            removed: 0,
        };
        self.for_each(|offset| {
            let (place, offset) = moved(offset);
            grown.insert(place, offset);
        });
        *self = grown;
    }

    /// Notes that the entry was read.
    pub(crate) fn touch(&self, entry: Entry) {
        if let Some(bits) = self.referenced.get(entry.group) {
            let bit = 1 << entry.lane;
            if bits.load(Ordering::Relaxed) & bit == 0 {
                bits.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    /// Moves the clock hand on, at most twice around, until `stop` takes an entry that was not read
    /// since the hand last passed it.
    pub(crate) fn sweep(&mut self, mut stop: impl FnMut(Offset) -> bool) {
        let lanes = self.groups.len() * GROUP;
        for _ in 0..lanes * 2 {
            let at = if self.hand >= lanes { 0 } else { self.hand };
            self.hand = at + 1;
            if let Some(offset) = self.not_referenced(at)
                && stop(offset)
            {
                return;
            }
        }
    }

    /// Every entry that was not read since the last pass.
    pub(crate) fn idle(&mut self, mut each: impl FnMut(Offset)) {
        for at in 0..self.groups.len() * GROUP {
            self.not_referenced(at).into_iter().for_each(&mut each);
        }
    }

    /// The entry in a lane, if it is used and was not referenced; it is not referenced from now on.
    fn not_referenced(&mut self, at: usize) -> Option<Offset> {
        let (group, lane) = (at / GROUP, at % GROUP);
        let here = self.groups.get(group)?;
        let used = here.tags.get(lane).is_some_and(|tag| *tag >= USED);
        let bits = self.referenced.get_mut(group)?.get_mut();
        let referenced = *bits >> lane & 1 == 1;
        *bits &= !(1 << lane);
        let offset = *here.offsets.get(lane)?;
        (used && !referenced).then_some(Offset(offset))
    }

    pub(crate) fn for_each(&self, mut each: impl FnMut(Offset)) {
        self.groups.iter().flat_map(Group::used).for_each(&mut each);
    }

    /// After the records moved: gives every entry its new offset.
    pub(crate) fn relocate(&mut self, mut moved: impl FnMut(Offset) -> Offset) {
        for Group { tags, offsets } in &mut self.groups {
            let used = tags.iter().zip(offsets).filter(|(tag, _)| **tag >= USED);
            used.for_each(|(_, offset)| *offset = moved(Offset(*offset)).0);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.used
    }

    pub(crate) fn bytes(&self) -> usize {
        self.groups.capacity() * size_of::<Group>()
            + self.referenced.capacity() * size_of::<AtomicU16>()
    }
}

/// One bit per lane whose tag equals `tag`: eight lanes at a time in an ordinary register.
#[inline]
pub(crate) fn matching(tags: &[u8; GROUP], tag: u8) -> u16 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let eight = |lanes: u64| {
        let differing = lanes ^ (u64::from(tag) * 0x0101_0101_0101_0101);
        // the top bit of each byte that is zero, and of no other
        let equal = !(((differing & LOW) + LOW) | differing | LOW);
        // the eight top bits side by side
        (equal >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
    };
    let all = u128::from_le_bytes(*tags);
    (eight(all as u64) | eight((all >> 64) as u64) << 8) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use std::collections::BTreeMap;

    #[test]
    fn entries_are_found_through_growth_and_removal() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        let mut index = Index::default();
        let mut model: BTreeMap<u32, Place> = BTreeMap::new();
        for step in 0..40_000_u32 {
            if random.random_bool(if step < 25_000 { 0.3 } else { 0.8 }) && !model.is_empty() {
                let number =
                    *model.keys().nth(random.random_range(0..model.len().min(50))).unwrap();
                let place = model.remove(&number).unwrap();
                let (entry, _) = index.find(place, |o| o.0 == number).unwrap();
                index.remove(entry);
            } else {
                let place = Place::of_hash(random.random());
                index.reserve(|offset| model[&offset.0]);
                index.insert(place, Offset(step));
                model.insert(step, place);
            }
        }
        assert_eq!(index.len(), model.len());
        for (number, place) in &model {
            assert!(index.find(*place, |o| o.0 == *number).is_some());
        }
    }

    #[test]
    fn lanes_are_matched_exactly() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(6);
        for _ in 0..20_000 {
            let near = random.random_range(0..256_u32) as u8;
            let tags: [u8; GROUP] = std::array::from_fn(|_| near ^ random.random_range(0..4_u8));
            let slow = tags.iter().enumerate().filter(|(_, t)| **t == near);
            let slow = slow.fold(0, |hits, (lane, _)| hits | 1_u16 << lane);
            assert_eq!(matching(&tags, near), slow, "{tags:?} {near}");
        }
    }

    #[test]
    fn an_entry_costs_less_than_seven_bytes() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(4);
        let places: Vec<Place> = (0..50_000).map(|_| Place::of_hash(random.random())).collect();
        let mut index = Index::default();
        for (number, place) in places.iter().enumerate() {
            index.reserve(|offset| places[offset.0 as usize]);
            index.insert(*place, Offset(number as u32));
            assert!(number < 1_000 || index.bytes() < (number + 1) * 7);
        }
    }
}
