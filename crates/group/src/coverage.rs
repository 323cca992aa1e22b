//! Which slots are loaded whole, and how far each load is: a pure account (R20).
//!
//! Owns the sessions of loads seen by this process. A slot counts as covered only when this
//! process has served it from the load's first ticket on and has counted every chunk, so a restart
//! or a move in mid-load can never leave a hole that is called covered. Must never do I/O.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use cachetier_model::SlotSet;

use crate::calls::{BeginLoad, TableRowsFigure};
use crate::status::LoadFigures;

/// Loads remembered at once; the oldest finished one is dropped for a new one.
const SESSIONS_MAX: usize = 8;
/// A load of which nothing was heard for so long does not go on.
const LOAD_IDLE: Duration = Duration::from_secs(60);
/// Chunks of one load, at most: bounds the account.
pub(crate) const CHUNKS_MAX: u32 = 1 << 20;

#[derive(Debug)]
struct Session {
    load_id: String,
    chunks_total: u32,
    done: BTreeSet<u32>,
    /// Slots that were served without a break since before the first counted chunk's ticket, and
    /// not covered before.
    eligible: SlotSet,
    /// Slots that went away since the load began: a chunk under way may have filled them before.
    lost: SlotSet,
    tables: Vec<TableRowsFigure>,
    inserted: u64,
    skipped: u64,
    stopped_by_memory: bool,
    started: Instant,
    last: Instant,
}

impl Session {
    fn finished(&self) -> bool {
        self.done.len() as u64 >= u64::from(self.chunks_total)
    }
}

/// What one chunk brought.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChunkCount {
    pub inserted: u64,
    pub skipped: u64,
    pub rows_per_table: Vec<u64>,
    pub stopped_by_memory: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Coverage {
    covered: SlotSet,
    sessions: Vec<Session>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CoverageRefusal {
    TooManyLoads,
    TooManyChunks,
    /// The load was registered with another number of chunks.
    ChunksDiffer {
        known: u32,
    },
    UnknownLoad,
    UnknownChunk,
}

impl Coverage {
    pub(crate) fn covered(&self) -> &SlotSet {
        &self.covered
    }

    /// These slots are whole, by their images.
    pub(crate) fn restored(&mut self, slots: &SlotSet) {
        self.covered.union_with(slots);
    }

    /// A load is under way.
    pub(crate) fn loading(&self, now: Instant) -> bool {
        let moves = |s: &&Session| now.saturating_duration_since(s.last) < LOAD_IDLE;
        self.sessions.iter().filter(moves).any(|session| !session.finished())
    }

    /// A ticket is asked for: registers the load. Answers the slots that need it, and the chunks
    /// that are here already.
    pub(crate) fn begin(
        &mut self,
        call: &BeginLoad,
        serving: &SlotSet,
        now: Instant,
    ) -> Result<(SlotSet, Vec<u32>), CoverageRefusal> {
        if call.chunks_total > CHUNKS_MAX {
            return Err(CoverageRefusal::TooManyChunks);
        }
        if let Some(session) = self.sessions.iter_mut().find(|s| s.load_id == call.load_id) {
            if session.chunks_total != call.chunks_total {
                return Err(CoverageRefusal::ChunksDiffer { known: session.chunks_total });
            }
            session.last = now;
            if session.done.is_empty() {
                // nothing is counted yet: slots that came meanwhile miss nothing
                session.eligible.union_with(serving);
                session.eligible.subtract(&self.covered);
                session.eligible.subtract(&session.lost);
            }
            return Ok((session.eligible.clone(), session.done.iter().copied().collect()));
        }
        if self.sessions.len() >= SESSIONS_MAX {
            let oldest = (self.sessions.iter().enumerate())
                .filter(|(_, s)| s.finished() || now.duration_since(s.last).as_secs() > 600)
                .min_by_key(|(_, s)| s.last)
                .map(|(n, _)| n)
                .ok_or(CoverageRefusal::TooManyLoads)?;
            self.sessions.remove(oldest);
        }
        let mut eligible = serving.clone();
        eligible.subtract(&self.covered);
        self.sessions.push(Session {
            load_id: call.load_id.clone(),
            chunks_total: call.chunks_total,
            done: BTreeSet::new(),
            eligible: eligible.clone(),
            lost: SlotSet::empty(),
            tables: call.expected.clone(),
            inserted: 0,
            skipped: 0,
            stopped_by_memory: false,
            started: now,
            last: now,
        });
        self.close_if_finished(&call.load_id);
        Ok((eligible, Vec::new()))
    }

    /// True when the load is known and the chunk is one of it.
    pub(crate) fn check(&self, load_id: &str, chunk: u32) -> Result<(), CoverageRefusal> {
        let session = self.sessions.iter().find(|s| s.load_id == load_id);
        match session {
            None => Err(CoverageRefusal::UnknownLoad),
            Some(s) if chunk >= s.chunks_total => Err(CoverageRefusal::UnknownChunk),
            Some(_) => Ok(()),
        }
    }

    /// Adds what a chunk brought; `done` counts it, for the slots its ticket was given for.
    pub(crate) fn count(
        &mut self,
        load_id: &str,
        chunk: u32,
        count: &ChunkCount,
        done: Option<&SlotSet>,
        now: Instant,
    ) {
        let Some(session) = self.sessions.iter_mut().find(|s| s.load_id == load_id) else {
            return;
        };
        session.inserted += count.inserted;
        session.skipped += count.skipped;
        session.stopped_by_memory |= count.stopped_by_memory;
        for (table, rows) in session.tables.iter_mut().zip(&count.rows_per_table) {
            table.rows += rows;
        }
        session.last = now;
        if let Some(slots) = done {
            session.done.insert(chunk);
            session.eligible.intersect_with(slots);
            session.stopped_by_memory = false;
        }
        self.close_if_finished(load_id);
    }

    fn close_if_finished(&mut self, load_id: &str) {
        if let Some(session) = self.sessions.iter().find(|s| s.load_id == load_id)
            && session.finished()
        {
            let eligible = session.eligible.clone();
            self.covered.union_with(&eligible);
        }
    }

    /// These slots are no longer served here: what was loaded of them is gone.
    pub(crate) fn gone(&mut self, slots: &SlotSet) {
        if cachetier_defects::on("r20-coverage-stays") {
            return;
        }
        self.covered.subtract(slots);
        for session in &mut self.sessions {
            session.eligible.subtract(slots);
            session.lost.union_with(slots);
        }
    }

    /// Figures of the load that moved last.
    pub(crate) fn figures(&self) -> Option<LoadFigures> {
        let session = self.sessions.iter().max_by_key(|s| s.last)?;
        let rows: u64 = session.tables.iter().map(|t| t.rows).sum();
        let seconds = session.last.duration_since(session.started).as_secs_f64();
        Some(LoadFigures {
            load_id: session.load_id.clone(),
            chunks_done: session.done.len() as u32,
            chunks_total: session.chunks_total,
            tables: session.tables.clone(),
            inserted: session.inserted,
            skipped: session.skipped,
            rows_per_second: if seconds > 0.0 { rows as f64 / seconds } else { 0.0 },
            stopped_by_memory: session.stopped_by_memory,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cachetier_model::SlotId;

    fn set(slots: std::ops::Range<u16>) -> SlotSet {
        slots.filter_map(SlotId::new).collect()
    }

    fn load(id: &str, chunks_total: u32) -> BeginLoad {
        BeginLoad { load_id: id.into(), chunks_total, expected: Vec::new() }
    }

    #[test]
    fn d19_slots_are_covered_only_when_every_chunk_was_counted_here() {
        let mut coverage = Coverage::default();
        let now = Instant::now();
        let (slots, _) = coverage.begin(&load("a", 2), &set(0..10), now).unwrap();
        coverage.count("a", 0, &ChunkCount::default(), Some(&slots), now);
        coverage.count("a", 0, &ChunkCount::default(), Some(&slots), now);
        assert!(coverage.covered().is_empty(), "one chunk counted twice is one chunk");
        coverage.count("a", 1, &ChunkCount::default(), None, now);
        assert!(coverage.covered().is_empty(), "a chunk that was not whole does not count");
        coverage.count("a", 1, &ChunkCount::default(), Some(&slots), now);
        assert_eq!(coverage.covered(), &set(0..10));
    }

    #[test]
    fn r20_slots_that_came_or_went_in_mid_load_are_not_covered() {
        let mut coverage = Coverage::default();
        let now = Instant::now();
        let (slots, _) = coverage.begin(&load("a", 2), &set(0..10), now).unwrap();
        coverage.count("a", 0, &ChunkCount::default(), Some(&slots), now);
        coverage.gone(&set(0..5));
        // 0..5 come back, 10..20 arrive
        let (needed, done) = coverage.begin(&load("a", 2), &set(0..20), now).unwrap();
        assert_eq!((&needed, done), (&set(5..10), vec![0]));
        coverage.count("a", 1, &ChunkCount::default(), Some(&needed), now);
        assert_eq!(coverage.covered(), &set(5..10));
        let (needed, _) = coverage.begin(&load("b", 2), &set(0..20), now).unwrap();
        let mut rest = set(0..5);
        rest.union_with(&set(10..20));
        assert_eq!(needed, rest, "the next load fills what is missing");
    }

    #[test]
    fn slots_that_come_before_the_first_chunk_is_counted_are_loaded_with_the_rest() {
        let mut coverage = Coverage::default();
        let now = Instant::now();
        let (few, _) = coverage.begin(&load("a", 2), &set(0..10), now).unwrap();
        let (more, _) = coverage.begin(&load("a", 2), &set(0..20), now).unwrap();
        assert_eq!(more, set(0..20));
        coverage.count("a", 0, &ChunkCount::default(), Some(&more), now);
        coverage.count("a", 1, &ChunkCount::default(), Some(&few), now);
        assert_eq!(coverage.covered(), &set(0..10), "chunk 1 was sent for the first ten only");
    }

    #[test]
    fn slots_that_left_and_came_back_before_the_first_chunk_is_counted_are_not_covered() {
        let mut coverage = Coverage::default();
        let now = Instant::now();
        let (early, _) = coverage.begin(&load("a", 1), &set(0..10), now).unwrap();
        coverage.gone(&set(0..5));
        coverage.begin(&load("a", 1), &set(0..10), now).unwrap();
        coverage.count("a", 0, &ChunkCount::default(), Some(&early), now);
        assert_eq!(coverage.covered(), &set(5..10));
    }

    #[test]
    fn an_empty_table_is_covered_at_once() {
        let mut coverage = Coverage::default();
        coverage.begin(&load("a", 0), &set(0..10), Instant::now()).unwrap();
        assert_eq!(coverage.covered(), &set(0..10));
    }
}
