//! Figures of a journal for status and metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::shared::Shared;
use crate::{Sequence, Stopped};

/// Figures at one moment. Positions are read together; counters may be a little ahead of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalStats {
    pub segments: usize,
    /// Bytes of segment files on the volume, reserved space of the active one included.
    pub bytes: u64,
    pub capacity_bytes: u64,
    /// Accepted and not yet written.
    pub queued_bytes: usize,
    pub appended: Sequence,
    pub written: Sequence,
    pub durable: Sequence,
    pub synced: Sequence,
    pub trimmed: Sequence,
    /// Since the journal was opened.
    pub frames_written: u64,
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

impl JournalStats {
    pub(crate) fn of(shared: &Shared) -> Self {
        let figures = shared.buffer.figures();
        let (segments, bytes) = {
            let segments = shared.segments.lock();
            (segments.count(), segments.bytes())
        };
        let counter = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &shared.counters;
        let marks = shared.marks.borrow();
        Self {
            segments,
            bytes,
            capacity_bytes: shared.options.capacity_bytes,
            queued_bytes: figures.queued_bytes,
            appended: figures.appended.max(marks.appended),
            written: marks.written,
            durable: marks.durable,
            synced: marks.synced,
            trimmed: marks.trimmed,
            frames_written: counter(&counters.frames_written),
            bytes_written: counter(&counters.bytes_written),
            commits: counter(&counters.commits),
            syncs: counter(&counters.syncs),
            sync_nanos: counter(&counters.sync_nanos),
            blocked: figures.refusing,
            latched: match &marks.stopped {
                Some(Stopped::Latched(reason)) => Some(reason.clone()),
                _ => None,
            },
        }
    }
}
