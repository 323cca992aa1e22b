//! The operating system's file system.
//!
//! Owns the mapping of the seam onto system calls. Never caches a handle or a result.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, statvfs};
use rustix::io::Errno;

use super::{DirectoryLock, File, FileSystem};

/// Goes straight to the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealFileSystem;

impl FileSystem for RealFileSystem {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<DirectoryLock> {
        let open = |write| OpenOptions::new().read(true).write(write).create(write).open(path);
        // on a read-only volume the lock file is there already and flock needs no write access
        let file = open(true).or_else(|error| match error.kind() {
            io::ErrorKind::ReadOnlyFilesystem => open(false),
            _ => Err(error),
        })?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(file))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                paths.push(entry.path());
            }
        }
        paths.sort();
        Ok(paths)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(RealFile(OpenOptions::new().read(true).write(write).open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<Option<u64>> {
        let volume = statvfs(dir)?;
        Ok(Some(volume.f_bavail.saturating_mul(volume.f_frsize)))
    }
}

#[derive(Debug)]
struct RealFile(fs::File);

impl RealFile {
    /// Reserves space on a file system that cannot allocate without writing.
    fn write_zeros(&self, bytes: u64) -> io::Result<()> {
        let zeros = [0; 64 << 10];
        let mut at = self.size()?;
        while at < bytes {
            let step = (bytes - at).min(zeros.len() as u64) as usize;
            at += self.write_at(zeros.get(..step).unwrap_or(&zeros), at)? as u64;
        }
        Ok(())
    }
}

impl File for RealFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(bytes, offset)
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        match fallocate(&self.0, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::OPNOTSUPP) => self.write_zeros(bytes),
            result => Ok(result?),
        }
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)?;
        self.0.sync_all()
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
