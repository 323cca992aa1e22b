//! The control file on disk: read once at start, replaced whole on each change.
//!
//! Owns `control` and its successor `control.next`, which is kept allocated so that a full volume
//! does not keep a trim from making room. A change is written to the successor, synced, renamed
//! over the old one, and the directory is synced. Never patches in place; never retries a failed
//! sync (the caller latches).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{IoContext, JournalError};
use crate::file_system::{FileSystem, read_full_at, write_all_at};
use crate::format::FORMAT_VERSION;
use crate::format::control::{CONTROL_BYTES_MAX, Control, decode_control, encode_control};
use crate::format::segment::HeaderError;

/// Name of the file.
pub(crate) const CONTROL_NAME: &str = "control";
const NEXT_NAME: &str = "control.next";
/// Space kept for the successor beyond twice the present size.
const RESERVE_BYTES_MIN: u64 = 64 << 10;

/// Reads the control file; `None` if there is none.
pub(crate) fn load(fs: &dyn FileSystem, dir: &Path) -> Result<Option<Control>, JournalError> {
    let path = dir.join(CONTROL_NAME);
    let file = match fs.open(&path, false) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).during("open", &path),
    };
    let size = file.size().during("read the size of", &path)?;
    // reserve included, a valid file is at most twice the limit and a bit
    let readable = size.min(3 * CONTROL_BYTES_MAX as u64) as usize;
    let mut bytes = vec![0; readable];
    let read = read_full_at(file.as_ref(), &mut bytes, 0).during("read", &path)?;
    bytes.truncate(read);
    match decode_control(&bytes) {
        Ok(control) => Ok(Some(control)),
        Err(HeaderError::Version(version)) => {
            Err(JournalError::Version { file: path, version, known: FORMAT_VERSION })
        }
        Err(HeaderError::Invalid(what)) => {
            Err(JournalError::Damaged { file: path, offset: 0, what: what.to_owned() })
        }
    }
}

/// The present content and the way to replace it.
#[derive(Debug)]
pub(crate) struct ControlFile {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    /// What is durably on disk (or was found there).
    current: Control,
}

impl ControlFile {
    pub fn new(fs: Arc<dyn FileSystem>, dir: PathBuf, current: Control) -> Self {
        Self { fs, dir, current }
    }

    pub fn current(&self) -> &Control {
        &self.current
    }

    /// Replaces the file; `next` is durable and current when this returns.
    pub fn store(&mut self, next: Control) -> Result<(), JournalError> {
        let encoded = encode_control(&next);
        let path = self.dir.join(NEXT_NAME);
        let file = match self.fs.open(&path, true) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                self.fs.create(&path).during("create", &path)?
            }
            Err(error) => return Err(error).during("open", &path),
        };
        write_all_at(file.as_ref(), &encoded, 0).during("write", &path)?;
        file.sync_data().during("sync", &path)?;
        let target = self.dir.join(CONTROL_NAME);
        self.fs.rename(&path, &target).during("rename over", &target)?;
        self.fs.sync_dir(&self.dir).during("sync directory", &self.dir)?;
        self.current = next;
        self.reserve(encoded.len() as u64);
        Ok(())
    }

    /// Allocates the next successor. Failing is no loss: the next store then needs space.
    fn reserve(&self, bytes: u64) {
        let path = self.dir.join(NEXT_NAME);
        let reserved =
            self.fs.create(&path).and_then(|file| file.allocate(2 * bytes + RESERVE_BYTES_MIN));
        if let Err(error) = reserved {
            tracing::debug!(%error, "no reserve for the next control file");
        }
    }
}
