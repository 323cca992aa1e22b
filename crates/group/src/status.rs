//! What a node says about itself: phase, positions, figures, and problems with what to do.

use std::sync::Arc;

use uuid::Uuid;

use crate::calls::{BacklogFigures, TableRowsFigure};

/// Where a node is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Starting,
    AwaitingTopology,
    TakingSlots,
    Serving,
    Draining,
    /// The journal cannot be trusted any more; the process must be replaced.
    Latched,
    /// Another writer has this journal or these tables; a human must decide.
    Fenced,
}

/// Something wrong that somebody should know, with the cure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// CamelCase, e.g. `BackendUnreachable`.
    pub reason: String,
    /// What is wrong and what to do. No subscriber data, no secrets.
    pub message: String,
    /// True: serving is impaired.
    pub degraded: bool,
}

impl Problem {
    pub(crate) fn new(reason: &str, message: impl Into<String>, degraded: bool) -> Self {
        Self { reason: reason.to_owned(), message: message.into(), degraded }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadFigures {
    pub load_id: String,
    pub chunks_done: u32,
    pub chunks_total: u32,
    pub tables: Vec<TableRowsFigure>,
    pub inserted: u64,
    pub skipped: u64,
    pub rows_per_second: f64,
    pub stopped_by_memory: bool,
}

#[derive(Clone, Debug)]
pub struct Status {
    pub node: String,
    pub group: String,
    pub group_uid: String,
    pub journal: Uuid,
    pub generation: u32,
    pub phase: Phase,
    pub ready: bool,
    pub topology_version: u64,
    pub slots_assigned: u32,
    pub slots_serving: u32,
    pub slots_covered: u32,
    pub slots_leaving: u32,
    pub backlog: BacklogFigures,
    pub instances: u64,
    pub memory_bytes: u64,
    pub memory_capacity_bytes: u64,
    /// Records, and the journal, lie in persistent memory with direct access.
    pub store_direct: bool,
    pub journal_direct: bool,
    /// Bytes of slot images on the volume.
    pub images_bytes: u64,
    /// Since the image was looked at that waited longest.
    pub images_oldest_seconds: f64,
    pub journal_bytes: u64,
    pub journal_capacity_bytes: u64,
    pub rejects: u64,
    pub oldest_reject_seconds: f64,
    pub backend_reachable: bool,
    pub problems: Vec<Problem>,
    pub load: Option<LoadFigures>,
    pub appended: u64,
    pub durable: u64,
    pub flushed: u64,
    pub writes_stopped: bool,
    pub schema_version: u64,
    /// Nothing is flushed, because the configuration or an administrator says so.
    pub flushing_paused: bool,
    /// Idempotency answers kept, and their bytes.
    pub idempotency_answers: u64,
    pub idempotency_bytes: u64,
}

/// Counters since the process started, for metrics.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    pub reads_cache: u64,
    pub reads_through: u64,
    pub reads_bypass: u64,
    pub writes: u64,
    pub writes_refused: u64,
    pub writes_slowed: u64,
    pub write_slowdown_seconds: f64,
    pub read_throughs_failed: u64,
    pub instances_evicted: u64,
    /// Clean instances that are read again, because the backend had lost what they hold, or decided on
    /// it before this process could hear of it.
    pub instances_forgotten: u64,
    pub slots_taken: u64,
    pub slots_released: u64,
    pub rejects: u64,
    /// Calls answered as an earlier one of their idempotency key, and answers that went before their
    /// time for want of room.
    pub idempotent_repeats: u64,
    pub idempotency_forgotten: u64,
    pub journal_syncs: u64,
    pub journal_bytes_written: u64,
    pub journal_sync_seconds: f64,
    pub images_written: u64,
    pub images_bytes_written: u64,
    pub image_instances_restored: u64,
    /// Slots whose image was of no use, by reason.
    pub image_slots_dropped: Vec<(&'static str, u64)>,
}

/// Why a group ended or must be ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Asked to.
    Closed,
    /// The journal failed; replace the process.
    Latched(Arc<str>),
    /// A background task ended that never should.
    TaskEnded(&'static str),
    /// Only a fresh start from the journal makes it right again; says why.
    RestartNeeded(&'static str),
}
