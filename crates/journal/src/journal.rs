//! The handle: everything a caller can ask of an open journal.
//!
//! Owns the writer thread's life: started by `open`, asked to finish by `close` or when the last
//! handle is dropped. Never does I/O in `append`; what blocks says so.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use uuid::Uuid;

use crate::driver::JournalDriver;
use crate::error::IoContext;
use crate::file_system::FileSystem;
use crate::format::control::{CONTROL_BYTES_MAX, encode_control};
use crate::reader::FrameReader;
use crate::shared::Shared;
use crate::stats::JournalStats;
use crate::{
    AppendError, Durability, InDoubt, JournalError, JournalOptions, Sequence, Stopped, Watermarks,
    open,
};

/// One entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub sequence: Sequence,
    /// The caller's, 1 to 255.
    pub kind: u8,
    pub payload: Bytes,
}

/// What was found when the journal was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Bytes of an unfinished write, with the unused space behind it, that were cut off.
    pub torn_bytes: u64,
}

/// An open journal. Cheap to clone; closed in order when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Journal {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    driver: JournalDriver,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Journal {
    /// Opens the journal in `dir`, making one where there is none; takes the directory lock, cuts
    /// a torn tail, refuses damage, opens a new generation and starts the writer thread. Blocks.
    pub fn open(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        options: JournalOptions,
    ) -> Result<(Self, Recovery), JournalError> {
        let relaxed = options.durability != Durability::Sync;
        let (journal, recovery, driver) = Self::open_driven(fs, dir, options)?;
        if relaxed {
            driver.use_syncer().during("start the syncer thread for", dir)?;
        }
        let thread = std::thread::Builder::new()
            .name("journal-writer".to_owned())
            .spawn(move || driver.run())
            .during("start the writer thread for", dir)?;
        *journal.inner.thread.lock() = Some(thread);
        Ok((journal, recovery))
    }

    /// As [`Journal::open`], but without a thread: the caller drives the writer turn by turn, with
    /// its own clock.
    pub fn open_driven(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        options: JournalOptions,
    ) -> Result<(Self, Recovery, JournalDriver), JournalError> {
        let (writer, recovery) = open::open(fs, dir, options)?;
        let (shared, driver) = (writer.shared().clone(), JournalDriver::new(writer));
        let inner = Inner { shared, driver: driver.clone(), thread: Mutex::new(None) };
        Ok((Self { inner: Arc::new(inner) }, recovery, driver))
    }

    /// Identity of this journal, random at its creation.
    pub fn id(&self) -> Uuid {
        self.inner.shared.journal_id
    }

    /// Accepts a frame and gives it its place. Never waits for I/O: copies the payload into the
    /// bounded group-commit buffer. In order: a call that returned earlier has the lower sequence.
    pub fn append(&self, kind: u8, payload: &[u8]) -> Result<Sequence, AppendError> {
        self.inner.shared.buffer.append(kind, payload)
    }

    /// As [`Journal::append`], but the writer is not woken where the caller can write as well: the
    /// caller calls [`Journal::write_here`] soon, and anyhow before it waits for anything. True:
    /// it must.
    pub fn append_quietly(
        &self,
        kind: u8,
        payload: &[u8],
    ) -> Result<(Sequence, bool), AppendError> {
        let shared = &self.inner.shared;
        if shared.options.durability == Durability::Sync {
            return Ok((shared.buffer.append(kind, payload)?, false));
        }
        shared.buffer.accept(kind, payload)
    }

    /// Writes what is queued, on this thread, where that is a write of some microseconds into
    /// reserved space (at `Relaxed`); else the writer is woken for it. What was queued by then will
    /// be written, by whomever.
    pub fn write_here(&self) {
        if !self.inner.driver.write_queued() {
            self.inner.shared.buffer.signal();
        }
    }

    /// Instead of [`Journal::write_here`]: the writer does it.
    pub fn leave_to_writer(&self) {
        self.inner.shared.buffer.signal();
    }

    /// Last sequence that is durable at the configured level.
    pub fn durable(&self) -> Sequence {
        self.inner.shared.durable()
    }

    /// Last sequence that survives a power cut; at most this may leave for the backend.
    pub fn synced(&self) -> Sequence {
        self.inner.shared.synced()
    }

    /// All positions, and every change of them. `appended` is as of the last change of another.
    pub fn watch(&self) -> watch::Receiver<Watermarks> {
        self.inner.shared.marks.subscribe()
    }

    /// The same for those who follow `synced`, `trimmed`, `stopped` and `blocked`: they are not
    /// woken by each commit, and see the other positions as of the last change of these.
    pub fn watch_synced(&self) -> watch::Receiver<Watermarks> {
        self.inner.shared.rare_marks.subscribe()
    }

    /// Returns once `sequence` is durable at the configured level; in doubt if the journal stops
    /// before. A sequence never given out is waited for until the journal stops.
    pub async fn wait_durable(&self, sequence: Sequence) -> Result<(), InDoubt> {
        if self.durable() >= sequence {
            return Ok(());
        }
        self.wait(self.watch(), sequence, |marks| marks.durable).await
    }

    /// Returns once `sequence` is synced, whatever the level.
    pub async fn wait_synced(&self, sequence: Sequence) -> Result<(), InDoubt> {
        if self.synced() >= sequence {
            return Ok(());
        }
        self.wait(self.watch_synced(), sequence, |marks| marks.synced).await
    }

    async fn wait(
        &self,
        mut marks: watch::Receiver<Watermarks>,
        sequence: Sequence,
        mark: impl Fn(&Watermarks) -> Sequence,
    ) -> Result<(), InDoubt> {
        let reached = marks
            .wait_for(|marks| mark(marks) >= sequence || marks.stopped.is_some())
            .await
            .map(|marks| (mark(&marks) >= sequence, marks.stopped.clone()));
        match reached {
            Ok((true, _)) => Ok(()),
            Ok((false, Some(Stopped::Latched(reason)))) => Err(InDoubt { reason }),
            _ => Err(InDoubt { reason: "journal is closed".into() }),
        }
    }

    /// Allows whole segments whose last sequence is at most `upto` to be dropped; the writer
    /// thread does it, never past what is synced. What is not dropped yet is kept again when a later
    /// call allows less.
    pub fn trim(&self, upto: Sequence) {
        let shared = &self.inner.shared;
        if shared.trim_upto.swap(upto.get(), Ordering::AcqRel) < upto.get() {
            shared.buffer.signal();
        }
    }

    /// Frames from `from` on (inclusive) up to what is synced now. Blocks on reads; `Trimmed` if
    /// frames at or after `from` are gone already. To read what follows a position, pass it and
    /// skip the first; to read all that is held, pass [`Sequence::ZERO`].
    pub fn read_from(&self, from: Sequence) -> Result<FrameReader, JournalError> {
        let shared = &self.inner.shared;
        let upto = shared.synced();
        let (segments, trimmed) = {
            let segments = shared.segments.lock();
            (segments.holding(from), shared.marks.borrow().trimmed)
        };
        if from != Sequence::ZERO && from <= trimmed {
            return Err(JournalError::Trimmed { from, trimmed });
        }
        FrameReader::open(shared.fs.as_ref(), &segments, from, upto)
    }

    /// A value of the control file.
    pub fn attribute(&self, key: &str) -> Option<Vec<u8>> {
        self.inner.shared.attributes.lock().get(key).cloned()
    }

    /// Sets (or with `None` removes) attributes together; durable when it returns. Blocks on I/O:
    /// call it from a blocking task. A failed sync latches the journal.
    pub fn set_attributes(&self, changes: &[(&str, Option<&[u8]>)]) -> Result<(), JournalError> {
        let shared = &self.inner.shared;
        let mut control = shared.control.lock();
        match shared.marks.borrow().stopped.clone() {
            Some(Stopped::Latched(reason)) => return Err(JournalError::Latched { reason }),
            Some(Stopped::Closed) => return Err(JournalError::Closed),
            None => {}
        }
        let mut next = control.current().clone();
        for (key, value) in changes {
            match value {
                Some(value) => next.attributes.insert((*key).to_owned(), value.to_vec()),
                None => next.attributes.remove(*key),
            };
        }
        next.synced = next.synced.max(shared.synced());
        let bytes = encode_control(&next).len();
        if bytes > CONTROL_BYTES_MAX || changes.iter().any(|(key, _)| key.len() > 1024) {
            let key = changes.first().map_or(String::new(), |(key, _)| (*key).to_owned());
            let bytes_max = CONTROL_BYTES_MAX;
            return Err(JournalError::ControlTooLarge { key, bytes, bytes_max });
        }
        let stored = control.store(next);
        if stored.is_ok() {
            *shared.attributes.lock() = Arc::new(control.current().attributes.clone());
        }
        drop(control);
        if let Err(JournalError::Io { act, path, source }) = &stored
            && act.starts_with("sync")
        {
            shared.latch(&format!("cannot {act} {}: {source}", path.display()));
        }
        stored
    }

    /// Sets one attribute; durable when it returns. Blocks on I/O.
    pub fn set_attribute(&self, key: &str, value: &[u8]) -> Result<(), JournalError> {
        self.set_attributes(&[(key, Some(value))])
    }

    /// Figures now.
    pub fn stats(&self) -> JournalStats {
        JournalStats::of(&self.inner.shared)
    }

    /// Writes and syncs what was accepted, marks the journal clean, lets the directory go. Other
    /// clones answer Closed from then on.
    pub async fn close(self) -> Result<(), JournalError> {
        self.inner.shared.buffer.stop(Stopped::Closed);
        let mut marks = self.watch();
        let stopped = marks.wait_for(|marks| marks.stopped.is_some()).await;
        match stopped.map(|marks| marks.stopped.clone()) {
            Ok(Some(Stopped::Latched(reason))) => Err(JournalError::Latched { reason }),
            _ => Ok(()),
        }
    }
}

impl Drop for Inner {
    /// The last handle: the writer finishes what was accepted before the directory is let go.
    fn drop(&mut self) {
        let Some(thread) = self.thread.lock().take() else { return };
        self.shared.buffer.stop(Stopped::Closed);
        if thread.join().is_err() {
            tracing::error!("journal writer thread ended unexpectedly");
        }
    }
}
