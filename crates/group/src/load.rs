//! Loads: tickets, chunks, and the account of what is covered (R19, R20).
//!
//! Owns the tickets handed to loaders; each is closed when its chunk ends or when nobody used it
//! for a while, so a loader that died costs nothing for long. Must never overwrite: the engine
//! decides, instance by instance.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cachetier_engine::Installed;
use cachetier_model::{Instance, SlotSet};
use parking_lot::Mutex;

use crate::calls::{BeginLoad, ChunkOutcome, LoadBegun};
use crate::core::Core;
use crate::coverage::{ChunkCount, CoverageRefusal};
use crate::error::{GroupError, RefusalReason};
use crate::ownership::SlotState;
use crate::read_through::{OpenTicket, lacks_takeovers};

/// A ticket nobody came back for is closed after this time.
const TICKET_IDLE_MAX: Duration = Duration::from_secs(300);
/// Tickets of loads at once.
const TICKETS_MAX: usize = 256;

struct Handed {
    ticket: OpenTicket,
    /// The slots the loader was told to send.
    slots: SlotSet,
    /// What made the backend's slots believed; see `WriteThrough::trust`.
    trusted: Option<u64>,
    since: Instant,
}

/// Tickets that loaders hold, by number.
#[derive(Default)]
pub(crate) struct Tickets {
    inner: Mutex<TicketBook>,
}

#[derive(Default)]
struct TicketBook {
    last: u64,
    open: HashMap<u64, Handed>,
}

impl Tickets {
    fn hand_out(
        &self,
        ticket: OpenTicket,
        slots: SlotSet,
        trusted: Option<u64>,
        now: Instant,
    ) -> Result<u64, GroupError> {
        let mut book = self.inner.lock();
        book.open.retain(|_, handed| now.duration_since(handed.since) < TICKET_IDLE_MAX);
        if book.open.len() >= TICKETS_MAX {
            return Err(GroupError::Busy {
                what: "load chunks under way",
                retry_after: Duration::from_secs(1),
            });
        }
        book.last += 1;
        let number = book.last;
        book.open.insert(number, Handed { ticket, slots, trusted, since: now });
        Ok(number)
    }

    fn redeem(&self, number: u64) -> Option<Handed> {
        self.inner.lock().open.remove(&number)
    }

    /// Closes tickets whose loader is gone.
    pub(crate) fn expire(&self, now: Instant) {
        self.inner.lock().open.retain(|_, h| now.duration_since(h.since) < TICKET_IDLE_MAX);
    }
}

impl Core {
    pub(crate) fn begin_load(&self, call: &BeginLoad) -> Result<LoadBegun, GroupError> {
        self.shared.check_alive()?;
        let now = tokio::time::Instant::now().into_std();
        // the ticket first: what is served when it exists is loaded under it
        let ticket = OpenTicket::open(&self.engine)?;
        let serving = self.shared.slots.serving();
        let begun = self.shared.coverage.lock().begin(call, &serving, now);
        let (slots_needed, chunks_done) = begun.map_err(|e| from_coverage(&e, &call.load_id))?;
        let trusted = self.lanes.trust(&slots_needed);
        let ticket = self.tickets.hand_out(ticket, slots_needed.clone(), trusted, now)?;
        let topology_version = self.shared.topology.borrow().as_ref().map_or(0, |t| t.epoch.0);
        let as_of = self.lanes.as_of();
        Ok(LoadBegun { ticket, slots_needed, topology_version, chunks_done, as_of })
    }

    pub(crate) fn load_chunk(
        self: &Arc<Self>,
        load_id: &str,
        chunk: u32,
        ticket: u64,
    ) -> Result<ChunkLoad, GroupError> {
        let checked = self.shared.coverage.lock().check(load_id, chunk);
        checked.map_err(|e| from_coverage(&e, load_id))?;
        let handed = self.tickets.redeem(ticket).ok_or_else(|| GroupError::Unknown {
            what: "load ticket",
            id: format!("{ticket} (used already, or too old); begin the chunk again"),
        })?;
        Ok(ChunkLoad {
            core: Arc::clone(self),
            ticket: handed.ticket,
            slots: handed.slots,
            trusted: handed.trusted,
            load_id: load_id.to_owned(),
            chunk,
            outcome: ChunkOutcome::default(),
            rows_per_table: vec![0; self.schema.tables.len()],
            counted: false,
        })
    }
}

/// One chunk of a load, being installed.
pub struct ChunkLoad {
    core: Arc<Core>,
    ticket: OpenTicket,
    slots: SlotSet,
    trusted: Option<u64>,
    load_id: String,
    chunk: u32,
    outcome: ChunkOutcome,
    rows_per_table: Vec<u64>,
    counted: bool,
}

impl ChunkLoad {
    /// Installs instances, all rows each. Synchronous; call it with a few hundred at a time.
    pub fn install(&mut self, instances: Vec<Instance>) -> Result<(), GroupError> {
        self.believe()?;
        for instance in instances {
            self.install_one(instance)?;
        }
        Ok(())
    }

    /// Errs when the chunk may have been read while the backend lacked takeovers.
    fn believe(&self) -> Result<(), GroupError> {
        if self.trusted.is_some() && self.trusted == self.core.lanes.trust(&self.slots) {
            return Ok(());
        }
        Err(GroupError::BackendAway { reason: lacks_takeovers().to_string().into() })
    }

    fn install_one(&mut self, instance: Instance) -> Result<(), GroupError> {
        let bad = |what: &str| GroupError::refused(RefusalReason::Value, what);
        if self.outcome.stopped_by_memory {
            return Ok(());
        }
        let root_row = instance.tables.first().and_then(|rows| rows.first());
        let root_row = root_row.ok_or_else(|| bad("an instance of the load has no root row"))?;
        let key = self.core.schema.root_key_of_row(0, root_row);
        let key = key.map_err(|_| bad("an instance of the load has no root key"))?;
        if self.core.shared.slots.state(key.slot()) != SlotState::Serving {
            self.outcome.foreign += 1;
            return Ok(());
        }
        let rows: Vec<u64> = instance.tables.iter().map(|rows| rows.len() as u64).collect();
        let Some(ticket) = self.ticket.get() else { return Ok(()) };
        let installed = self.core.engine.install(ticket, &key, Some(instance));
        match installed.map_err(crate::refusals::from_engine)? {
            Installed::Inserted => {
                self.outcome.inserted += 1;
                self.count_rows(&rows);
            }
            Installed::Present => {
                self.outcome.skipped += 1;
                self.count_rows(&rows);
            }
            Installed::Broken => self.outcome.broken += 1,
            Installed::MemoryFull => self.outcome.stopped_by_memory = true,
        }
        Ok(())
    }

    fn count_rows(&mut self, rows: &[u64]) {
        self.rows_per_table.iter_mut().zip(rows).for_each(|(sum, rows)| *sum += rows);
    }

    /// The chunk was sent whole: counts it. Dropping without this counts nothing.
    pub fn finish(mut self) -> ChunkOutcome {
        // where memory holds what is asked for, a load is done when memory is full
        let whole = !self.outcome.stopped_by_memory || self.core.engine.evicts();
        let believed = self.believe().is_ok();
        self.outcome.chunk_done = self.outcome.broken == 0 && whole && believed;
        self.account(self.outcome.chunk_done);
        self.outcome
    }

    fn account(&mut self, done: bool) {
        self.counted = true;
        let count = ChunkCount {
            inserted: self.outcome.inserted,
            skipped: self.outcome.skipped,
            rows_per_table: std::mem::take(&mut self.rows_per_table),
            stopped_by_memory: self.outcome.stopped_by_memory,
        };
        let mut coverage = self.core.shared.coverage.lock();
        let slots = done.then_some(&self.slots);
        let now = tokio::time::Instant::now().into_std();
        coverage.count(&self.load_id, self.chunk, &count, slots, now);
    }
}

impl Drop for ChunkLoad {
    fn drop(&mut self) {
        if !self.counted {
            self.account(false);
        }
    }
}

fn from_coverage(refusal: &CoverageRefusal, load_id: &str) -> GroupError {
    match refusal {
        CoverageRefusal::TooManyLoads => {
            GroupError::Busy { what: "loads under way", retry_after: Duration::from_secs(5) }
        }
        CoverageRefusal::TooManyChunks => GroupError::refused(
            RefusalReason::Value,
            format!("a load has at most {} chunks", crate::coverage::CHUNKS_MAX),
        ),
        CoverageRefusal::ChunksDiffer { known } => GroupError::refused(
            RefusalReason::Value,
            format!("load {load_id} was begun with {known} chunks; use a new load id"),
        ),
        CoverageRefusal::UnknownLoad => {
            GroupError::Unknown { what: "load", id: load_id.to_owned() }
        }
        CoverageRefusal::UnknownChunk => {
            GroupError::Unknown { what: "chunk of load", id: load_id.to_owned() }
        }
    }
}
