//! The handle: everything a caller can ask of an open journal.
#![allow(clippy::unimplemented, unused_variables)] // signatures first; bodies follow

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;
use uuid::Uuid;

use crate::file_system::FileSystem;
use crate::{AppendError, InDoubt, JournalError, JournalOptions, Sequence, Watermarks};

/// One entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub sequence: Sequence,
    /// The caller's, 1 to 255.
    pub kind: u8,
    pub payload: Bytes,
}

/// What was found when the journal was opened.
#[derive(Clone, Debug)]
pub struct Recovery {
    /// True if the directory was empty and a new journal was made.
    pub created: bool,
    /// True if the previous process closed the journal in order.
    pub clean: bool,
    /// The generation opened now.
    pub generation: u32,
    /// Everything up to here was trimmed earlier.
    pub trimmed: Sequence,
    /// Last frame found; everything found counts as synced.
    pub last: Sequence,
    /// Frames found.
    pub frames: u64,
    /// Bytes of an unfinished write that were cut off.
    pub torn_bytes: u64,
}

/// Frames in order, read from the files.
pub struct FrameReader {}

impl Iterator for FrameReader {
    type Item = Result<Frame, JournalError>;

    fn next(&mut self) -> Option<Self::Item> {
        unimplemented!()
    }
}

/// Figures for status and metrics.
#[derive(Clone, Debug, Default)]
pub struct JournalStats {
    pub segments: usize,
    /// Bytes of segment files on the volume, reserved space included.
    pub bytes: u64,
    pub capacity_bytes: u64,
    /// Accepted and not yet written.
    pub queued_bytes: usize,
    pub appended: Sequence,
    pub written: Sequence,
    pub durable: Sequence,
    pub synced: Sequence,
    pub trimmed: Sequence,
    pub frames_appended: u64,
    pub bytes_written: u64,
    pub commits: u64,
    pub syncs: u64,
    /// Time spent in syncs.
    pub sync_nanos: u64,
    /// Why frames are refused now; heals by itself.
    pub blocked: Option<Arc<str>>,
    /// Why the journal stopped for good.
    pub latched: Option<Arc<str>>,
}

/// An open journal. Cheap to clone; the files are let go when the last clone is dropped.
#[derive(Clone)]
pub struct Journal {}

impl Journal {
    /// Opens the journal in `dir`, making one where there is none; takes the directory lock, cuts
    /// a torn tail, refuses damage, opens a new generation and starts the writer thread. Blocks.
    pub fn open(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        options: JournalOptions,
    ) -> Result<(Self, Recovery), JournalError> {
        unimplemented!()
    }

    /// Identity of this journal, random at its creation.
    pub fn id(&self) -> Uuid {
        unimplemented!()
    }

    /// Accepts a frame and gives it its place. Never waits for I/O: copies the payload into the
    /// bounded group-commit buffer. In order: a call that returned earlier has the lower sequence.
    pub fn append(&self, kind: u8, payload: &[u8]) -> Result<Sequence, AppendError> {
        unimplemented!()
    }

    /// Last sequence that is durable at the configured level.
    pub fn durable(&self) -> Sequence {
        unimplemented!()
    }

    /// Last sequence that survives a power cut; at most this may leave for the backend.
    pub fn synced(&self) -> Sequence {
        unimplemented!()
    }

    /// All positions, and every change of them.
    pub fn watch(&self) -> watch::Receiver<Watermarks> {
        unimplemented!()
    }

    /// Returns once `sequence` is durable at the configured level.
    pub async fn wait_durable(&self, sequence: Sequence) -> Result<(), InDoubt> {
        unimplemented!()
    }

    /// Returns once `sequence` is synced, whatever the level.
    pub async fn wait_synced(&self, sequence: Sequence) -> Result<(), InDoubt> {
        unimplemented!()
    }

    /// Allows whole segments whose last sequence is at most `upto` to be dropped; the writer
    /// thread does it. Never goes back.
    pub fn trim(&self, upto: Sequence) {
        unimplemented!()
    }

    /// Frames from `from` on (inclusive) up to what is synced now. Blocks on reads; errors with
    /// `Trimmed` if frames at or after `from` are gone.
    pub fn read_from(&self, from: Sequence) -> Result<FrameReader, JournalError> {
        unimplemented!()
    }

    /// A value of the control file.
    pub fn attribute(&self, key: &str) -> Option<Vec<u8>> {
        unimplemented!()
    }

    /// Sets (or with `None` removes) attributes together; durable when it returns. Blocks on I/O:
    /// call it from a blocking task.
    pub fn set_attributes(&self, changes: &[(&str, Option<&[u8]>)]) -> Result<(), JournalError> {
        unimplemented!()
    }

    /// Sets one attribute; durable when it returns. Blocks on I/O.
    pub fn set_attribute(&self, key: &str, value: &[u8]) -> Result<(), JournalError> {
        self.set_attributes(&[(key, Some(value))])
    }

    /// Figures now.
    pub fn stats(&self) -> JournalStats {
        unimplemented!()
    }

    /// Writes and syncs what was accepted, marks the journal clean, lets the files go.
    pub async fn close(self) -> Result<(), JournalError> {
        unimplemented!()
    }
}
