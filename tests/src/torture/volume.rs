//! A small volume for a journal, that can be filled to the last byte and freed again.

use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Room for the journal and its control files.
const SIZE: &str = "size=24m";
static PIECE: [u8; 64 << 10] = [0; 64 << 10];

/// A mounted file system in memory; unmounted with the value.
pub struct Volume {
    directory: PathBuf,
}

impl Volume {
    pub fn mount(directory: &Path) -> Result<Self> {
        std::fs::create_dir_all(directory)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", SIZE, "torture"]).arg(directory);
        let status = mount.status().context("starting mount")?;
        ensure!(status.success(), "mounting a small volume failed; are we root?");
        Ok(Self { directory: directory.to_owned() })
    }

    fn filler(&self) -> PathBuf {
        self.directory.join("filler")
    }

    /// Takes all space that is left.
    pub fn fill(&self) -> Result<()> {
        let mut file = File::create(self.filler())?;
        // ends with the error that is wanted
        while file.write_all(&PIECE).is_ok() {}
        Ok(())
    }

    pub fn free(&self) -> Result<()> {
        match std::fs::remove_file(self.filler()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // lazily: a node that is being ended may still have it open
        let _ = Command::new("umount").arg("-l").arg(&self.directory).status();
    }
}
