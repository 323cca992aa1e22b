//! The state of the disk in memory, and what a power cut leaves of it.
//!
//! Owns files, names and the two kinds of volatile change. Never fails on its own except as a
//! disk does: missing, full, read-only.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::file_system::dax::LINE_BYTES;

/// Unsynced writes survive or vanish in units of this.
const SECTOR_BYTES: usize = 512;
const EIO: i32 = 5;

pub(super) type FileId = u64;

/// How much of the unsynced state survives a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerCut {
    /// Nothing that was not synced.
    LoseAll,
    /// Everything, synced or not.
    KeepAll,
    /// A selection drawn from this seed.
    Random(u64),
}

#[derive(Clone, Debug, Default)]
struct Content {
    /// As read now.
    live: Vec<u8>,
    /// As after a power cut that keeps nothing else.
    durable: Vec<u8>,
    /// Since the last sync, in order.
    unsynced: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    /// Survives in parts of `unit` bytes.
    Write {
        offset: usize,
        bytes: Vec<u8>,
        unit: usize,
    },
    Extend(usize),
}

#[derive(Clone, Debug)]
enum NameChange {
    Link(PathBuf, FileId),
    Unlink(PathBuf),
    Rename(PathBuf, PathBuf),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    pub capacity_bytes: Option<u64>,
    pub read_only: bool,
    life: u64,
    next_id: FileId,
    contents: BTreeMap<FileId, Content>,
    dirs: Vec<PathBuf>,
    names: BTreeMap<PathBuf, FileId>,
    durable_names: BTreeMap<PathBuf, FileId>,
    unsynced_names: Vec<NameChange>,
    locks: BTreeMap<PathBuf, u64>,
}

/// A small generator; the selection must only be repeatable.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn error(kind: io::ErrorKind) -> io::Error {
    kind.into()
}

impl Disk {
    pub fn check_life(&self, life: u64) -> io::Result<()> {
        if life == self.life { Ok(()) } else { Err(io::Error::from_raw_os_error(EIO)) }
    }

    pub fn next_life(&mut self) {
        self.life += 1;
        self.locks.clear();
    }

    pub fn used_bytes(&self) -> u64 {
        self.names.values().map(|id| self.size(*id).unwrap_or(0)).sum()
    }

    fn check_change(&self, more_bytes: u64) -> io::Result<()> {
        if self.read_only {
            return Err(error(io::ErrorKind::ReadOnlyFilesystem));
        }
        match self.capacity_bytes {
            Some(capacity) if more_bytes > 0 && self.used_bytes() + more_bytes > capacity => {
                Err(error(io::ErrorKind::StorageFull))
            }
            _ => Ok(()),
        }
    }

    pub fn create_dir(&mut self, dir: &Path) -> io::Result<()> {
        if !self.dirs.iter().any(|known| known == dir) {
            self.check_change(0)?;
            self.dirs.push(dir.to_owned());
        }
        Ok(())
    }

    fn check_parent(&self, path: &Path) -> io::Result<()> {
        let parent = path.parent().unwrap_or(path);
        if self.dirs.iter().any(|dir| dir == parent) {
            return Ok(());
        }
        Err(error(io::ErrorKind::NotFound))
    }

    pub fn take_lock(&mut self, path: &Path) -> io::Result<u64> {
        self.check_parent(path)?;
        if self.locks.contains_key(path) {
            return Err(error(io::ErrorKind::WouldBlock));
        }
        if !self.names.contains_key(path) {
            self.create(path)?;
        }
        self.locks.insert(path.to_owned(), self.life);
        Ok(self.life)
    }

    pub fn release_lock(&mut self, path: &Path, life: u64) {
        if self.locks.get(path) == Some(&life) {
            self.locks.remove(path);
        }
    }

    pub fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        if !self.dirs.iter().any(|known| known == dir) {
            return Err(error(io::ErrorKind::NotFound));
        }
        Ok(self.names.keys().filter(|path| path.parent() == Some(dir)).cloned().collect())
    }

    pub fn create(&mut self, path: &Path) -> io::Result<(FileId, u64)> {
        self.check_parent(path)?;
        if self.names.contains_key(path) {
            return Err(error(io::ErrorKind::AlreadyExists));
        }
        self.check_change(0)?;
        self.next_id += 1;
        let id = self.next_id;
        self.contents.insert(id, Content::default());
        self.names.insert(path.to_owned(), id);
        self.unsynced_names.push(NameChange::Link(path.to_owned(), id));
        Ok((id, self.life))
    }

    pub fn open(&mut self, path: &Path, write: bool) -> io::Result<(FileId, u64)> {
        let id = *self.names.get(path).ok_or_else(|| error(io::ErrorKind::NotFound))?;
        if write {
            self.check_change(0)?;
        }
        Ok((id, self.life))
    }

    pub fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.check_change(0)?;
        let id = self.names.remove(from).ok_or_else(|| error(io::ErrorKind::NotFound))?;
        self.names.insert(to.to_owned(), id);
        self.unsynced_names.push(NameChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    pub fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.check_change(0)?;
        self.names.remove(path).ok_or_else(|| error(io::ErrorKind::NotFound))?;
        self.unsynced_names.push(NameChange::Unlink(path.to_owned()));
        Ok(())
    }

    pub fn sync_dir(&mut self, dir: &Path) -> io::Result<()> {
        self.list(dir)?;
        self.durable_names = self.names.clone();
        self.unsynced_names.clear();
        Ok(())
    }

    fn content_of(&mut self, id: FileId) -> io::Result<&mut Content> {
        self.contents.get_mut(&id).ok_or_else(|| io::Error::from_raw_os_error(EIO))
    }

    pub fn size(&self, id: FileId) -> io::Result<u64> {
        Ok(self.contents.get(&id).map_or(0, |content| content.live.len() as u64))
    }

    pub fn read(&mut self, id: FileId, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let content = self.content_of(id)?;
        let rest = content.live.get(offset as usize..).unwrap_or_default();
        let bytes = rest.len().min(buffer.len());
        if let (Some(to), Some(from)) = (buffer.get_mut(..bytes), rest.get(..bytes)) {
            to.copy_from_slice(from);
        }
        Ok(bytes)
    }

    pub fn write(&mut self, id: FileId, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let more = (offset + bytes.len() as u64).saturating_sub(self.size(id)?);
        self.check_change(more)?;
        let content = self.content_of(id)?;
        let offset = offset as usize;
        apply(&mut content.live, offset, bytes);
        content.unsynced.push(Change::Write { offset, bytes: bytes.to_vec(), unit: SECTOR_BYTES });
        Ok(bytes.len())
    }

    /// A store into a mapping of the file, whose space is there.
    pub fn store(&mut self, id: FileId, bytes: &[u8], offset: usize) -> io::Result<()> {
        let content = self.content_of(id)?;
        if content.durable.len() < offset + bytes.len() {
            return Err(error(io::ErrorKind::InvalidInput));
        }
        apply(&mut content.live, offset, bytes);
        let unit = LINE_BYTES as usize;
        content.unsynced.push(Change::Write { offset, bytes: bytes.to_vec(), unit });
        Ok(())
    }

    /// The bytes of a line as they are now, which begins at `offset`.
    pub fn line(&mut self, id: FileId, offset: usize) -> io::Result<Vec<u8>> {
        let live = &self.content_of(id)?.live;
        let end = (offset + LINE_BYTES as usize).min(live.len());
        Ok(live.get(offset..end).unwrap_or_default().to_vec())
    }

    /// A flushed line reached the medium.
    pub fn keep_line(&mut self, id: FileId, bytes: &[u8], offset: usize) -> io::Result<()> {
        let content = self.content_of(id)?;
        apply(&mut content.durable, offset, bytes);
        let changes = std::mem::take(&mut content.unsynced);
        let kept = offset..offset + bytes.len();
        content.unsynced = changes.into_iter().flat_map(|change| change.without(&kept)).collect();
        Ok(())
    }

    pub fn allocate(&mut self, id: FileId, bytes: u64) -> io::Result<()> {
        let more = bytes.saturating_sub(self.size(id)?);
        self.check_change(more)?;
        let content = self.content_of(id)?;
        let bytes = (bytes as usize).max(content.live.len());
        content.live.resize(bytes, 0);
        content.unsynced.push(Change::Extend(bytes));
        Ok(())
    }

    pub fn set_size(&mut self, id: FileId, bytes: u64) -> io::Result<()> {
        let more = bytes.saturating_sub(self.size(id)?);
        self.check_change(more)?;
        self.content_of(id)?.live.resize(bytes as usize, 0);
        self.sync(id)
    }

    pub fn sync(&mut self, id: FileId) -> io::Result<()> {
        let content = self.content_of(id)?;
        // what an earlier failed sync lost stays lost: changes, not the live content, are applied
        for change in std::mem::take(&mut content.unsynced) {
            change.apply(&mut content.durable);
        }
        content.durable.resize(content.live.len(), 0);
        Ok(())
    }

    /// A sync failed: the pages are clean now and were never written.
    pub fn lose_unsynced(&mut self, id: FileId) -> io::Result<()> {
        self.content_of(id)?.unsynced.clear();
        Ok(())
    }

    /// The name of an open file; empty once it was removed.
    pub fn name_of(&self, id: FileId) -> PathBuf {
        let named = self.names.iter().find(|(_, named)| **named == id);
        named.map(|(path, _)| path.clone()).unwrap_or_default()
    }

    pub fn content(&self, path: &Path) -> Option<Vec<u8>> {
        let id = self.names.get(path)?;
        self.contents.get(id).map(|content| content.live.clone())
    }

    pub fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let content = |path: &PathBuf| self.content(path).unwrap_or_default();
        self.names.keys().map(|path| (path.clone(), content(path))).collect()
    }

    pub fn plant(&mut self, path: &Path, bytes: Vec<u8>) {
        if let Some(parent) = path.parent().filter(|parent| !self.dirs.iter().any(|d| d == parent))
        {
            self.dirs.push(parent.to_owned());
        }
        self.next_id += 1;
        let id = self.next_id;
        let content = Content { live: bytes.clone(), durable: bytes, unsynced: Vec::new() };
        self.contents.insert(id, content);
        self.names.insert(path.to_owned(), id);
        self.durable_names.insert(path.to_owned(), id);
    }

    pub fn cut_power(&mut self, cut: PowerCut) {
        self.next_life();
        let mut draw = Draw(match cut {
            PowerCut::Random(seed) => seed,
            PowerCut::LoseAll | PowerCut::KeepAll => 0,
        });
        for content in self.contents.values_mut() {
            content.cut_power(cut, &mut draw);
        }
        let changes = std::mem::take(&mut self.unsynced_names);
        let kept = match cut {
            PowerCut::LoseAll => 0,
            PowerCut::KeepAll => changes.len(),
            PowerCut::Random(_) => (draw.next() % (changes.len() as u64 + 1)) as usize,
        };
        for change in changes.into_iter().take(kept) {
            change.apply(&mut self.durable_names);
        }
        self.names = self.durable_names.clone();
        let names = &self.names;
        self.contents.retain(|id, _| names.values().any(|named| named == id));
    }
}

impl Content {
    fn cut_power(&mut self, cut: PowerCut, draw: &mut Draw) {
        for change in std::mem::take(&mut self.unsynced) {
            match change {
                Change::Extend(_) => {
                    if cut == PowerCut::KeepAll
                        || draw.next().is_multiple_of(2) && cut != PowerCut::LoseAll
                    {
                        change.apply(&mut self.durable);
                    }
                }
                Change::Write { offset, bytes, unit } => {
                    for (at, sector) in parts(offset, &bytes, unit) {
                        let kept = match cut {
                            PowerCut::LoseAll => false,
                            PowerCut::KeepAll => true,
                            PowerCut::Random(_) => draw.next().is_multiple_of(2),
                        };
                        if kept {
                            apply(&mut self.durable, at, sector);
                        }
                    }
                }
            }
        }
        self.live = self.durable.clone();
    }
}

/// The parts of a write that survive independently of each other.
fn parts(offset: usize, bytes: &[u8], unit: usize) -> impl Iterator<Item = (usize, &[u8])> {
    let first = (unit - offset % unit).min(bytes.len());
    let (head, rest) = bytes.split_at(first);
    let body = rest.chunks(unit).enumerate();
    std::iter::once((offset, head))
        .chain(body.map(move |(index, part)| (offset + first + index * unit, part)))
}

impl Change {
    fn apply(self, to: &mut Vec<u8>) {
        match self {
            Self::Write { offset, bytes, .. } => apply(to, offset, &bytes),
            Self::Extend(bytes) => to.resize(bytes.max(to.len()), 0),
        }
    }

    /// What is left of it when these bytes of the file are safe.
    fn without(self, kept: &Range<usize>) -> Vec<Self> {
        let Self::Write { offset, bytes, unit } = self else { return vec![self] };
        let end = offset + bytes.len();
        if kept.end <= offset || end <= kept.start {
            return vec![Self::Write { offset, bytes, unit }];
        }
        let part = |from: usize, to: usize| {
            let bytes = bytes.get(from - offset..to - offset).filter(|part| !part.is_empty())?;
            Some(Self::Write { offset: from, bytes: bytes.to_vec(), unit })
        };
        let before = part(offset, kept.start.max(offset));
        let after = part(kept.end.min(end), end);
        [before, after].into_iter().flatten().collect()
    }
}

impl NameChange {
    fn apply(self, names: &mut BTreeMap<PathBuf, FileId>) {
        match self {
            Self::Link(path, id) => {
                names.insert(path, id);
            }
            Self::Unlink(path) => {
                names.remove(&path);
            }
            Self::Rename(from, to) => {
                if let Some(id) = names.remove(&from) {
                    names.insert(to, id);
                }
            }
        }
    }
}

fn apply(to: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if to.len() < end {
        to.resize(end, 0);
    }
    if let Some(part) = to.get_mut(offset..end) {
        part.copy_from_slice(bytes);
    }
}
