//! Whole slots: scanning, clearing, and the figures over all of them.

use super::{Changing, Engine};
use crate::layout::hash_key;
use crate::{TableUsage, Usage};
use cachetier_model::{Instance, RootKey, SlotId};

impl Engine {
    /// Every visible instance of the slot, under its lock, in no particular order; the flag says
    /// whether it is dirty. The callback must not call the engine.
    pub fn scan_slot(&self, slot: SlotId, each: &mut dyn FnMut(&RootKey, &Instance, bool)) {
        let slot = self.slot(slot).read();
        slot.for_each_record(|packed| {
            if let Some(key) = self.root_shape.root_key(&self.layout, packed) {
                let dirty = slot.state(&key).is_some_and(|s| s.is_unflushed());
                each(&key, &self.layout.decode(packed), dirty);
            }
        });
    }

    /// Bytes that the slot holds.
    pub fn slot_bytes(&self, slot: SlotId) -> usize {
        self.slot(slot).read().bytes()
    }

    /// About `count` of the slot's clean instances, evenly spread; another `phase` gives others.
    pub fn sample_slot(&self, slot: SlotId, count: usize, phase: usize) -> Vec<RootKey> {
        let slot = self.slot(slot).read();
        let mut all = 0_usize;
        slot.for_each_record(|_| all += 1);
        let step = all.div_ceil(count.max(1)).max(1);
        let (mut number, mut keys) = (phase % step, Vec::new());
        slot.for_each_record(|packed| {
            if number.is_multiple_of(step) {
                keys.extend(self.root_shape.root_key(&self.layout, packed));
            }
            number += 1;
        });
        keys.retain(|key| slot.state(key).is_none());
        keys
    }

    /// Makes every clean instance of the slot not loaded.
    pub fn forget_clean_of(&self, slot: SlotId) {
        let mut keys = Vec::new();
        self.slot(slot).read().for_each_record(|packed| {
            keys.extend(self.root_shape.root_key(&self.layout, packed));
        });
        keys.iter().for_each(|key| {
            // what has a change that is not flushed stays
            self.forget_clean(key);
        });
    }

    /// Drops everything in the slot, dirty or not; loads whose tickets are open now will not
    /// install anything into it.
    pub fn clear_slot(&self, slot: SlotId) {
        let mut slot = Changing::new(self.slot(slot).write(), &self.memory);
        let drop_entries = |packed: &[u8]| {
            let hash = self.root_shape.hash(&self.layout, packed);
            for (index, shape) in self.lookups.iter().zip(&self.lookup_shapes) {
                if let Some(key) = shape.lookup_key(&self.layout, packed) {
                    index.remove(hash_key(key.as_bytes()), (hash >> 32) as u32);
                }
            }
        };
        slot.for_each_record(|packed| {
            drop_entries(packed);
            self.count(packed, -1);
        });
        for (key, state) in &slot.states {
            let image = state.pending.as_ref().and_then(|p| p.image.as_deref());
            let Some(image) = image else { continue };
            let before = slot.record(self.target(key));
            self.unreserve(self.target(key), &self.lookup_moves(before, Some(image)));
        }
        slot.clear(self.tickets.now());
    }

    /// Pieces of the reserved memory that no slot has at the moment.
    fn idle_bytes(&self) -> u64 {
        self.reservation.as_ref().map_or(0, |r| r.idle_bytes() as u64)
    }

    pub fn usage(&self) -> Usage {
        let (mut dirty, mut quarantined) = (0, 0);
        for slot in &self.slots {
            for state in slot.read().states.values() {
                dirty += u64::from(state.is_unflushed());
                quarantined += u64::from(state.quarantined);
            }
        }
        let tables = self.schema.tables.iter().enumerate();
        Usage {
            bytes: self.memory.held() + self.idle_bytes(),
            capacity_bytes: self.memory.capacity_bytes(),
            instances: self.memory.instances(),
            dirty_instances: dirty,
            quarantined_instances: quarantined,
            tables: tables
                .map(|(id, t)| TableUsage { name: t.name.clone(), rows: self.memory.rows(id) })
                .collect(),
        }
    }
}
