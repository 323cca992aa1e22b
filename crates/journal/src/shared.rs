//! What the handles and the writer have in common.
//!
//! Owns the published positions and the one-way stop. Positions are written by the writer alone;
//! stopping may come from anyone. Never does I/O itself.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;
use uuid::Uuid;

use crate::buffer::Buffer;
use crate::control_file::ControlFile;
use crate::file_system::{DirectoryLock, FileSystem};
use crate::segments::Segments;
use crate::{JournalOptions, Sequence, Stopped, Watermarks};

/// See the module.
#[derive(Debug)]
pub(crate) struct Shared {
    pub fs: Arc<dyn FileSystem>,
    pub dir: PathBuf,
    pub options: JournalOptions,
    pub journal_id: Uuid,
    pub buffer: Buffer,
    /// Written by the writer, read by all.
    pub marks: watch::Sender<Watermarks>,
    /// The same, told only when anything but `appended`, `written` and `durable` changed.
    pub rare_marks: watch::Sender<Watermarks>,
    /// Copies of two watermarks for readers that must not wait for a lock.
    pub durable: AtomicU64,
    pub synced: AtomicU64,
    /// How far the owner allows to trim.
    pub trim_upto: AtomicU64,
    /// Changed by the writer under this lock; copied by readers.
    pub segments: Mutex<Segments>,
    /// Changed by the writer (trim, close) and by whoever sets attributes. Held over I/O.
    pub control: Mutex<ControlFile>,
    /// The attributes as they are durably; changed with `control` held, read without it.
    pub attributes: Mutex<Arc<BTreeMap<String, Vec<u8>>>>,
    pub counters: Counters,
    /// Taken out when the journal is closed.
    pub lock: Mutex<Option<DirectoryLock>>,
}

/// Written by the writer, read for metrics.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub frames_written: AtomicU64,
    pub bytes_written: AtomicU64,
    pub commits: AtomicU64,
    pub syncs: AtomicU64,
    pub sync_nanos: AtomicU64,
}

impl Counters {
    pub fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }
}

impl Shared {
    pub fn durable(&self) -> Sequence {
        load(&self.durable)
    }

    pub fn synced(&self) -> Sequence {
        load(&self.synced)
    }

    pub fn trim_upto(&self) -> Sequence {
        load(&self.trim_upto)
    }

    /// Publishes a change of the watermarks; each only grows.
    pub fn publish(&self, change: impl FnOnce(&mut Watermarks)) {
        let figures = self.buffer.figures();
        self.marks.send_modify(|marks| {
            let before = marks.clone();
            change(marks);
            marks.appended = figures.appended;
            marks.blocked = figures.refusing;
            debug_assert!(marks.durable >= before.durable && marks.synced >= before.synced);
            debug_assert!(marks.appended >= marks.written && marks.written >= marks.synced);
            debug_assert!(marks.written >= marks.durable && marks.durable >= marks.synced);
            self.durable.store(marks.durable.get(), Ordering::Release);
            self.synced.store(marks.synced.get(), Ordering::Release);
            let of_commits = Watermarks {
                appended: marks.appended,
                written: marks.written,
                durable: marks.durable,
                ..before
            };
            if of_commits != *marks {
                // in the order of the changes: a stop that is overtaken would never be told
                self.rare_marks.send_replace(marks.clone());
            }
        });
    }

    /// Stops for good because of a failed write or sync. The first reason stays.
    pub fn latch(&self, reason: &str) {
        self.stop(Stopped::Latched(reason.into()));
    }

    /// Refuses appends first, then tells those who wait.
    pub fn stop(&self, stopped: Stopped) {
        self.buffer.stop(stopped.clone());
        self.publish(|marks| {
            marks.stopped.get_or_insert(stopped);
        });
    }
}

fn load(value: &AtomicU64) -> Sequence {
    // only sequences are ever stored there
    Sequence::from_stored(value.load(Ordering::Acquire)).unwrap_or(Sequence::ZERO)
}
