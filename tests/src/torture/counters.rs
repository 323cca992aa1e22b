//! What is known of every counter: written by its one writer, read by readers and the final check.

use super::TortureReport;
use crate::local::eventually;
use anyhow::{Result, ensure};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Events kept of each counter, and of the whole run, for the history of a violation.
const EVENTS_KEPT: usize = 24;
const NOTES_KEPT: usize = 64;
/// Histories told at most; the rest is only counted.
const VIOLATIONS_TOLD: usize = 20;
const PATIENCE: Duration = Duration::from_secs(90);

/// One counter.
#[derive(Default)]
pub struct Counter {
    /// Highest value whose write was acknowledged (or settled by a read).
    acknowledged: AtomicI64,
    /// Highest value sent.
    sent: AtomicI64,
    events: Mutex<VecDeque<String>>,
}

/// All counters, ids from 1.
pub struct Counters {
    started: Instant,
    counters: Vec<Counter>,
    notes: Mutex<VecDeque<String>>,
    tally: Mutex<Tally>,
    reads: AtomicU64,
    acknowledged: AtomicU64,
}

#[derive(Default)]
struct Tally {
    lost: u64,
    duplicated: u64,
    reordered: u64,
    in_doubt: u64,
    refusals: BTreeMap<String, u64>,
    violations: Vec<String>,
}

/// What a violation counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    Lost,
    Duplicated,
    Reordered,
}

impl Counters {
    pub fn new(count: i64) -> Self {
        Self {
            started: Instant::now(),
            counters: (0..count).map(|_| Counter::default()).collect(),
            notes: Mutex::default(),
            tally: Mutex::default(),
            reads: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
        }
    }

    pub fn ids(&self) -> std::ops::RangeInclusive<i64> {
        1..=self.counters.len() as i64
    }

    fn counter(&self, id: i64) -> &Counter {
        &self.counters[(id - 1) as usize]
    }

    pub fn acknowledged(&self, id: i64) -> i64 {
        self.counter(id).acknowledged.load(Ordering::SeqCst)
    }

    pub fn sent(&self, id: i64) -> i64 {
        self.counter(id).sent.load(Ordering::SeqCst)
    }

    pub fn sending(&self, id: i64, value: i64) {
        self.counter(id).sent.store(value, Ordering::SeqCst);
    }

    pub fn acknowledge(&self, id: i64, value: i64) {
        self.counter(id).acknowledged.store(value, Ordering::SeqCst);
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until `more` further writes are acknowledged.
    pub async fn progress(&self, more: u64) -> Result<()> {
        let target = self.acknowledged.load(Ordering::Relaxed) + more;
        eventually("writes to go on", PATIENCE, || async {
            let now = self.acknowledged.load(Ordering::Relaxed);
            ensure!(now >= target, "{now} of {target}");
            Ok(Some(()))
        })
        .await
    }

    pub fn doubt(&self) {
        self.tally().in_doubt += 1;
    }

    pub fn refused(&self, reason: &str) {
        *self.tally().refusals.entry(reason.to_owned()).or_default() += 1;
    }

    pub fn was_read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    /// An event of one counter, for its history.
    pub fn event(&self, id: i64, what: &str) {
        let line = format!("{:9.3} {what}", self.started.elapsed().as_secs_f64());
        keep(&self.counter(id).events, line, EVENTS_KEPT);
    }

    /// An event of the whole run.
    pub fn note(&self, what: &str) {
        let line = format!("{:9.3} {what}", self.started.elapsed().as_secs_f64());
        keep(&self.notes, line, NOTES_KEPT);
    }

    pub fn violated(&self, violation: Violation, count: u64, id: i64, what: &str) {
        self.event(id, what);
        let mut tally = self.tally();
        match violation {
            Violation::Lost => tally.lost += count,
            Violation::Duplicated => tally.duplicated += count,
            Violation::Reordered => tally.reordered += count,
        }
        if tally.violations.len() < VIOLATIONS_TOLD {
            let lines = |list: &Mutex<VecDeque<String>>| {
                let list = list.lock().unwrap_or_else(PoisonError::into_inner);
                list.iter().map(|line| format!("\n  {line}")).collect::<String>()
            };
            let (events, notes) = (lines(&self.counter(id).events), lines(&self.notes));
            tally.violations.push(format!(
                "counter {id}: {what}\n its events:{events}\n faults of the run:{notes}"
            ));
        }
    }

    fn tally(&self) -> std::sync::MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn fill(&self, report: &mut TortureReport) {
        let tally = self.tally();
        report.acknowledged = self.acknowledged.load(Ordering::Relaxed);
        report.reads = self.reads.load(Ordering::Relaxed);
        report.lost = tally.lost;
        report.duplicated = tally.duplicated;
        report.reordered = tally.reordered;
        report.in_doubt = tally.in_doubt;
        report.refusals.clone_from(&tally.refusals);
        report.violations.clone_from(&tally.violations);
    }
}

fn keep(list: &Mutex<VecDeque<String>>, line: String, limit: usize) {
    let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
    list.push_back(line);
    if list.len() > limit {
        list.pop_front();
    }
}
