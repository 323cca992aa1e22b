//! Records of one slot: blocks of a few bytes in chunks, addressed by a four-byte offset.
//!
//! Owns the bytes and the free lists; knows nothing of what the records mean. A block's first byte
//! is its size in units of [`UNIT`] bytes, so that nothing else stores lengths. Freed blocks are
//! reused for records of the same size; [`Arena::fragmented`] says when copying the living ones
//! together pays. Records longer than a block get an allocation of their own.

use crate::reservation::{PIECE_MAX, Piece, Reservation};
use std::sync::Arc;

/// Block sizes and offsets are multiples of this.
const UNIT: usize = 4;
/// A chunk; blocks never cross one. Of few sizes and never grown, so that what is held is what is
/// accounted.
const CHUNK: usize = PIECE_MAX;
const UNITS_PER_CHUNK: u32 = (CHUNK / UNIT) as u32;
/// The longest block: 254 units; the first byte 255 is left for later forms.
const BLOCK_UNITS_MAX: usize = 254;
/// The first chunks of a slot are smaller, so that small populations stay small.
const FIRST_CHUNK: usize = 1 << 10;
/// Offsets from here on number the large records.
const LARGE: u32 = 1 << 31;
/// Free bytes (besides a quarter of the arena) before compaction is worth its copy.
const FRAGMENTED_BYTES: usize = 8 << 10;

/// Place of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offset(pub(crate) u32);

#[derive(Default)]
pub(crate) struct Arena {
    /// Where chunks come from; `None`: the allocator.
    from: Option<Arc<Reservation>>,
    /// Every chunk but the last is filled up to what no record fitted into. None ever grows.
    chunks: Vec<Piece>,
    /// Bytes of the last chunk that have blocks.
    last_used: usize,
    /// First free block per size in units; the next one's offset (plus one) stands in the block.
    free: Vec<u32>,
    free_bytes: usize,
    /// Sum of the chunks' lengths.
    chunk_capacity: usize,
    large: Vec<Box<[u8]>>,
    large_free: Vec<u32>,
    large_bytes: usize,
}

fn units(length: usize) -> usize {
    (length + 1).div_ceil(UNIT)
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena").field("chunks", &self.chunks.len()).finish_non_exhaustive()
    }
}

impl Arena {
    pub(crate) fn new(from: Option<Arc<Reservation>>) -> Self {
        Self { from, ..Self::default() }
    }

    /// Empties the arena; what was in it.
    pub(crate) fn take(&mut self) -> Self {
        let fresh = Self::new(self.from.clone());
        std::mem::replace(self, fresh)
    }

    /// The packed record, with the padding of its block at the end.
    #[inline]
    pub(crate) fn get(&self, offset: Offset) -> &[u8] {
        if offset.0 >= LARGE {
            return self.large.get((offset.0 - LARGE) as usize).map_or(&[], |b| b);
        }
        let (chunk, at) = place(offset.0);
        let Some(block) = self.chunks.get(chunk).and_then(|c| c.bytes().get(at..)) else {
            return &[];
        };
        let length = block.first().map_or(0, |units| usize::from(*units) * UNIT);
        block.get(1..length).unwrap_or_default()
    }

    /// The arena's bytes from the record on, without looking at it.
    pub(crate) fn from(&self, offset: Offset) -> &[u8] {
        let (chunk, at) = place(offset.0);
        self.chunks.get(chunk).and_then(|c| c.bytes().get(at..)).unwrap_or_default()
    }

    /// Bytes the arena would grow by for a record of this length.
    pub(crate) fn growth_for(&self, length: usize) -> usize {
        let units = units(length);
        if units > BLOCK_UNITS_MAX {
            return length + 16;
        }
        if self.fitting(units).is_some() {
            return 0;
        }
        match self.chunks.last() {
            Some(last) if self.last_used + units * UNIT <= last.len() => 0,
            _ => self.new_chunk_capacity() + size_of::<Piece>() * 4,
        }
    }

    fn new_chunk_capacity(&self) -> usize {
        // two of each size before the next
        let doublings = (self.chunks.len() / 2).min(8);
        (FIRST_CHUNK << doublings).min(CHUNK)
    }

    /// Stores a record; `None` only when the slot's address space (8 GiB) is used up.
    pub(crate) fn insert(&mut self, record: &[u8]) -> Option<Offset> {
        let units = units(record.len());
        if units > BLOCK_UNITS_MAX {
            return Some(self.insert_large(record));
        }
        let offset = match self.pop_free(units) {
            Some(offset) => offset,
            None => self.append(units)?,
        };
        let (chunk, at) = place(offset);
        let block = self.chunks.get_mut(chunk)?.bytes_mut().get_mut(at..at + units * UNIT)?;
        let (head, body) = block.split_first_mut()?;
        *head = units as u8;
        let (to, padding) = body.split_at_mut_checked(record.len())?;
        to.copy_from_slice(record);
        padding.fill(0);
        Some(Offset(offset))
    }

    /// Puts the record in place of one whose block has the same size; false (and nothing happens)
    /// when it has another.
    pub(crate) fn overwrite(&mut self, offset: Offset, record: &[u8]) -> bool {
        if offset.0 >= LARGE {
            return false;
        }
        let (chunk, at) = place(offset.0);
        let Some(block) = self.chunks.get_mut(chunk).and_then(|c| c.bytes_mut().get_mut(at..))
        else {
            return false;
        };
        let Some((head, body)) = block.split_first_mut() else { return false };
        let units = units(record.len());
        if usize::from(*head) != units {
            return false;
        }
        let body = body.get_mut(..units * UNIT - 1).unwrap_or_default();
        let Some((to, padding)) = body.split_at_mut_checked(record.len()) else { return false };
        to.copy_from_slice(record);
        padding.fill(0);
        true
    }

    fn insert_large(&mut self, record: &[u8]) -> Offset {
        self.large_bytes += record.len() + 16;
        let record: Box<[u8]> = record.into();
        let number = match self.large_free.pop() {
            Some(number) => {
                if let Some(place) = self.large.get_mut(number as usize) {
                    *place = record;
                }
                number
            }
            None => {
                self.large.push(record);
                self.large.len() as u32 - 1
            }
        };
        Offset(LARGE + number)
    }

    /// A free block of exactly this size, or the beginning of a longer one.
    fn pop_free(&mut self, units: usize) -> Option<u32> {
        let fitting = self.fitting(units)?;
        let head = self.free.get(fitting).copied()?;
        let (chunk, at) = place(head - 1);
        let block = self.chunks.get(chunk)?.bytes().get(at..)?;
        let next = match block.first_chunk::<8>() {
            Some([_, _, _, _, a, b, c, d]) if fitting > 1 => u32::from_le_bytes([*a, *b, *c, *d]),
            _ => 0,
        };
        *self.free.get_mut(fitting)? = next;
        self.free_bytes -= fitting * UNIT;
        if fitting > units {
            let rest = head - 1 + units as u32;
            let (chunk, at) = place(rest);
            *self.chunks.get_mut(chunk)?.bytes_mut().get_mut(at)? = (fitting - units) as u8;
            self.remove(Offset(rest));
        }
        Some(head - 1)
    }

    /// Size of the free block to take for one of this size. A rest of a single unit would be of no
    /// use.
    fn fitting(&self, units: usize) -> Option<usize> {
        let free = |size: usize| self.free.get(size).is_some_and(|head| *head != 0);
        std::iter::once(units).chain(units + 2..self.free.len()).find(|size| free(*size))
    }

    fn append(&mut self, units: usize) -> Option<u32> {
        let needed = units * UNIT;
        if self.chunks.last().is_none_or(|last| self.last_used + needed > last.len()) {
            let chunk = Piece::new(self.from.as_ref(), self.new_chunk_capacity())?;
            if let Some(last) = self.chunks.last() {
                self.free_bytes += last.len() - self.last_used;
            }
            self.chunk_capacity += chunk.len();
            if self.chunks.len() == self.chunks.capacity() {
                self.chunks.reserve_exact(1 + self.chunks.len() / 8);
            }
            self.chunks.push(chunk);
            self.last_used = 0;
        }
        let number = self.chunks.len() - 1;
        let start = self.last_used;
        self.last_used += needed;
        let offset = number as u64 * u64::from(UNITS_PER_CHUNK) + (start / UNIT) as u64;
        u32::try_from(offset).ok().filter(|offset| *offset < LARGE)
    }

    pub(crate) fn remove(&mut self, offset: Offset) {
        if offset.0 >= LARGE {
            let number = offset.0 - LARGE;
            if let Some(record) = self.large.get_mut(number as usize) {
                self.large_bytes -= record.len() + 16;
                *record = Box::default();
                self.large_free.push(number);
            }
            return;
        }
        let (chunk, at) = place(offset.0);
        let Some(block) = self.chunks.get_mut(chunk).and_then(|c| c.bytes_mut().get_mut(at..))
        else {
            return;
        };
        let units = block.first().map_or(0, |units| usize::from(*units));
        self.free_bytes += units * UNIT;
        // a block of one unit has no room for a link; it waits for compaction
        if units < 2 {
            return;
        }
        if self.free.len() <= units {
            self.free.resize(units + 1, 0);
        }
        if let (Some(head), Some(link)) = (self.free.get_mut(units), block.get_mut(4..8)) {
            link.copy_from_slice(&head.to_le_bytes());
            *head = offset.0 + 1;
        }
    }

    /// Whether more than a quarter of the bytes are free.
    pub(crate) fn fragmented(&self) -> bool {
        self.free_bytes > FRAGMENTED_BYTES && self.free_bytes * 4 > self.chunk_capacity
    }

    /// Bytes held, slack included.
    pub(crate) fn bytes(&self) -> usize {
        self.chunk_capacity
            + self.chunks.capacity() * size_of::<Piece>()
            + self.free.capacity() * size_of::<u32>()
            + self.large.capacity() * size_of::<Box<[u8]>>()
            + self.large_free.capacity() * size_of::<u32>()
            + self.large_bytes
    }
}

#[inline]
fn place(offset: u32) -> (usize, usize) {
    ((offset / UNITS_PER_CHUNK) as usize, (offset % UNITS_PER_CHUNK) as usize * UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn records_stay_what_they_were_through_inserts_and_removals() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(1);
        let mut arena = Arena::default();
        let mut living: Vec<(Offset, Vec<u8>)> = Vec::new();
        for _ in 0..20_000 {
            if living.len() > 300 || (!living.is_empty() && random.random_bool(0.4)) {
                let (offset, _) = living.swap_remove(random.random_range(0..living.len()));
                arena.remove(offset);
            } else {
                let longest = if random.random_bool(0.02) { 5_000 } else { 300 };
                let record: Vec<u8> =
                    (0..random.random_range(1..longest)).map(|_| random.random()).collect();
                let (before, growth) = (arena.bytes(), arena.growth_for(record.len()));
                living.push((arena.insert(&record).unwrap(), record));
                assert!(arena.bytes() <= before + growth + 3_000, "tables of the arena aside");
            }
        }
        for (offset, record) in &living {
            assert_eq!(&arena.get(*offset)[..record.len()], record);
        }
        let payload: usize = living.iter().map(|(_, r)| r.len()).sum();
        assert!(arena.bytes() < payload * 5);
    }
}
