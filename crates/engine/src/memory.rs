//! The memory budget: what is held, what may still be taken, and the row counts.

use cachetier_model::TableId;
use std::sync::atomic::{AtomicI64, Ordering};

/// Counters are changed under the lock of the slot whose change they count; readers take none.
#[derive(Debug)]
pub(crate) struct Memory {
    capacity_bytes: u64,
    /// Bytes of all slots and lookup indexes.
    held: AtomicI64,
    rows: Vec<AtomicI64>,
}

impl Memory {
    pub(crate) fn new(capacity_bytes: u64, base_bytes: usize, tables: usize) -> Self {
        Self {
            capacity_bytes,
            held: AtomicI64::new(base_bytes as i64),
            rows: (0..tables).map(|_| AtomicI64::new(0)).collect(),
        }
    }

    /// Whether `growth` more bytes stay within the budget.
    pub(crate) fn admits(&self, growth: usize) -> bool {
        self.held() + growth as u64 <= self.capacity_bytes
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed).max(0) as u64
    }

    pub(crate) fn resized(&self, before: usize, after: usize) {
        if before != after {
            self.held.fetch_add(after as i64 - before as i64, Ordering::Relaxed);
        }
    }

    pub(crate) fn count_rows(&self, table: TableId, difference: i64) {
        if let (Some(counter), true) = (self.rows.get(table), difference != 0) {
            counter.fetch_add(difference, Ordering::Relaxed);
        }
    }

    /// Every existing instance has one root row.
    pub(crate) fn instances(&self) -> u64 {
        self.rows(0)
    }

    pub(crate) fn rows(&self, table: TableId) -> u64 {
        self.rows.get(table).map_or(0, |counter| counter.load(Ordering::Relaxed).max(0) as u64)
    }
}
