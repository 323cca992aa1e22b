//! One lane's part of the queue: its transactions in commit order, and how far it came.

use crate::pending::Pending;
use crate::queue::{TakeLimits, Taken};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Notify;

pub(crate) struct LaneQueue {
    entries: VecDeque<Pending>,
    rows: u64,
    /// Sequence of the youngest entry somebody waits for; entries up to it leave at once.
    urgent_upto: u64,
    /// First sequence taken and not settled.
    pub(crate) in_flight_first: Option<u64>,
    in_flight_since: Option<Instant>,
    /// Last sequence taken and not settled.
    in_flight_last: u64,
    /// The position in the backend's writer row, as last known.
    pub(crate) position: u64,
    /// The part of it that no crash of the backend takes back.
    pub(crate) confirmed: u64,
    /// The backend lost commits and gets them again from the journal.
    pub(crate) catching_up: bool,
    pub(crate) wake: Arc<Notify>,
}

impl LaneQueue {
    pub(crate) fn at(position: u64) -> Self {
        Self {
            entries: VecDeque::new(),
            rows: 0,
            urgent_upto: 0,
            in_flight_first: None,
            in_flight_since: None,
            in_flight_last: 0,
            position,
            confirmed: position,
            catching_up: false,
            wake: Arc::new(Notify::new()),
        }
    }

    pub(crate) fn push(&mut self, pending: Pending, rows_max: u64) {
        let urgent = pending.urgent || pending.awaits_backend;
        let first = self.entries.is_empty();
        let before = self.rows;
        self.rows += pending.changes.len() as u64;
        if urgent {
            self.urgent_upto = pending.sequence;
        }
        self.entries.push_back(pending);
        if first || urgent || (before < rows_max && self.rows >= rows_max) {
            self.wake.notify_one();
        }
    }

    pub(crate) fn take(&mut self, synced: u64, limits: TakeLimits, now: Instant) -> Taken {
        let Some(front) = self.entries.front() else { return Taken::Nothing };
        let urgent = front.sequence <= self.urgent_upto;
        let due = front.since + limits.delay;
        if !urgent && self.rows < u64::from(limits.rows) && now < due {
            return Taken::NotBefore(due);
        }
        if front.sequence > synced {
            return Taken::AwaitsSync;
        }
        let mut batch = Vec::new();
        let (mut rows, mut bytes) = (0_u64, 0_u64);
        while let Some(next) = self.entries.front() {
            let (more_rows, more_bytes) = (next.changes.len() as u64, next.bytes);
            let over =
                rows + more_rows > u64::from(limits.rows) || bytes + more_bytes > limits.bytes;
            if next.sequence > synced || (over && !batch.is_empty()) {
                break;
            }
            rows += more_rows;
            bytes += more_bytes;
            batch.extend(self.entries.pop_front());
        }
        self.rows = self.rows.saturating_sub(rows);
        // a lane that is held up takes more behind what it has
        self.in_flight_first = self.in_flight_first.or_else(|| batch.first().map(|p| p.sequence));
        self.in_flight_since = self.in_flight_since.or_else(|| batch.first().map(|p| p.since));
        self.in_flight_last = batch.last().map_or(0, |p| p.sequence);
        Taken::Batch(batch)
    }

    /// `done` are a prefix of what is in flight.
    pub(crate) fn settled(&mut self, done: &[Pending], position: u64, confirmed: bool) {
        self.position = self.position.max(position);
        if confirmed {
            self.confirmed = self.position;
        }
        if let Some(last) = done.last() {
            self.in_flight_first =
                (last.sequence < self.in_flight_last).then_some(last.sequence + 1);
        }
        if self.in_flight_first.is_none() {
            self.in_flight_since = None;
        }
    }

    pub(crate) fn rewind(&mut self, position: u64) {
        self.position = position;
        self.confirmed = self.confirmed.min(position);
        self.catching_up = true;
    }

    /// First sequence that the backend does not have.
    pub(crate) fn head(&self) -> Option<u64> {
        if self.catching_up {
            return Some(self.position + 1);
        }
        self.in_flight_first.or_else(|| self.entries.front().map(|p| p.sequence))
    }

    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.in_flight_since.or_else(|| self.entries.front().map(|p| p.since))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.in_flight_first.is_none() && !self.catching_up
    }
}
