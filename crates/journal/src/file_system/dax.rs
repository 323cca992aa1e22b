//! Persistent memory under the journal: files of a direct-access (DAX) volume are written by
//! storing into their mapping, and are safe once the stored cache lines are flushed and fenced. No
//! system call is on the way of a commit.
//!
//! Owns which files are mapped, and the order *store, flush every line touched, fence*: all three by
//! the thread that writes, since a fence is for the flushes of its own processor; a sync, which another
//! thread may do, has nothing left to do. A file whose
//! space is not allocated first (the control file) is written and synced as on any volume.
//! Reads always go to the file: they see what was stored. The memory itself is a [`Medium`], so that
//! a double can drop the lines that were not flushed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use super::{DirectoryLock, File, FileSystem};

mod mapping;

pub use mapping::{FlushBy, PersistentMemory};

/// Unit of what reaches the medium by itself, in bytes.
pub const LINE_BYTES: u64 = 64;
/// Smaller files are not worth a mapping.
const MAPPED_BYTES_MIN: u64 = 16 << 10;
/// Name of the file that a probe makes and removes.
const PROBE_NAME: &str = "dax-probe";

/// A range of a file that lies in persistent memory. Offsets are those of the file.
pub trait Lines: Send + Sync + std::fmt::Debug {
    /// Stores bytes: readers see them at once, a power cut need not leave them.
    fn store(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Sends the line that begins at `offset` on its way to the medium.
    fn flush(&self, offset: u64);
    /// What this thread flushed before survives a power cut when it returns.
    fn fence(&self) -> io::Result<()>;
}

/// Makes mappings of files whose stores survive without a system call.
pub trait Medium: Send + Sync + std::fmt::Debug + 'static {
    /// Maps the first `bytes` of a file, which are allocated, written once and synced. Refused with the
    /// reason where the volume, the kernel or the processor cannot do it.
    fn map(&self, path: &Path, bytes: u64) -> io::Result<Arc<dyn Lines>>;
}

/// A file system on persistent memory; see the module.
#[derive(Clone, Debug)]
pub struct DaxFileSystem {
    files: Arc<dyn FileSystem>,
    medium: Arc<dyn Medium>,
}

impl DaxFileSystem {
    pub fn new(files: Arc<dyn FileSystem>, medium: Arc<dyn Medium>) -> Self {
        Self { files, medium }
    }

    /// Maps a small file in `dir`, which exists: the reason why that cannot be done, if so.
    pub fn probe(&self, dir: &Path) -> io::Result<()> {
        let path = dir.join(PROBE_NAME);
        let old = self.files.remove(&path);
        if let Err(error) = old.as_ref().map_err(io::Error::kind)
            && error != io::ErrorKind::NotFound
        {
            return old;
        }
        let file = self.files.create(&path)?;
        let mapped = prepare(file.as_ref(), MAPPED_BYTES_MIN)
            .and_then(|()| self.medium.map(&path, MAPPED_BYTES_MIN))
            .and_then(|lines| keep(lines.as_ref(), &[1], 0));
        self.files.remove(&path)?;
        mapped
    }

    fn wrap(&self, path: &Path, file: Arc<dyn File>) -> Arc<dyn File> {
        let (medium, path) = (Arc::clone(&self.medium), path.to_owned());
        let (mapped, beside) = (RwLock::new(None), AtomicBool::new(false));
        Arc::new(DaxFile { file, medium, path, mapped, beside })
    }
}

impl FileSystem for DaxFileSystem {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.files.create_dir_all(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<DirectoryLock> {
        self.files.lock(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        self.files.list(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        Ok(self.wrap(path, self.files.create(path)?))
    }

    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>> {
        let file = self.files.open(path, write)?;
        Ok(if write { self.wrap(path, file) } else { file })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.files.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.files.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.files.sync_dir(dir)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<Option<u64>> {
        self.files.free_bytes(dir)
    }

    fn maps_files(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct DaxFile {
    file: Arc<dyn File>,
    medium: Arc<dyn Medium>,
    /// The name it had when it was opened.
    path: PathBuf,
    mapped: RwLock<Option<Mapped>>,
    /// Something was written past the mapping since the last sync.
    beside: AtomicBool,
}

#[derive(Clone, Debug)]
struct Mapped {
    lines: Arc<dyn Lines>,
    bytes: u64,
}

impl DaxFile {
    fn mapped(&self) -> Option<Mapped> {
        self.mapped.read().clone()
    }

    fn map(&self, bytes: u64) -> io::Result<()> {
        prepare(self.file.as_ref(), bytes)?;
        let lines = self.medium.map(&self.path, bytes)?;
        *self.mapped.write() = Some(Mapped { lines, bytes });
        Ok(())
    }
}

impl File for DaxFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let end = offset.saturating_add(bytes.len() as u64);
        match self.mapped().filter(|mapped| end <= mapped.bytes) {
            Some(mapped) => {
                keep(mapped.lines.as_ref(), bytes, offset)?;
                Ok(bytes.len())
            }
            None => {
                // before the write: a sync beside it must not miss it
                self.beside.store(true, Ordering::Release);
                self.file.write_at(bytes, offset)
            }
        }
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.file.allocate(bytes)?;
        if bytes < MAPPED_BYTES_MIN || self.mapped().is_some() {
            return Ok(());
        }
        if let Err(error) = self.map(bytes) {
            // no reason to refuse writes: the file is written and synced as on any volume
            tracing::warn!(path = %self.path.display(), %error, "a file was not mapped");
        }
        Ok(())
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        // a store beyond the end of the file would kill the process
        *self.mapped.write() = None;
        self.file.set_size(bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.mapped.read().is_none() || self.beside.swap(false, Ordering::AcqRel) {
            return self.file.sync_data();
        }
        Ok(())
    }
}

/// Writes zeros over the whole range and syncs them, so that no store has to wait until the file
/// system has noted that a page is written.
fn prepare(file: &dyn File, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; 256 << 10];
    let mut at = 0;
    while at < bytes {
        let step = (bytes - at).min(zeros.len() as u64) as usize;
        super::write_all_at(file, zeros.get(..step).unwrap_or(&zeros), at)?;
        at += step as u64;
    }
    file.sync_data()
}

/// Stores bytes, and returns when each line that holds some of them is safe.
fn keep(lines: &dyn Lines, bytes: &[u8], offset: u64) -> io::Result<()> {
    lines.store(bytes, offset)?;
    let end = offset + bytes.len() as u64;
    let mut line = offset - offset % LINE_BYTES;
    while line < end {
        let last = line + LINE_BYTES >= end;
        if !(last && cachetier_defects::on("dax-last-line-not-flushed")) {
            lines.flush(line);
        }
        line += LINE_BYTES;
    }
    lines.fence()
}
