//! Image files on the volume: written beside the old one, synced, then put in its place.
//!
//! Owns the folder `images` in the journal's directory. All calls block. Must never patch a file in
//! place, nor try a failed sync again: what could not be written is removed and written anew.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cachetier_journal::file_system::{File, FileSystem, read_full_at, write_all_at};
use crc32c::crc32c;

use super::format::{
    BUNDLE_SLOTS, BUNDLES, DIRECTORY_BYTES, Directory, Entry, Unfit, decode, encode,
};

const FOLDER: &str = "images";
const SUFFIX: &str = "image";
const NEXT_SUFFIX: &str = "next";

#[derive(Clone, Debug)]
pub(crate) struct ImageFiles {
    fs: Arc<dyn FileSystem>,
    journal_dir: PathBuf,
    dir: PathBuf,
}

/// A file that is being written.
pub(crate) struct Draft {
    file: Arc<dyn File>,
    bundle: usize,
    at: u64,
    /// Its space was allocated, more than it may need.
    cut: bool,
}

impl ImageFiles {
    pub(crate) fn new(fs: Arc<dyn FileSystem>, journal_dir: &Path) -> Self {
        Self { fs, journal_dir: journal_dir.to_owned(), dir: journal_dir.join(FOLDER) }
    }

    fn path(&self, bundle: usize, suffix: &str) -> PathBuf {
        self.dir.join(format!("slots-{:04}.{suffix}", bundle * BUNDLE_SLOTS))
    }

    /// Makes the folder, and removes drafts that were not finished.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        self.fs.create_dir_all(&self.dir)?;
        self.fs.sync_dir(&self.journal_dir)?;
        for path in self.fs.list(&self.dir)? {
            if path.extension().is_some_and(|e| e == NEXT_SUFFIX) {
                self.fs.remove(&path)?;
            }
        }
        Ok(())
    }

    /// Bytes that may still be written to the volume; `None`: no limit is known.
    pub(crate) fn free_bytes(&self) -> io::Result<Option<u64>> {
        self.fs.free_bytes(&self.journal_dir)
    }

    /// A new file; `room`: about as many bytes as its slots need, which a volume that is written by
    /// stores wants to know before.
    pub(crate) fn begin(&self, bundle: usize, room: u64) -> io::Result<Draft> {
        let path = self.path(bundle, NEXT_SUFFIX);
        match self.fs.remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = self.fs.create(&path)?;
        let at = DIRECTORY_BYTES as u64;
        let cut = self.fs.maps_files();
        if cut {
            file.allocate(at + room)?;
        }
        Ok(Draft { file, bundle, at, cut })
    }

    /// Puts a finished draft in the place of the file before it.
    pub(crate) fn publish(&self, draft: &Draft) -> io::Result<()> {
        let to = self.path(draft.bundle, SUFFIX);
        self.fs.rename(&self.path(draft.bundle, NEXT_SUFFIX), &to)?;
        self.fs.sync_dir(&self.dir)
    }

    /// A draft that came to nothing; what cannot be removed goes with the next start.
    pub(crate) fn discard(&self, bundle: usize) {
        if let Err(error) = self.fs.remove(&self.path(bundle, NEXT_SUFFIX)) {
            tracing::debug!(%error, "no draft of an image to remove");
        }
    }

    /// Removes the file of these slots; true when there was one.
    pub(crate) fn remove(&self, bundle: usize) -> io::Result<bool> {
        match self.fs.remove(&self.path(bundle, SUFFIX)) {
            Ok(()) => self.fs.sync_dir(&self.dir).map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes them all.
    pub(crate) fn remove_all(&self) -> io::Result<()> {
        match self.present() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(all) => all.into_iter().try_for_each(|bundle| self.remove(bundle).map(|_| ())),
        }
    }

    /// The files there are, by their numbers.
    pub(crate) fn present(&self) -> io::Result<Vec<usize>> {
        let paths = self.fs.list(&self.dir)?;
        Ok((0..BUNDLES).filter(|bundle| paths.contains(&self.path(*bundle, SUFFIX))).collect())
    }

    fn open(&self, bundle: usize) -> Result<Option<Arc<dyn File>>, Unfit> {
        match self.fs.open(&self.path(bundle, SUFFIX), false) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unreadable(&error)),
        }
    }

    /// What the file of these slots holds; `None` when there is none.
    pub(crate) fn directory(&self, bundle: usize, layout: u8) -> Result<Option<Directory>, Unfit> {
        let Some(file) = self.open(bundle)? else { return Ok(None) };
        let mut bytes = vec![0; DIRECTORY_BYTES];
        let read = read_full_at(file.as_ref(), &mut bytes, 0).map_err(|e| unreadable(&e))?;
        let directory = decode(bytes.get(..read).unwrap_or_default(), layout)?;
        let first = bundle * BUNDLE_SLOTS;
        let own = first..first + BUNDLE_SLOTS;
        let whole = directory.entries.iter().all(|e| own.contains(&e.slot.index()));
        if whole { Ok(Some(directory)) } else { Err(Unfit::Damaged) }
    }

    /// The bytes of one slot, which begin at `offset`, checked.
    pub(crate) fn body(&self, bundle: usize, offset: u64, entry: &Entry) -> Result<Vec<u8>, Unfit> {
        let file = self.open(bundle)?.ok_or(Unfit::Unreadable)?;
        let size = file.size().map_err(|e| unreadable(&e))?;
        if offset.checked_add(entry.bytes).is_none_or(|end| end > size) {
            return Err(Unfit::Damaged);
        }
        let mut bytes = vec![0; entry.bytes as usize];
        let read = read_full_at(file.as_ref(), &mut bytes, offset).map_err(|e| unreadable(&e))?;
        let right = read == bytes.len() && crc32c(&bytes) == entry.checksum;
        if right || cachetier_defects::on("image-unchecked") {
            Ok(bytes)
        } else {
            Err(Unfit::Damaged)
        }
    }
}

impl Draft {
    /// Appends the bytes of the next slot.
    pub(crate) fn append(&mut self, body: &[u8]) -> io::Result<()> {
        write_all_at(self.file.as_ref(), body, self.at)?;
        self.at += body.len() as u64;
        Ok(())
    }

    /// Writes the directory and makes the file survive a power cut. Returns its length.
    pub(crate) fn finish(&self, directory: &Directory) -> io::Result<u64> {
        write_all_at(self.file.as_ref(), &encode(directory), 0)?;
        if self.cut {
            self.file.set_size(self.at)?;
        }
        self.file.sync_data()?;
        Ok(self.at)
    }
}

fn unreadable(error: &io::Error) -> Unfit {
    tracing::debug!(%error, "an image cannot be read");
    Unfit::Unreadable
}
