//! Eviction: clean instances give way when the budget is reached, and idle ones on request.
//!
//! Off until [`Engine::set_eviction`]. Each slot has a clock hand over its index: an instance that
//! was read since the hand last passed stays, the next clean one goes. What has a change that is
//! not flushed, waits for the backend or is quarantined never goes. An evicted instance is not
//! loaded, never absent.

use super::{Changing, Engine};
use crate::slot::Target;
use cachetier_model::{RootKey, SlotId};
use std::sync::atomic::Ordering;

/// Instances one insert may push out: among so many blocks one is bound to hold its record, and when it
/// is not room for the record that lacks but for what surrounds it, with a third of the slot gone the rest
/// moves together and chunks are free. Bounded by the time that the slot is locked.
const VICTIMS_MIN: usize = 64;
const VICTIMS_MAX: usize = 4_096;

impl Engine {
    /// Whether a full budget evicts clean instances (of the slot that needs room) or refuses.
    pub fn set_eviction(&self, evict: bool) {
        self.evicts.store(evict, Ordering::Relaxed);
    }

    pub fn evicts(&self) -> bool {
        self.evicts.load(Ordering::Relaxed)
    }

    /// Instances evicted so far.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Drops the slot's clean instances that were not read since the last call (or the clock's last
    /// pass); called at even intervals, those idle for one to two of them. Returns how many.
    pub fn evict_idle(&self, slot: SlotId) -> usize {
        let mut slot = Changing::new(self.slot(slot).write(), &self.memory);
        let mut keys = Vec::new();
        slot.idle(|packed| keys.extend(self.root_shape.root_key(&self.layout, packed)));
        keys.retain(|key| slot.state(key).is_none());
        keys.iter().for_each(|key| self.evict(&mut slot, key));
        keys.len()
    }

    /// Whether a record of this length and `besides` more bytes fit the budget, now or after
    /// evictions from the slot. `keep` is not evicted.
    pub(super) fn make_room(
        &self,
        slot: &mut Changing<'_>,
        keep: &RootKey,
        length: usize,
        besides: usize,
    ) -> bool {
        // indexes and states grow besides; what they may need stays free, half of it even when a
        // freed block serves the record
        let reserve = self.memory.capacity_bytes() as usize / 64;
        for _ in 0..(slot.instances() / 3).clamp(VICTIMS_MIN, VICTIMS_MAX) {
            slot.account();
            let growth = slot.growth_for(length);
            if self.memory.admits(growth + besides + reserve)
                || (growth == 0 && self.memory.admits(besides + reserve / 2))
            {
                break;
            }
            let Some(victim) = self.victim(slot, keep) else { break };
            self.evict(slot, &victim);
        }
        slot.account();
        self.memory.admits(slot.growth_for(length) + besides)
    }

    fn victim(&self, slot: &mut Changing<'_>, keep: &RootKey) -> Option<RootKey> {
        let mut victim = None;
        slot.sweep(|packed, states| {
            let key = self.root_shape.root_key(&self.layout, packed);
            victim = key.filter(|key| key != keep && !states.contains_key(key));
            victim.is_some()
        });
        victim
    }

    fn evict(&self, slot: &mut Changing<'_>, key: &RootKey) {
        let target: Target<'_> = self.target(key);
        self.discard(slot, target);
        slot.settle(key);
        self.evicted.fetch_add(1, Ordering::Relaxed);
    }
}
