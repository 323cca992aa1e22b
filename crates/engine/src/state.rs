//! State of an instance that is more than "loaded and clean" or "not loaded".

use cachetier_model::RootKey;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Kept beside the records, only for instances that need it. Guarded by the slot's lock.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Last change that is applied here and not flushed; 0 when clean.
    pub(crate) dirty: u64,
    /// Known not to exist: deleted here, or learned from the backend.
    pub(crate) absent: bool,
    /// When something known here went away (a flushed delete, a discarded instance); a load whose
    /// ticket is older must not install what it read. 0: none.
    pub(crate) marked: u64,
    /// Ticket under which the absence was last learned. 0: none.
    pub(crate) learned: u64,
    pub(crate) quarantined: bool,
    /// A committed transaction the backend has not decided on (R16).
    pub(crate) pending: Option<Box<Pending>>,
}

#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) sequence: u64,
    /// The packed instance after it; `None` after a delete.
    pub(crate) image: Option<Box<[u8]>>,
}

impl State {
    /// Says nothing that "no state" would not say.
    pub(crate) fn is_trivial(&self) -> bool {
        self.dirty == 0
            && !self.absent
            && self.marked == 0
            && !self.quarantined
            && self.pending.is_none()
    }

    pub(crate) fn is_unflushed(&self) -> bool {
        self.dirty != 0 || self.pending.is_some()
    }
}

pub(crate) type States = HashMap<RootKey, State, BuildHasherDefault<KeyHasher>>;

/// Bytes of the map's table, and about what the keys and boxes on the heap take.
pub(crate) fn states_bytes(states: &States) -> usize {
    const HEAP_PER_STATE: usize = 64;
    states.capacity() * (size_of::<(RootKey, State)>() + 1) + states.len() * HEAP_PER_STATE
}

/// XXH3 over the key bytes.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    // the length that goes before a key's bytes tells nothing more
    fn write_usize(&mut self, _: usize) {}

    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxhash_rust::xxh3::xxh3_64_with_seed(bytes, self.0);
    }
}
