//! A process's view of its disk: dead with the process, failing where it was told to.
//!
//! Owns nothing but the way through. The disk itself, with what it loses in a power cut, is the
//! journal's own double.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cachetier_journal::file_system::{
    DaxFileSystem, DirectoryLock, Fault, FaultyFileSystem, File, FileSystem, Operation,
};
use tokio::time::Instant;

use crate::line::{Line, Step};

const EIO: i32 = 5;

/// See the module.
#[derive(Clone)]
pub struct Volume {
    disk: FaultyFileSystem,
    /// The way to its files: the disk itself, or the same in persistent memory.
    files: Arc<dyn FileSystem>,
    line: Arc<Line>,
}

impl Volume {
    pub fn new(disk: FaultyFileSystem, line: Arc<Line>, dax: bool) -> Self {
        let files: Arc<dyn FileSystem> = Arc::new(disk.clone());
        let files = match dax {
            true => Arc::new(DaxFileSystem::new(files, Arc::new(disk.clone()))),
            false => files,
        };
        Self { disk, files, line }
    }

    fn step(&self) -> io::Result<()> {
        if self.line.dies_at(Step::Disk) { Err(broken()) } else { Ok(()) }
    }

    fn wrap(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(VolumeFile { file, volume: self.clone() })
    }
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").finish_non_exhaustive()
    }
}

fn broken() -> io::Error {
    io::Error::from_raw_os_error(EIO)
}

/// Takes one from a number of failures to come.
fn spend(line: &Line, failing: &AtomicU32) -> bool {
    let spent = failing.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1));
    if spent.is_ok() {
        line.disk_failed.lock().get_or_insert_with(Instant::now);
    }
    spent.is_ok()
}

impl FileSystem for Volume {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.step()?;
        self.files.create_dir_all(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<DirectoryLock> {
        self.step()?;
        self.files.lock(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        self.step()?;
        self.files.list(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.step()?;
        Ok(self.wrap(self.files.create(path)?))
    }

    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>> {
        self.step()?;
        Ok(self.wrap(self.files.open(path, write)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        self.files.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        self.files.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.step()?;
        self.files.sync_dir(dir)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<Option<u64>> {
        self.files.free_bytes(dir)
    }
}

#[derive(Debug)]
struct VolumeFile {
    file: Arc<dyn File>,
    volume: Volume,
}

impl File for VolumeFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let alive = !self.volume.line.is_dead();
        if alive && spend(&self.volume.line, &self.volume.line.failing_writes) {
            let part = bytes.get(..bytes.len() / 2).unwrap_or_default();
            self.file.write_at(part, offset)?;
            return Err(broken());
        }
        self.volume.step()?;
        self.file.write_at(bytes, offset)
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.volume.step()?;
        self.file.allocate(bytes)
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.volume.step()?;
        self.file.set_size(bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.volume.step()?;
        if spend(&self.volume.line, &self.volume.line.failing_syncs) {
            // the pages are dropped, as a kernel does, and the next sync would succeed
            self.volume.disk.set_faults(|operation| {
                matches!(operation, Operation::Sync(_)).then_some(Fault::Error(EIO))
            });
            let failed = self.file.sync_data();
            self.volume.disk.clear_faults();
            return failed;
        }
        self.file.sync_data()
    }
}
