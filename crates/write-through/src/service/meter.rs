//! Counters of the lanes: what was written, refused, retried.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Totals since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlushCounters {
    /// Backend transactions that committed.
    pub batches: u64,
    pub transactions: u64,
    /// Rows sent, after the net effect.
    pub rows: u64,
    pub statements: u64,
    /// Attempts that failed for a passing reason.
    pub retries: u64,
    pub rejected_transactions: u64,
    pub refused_transactions: u64,
    pub dropped_transactions: u64,
    /// Time from the start to the commit of flush transactions.
    pub busy_seconds: f64,
}

#[derive(Default)]
pub(crate) struct Meter {
    pub batches: AtomicU64,
    pub transactions: AtomicU64,
    pub rows: AtomicU64,
    pub statements: AtomicU64,
    pub retries: AtomicU64,
    pub rejected: AtomicU64,
    pub refused: AtomicU64,
    pub dropped: AtomicU64,
    busy_micros: AtomicU64,
    rate: Mutex<Rate>,
}

#[derive(Default)]
struct Rate {
    window: Option<(Instant, u64)>,
    rows_per_second: f64,
}

/// A rate is taken over at least this long.
const RATE_WINDOW: Duration = Duration::from_secs(1);

impl Meter {
    pub fn committed(&self, transactions: usize, rows: usize, statements: usize, busy: Duration) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.transactions.fetch_add(transactions as u64, Ordering::Relaxed);
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
        self.statements.fetch_add(statements as u64, Ordering::Relaxed);
        self.busy_micros.fetch_add(busy.as_micros() as u64, Ordering::Relaxed);
    }

    pub fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Rows per second over the last window that ended.
    pub fn rows_per_second(&self) -> f64 {
        let now = Instant::now();
        let rows = self.rows.load(Ordering::Relaxed);
        let mut rate = self.rate.lock();
        match rate.window {
            None => rate.window = Some((now, rows)),
            Some((start, before)) if now.duration_since(start) >= RATE_WINDOW => {
                let seconds = now.duration_since(start).as_secs_f64();
                rate.rows_per_second = rows.saturating_sub(before) as f64 / seconds;
                rate.window = Some((now, rows));
            }
            Some(_) => {}
        }
        rate.rows_per_second
    }

    pub fn counters(&self) -> FlushCounters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FlushCounters {
            batches: get(&self.batches),
            transactions: get(&self.transactions),
            rows: get(&self.rows),
            statements: get(&self.statements),
            retries: get(&self.retries),
            rejected_transactions: get(&self.rejected),
            refused_transactions: get(&self.refused),
            dropped_transactions: get(&self.dropped),
            busy_seconds: get(&self.busy_micros) as f64 / 1e6,
        }
    }
}
