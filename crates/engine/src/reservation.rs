//! The memory records lie in: one range of addresses, mapped as the machine allows it.
//!
//! Owns the mapping, which kind it is and why not a better one. The range is as long as the budget
//! and costs nothing until it is touched. Pieces of few sizes are cut from it and given back to
//! it; what they hold is the arenas' business. Small budgets use the allocator instead.
//!
//! Huge pages matter: a record is met at a random address, and with pages of 4 KiB most such
//! accesses first miss in the table of translations, in a virtual machine twice over.

#![allow(unsafe_code, reason = "maps memory; see the arguments at each block")]

use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

/// Where the store's records are to lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ArenaProvider {
    /// Anonymous memory with transparent huge pages where the machine has them.
    #[default]
    Anonymous,
    /// Huge pages reserved on the machine (`vm.nr_hugepages`), for the whole budget at once.
    HugePages,
    /// A new file of the budget's size in this folder, unlinked at once.
    File(PathBuf),
    /// The same on a file system with direct access (DAX), which is persistent memory; on any other it
    /// is refused, and a file is used.
    Dax(PathBuf),
    /// The process's allocator, a few KiB at a time.
    Allocator,
}

/// What the records lie in, and why it is not what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaReport {
    pub provider: ArenaProvider,
    /// One line per provider that was tried and not usable.
    pub fallbacks: Vec<String>,
    /// Huge pages are in use or were asked of the kernel.
    pub huge_pages: bool,
}

/// Budgets below this are left to the allocator: a huge page would be much of them.
const MAPPED_MIN: u64 = 256 << 20;
const HUGE_PAGE: usize = 2 << 20;
/// The largest piece; the smaller ones are halves of it.
pub(crate) const PIECE_MAX: usize = 8 << 10;
const CLASSES: usize = 4;

pub(crate) struct Reservation {
    base: NonNull<u8>,
    /// Of the whole mapping, from `mapped`.
    mapped: NonNull<u8>,
    mapped_length: usize,
    length: usize,
    free: Mutex<Free>,
}

/// Guarded by its lock, which is a leaf.
#[derive(Default)]
struct Free {
    /// Offset of the first byte never used.
    next: usize,
    /// Offsets of pieces given back, per class.
    pieces: [Vec<u32>; CLASSES],
}

// SAFETY: the range is owned by the reservation alone and stays mapped until it is dropped; pieces
// never overlap (`take` and `give_back` run under the lock) and hold the reservation alive.
unsafe impl Send for Reservation {}
// SAFETY: as above; shared references only reach the lock.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Maps the budget as asked, or as the next best thing, down to the allocator (`None`).
    pub(crate) fn open(asked: &ArenaProvider, bytes: u64) -> (Option<Arc<Self>>, ArenaReport) {
        let mut fallbacks = Vec::new();
        let mut order = vec![asked.clone()];
        match asked {
            ArenaProvider::Anonymous => {}
            // whoever asks for a volume's memory has not set that much of the machine's aside
            ArenaProvider::Dax(folder) => order.push(ArenaProvider::File(folder.clone())),
            _ => order.push(ArenaProvider::Anonymous),
        }
        if bytes < MAPPED_MIN {
            let of = format!("budgets below {} MiB use the allocator", MAPPED_MIN >> 20);
            fallbacks.extend((*asked != ArenaProvider::Allocator).then_some(of));
            order.clear();
        }
        for provider in order {
            if provider == ArenaProvider::Allocator {
                break;
            }
            match Self::map(&provider, bytes) {
                Ok((reservation, huge_pages)) => {
                    let report = ArenaReport { provider, fallbacks, huge_pages };
                    return (Some(Arc::new(reservation)), report);
                }
                Err(error) => fallbacks.push(format!("{provider:?}: {error}")),
            }
        }
        let provider = ArenaProvider::Allocator;
        (None, ArenaReport { provider, fallbacks, huge_pages: false })
    }

    fn map(provider: &ArenaProvider, bytes: u64) -> std::io::Result<(Self, bool)> {
        let wanted = usize::try_from(bytes).ok();
        let wanted = wanted.and_then(|bytes| bytes.checked_next_multiple_of(HUGE_PAGE));
        // room to begin at a huge page
        let lengths = wanted.and_then(|wanted| Some((wanted, wanted.checked_add(HUGE_PAGE)?)));
        let (wanted, mapped_length) = lengths.ok_or(std::io::ErrorKind::OutOfMemory)?;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing one; it
        // is private or of a file nobody else has a name of.
        let mapped = unsafe {
            let at = std::ptr::null_mut();
            match provider {
                ArenaProvider::HugePages => {
                    mmap_anonymous(at, mapped_length, both, MapFlags::PRIVATE | MapFlags::HUGETLB)?
                }
                ArenaProvider::File(folder) => {
                    let file = unlinked(folder, mapped_length as u64)?;
                    mmap(at, mapped_length, both, MapFlags::SHARED, &file, 0)?
                }
                ArenaProvider::Dax(folder) => {
                    let file = unlinked(folder, mapped_length as u64)?;
                    // only direct access takes this; the store itself need not survive, and is spared
                    // a change of the file system's records with each page it touches first
                    let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
                    let proof = mmap(at, HUGE_PAGE, both, flags, &file, 0)?;
                    munmap(proof, HUGE_PAGE)?;
                    mmap(at, mapped_length, both, MapFlags::SHARED, &file, 0)?
                }
                ArenaProvider::Anonymous | ArenaProvider::Allocator => {
                    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
                    mmap_anonymous(at, mapped_length, both, flags)?
                }
            }
        };
        let mapped = NonNull::new(mapped.cast::<u8>()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let skip = mapped.as_ptr().align_offset(HUGE_PAGE);
        // SAFETY: `skip` is below a huge page, by which the mapping is longer than `wanted`.
        let base = unsafe { mapped.add(skip) };
        let huge_pages = match provider {
            ArenaProvider::HugePages => true,
            // SAFETY: advice on a range of our own mapping; changes no content.
            ArenaProvider::Anonymous => unsafe {
                madvise(base.as_ptr().cast(), wanted, Advice::LinuxHugepage).is_ok()
            },
            _ => false,
        };
        let free = Mutex::default();
        Ok((Self { base, mapped, mapped_length, length: wanted, free }, huge_pages))
    }

    /// Bytes taken from the range and free at the moment.
    pub(crate) fn idle_bytes(&self) -> usize {
        let free = self.free.lock();
        free.pieces.iter().enumerate().map(|(class, p)| p.len() * (PIECE_MAX >> class)).sum()
    }

    fn take(&self, class: usize) -> Option<NonNull<u8>> {
        let mut free = self.free.lock();
        let offset = match free.pieces.get_mut(class)?.pop() {
            Some(piece) => piece as usize * (PIECE_MAX >> (CLASSES - 1)),
            None => {
                let (at, size) = (free.next, PIECE_MAX);
                if at + size > self.length {
                    return None;
                }
                free.next = at + size;
                // the rest of a large piece serves the next ones of this class
                let own = PIECE_MAX >> class;
                for part in (at + own..at + size).step_by(own) {
                    free.pieces.get_mut(class)?.push(unit(part));
                }
                at
            }
        };
        // SAFETY: `offset` plus the piece's size is within `length`, which is mapped.
        Some(unsafe { self.base.add(offset) })
    }

    fn give_back(&self, start: NonNull<u8>, length: usize) {
        let offset = start.as_ptr() as usize - self.base.as_ptr() as usize;
        let mut free = self.free.lock();
        if let Some(pieces) = class_of(length).and_then(|class| free.pieces.get_mut(class)) {
            pieces.push(unit(offset));
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no piece of it is left: each holds the reservation alive.
        // What an unmapping could fail for (a wrong range) cannot be.
        let _ = unsafe { munmap(self.mapped.as_ptr().cast(), self.mapped_length) };
    }
}

fn unit(offset: usize) -> u32 {
    (offset / (PIECE_MAX >> (CLASSES - 1))) as u32
}

fn class_of(length: usize) -> Option<usize> {
    (0..CLASSES).find(|class| PIECE_MAX >> class == length)
}

/// A file of this size without a name, so that it goes with the process. Its space is there: a page
/// that the volume has no room for would end the process when it is touched.
fn unlinked(folder: &Path, length: u64) -> std::io::Result<File> {
    let path = folder.join("records");
    match std::fs::remove_file(&path) {
        // of a process that ended between the next two steps
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, length)?;
    Ok(file)
}

/// A piece of memory of its own: from a reservation, or from the allocator.
pub(crate) struct Piece {
    start: NonNull<u8>,
    length: u32,
    from: Option<Arc<Reservation>>,
}

// SAFETY: a piece is the only way to its bytes, as a box would be.
unsafe impl Send for Piece {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Piece {}

impl Piece {
    /// `length` is [`PIECE_MAX`] or a half, a quarter, an eighth of it. From the allocator without
    /// a reservation, and when that is used up (by pieces of other sizes: it is as long as the
    /// budget). What is in it is anything.
    pub(crate) fn new(from: Option<&Arc<Reservation>>, length: usize) -> Option<Self> {
        let reserved = from.and_then(|from| Some((from.take(class_of(length)?)?, from)));
        let (start, from) = match reserved {
            Some((start, from)) => (start, Some(Arc::clone(from))),
            None => {
                let heap: Box<[u8]> = vec![0; length].into_boxed_slice();
                (NonNull::new(Box::into_raw(heap).cast::<u8>())?, None)
            }
        };
        Some(Self { start, length: length as u32, from })
    }

    pub(crate) fn len(&self) -> usize {
        self.length as usize
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `start` begins `length` bytes that are mapped (or allocated), initialised (by the
        // kernel, the allocation or a former owner of the piece) and reachable through this piece
        // only.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len()) }
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the piece is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len()) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        match &self.from {
            Some(reservation) => reservation.give_back(self.start, self.len()),
            None => {
                let heap = std::ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.len());
                // SAFETY: without a reservation the bytes came from a box of this length.
                drop(unsafe { Box::from_raw(heap) });
            }
        }
    }
}

impl std::fmt::Debug for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Piece").field("length", &self.length).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [usize; 4] = [PIECE_MAX, PIECE_MAX / 2, PIECE_MAX / 4, PIECE_MAX / 8];

    #[test]
    fn more_than_any_address_space_falls_back_instead_of_wrapping() {
        for bytes in [u64::MAX, u64::MAX - HUGE_PAGE as u64] {
            let (reservation, report) = Reservation::open(&ArenaProvider::Anonymous, bytes);
            assert!(reservation.is_none());
            assert_eq!(report.provider, ArenaProvider::Allocator);
            assert!(!report.fallbacks.is_empty());
        }
    }

    fn pieces_are_apart_and_come_back(asked: &ArenaProvider) -> ArenaReport {
        let (reservation, report) = Reservation::open(asked, MAPPED_MIN);
        for round in 0..3_u8 {
            let mut pieces: Vec<Piece> =
                (0..400).map(|n| Piece::new(reservation.as_ref(), SIZES[n % 4]).unwrap()).collect();
            for (n, piece) in pieces.iter_mut().enumerate() {
                piece.bytes_mut().fill(n as u8 ^ round);
            }
            for (n, piece) in pieces.iter().enumerate() {
                assert!(piece.bytes().iter().all(|b| *b == n as u8 ^ round), "piece {n}");
            }
            let used = reservation.as_ref().map(|r| r.free.lock().next);
            assert!(used.is_none_or(|used| used <= 400 * PIECE_MAX / 2), "{used:?}");
        }
        report
    }

    #[test]
    fn every_provider_gives_pieces_of_its_own_or_says_why_not() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().to_path_buf();
        let anonymous = pieces_are_apart_and_come_back(&ArenaProvider::Anonymous);
        assert_eq!(anonymous.provider, ArenaProvider::Anonymous);
        assert!(anonymous.fallbacks.is_empty());
        let file = pieces_are_apart_and_come_back(&ArenaProvider::File(folder.clone()));
        assert_eq!(file.provider, ArenaProvider::File(folder.clone()));
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "the file has no name");
        for asked in [ArenaProvider::HugePages, ArenaProvider::Dax(folder)] {
            let report = pieces_are_apart_and_come_back(&asked);
            assert!(report.provider == asked || report.fallbacks.len() == 1, "{report:?}");
        }
        let gone = ArenaProvider::File("/does/not/exist".into());
        let report = pieces_are_apart_and_come_back(&gone);
        assert_eq!(report.provider, ArenaProvider::Anonymous);
        assert!(report.fallbacks[0].contains("No such file"), "{report:?}");
        let gone = ArenaProvider::Dax("/does/not/exist".into());
        let report = pieces_are_apart_and_come_back(&gone);
        assert_eq!(report.provider, ArenaProvider::Allocator, "never a budget of anonymous memory");
        assert_eq!(report.fallbacks.len(), 2, "{report:?}");
    }

    #[test]
    fn small_budgets_and_used_up_ranges_leave_it_to_the_allocator() {
        let (none, report) = Reservation::open(&ArenaProvider::Anonymous, MAPPED_MIN - 1);
        assert!(none.is_none() && report.provider == ArenaProvider::Allocator);
        let (reservation, _) = Reservation::open(&ArenaProvider::Anonymous, MAPPED_MIN);
        let reservation = reservation.unwrap();
        reservation.free.lock().next = reservation.length;
        let mut piece = Piece::new(Some(&reservation), PIECE_MAX).unwrap();
        piece.bytes_mut().fill(7);
        assert!(piece.from.is_none());
        drop(piece);
        assert_eq!(reservation.idle_bytes(), 0);
    }
}
