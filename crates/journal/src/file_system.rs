//! The seam between the journal and the disk.
//!
//! Owns the two traits every byte of the journal goes through, so that a double can tear writes,
//! lose pages and cut the power. Positioned I/O only, no buffering, no retries: what a call
//! returned is what the journal decides on. Paths are handed through unchanged.

use std::any::Any;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub mod dax;

mod faulty;
mod real;

pub use dax::DaxFileSystem;
pub use faulty::{Fault, FaultyFileSystem, Gate, Operation, PowerCut};
pub use real::RealFileSystem;

/// Held for as long as a directory is ours; dropping it lets go.
pub type DirectoryLock = Box<dyn Any + Send + Sync>;

/// Directory operations. All calls block.
pub trait FileSystem: Send + Sync + std::fmt::Debug + 'static {
    /// Makes the directory and its parents where they are missing.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// Takes an exclusive lock by way of the named file; `WouldBlock` if another holds it.
    fn lock(&self, path: &Path) -> io::Result<DirectoryLock>;
    /// All files of a directory, in order of their names.
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>>;
    /// Makes an empty file for reading and writing; `AlreadyExists` if there is one.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Opens a file, for writing too where `write` says so.
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>>;
    /// Renames, replacing what has the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a name; open files stay readable.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes all creations, renames and removals in the directory survive a power cut.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Bytes that may still be written to the directory's volume; `None`: no limit is known.
    fn free_bytes(&self, dir: &Path) -> io::Result<Option<u64>>;
    /// Whether files are written by stores into their mapping once their space is allocated.
    fn maps_files(&self) -> bool {
        false
    }
}

/// One open file. All calls block; one writer at a time, readers beside it.
pub trait File: Send + Sync + std::fmt::Debug + 'static {
    /// Length in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Reads up to `buffer.len()` bytes; fewer only at the end of the file or by chance.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes a prefix of `bytes`, at least one byte, and says how much.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;
    /// Reserves space up to `bytes`, reading as zeros, so that writing there needs no more.
    fn allocate(&self, bytes: u64) -> io::Result<()>;
    /// Cuts the file; the new length survives a power cut when it returns.
    fn set_size(&self, bytes: u64) -> io::Result<()>;
    /// Makes the content, and the length where it changed, survive a power cut.
    fn sync_data(&self) -> io::Result<()>;
}

/// Writes all of `bytes`, however short the single writes are.
pub fn write_all_at(file: &dyn File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = file.write_at(bytes, offset)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = bytes.get(written..).unwrap_or_default();
        offset += written as u64;
    }
    Ok(())
}

/// Fills `buffer` as far as the file goes and says how far.
pub fn read_full_at(file: &dyn File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
