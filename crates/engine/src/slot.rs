//! One slot: its records, its index and the states of its instances. One lock guards all three.

use crate::arena::{Arena, Offset};
use crate::index::{Entry, Index, Place};
use crate::layout::{KeyShape, Layout, hash_key};
use crate::reservation::Reservation;
use crate::state::{State, States, states_bytes};
use bytes::Bytes;
use cachetier_model::RootKey;
use std::sync::Arc;

/// Most instances fit into this many bytes.
const RECORD_LINES: usize = 192;
/// Room for so many states is kept when the last one goes: most writes of a slot are alone in it.
const STATES_KEPT: usize = 3;

#[derive(Debug, Default)]
pub(crate) struct Slot {
    arena: Arena,
    index: Index,
    pub(crate) states: States,
    /// When the slot was last cleared; tickets older than that are broken here.
    pub(crate) cleared_at: u64,
    /// Bytes of the pending images in `states`.
    pub(crate) pending_bytes: usize,
}

/// A key with its hash, and what is needed to compare records with it.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) key: &'a RootKey,
    pub(crate) hash: u64,
    pub(crate) layout: &'a Layout,
    pub(crate) shape: &'a KeyShape,
}

impl<'a> Target<'a> {
    pub(crate) fn new(key: &'a RootKey, layout: &'a Layout, shape: &'a KeyShape) -> Self {
        Self { key, hash: hash_key(key.as_bytes()), layout, shape }
    }

    pub(crate) fn place(&self) -> Place {
        Place::of_hash(self.hash)
    }

    /// The hash kept by lookup indexes: slot and place.
    pub(crate) fn short(&self) -> u32 {
        (self.hash >> 32) as u32
    }
}

/// An entry of the index and the record it leads to.
pub(crate) type Found = (Entry, Offset);

impl Slot {
    pub(crate) fn new(from: Option<Arc<Reservation>>) -> Self {
        Self { arena: Arena::new(from), ..Self::default() }
    }

    /// Where the instance's record is; true until the slot is changed.
    pub(crate) fn find(&self, target: Target<'_>) -> Option<Found> {
        let same = |offset| {
            // what is read after the key comes meanwhile
            crate::prefetch::lines(self.arena.from(offset), RECORD_LINES);
            target.shape.matches(target.layout, self.arena.get(offset), target.key.as_bytes())
        };
        self.index.find(target.place(), same)
    }

    pub(crate) fn record_at(&self, (_, offset): Found) -> &[u8] {
        self.arena.get(offset)
    }

    /// The packed record of the instance (with a few bytes of padding behind it).
    pub(crate) fn record(&self, target: Target<'_>) -> Option<&[u8]> {
        self.find(target).map(|(_, offset)| self.arena.get(offset))
    }

    /// The same, and the clock hand will see that it was read.
    pub(crate) fn record_read(&self, target: Target<'_>) -> Option<&[u8]> {
        let (entry, offset) = self.find(target)?;
        self.index.touch(entry);
        Some(self.arena.get(offset))
    }

    /// Offers records to the clock: `stop` is given those not read lately until it takes one.
    pub(crate) fn sweep(&mut self, mut stop: impl FnMut(&[u8], &States) -> bool) {
        let (arena, states) = (&self.arena, &self.states);
        self.index.sweep(|offset| stop(arena.get(offset), states));
    }

    /// Gives every record that was not read since the last pass.
    pub(crate) fn idle(&mut self, mut each: impl FnMut(&[u8])) {
        let arena = &self.arena;
        self.index.idle(|offset| each(arena.get(offset)));
    }

    /// The records that may belong to this short hash.
    pub(crate) fn candidate(
        &self,
        short: u32,
        mut accept: impl FnMut(&[u8]) -> bool,
    ) -> Option<&[u8]> {
        let found = self.index.find(Place::of_short(short), |o| accept(self.arena.get(o)));
        found.map(|(_, offset)| self.arena.get(offset))
    }

    /// Asks for the group of the index in which the instance would be.
    pub(crate) fn prefetch_index(&self, place: Place) {
        self.index.prefetch(place);
    }

    /// Asks for the first record that may be the instance.
    pub(crate) fn prefetch_record(&self, place: Place) {
        if let Some((_, offset)) = self.index.find(place, |_| true) {
            crate::prefetch::lines(self.arena.from(offset), RECORD_LINES);
        }
    }

    pub(crate) fn state(&self, key: &RootKey) -> Option<&State> {
        if self.states.is_empty() { None } else { self.states.get(key) }
    }

    /// The state to change; call [`Slot::settle`] afterwards.
    pub(crate) fn state_mut(&mut self, key: &RootKey) -> &mut State {
        // an own copy: the caller's key may be a view into a large network buffer
        self.states.entry(RootKey::from_bytes(Bytes::copy_from_slice(key.as_bytes()))).or_default()
    }

    /// Drops the state if it says nothing.
    pub(crate) fn settle(&mut self, key: &RootKey) {
        if self.states.get(key).is_some_and(State::is_trivial) {
            self.drop_state(key);
        }
    }

    /// Drops the state, which says nothing.
    pub(crate) fn drop_state(&mut self, key: &RootKey) {
        if self.states.remove(key).is_some() && self.states.capacity() > STATES_KEPT {
            if self.states.is_empty() {
                self.states = States::default();
            } else if self.states.len() * 8 < self.states.capacity() {
                // evictions under an open load leave many at once
                self.states.shrink_to(self.states.len() * 2);
            }
        }
    }

    /// Bytes the slot would grow by to hold one more record of this length.
    pub(crate) fn growth_for(&self, length: usize) -> usize {
        self.arena.growth_for(length) + self.index.growth()
    }

    /// Stores the packed instance in place of the one that is there. `false` only when the slot's
    /// address space is used up.
    pub(crate) fn put(&mut self, target: Target<'_>, packed: &[u8]) -> bool {
        self.put_at(self.find(target), target, packed)
    }

    /// The same when it is known what is there.
    pub(crate) fn put_at(&mut self, old: Option<Found>, target: Target<'_>, packed: &[u8]) -> bool {
        if old.is_some_and(|(_, offset)| self.arena.overwrite(offset, packed)) {
            return true;
        }
        let Some(offset) = self.arena.insert(packed) else { return false };
        match old {
            Some((entry, before)) => {
                self.index.replace(entry, offset);
                self.arena.remove(before);
                self.compact_if_worth();
            }
            None => {
                let (arena, shape, layout) = (&self.arena, target.shape, target.layout);
                let place_of = |o| Place::of_hash(shape.hash(layout, arena.get(o)));
                self.index.reserve(place_of);
                self.index.insert(target.place(), offset);
            }
        }
        true
    }

    /// Removes the record; false when there is none.
    pub(crate) fn take(&mut self, target: Target<'_>) -> bool {
        let Some((entry, offset)) = self.find(target) else { return false };
        self.index.remove(entry);
        self.arena.remove(offset);
        if self.index.len() == 0 {
            self.arena.take();
            self.index = Index::default();
        } else {
            self.compact_if_worth();
        }
        true
    }

    fn compact_if_worth(&mut self) {
        if !self.arena.fragmented() {
            return;
        }
        let old = self.arena.take();
        let arena = &mut self.arena;
        self.index.relocate(|offset| arena.insert(old.get(offset)).unwrap_or(offset));
    }

    pub(crate) fn for_each_record(&self, mut each: impl FnMut(&[u8])) {
        self.index.for_each(|offset| each(self.arena.get(offset)));
    }

    pub(crate) fn clear(&mut self, now: u64) {
        self.arena.take();
        let arena = std::mem::take(&mut self.arena);
        *self = Self { arena, cleared_at: now, ..Self::default() };
    }

    /// Instances that are here.
    pub(crate) fn instances(&self) -> usize {
        self.index.len()
    }

    /// Nothing is here or known.
    pub(crate) fn is_empty(&self) -> bool {
        self.index.len() == 0 && self.states.is_empty()
    }

    /// Makes room in the index for so many more records at once.
    pub(crate) fn reserve(&mut self, count: usize, layout: &Layout, shape: &KeyShape) {
        let arena = &self.arena;
        let place_of = |o| Place::of_hash(shape.hash(layout, arena.get(o)));
        self.index.reserve_many(count, place_of);
    }

    /// Bytes held on the heap.
    pub(crate) fn bytes(&self) -> usize {
        self.arena.bytes() + self.index.bytes() + states_bytes(&self.states) + self.pending_bytes
    }
}
