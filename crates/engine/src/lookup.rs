//! Lookup index: from a lookup key's hash to short hashes of root keys, seven bytes per entry.
//!
//! An entry holds 23 bits of the lookup key's hash and the top 32 bits of the root key's, which
//! are its slot and its place in the slot's index. It therefore never changes when records move,
//! and it proves nothing: whoever asks must compare the candidate's record with the key.
//! Sharded by hash; a shard's lock is taken after a slot's, never before one.

use crate::index::matching;
use parking_lot::Mutex;
use smallvec::SmallVec;

const SHARD_BITS: u32 = 12;
const GROUP: usize = 16;
const EMPTY: u8 = 0;
const REMOVED: u8 = 1;
const USED: u8 = 0x80;
const PRINT_BITS: u32 = 23;

pub(crate) type Candidates = SmallVec<[u32; 4]>;

#[derive(Debug)]
pub(crate) struct LookupIndex {
    shards: Box<[Mutex<Shard>]>,
}

/// 16 high bits place the entry, 7 low ones are its tag.
#[derive(Clone, Copy)]
struct Print(u32);

impl Print {
    fn of_hash(hash: u64) -> Self {
        Self((hash >> (64 - SHARD_BITS - PRINT_BITS)) as u32 & ((1 << PRINT_BITS) - 1))
    }

    fn from_parts(tag: u8, high: u16) -> Self {
        Self(u32::from(high) << 7 | u32::from(tag & 0x7f))
    }

    fn tag(self) -> u8 {
        USED | self.0 as u8 & 0x7f
    }

    fn high(self) -> u16 {
        (self.0 >> 7) as u16
    }

    fn home(self, groups: usize) -> usize {
        ((u64::from(self.0) * groups as u64) >> PRINT_BITS) as usize
    }
}

impl LookupIndex {
    pub(crate) fn new() -> Self {
        Self { shards: (0..1 << SHARD_BITS).map(|_| Mutex::new(Shard::default())).collect() }
    }

    fn shard(&self, hash: u64) -> Option<&Mutex<Shard>> {
        self.shards.get((hash >> (64 - SHARD_BITS)) as usize)
    }

    pub(crate) fn prefetch_shard(&self, hash: u64) {
        if let Some(shard) = self.shard(hash) {
            crate::prefetch::line(shard);
        }
    }

    /// Asks for the lines a search begins with.
    pub(crate) fn prefetch_group(&self, hash: u64) {
        let Some(shard) = self.shard(hash) else { return };
        let shard = shard.lock();
        if let Some(group) = shard.groups.get(Print::of_hash(hash).home(shard.groups.len())) {
            crate::prefetch::line(group);
            // a group is longer than a line
            crate::prefetch::line(&group.roots[GROUP - 1]);
        }
    }

    /// Short hashes of root keys that may have the lookup key with this hash.
    pub(crate) fn candidates(&self, hash: u64) -> Candidates {
        self.shard(hash).map_or_else(Candidates::new, |s| s.lock().candidates(Print::of_hash(hash)))
    }

    /// Adds an entry, unless there are candidates besides the `harmless` ones (found to have
    /// another key): then those. Returns the growth in bytes.
    pub(crate) fn insert_checked(
        &self,
        hash: u64,
        root: u32,
        harmless: &[u32],
    ) -> Result<usize, Candidates> {
        let Some(shard) = self.shard(hash) else { return Ok(0) };
        let mut shard = shard.lock();
        let print = Print::of_hash(hash);
        let mut candidates = shard.candidates(print);
        candidates.retain(|candidate| !harmless.contains(candidate));
        if candidates.is_empty() { Ok(shard.insert(print, root)) } else { Err(candidates) }
    }

    /// Adds an entry. Returns the growth in bytes.
    pub(crate) fn insert(&self, hash: u64, root: u32) -> usize {
        self.shard(hash).map_or(0, |shard| shard.lock().insert(Print::of_hash(hash), root))
    }

    pub(crate) fn remove(&self, hash: u64, root: u32) {
        if let Some(shard) = self.shard(hash) {
            shard.lock().remove(Print::of_hash(hash), root);
        }
    }

    /// Bytes of an index without entries.
    pub(crate) fn base_bytes() -> usize {
        size_of::<Mutex<Shard>>() << SHARD_BITS
    }
}

/// Sixteen entries side by side, so that a search waits for memory once.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Group {
    tags: [u8; GROUP],
    highs: [u16; GROUP],
    roots: [u32; GROUP],
}

impl Group {
    const FREE: Self = Self { tags: [EMPTY; GROUP], highs: [0; GROUP], roots: [0; GROUP] };
}

#[derive(Debug, Default)]
struct Shard {
    groups: Vec<Group>,
    used: usize,
    removed: usize,
}

impl Shard {
    fn candidates(&self, print: Print) -> Candidates {
        let mut found = Candidates::new();
        self.probe(print, |_, _, root| {
            found.push(root);
            false
        });
        found
    }

    /// Visits the entries with this print until `stop` says so.
    fn probe(&self, print: Print, mut stop: impl FnMut(usize, usize, u32) -> bool) {
        let groups = self.groups.len();
        let mut group = if groups == 0 { 0 } else { print.home(groups) };
        for _ in 0..groups {
            let Some(Group { tags, highs, roots }) = self.groups.get(group) else { return };
            let mut hits = matching(tags, print.tag());
            while hits != 0 {
                let lane = hits.trailing_zeros() as usize;
                hits &= hits - 1;
                let (Some(high), Some(root)) = (highs.get(lane), roots.get(lane)) else { return };
                if *high == print.high() && stop(group, lane, *root) {
                    return;
                }
            }
            if matching(tags, EMPTY) != 0 {
                return;
            }
            group = if group + 1 == groups { 0 } else { group + 1 };
        }
    }

    fn insert(&mut self, print: Print, root: u32) -> usize {
        let before = self.bytes();
        if (self.used + self.removed + 1) * 16 > self.groups.len() * GROUP * 15 {
            self.grow();
        }
        self.put(print, root);
        self.bytes() - before
    }

    fn put(&mut self, print: Print, root: u32) {
        let groups = self.groups.len();
        let mut group = print.home(groups.max(1));
        for _ in 0..groups {
            let Some(Group { tags, highs, roots }) = self.groups.get_mut(group) else { return };
            if let Some(lane) = tags.iter().position(|tag| *tag < USED) {
                let (high, place) = (highs.get_mut(lane), roots.get_mut(lane));
                if let (Some(tag), Some(high), Some(place)) = (tags.get_mut(lane), high, place) {
                    self.removed -= usize::from(*tag == REMOVED);
                    self.used += 1;
                    *tag = print.tag();
                    *high = print.high();
                    *place = root;
                }
                return;
            }
            group = if group + 1 == groups { 0 } else { group + 1 };
        }
    }

    fn grow(&mut self) {
        let groups = self.groups.len();
        let needed = (self.used + 1).div_ceil(GROUP - 1);
        let crowded = needed > groups - groups / 8;
        let groups = if crowded { (groups + groups.div_ceil(6)).max(1) } else { groups };
        let mut grown = Shard { groups: vec![Group::FREE; groups], used: 0, removed: 0 };
        for Group { tags, highs, roots } in &self.groups {
            for ((tag, high), root) in tags.iter().zip(highs).zip(roots) {
                if *tag >= USED {
                    grown.put(Print::from_parts(*tag, *high), *root);
                }
            }
        }
        *self = grown;
    }

    fn remove(&mut self, print: Print, root: u32) {
        let mut found = None;
        self.probe(print, |group, lane, candidate| {
            let hit = candidate == root;
            if hit {
                found = Some((group, lane));
            }
            hit
        });
        let Some((group, lane)) = found else { return };
        let Some(Group { tags, .. }) = self.groups.get_mut(group) else { return };
        let ends_here = tags.contains(&EMPTY);
        if let Some(tag) = tags.get_mut(lane) {
            *tag = if ends_here { EMPTY } else { REMOVED };
            self.removed += usize::from(!ends_here);
            self.used -= 1;
        }
    }

    fn bytes(&self) -> usize {
        self.groups.capacity() * size_of::<Group>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn every_entry_is_a_candidate_until_it_is_removed() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(5);
        let index = LookupIndex::new();
        // two shards only, so that they grow
        let mut entries: Vec<(u64, u32)> =
            (0..20_000).map(|n| (random.random::<u64>() >> 11, n)).collect();
        let bytes: usize = entries.iter().map(|(hash, root)| index.insert(*hash, *root)).sum();
        assert!(bytes < entries.len() * 9, "{bytes}");
        assert!(entries.iter().all(|(hash, root)| index.candidates(*hash).contains(root)));
        let removed = entries.split_off(5_000);
        removed.iter().for_each(|(hash, root)| index.remove(*hash, *root));
        assert!(entries.iter().all(|(hash, root)| index.candidates(*hash).contains(root)));
        assert!(removed.iter().all(|(hash, root)| !index.candidates(*hash).contains(root)));
        let (hash, root) = entries[0];
        assert_eq!(index.insert_checked(hash, 1, &[]).unwrap_err().as_slice(), [root]);
        assert!(index.insert_checked(hash, 1, &[root]).is_ok());
    }
}
