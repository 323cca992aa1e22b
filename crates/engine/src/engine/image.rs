//! Slot images: what a slot holds that the backend has too, copied out as it is packed, and put
//! back at a start.
//!
//! An image never holds a change the backend may not have: such an instance is left out and comes
//! back from the journal. Must never put an instance over one that is here, nor over what is known
//! of it.

use super::load::LOOKUP_GROWTH;
use super::{Changing, Engine};
use crate::EngineError;
use crate::layout::hash_key;
use crate::ticket::Ticket;
use cachetier_model::{RootKey, SlotId, codec};

/// Version of the packed form: an image of another one is of no use. It changes with every change
/// of what `layout` writes.
pub const LAYOUT_VERSION: u8 = 1;

/// Before each packed instance stands its length.
const LENGTH_BYTES: usize = 4;
/// Instances put back between two looks at the budget's own figures.
const ACCOUNT_EVERY: u64 = 64;
/// What an entry of the slot's index takes, at most, and what the index takes besides.
const INDEX_BYTES: usize = 16;
const INDEX_BYTES_MIN: usize = 1_024;

/// What was copied out of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotCopy {
    /// The copy holds the effect of every change of the slot up to this sequence; what came later
    /// is not in it, or is what the backend has as well.
    pub sequence: u64,
    /// The newest change of an instance that was left out; 0: none was.
    pub newest_open: u64,
    pub instances: u64,
}

/// How putting a slot back ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutBack {
    /// Everything of it is here.
    Whole,
    /// The budget is used up; what is here stays.
    MemoryFull,
    /// The slot was emptied meanwhile: nothing more of the image may come in.
    Broken,
    /// What follows is no instance of this slot.
    Damaged,
}

/// What became of an instance that the backend has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restored {
    Here,
    /// It was deleted.
    Absent,
    /// It is not loaded: the budget is used up.
    MemoryFull,
}

impl Engine {
    /// Appends every instance of the slot that has no change the backend may not have. `now` is
    /// asked under the slot's lock for the last sequence given out.
    pub fn copy_slot(
        &self,
        slot: SlotId,
        now: impl FnOnce() -> u64,
        out: &mut Vec<u8>,
    ) -> SlotCopy {
        let slot = self.slot(slot).read();
        let open = |state: &crate::state::State| {
            let pending = state.pending.as_ref().map(|p| p.sequence);
            [Some(state.dirty).filter(|dirty| *dirty != 0), pending]
        };
        let mut copy = SlotCopy { sequence: now(), ..SlotCopy::default() };
        for sequence in slot.states.values().flat_map(open).flatten() {
            copy.sequence = copy.sequence.min(sequence - 1);
            copy.newest_open = copy.newest_open.max(sequence);
        }
        slot.for_each_record(|packed| {
            if !slot.states.is_empty() {
                let key = self.root_shape.root_key(&self.layout, packed);
                let state = key.and_then(|key| slot.states.get(&key));
                if state.is_some_and(|s| s.is_unflushed() || s.quarantined) {
                    return;
                }
            }
            out.extend_from_slice(&(packed.len() as u32).to_le_bytes());
            out.extend_from_slice(packed);
            copy.instances += 1;
        });
        copy
    }

    /// Puts a copied slot back, except instances of which something is known here or that `skip`
    /// names. The ticket is older than anything that could have changed the slot since. Returns the
    /// number of instances put back, too.
    pub fn put_back(
        &self,
        ticket: &Ticket,
        slot: SlotId,
        image: &[u8],
        skip: &dyn Fn(&RootKey) -> bool,
    ) -> (u64, PutBack) {
        let (mut count, mut lengths) = (0, image);
        while !lengths.is_empty() {
            if split_record(&mut lengths).is_none() {
                return (0, PutBack::Damaged);
            }
            count += 1;
        }
        let mut put = 0_u64;
        let number = slot;
        let mut slot = Changing::new(self.slot(slot).write(), &self.memory);
        if self.tickets.is_broken(ticket) || slot.cleared_at > ticket.id {
            return (0, PutBack::Broken);
        }
        if self.memory.admits(count * INDEX_BYTES + INDEX_BYTES_MIN) {
            slot.reserve(count, &self.layout, &self.root_shape);
        }
        let fresh = slot.is_empty();
        let mut rest = image;
        while let Some(packed) = split_record(&mut rest) {
            let Some(key) = self.root_shape.root_key(&self.layout, packed) else {
                return (put, PutBack::Damaged);
            };
            let target = self.target(&key);
            if key.slot() != number {
                return (put, PutBack::Damaged);
            }
            let known = !fresh && (slot.state(&key).is_some() || slot.record(target).is_some());
            if known || skip(&key) {
                continue;
            }
            let besides = LOOKUP_GROWTH * self.lookups.len();
            let growth = slot.growth_for(packed.len());
            if growth > 0 || put.is_multiple_of(ACCOUNT_EVERY) {
                // what the last ones took
                slot.account();
            }
            if !self.memory.admits(growth + besides) {
                return (put, PutBack::MemoryFull);
            }
            for (index, shape) in self.lookups.iter().zip(&self.lookup_shapes) {
                if let Some(lookup) = shape.lookup_key(&self.layout, packed) {
                    let growth = index.insert(hash_key(lookup.as_bytes()), target.short());
                    self.memory.resized(0, growth);
                }
            }
            self.count(packed, 1);
            slot.put_at(None, target, packed);
            put += 1;
        }
        (put, PutBack::Whole)
    }

    /// At start, in order of sequence and before anything the backend may not have: the instance
    /// after a journaled transaction that the backend has.
    pub fn restore_flushed(&self, key: &RootKey, image: &[u8]) -> Result<Restored, EngineError> {
        let instance = codec::decode_instance(image)?;
        let exists = instance.exists();
        let packed = if exists { Some(self.pack(key, instance)?) } else { None };
        let target = self.target(key);
        let mut slot = self.change(target);
        let besides = LOOKUP_GROWTH * self.lookups.len();
        let packed = packed.filter(|p| self.memory.admits(slot.growth_for(p.len()) + besides));
        let before = slot.record(target).map(<[u8]>::to_vec);
        let moves = self.lookup_moves(before.as_deref(), packed.as_deref());
        self.enter(target, &moves);
        self.apply(&mut slot, target, packed.as_deref());
        self.release(target, &moves);
        Ok(match packed {
            Some(_) => Restored::Here,
            None if exists => Restored::MemoryFull,
            None => Restored::Absent,
        })
    }
}

/// Takes the first record; `None` at the end, or where there is none.
fn split_record<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, body) = rest.split_first_chunk::<LENGTH_BYTES>()?;
    let (packed, behind) = body.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    *rest = behind;
    Some(packed)
}
