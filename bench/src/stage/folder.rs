//! Folders of a stage. They go with the value; those of a process that was killed go when the next
//! stage makes one.
//!
//! A folder is locked for as long as its owner lives, and the kernel lets go of the lock however
//! the owner ends: no process id has to be believed. Must never remove a folder that is locked.

use anyhow::{Context, Result};
use std::fs::File;
use std::path::Path;
use tempfile::TempDir;

const PREFIX: &str = "cachetier-stage-";

/// A temporary folder, removed with the value or after it.
pub struct Folder {
    directory: TempDir,
    /// Held, not read.
    _lock: File,
}

impl Folder {
    pub fn new() -> Result<Self> {
        Self::below(&std::env::temp_dir())
    }

    /// In this folder instead of the system's for temporary files.
    pub fn below(parent: &Path) -> Result<Self> {
        // one at a time: a folder that is made and not locked yet looks like one left behind
        let turn = File::open(parent).with_context(|| format!("opening {}", parent.display()))?;
        turn.lock().with_context(|| format!("locking {}", parent.display()))?;
        remove_left_behind(parent)?;
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        let lock = File::open(directory.path())?;
        lock.try_lock().context("locking a folder just made")?;
        Ok(Self { directory, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

fn remove_left_behind(parent: &Path) -> Result<()> {
    for entry in std::fs::read_dir(parent)? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let unowned = File::open(entry.path()).is_ok_and(|folder| folder.try_lock().is_ok());
        if unowned {
            // a server that is still ending may write into it: then the stage after this one
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_left_behind_goes_with_the_next_and_one_in_use_stays() {
        let parent = tempfile::tempdir().unwrap();
        let left = parent.path().join(format!("{PREFIX}killed"));
        std::fs::create_dir_all(left.join("data")).unwrap();
        let used = Folder::below(parent.path()).unwrap();
        assert!(!left.exists());
        let next = Folder::below(parent.path()).unwrap();
        assert!(used.path().exists() && next.path() != used.path());
        drop((used, next));
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
