//! The writer: takes a chunk, writes it, syncs it, publishes it; keeps space ready; trims.
//!
//! Owns the active segment, the spare and the order of all changes to the directory after start.
//! Works in turns without waiting, so that a thread or a task (`driver`) can drive it.
//! Never retries a sync; a refused write into reserved space (volume full, read-only) is tried
//! again, any other failed write or sync stops the journal for good.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::buffer::Chunk;
use crate::error::{JournalError, is_no_room};
use crate::file_system::{File, write_all_at};
use crate::format::MARK_BYTES;
use crate::format::frame::{Mark, Seed, encode_mark};
use crate::recover::Tail;
use crate::shared::{Counters, Shared};
use crate::syncer::{SyncJob, SyncOutcome, Syncer};
use crate::{Durability, Sequence, Stopped};

mod housekeeping;

/// A thread that has other work may be held up so long by writing; after that it writes nothing for
/// a while.
const HERE_MAX: Duration = Duration::from_millis(2);
const HERE_PAUSE: Duration = Duration::from_secs(1);

/// See the module; [`crate::JournalDriver`] says who takes the turns.
#[derive(Debug)]
pub(crate) struct Writer {
    shared: Arc<Shared>,
    seed: Seed,
    /// What must happen on disk before the first frame is accepted; `None` once it did.
    preparation: Option<Preparation>,
    active: Option<Active>,
    spare: Option<Arc<dyn File>>,
    /// A chunk whose write was refused and will be tried again.
    in_flight: Option<Chunk>,
    written: Sequence,
    synced: Sequence,
    trimmed: Sequence,
    /// Relaxed: when the written frames must begin to be synced.
    sync_at: Option<Instant>,
    /// Relaxed: syncs beside the commits; without it they are done in turn.
    syncer: Option<Syncer>,
    /// A sync was handed to the syncer and its outcome not taken yet.
    syncing: bool,
    /// Set while the volume refuses writes into reserved space: when to try again.
    blocked_until: Option<Instant>,
    /// When failed housekeeping (no space for a spare, control file busy) is tried again.
    housekeep_at: Option<Instant>,
    /// After a slow write: from when on threads that have other work write again.
    here_from: Option<Instant>,
    done: bool,
}

/// The segment being written.
#[derive(Debug)]
struct Active {
    file: Arc<dyn File>,
    path: PathBuf,
    offset: u64,
}

/// Acts of `open` that a full volume can put off.
#[derive(Debug)]
pub(crate) struct Preparation {
    /// The generation to make durable.
    pub generation: u32,
    pub leftovers: Vec<PathBuf>,
    pub tail: Option<Tail>,
}

/// What a driver should do after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// There may be more to do at once.
    Again,
    /// Nothing to do before a frame or another request comes, or `until`.
    Idle {
        /// False while the volume refuses: more frames change nothing.
        for_frames: bool,
        until: Option<Instant>,
    },
    /// Closed or latched; never call again.
    Done,
}

/// Why an act did not succeed.
enum Failure {
    /// The volume has no room or is read-only; may heal.
    NoRoom(String),
    /// Nothing can be relied on any more.
    Fatal(String),
}

impl Failure {
    fn of(error: &JournalError) -> Self {
        match error {
            JournalError::Io { act, path, source }
                if !act.starts_with("sync") && is_no_room(source) =>
            {
                Self::NoRoom(format!("cannot {act} {}: {source}", path.display()))
            }
            JournalError::Io { act, path, source } => {
                Self::Fatal(format!("cannot {act} {}: {source}", path.display()))
            }
            other => Self::Fatal(other.to_string()),
        }
    }
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>, preparation: Preparation, last: Sequence) -> Self {
        let seed = Seed::of(shared.journal_id);
        let trimmed = shared.marks.borrow().trimmed;
        Self {
            shared,
            seed,
            preparation: Some(preparation),
            active: None,
            spare: None,
            in_flight: None,
            written: last,
            synced: last,
            trimmed,
            sync_at: None,
            syncer: None,
            syncing: false,
            blocked_until: None,
            housekeep_at: None,
            here_from: None,
            done: false,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// One commit, or one piece of housekeeping. Blocks only on I/O.
    pub fn turn(&mut self, now: Instant) -> Turn {
        if self.done {
            return Turn::Done;
        }
        let stopped = self.shared.buffer.figures().stopped;
        let turn = match stopped {
            Some(Stopped::Latched(_)) => Turn::Done,
            stopped => self
                .work(now, stopped.is_some())
                .unwrap_or_else(|failure| self.fail(failure, now, stopped.is_some())),
        };
        self.done = turn == Turn::Done;
        turn
    }

    /// Writes what is queued if that takes nothing but writes into the active segment. False: the
    /// rest, or what follows from it, needs a turn.
    pub(crate) fn write_queued(&mut self, clock: fn() -> Instant) -> bool {
        let now = clock();
        let simple = self.shared.options.durability != Durability::Sync
            && !self.done
            && self.shared.buffer.figures().stopped.is_none()
            && self.preparation.is_none()
            && self.in_flight.is_none()
            && self.blocked_until.is_none()
            && self.here_from.is_none_or(|from| now >= from);
        if !simple {
            return false;
        }
        let sync_was_due = self.sync_at.is_some() || self.syncing;
        while let Some(active) = &self.active {
            let room = self.shared.options.segment_bytes - active.offset;
            let Some(chunk) = self.shared.buffer.take_within(room) else { break };
            self.in_flight = Some(chunk);
            if let Err(failure) = self.commit(now) {
                self.fail(failure, now, false);
                return false;
            }
            if clock().duration_since(now) > HERE_MAX {
                self.here_from = Some(now + HERE_PAUSE);
                return false;
            }
            if self.shared.buffer.figures().stopped.is_some() {
                return false;
            }
        }
        self.shared.buffer.is_empty() && (sync_was_due || self.sync_at.is_none())
    }

    fn work(&mut self, now: Instant, closing: bool) -> Result<Turn, Failure> {
        self.take_outcome()?;
        if !closing {
            if let Some(until) = self.blocked_until.filter(|until| now < *until) {
                self.trim(now)?; // may be what makes room
                return Ok(Turn::Idle { for_frames: false, until: Some(until) });
            }
            self.prepare()?;
        }
        if !self.syncing && self.sync_at.is_some_and(|at| now >= at) {
            self.begin_sync()?;
        }
        let committed = self.commit(now)?;
        if !closing {
            self.housekeep(now)?;
        }
        if committed {
            return Ok(Turn::Again);
        }
        if closing {
            self.finish()?;
            return Ok(Turn::Done);
        }
        // while a sync runs its end is what is waited for, not the time of the next
        let sync_at = self.sync_at.filter(|_| !self.syncing);
        let until = [sync_at, self.housekeep_at].into_iter().flatten().min();
        Ok(Turn::Idle { for_frames: true, until })
    }

    fn fail(&mut self, failure: Failure, now: Instant, closing: bool) -> Turn {
        match failure {
            Failure::NoRoom(reason) if !closing => {
                if self.blocked_until.is_none() {
                    tracing::warn!(reason, "journal refuses writes until the volume has room");
                }
                self.shared.buffer.set_blocked(Some(reason.as_str().into()));
                self.shared.publish(|_| {});
                self.blocked_until = Some(now + self.shared.options.retry_interval);
                Turn::Idle { for_frames: false, until: self.blocked_until }
            }
            Failure::NoRoom(reason) | Failure::Fatal(reason) => {
                tracing::error!(reason, "journal latched");
                self.shared.latch(&reason);
                Turn::Done
            }
        }
    }

    /// Writes one chunk; at `Sync` syncs it too. False if there was none.
    fn commit(&mut self, now: Instant) -> Result<bool, Failure> {
        let Some(mut chunk) = self.in_flight.take().or_else(|| self.shared.buffer.take()) else {
            return Ok(false);
        };
        if let Err(failure) = self.write(&mut chunk) {
            self.in_flight = Some(chunk);
            return Err(failure);
        }
        self.unblock();
        let counters = &self.shared.counters;
        Counters::add(&counters.commits, 1);
        Counters::add(&counters.frames_written, chunk.frames);
        Counters::add(&counters.bytes_written, chunk.bytes.len() as u64);
        self.written = chunk.last;
        if let Some(segment) = self.shared.segments.lock().newest_mut() {
            segment.last = chunk.last;
        }
        self.shared.buffer.written(chunk.bytes);
        match self.shared.options.durability {
            Durability::Sync => self.sync()?,
            Durability::Relaxed { interval } => {
                self.sync_at.get_or_insert(now + interval);
                let written = self.written;
                self.shared.publish(|marks| {
                    marks.written = written;
                    marks.durable = written;
                });
            }
        }
        Ok(true)
    }

    /// Puts the chunk behind the last one, in a new segment if this one has no room for it.
    fn write(&mut self, chunk: &mut Chunk) -> Result<(), Failure> {
        let segment_bytes = self.shared.options.segment_bytes;
        let length = chunk.bytes.len() as u64;
        if self.active.as_ref().is_none_or(|active| active.offset + length > segment_bytes) {
            self.rotate(chunk.first)?;
        }
        let write_bytes = (chunk.bytes.len() - MARK_BYTES) as u32;
        let mark = Mark { first: chunk.first, synced: self.synced, write_bytes };
        if let Some(head) = chunk.bytes.get_mut(..MARK_BYTES) {
            head.copy_from_slice(&encode_mark(self.seed, mark));
        }
        let Some(active) = &mut self.active else {
            return Err(Failure::Fatal("no active segment after a rotation".to_owned()));
        };
        write_all_at(active.file.as_ref(), &chunk.bytes, active.offset).map_err(|source| {
            Failure::of(&JournalError::Io { act: "write", path: active.path.clone(), source })
        })?;
        active.offset += length;
        Ok(())
    }

    /// Syncs the active segment and publishes. A failure is final: the kernel may have dropped
    /// the pages and would call a second sync a success.
    fn sync(&mut self) -> Result<(), Failure> {
        if let Some(outcome) = self.syncer.as_ref().and_then(Syncer::wait) {
            self.sync_ended(outcome)?;
        }
        self.sync_at = None;
        let Some(active) = self.active.as_ref().filter(|_| self.synced < self.written) else {
            return Ok(());
        };
        let begun = Instant::now();
        let mut result = active.file.sync_data();
        if result.is_err() && cachetier_defects::on("r06-sync-again") {
            result = active.file.sync_data();
        }
        let (path, upto, took) = (active.path.clone(), self.written, begun.elapsed());
        self.sync_ended(SyncOutcome { path, upto, result, took })
    }

    /// Relaxed: syncs what is written, beside the commits where there is a thread for it.
    fn begin_sync(&mut self) -> Result<(), Failure> {
        let (Some(syncer), Some(active)) = (&self.syncer, &self.active) else {
            return self.sync();
        };
        let (file, path) = (active.file.clone(), active.path.clone());
        syncer.begin(SyncJob { file, path, upto: self.written });
        self.syncing = true;
        self.sync_at = None;
        Ok(())
    }

    fn take_outcome(&mut self) -> Result<(), Failure> {
        match self.syncer.as_ref().and_then(Syncer::poll) {
            Some(outcome) => self.sync_ended(outcome),
            None => Ok(()),
        }
    }

    fn sync_ended(&mut self, outcome: SyncOutcome) -> Result<(), Failure> {
        self.syncing = false;
        let SyncOutcome { path, upto, result, took } = outcome;
        result.map_err(|source| Failure::of(&JournalError::Io { act: "sync", path, source }))?;
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        Counters::add(&self.shared.counters.syncs, 1);
        Counters::add(&self.shared.counters.sync_nanos, nanos);
        self.synced = upto;
        let written = self.written;
        self.shared.publish(|marks| {
            marks.written = written;
            marks.synced = upto;
            marks.durable = marks.durable.max(upto);
        });
        Ok(())
    }

    /// Syncs beside the commits from now on.
    pub(crate) fn use_syncer(&mut self) -> std::io::Result<()> {
        let shared = self.shared.clone();
        self.syncer = Some(Syncer::start(move || shared.buffer.signal())?);
        Ok(())
    }

    /// Frames are refused until the volume takes writes; the next turn tries.
    pub(crate) fn refuse(&mut self, reason: &str) {
        self.blocked_until = Some(Instant::now());
        self.shared.buffer.set_blocked(Some(reason.into()));
        self.shared.publish(|_| {});
    }

    /// The volume takes writes again.
    fn unblock(&mut self) {
        if self.blocked_until.take().is_some() {
            self.shared.buffer.set_blocked(None);
            self.shared.publish(|_| {});
            tracing::info!("journal takes writes again");
        }
    }
}
