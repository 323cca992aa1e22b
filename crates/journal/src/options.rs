//! Settings of a journal and the limits they are checked against.
//!
//! Owns the bounds: every buffer and file size of this crate follows from a field here.

use std::time::Duration;

use uuid::Uuid;

use crate::error::JournalError;
use crate::format::{FRAME_OVERHEAD_BYTES_MAX, MARK_BYTES, SEGMENT_HEADER_BYTES};

/// No frame's payload is longer, whatever the options say.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;
/// The smallest segment that makes sense; small ones are for tests.
pub const SEGMENT_BYTES_MIN: u64 = 16 << 10;
/// The largest segment: offsets stay far below any signed limit and a trim step stays short.
pub const SEGMENT_BYTES_MAX: u64 = 4 << 30;

/// When a frame counts as durable, and what that survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Durable once the file is synced (`fdatasync`). Survives a killed process, a kernel crash
    /// and a power cut; not the loss of the volume.
    Sync,
    /// Durable once written to the file; synced every `interval`. Survives a killed process. A
    /// kernel crash or a power cut takes back at most the last `interval` (plus one sync).
    Relaxed {
        /// The longest time a written frame waits for its sync to begin.
        interval: Duration,
    },
}

/// Settings of one journal.
#[derive(Clone, Debug)]
pub struct JournalOptions {
    /// Size of a segment file; also the unit of trimming.
    pub segment_bytes: u64,
    /// All segment files together never take more; at least three segments.
    pub capacity_bytes: u64,
    /// When [`crate::Journal::wait_durable`] returns.
    pub durability: Durability,
    /// At most this much is written and synced at once.
    pub group_commit_bytes: usize,
    /// Frames accepted and not yet written; beyond it appends answer Busy.
    pub queue_bytes: usize,
    /// How long after a refusal for lack of space the volume is tried again.
    pub retry_interval: Duration,
    /// Identity to give a journal that does not exist yet; `None`: a random one.
    pub new_journal_id: Option<Uuid>,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            capacity_bytes: 1 << 30,
            durability: Durability::Sync,
            group_commit_bytes: 1 << 20,
            queue_bytes: 8 << 20,
            retry_interval: Duration::from_millis(500),
            new_journal_id: None,
        }
    }
}

impl JournalOptions {
    /// The longest payload [`crate::Journal::append`] takes under these options.
    pub fn payload_bytes_max(&self) -> usize {
        let overhead = FRAME_OVERHEAD_BYTES_MAX + MARK_BYTES;
        PAYLOAD_BYTES_MAX.min(self.queue_bytes.saturating_sub(overhead))
    }

    /// Refuses settings under which a promise of this crate could not be kept.
    pub(crate) fn validate(&self) -> Result<(), JournalError> {
        let refuse = |field, fix: String| Err(JournalError::Options { field, fix });
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&self.segment_bytes) {
            return refuse(
                "segment_bytes",
                format!("set it between {SEGMENT_BYTES_MIN} and {SEGMENT_BYTES_MAX}"),
            );
        }
        // active + spare + one that waits for its trim
        if self.capacity_bytes / 3 < self.segment_bytes {
            return refuse(
                "capacity_bytes",
                format!("set it to at least {} (three segments)", self.segment_bytes * 3),
            );
        }
        // the whole queue must fit an empty segment: what was accepted always has its place
        let queue_max = self.segment_bytes - SEGMENT_HEADER_BYTES;
        if self.queue_bytes as u64 > queue_max || self.queue_bytes < 4096 {
            return refuse("queue_bytes", format!("set it between 4096 and {queue_max}"));
        }
        if self.group_commit_bytes < 1024 || self.group_commit_bytes > self.queue_bytes {
            return refuse(
                "group_commit_bytes",
                format!("set it between 1024 and queue_bytes ({})", self.queue_bytes),
            );
        }
        Ok(())
    }
}
