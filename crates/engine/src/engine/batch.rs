//! Many operations in one call: the memory they will touch is fetched side by side before the
//! first of them runs.
//!
//! In steps, each over the whole group: slots, then index groups, then records; every step finds
//! in cache what the one before asked for. Locks are taken one at a time and only for reading.

use super::Engine;
use crate::Resolved;
use crate::index::Place;
use crate::layout::hash_key;
use crate::prefetch;
use cachetier_model::{LookupId, LookupKey, RootKey};
use smallvec::SmallVec;

/// Operations worth fetching for at a time; more would push out the first before they run.
const GROUP: usize = 16;

type Shorts = SmallVec<[u32; GROUP]>;

impl Engine {
    /// A hint: operations on these instances follow. At most the first sixteen are fetched.
    pub fn prefetch<'k>(&self, keys: impl IntoIterator<Item = &'k RootKey>) {
        let short = |key: &RootKey| (hash_key(key.as_bytes()) >> 32) as u32;
        let shorts: Shorts = keys.into_iter().take(GROUP).map(short).collect();
        self.prefetch_records(&shorts);
    }

    fn prefetch_records(&self, shorts: &[u32]) {
        let slot = |short: &u32| self.slots.get((short >> 20) as usize);
        for slot in shorts.iter().filter_map(slot) {
            prefetch::line(slot);
        }
        for short in shorts {
            if let Some(slot) = slot(short) {
                slot.read().prefetch_index(Place::of_short(*short));
            }
        }
        for short in shorts {
            if let Some(slot) = slot(short) {
                slot.read().prefetch_record(Place::of_short(*short));
            }
        }
    }

    /// [`Engine::resolve`] of many keys. The instances found are fetched too.
    pub fn resolve_batch(&self, lookup: LookupId, keys: &[&LookupKey]) -> Vec<Resolved> {
        let Some(index) = self.lookups.get(lookup) else {
            return vec![Resolved::default(); keys.len()];
        };
        for group in keys.chunks(GROUP) {
            let hashes: SmallVec<[u64; GROUP]> =
                group.iter().map(|key| hash_key(key.as_bytes())).collect();
            hashes.iter().for_each(|hash| index.prefetch_shard(*hash));
            hashes.iter().for_each(|hash| index.prefetch_group(*hash));
            let candidates: Shorts =
                hashes.iter().filter_map(|hash| index.candidates(*hash).first().copied()).collect();
            self.prefetch_records(&candidates);
        }
        keys.iter().map(|key| self.resolve(lookup, key)).collect()
    }
}
