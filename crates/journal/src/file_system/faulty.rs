//! A disk in memory that fails on request.
//!
//! Owns a model of what a real disk promises and no more: content is volatile until its file is
//! synced, names are volatile until their directory is. A *power cut* keeps the synced state plus
//! a seeded selection of the rest: any subset of the sectors of unsynced writes, and any prefix
//! of unsynced directory changes. Faults are decided by a function the test supplies, called for
//! every operation. Checked against the real file system by the same suite (`tests/file_system`).

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::dax::{Lines, Medium};
use super::{DirectoryLock, File, FileSystem};

mod disk;

pub use disk::PowerCut;
use disk::{Disk, FileId};

/// What is about to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    Lock,
    List,
    Create(PathBuf),
    Open(PathBuf),
    Rename { from: PathBuf, to: PathBuf },
    Remove(PathBuf),
    SyncDir,
    Read { path: PathBuf, offset: u64, bytes: usize },
    Write { path: PathBuf, offset: u64, bytes: usize },
    Allocate { path: PathBuf, bytes: u64 },
    SetSize { path: PathBuf, bytes: u64 },
    Sync(PathBuf),
}

/// What goes wrong with it.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Fails with this error number; nothing was done. A failed sync drops the unsynced pages: a
    /// later sync succeeds and they are still lost.
    Error(i32),
    /// Only this many bytes are read or written, without an error.
    Short(usize),
    /// A write of which this many bytes reach the file, and then an error.
    Torn { bytes: usize, errno: i32 },
    /// Takes this long.
    Slow(Duration),
    /// Takes until the gate is opened.
    Held(Gate),
}

/// Holds operations back until it is opened; then it stays open. Clones are the same gate.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    /// Lets everything through from now on.
    pub fn open(&self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let mut open = self.0.0.lock();
        while !*open {
            self.0.1.wait(&mut open);
        }
    }
}

type Decide = dyn FnMut(&Operation) -> Option<Fault> + Send;

/// The disk. Cheap to clone; clones are the same disk.
#[derive(Clone)]
pub struct FaultyFileSystem {
    disk: Arc<Mutex<Disk>>,
    decide: Arc<Mutex<Box<Decide>>>,
}

impl Default for FaultyFileSystem {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for FaultyFileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultyFileSystem").finish_non_exhaustive()
    }
}

impl FaultyFileSystem {
    /// An empty disk without limit or fault.
    pub fn new() -> Self {
        Self {
            disk: Arc::new(Mutex::new(Disk::default())),
            decide: Arc::new(Mutex::new(Box::new(|_| None))),
        }
    }

    /// Asks `decide` before every operation from now on.
    pub fn set_faults(&self, decide: impl FnMut(&Operation) -> Option<Fault> + Send + 'static) {
        *self.decide.lock() = Box::new(decide);
    }

    /// No more faults.
    pub fn clear_faults(&self) {
        self.set_faults(|_| None);
    }

    /// Bytes the disk holds before it is full; `None`: no limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.disk.lock().capacity_bytes = bytes;
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> u64 {
        self.disk.lock().used_bytes()
    }

    /// Everything that changes something is refused while set.
    pub fn set_read_only(&self, read_only: bool) {
        self.disk.lock().read_only = read_only;
    }

    /// The machine loses power: open files are dead, locks are gone, what was not synced is there
    /// or not as `cut` draws it.
    pub fn cut_power(&self, cut: PowerCut) {
        self.disk.lock().cut_power(cut);
    }

    /// The process is killed: open files are dead, locks are gone, all that was written stays.
    pub fn kill_process(&self) {
        self.disk.lock().next_life();
    }

    /// Another disk with the same content: the volume was copied. No process has it open, and it
    /// has no faults.
    pub fn copy(&self) -> Self {
        let mut disk = self.disk.lock().clone();
        disk.next_life();
        Self { disk: Arc::new(Mutex::new(disk)), ..Self::new() }
    }

    /// Content of a file as it would be read now.
    pub fn content(&self, path: &Path) -> Option<Vec<u8>> {
        self.disk.lock().content(path)
    }

    /// Replaces the content of a file, synced: for planting damage.
    pub fn plant(&self, path: &Path, content: Vec<u8>) {
        self.disk.lock().plant(path, content);
    }

    /// All files with their present content, in order of their names.
    pub fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        self.disk.lock().files()
    }

    /// Lets the faults have their way with an operation; `Short` and `Torn` are for the caller.
    fn meet(&self, operation: Operation) -> io::Result<Option<Fault>> {
        let fault = (self.decide.lock())(&operation);
        match fault {
            Some(Fault::Error(errno)) => Err(io::Error::from_raw_os_error(errno)),
            Some(Fault::Slow(time)) => {
                std::thread::sleep(time);
                Ok(None)
            }
            Some(Fault::Held(gate)) => {
                gate.pass();
                Ok(None)
            }
            fault => Ok(fault),
        }
    }

    fn handle(&self, id: FileId, life: u64, writable: bool) -> Arc<dyn File> {
        Arc::new(FaultyFile { fs: self.clone(), id, life, writable })
    }
}

impl FileSystem for FaultyFileSystem {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.disk.lock().create_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<DirectoryLock> {
        self.meet(Operation::Lock)?;
        let life = self.disk.lock().take_lock(path)?;
        Ok(Box::new(HeldLock { fs: self.clone(), path: path.to_owned(), life }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        self.meet(Operation::List)?;
        self.disk.lock().list(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.meet(Operation::Create(path.to_owned()))?;
        let (id, life) = self.disk.lock().create(path)?;
        Ok(self.handle(id, life, true))
    }

    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>> {
        self.meet(Operation::Open(path.to_owned()))?;
        let (id, life) = self.disk.lock().open(path, write)?;
        Ok(self.handle(id, life, write))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.meet(Operation::Rename { from: from.to_owned(), to: to.to_owned() })?;
        self.disk.lock().rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.meet(Operation::Remove(path.to_owned()))?;
        self.disk.lock().remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.meet(Operation::SyncDir)?;
        self.disk.lock().sync_dir(dir)
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<Option<u64>> {
        let disk = self.disk.lock();
        Ok(disk.capacity_bytes.map(|capacity| capacity.saturating_sub(disk.used_bytes())))
    }
}

struct HeldLock {
    fs: FaultyFileSystem,
    path: PathBuf,
    life: u64,
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        self.fs.disk.lock().release_lock(&self.path, self.life);
    }
}

/// The same disk as persistent memory: what was stored and not flushed, or flushed and not fenced, is
/// there or not after a power cut, line by line.
impl Medium for FaultyFileSystem {
    fn map(&self, path: &Path, _bytes: u64) -> io::Result<Arc<dyn Lines>> {
        let (id, life) = self.disk.lock().open(path, true)?;
        Ok(Arc::new(FaultyLines { fs: self.clone(), id, life, flushed: Mutex::default() }))
    }
}

#[derive(Debug)]
struct FaultyLines {
    fs: FaultyFileSystem,
    id: FileId,
    life: u64,
    /// Lines on their way to the medium, as they were when they were flushed, and by whom.
    flushed: Mutex<Vec<(ThreadId, usize, Vec<u8>)>>,
}

impl Lines for FaultyLines {
    fn store(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut disk = self.fs.disk.lock();
        disk.check_life(self.life)?;
        disk.store(self.id, bytes, offset as usize)
    }

    fn flush(&self, offset: u64) {
        let line = self.fs.disk.lock().line(self.id, offset as usize);
        if let Ok(line) = line {
            self.flushed.lock().push((std::thread::current().id(), offset as usize, line));
        }
    }

    fn fence(&self) -> io::Result<()> {
        let mut disk = self.fs.disk.lock();
        disk.check_life(self.life)?;
        let own = std::thread::current().id();
        let flushed = self.flushed.lock().extract_if(.., |(by, ..)| *by == own).collect::<Vec<_>>();
        flushed.iter().try_for_each(|(_, offset, line)| disk.keep_line(self.id, line, *offset))
    }
}

#[derive(Debug)]
struct FaultyFile {
    fs: FaultyFileSystem,
    id: FileId,
    /// Handles of an earlier life of the machine are dead.
    life: u64,
    writable: bool,
}

impl FaultyFile {
    fn with<T>(&self, act: impl FnOnce(&mut Disk) -> io::Result<T>) -> io::Result<T> {
        let mut disk = self.fs.disk.lock();
        disk.check_life(self.life)?;
        act(&mut disk)
    }

    /// The name it has now.
    fn path(&self) -> PathBuf {
        self.fs.disk.lock().name_of(self.id)
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.writable { Ok(()) } else { Err(io::Error::from_raw_os_error(EBADF)) }
    }
}

const EBADF: i32 = 9;

impl File for FaultyFile {
    fn size(&self) -> io::Result<u64> {
        self.with(|disk| disk.size(self.id))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let (path, bytes) = (self.path(), buffer.len());
        let fault = self.fs.meet(Operation::Read { path, offset, bytes })?;
        let bytes = match fault {
            Some(Fault::Short(short)) => bytes.min(short.max(1)),
            _ => bytes,
        };
        let part = buffer.get_mut(..bytes).unwrap_or_default();
        self.with(|disk| disk.read(self.id, part, offset))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.check_writable()?;
        let path = self.path();
        let fault = self.fs.meet(Operation::Write { path, offset, bytes: bytes.len() })?;
        let (wanted, error) = match fault {
            Some(Fault::Short(short)) => (bytes.len().min(short.max(1)), None),
            Some(Fault::Torn { bytes: torn, errno }) => (bytes.len().min(torn), Some(errno)),
            _ => (bytes.len(), None),
        };
        let part = bytes.get(..wanted).unwrap_or_default();
        let written = self.with(|disk| disk.write(self.id, part, offset))?;
        match error {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Ok(written),
        }
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.check_writable()?;
        self.fs.meet(Operation::Allocate { path: self.path(), bytes })?;
        self.with(|disk| disk.allocate(self.id, bytes))
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.check_writable()?;
        self.fs.meet(Operation::SetSize { path: self.path(), bytes })?;
        self.with(|disk| disk.set_size(self.id, bytes))
    }

    fn sync_data(&self) -> io::Result<()> {
        if let Err(error) = self.fs.meet(Operation::Sync(self.path())) {
            self.with(|disk| disk.lose_unsynced(self.id))?;
            return Err(error);
        }
        self.with(|disk| disk.sync(self.id))
    }
}
