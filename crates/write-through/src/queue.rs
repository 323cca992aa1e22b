//! The write-behind queue: committed transactions in memory until the backend has them.
//!
//! Owns the byte bound, the per-lane order and the watermarks. Never does IO and never waits.
//! Filled by [`Reservation::commit`] (live writes) and [`Queue::enqueue`] (restored ones), emptied
//! by the lanes. One mutex guards it all; it is held while the journal appends, so that the order
//! of the queue is the order of the journal by construction.

use crate::backend::claim::LaneClaim;
use crate::pending::{Draft, Pending};
use cachetier_model::{SLOT_COUNT, SlotId, SlotSet};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

mod lane_queue;
mod marks;
mod pressure;

pub(crate) use lane_queue::LaneQueue;
pub use marks::{Backlog, FlushMarks, LaneMark};

/// The queue's bound is reached; nothing was journaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the write-behind queue is full: {bytes} of {capacity} bytes wait for the backend; retry later"
)]
pub struct QueueFull {
    pub bytes: u64,
    pub capacity: u64,
    pub retry_after: Duration,
}

/// Sequences must be queued in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("sequence {sequence} was queued after sequence {upto}; the queue must be filled in order")]
pub struct OutOfOrder {
    pub sequence: u64,
    pub upto: u64,
}

/// When and how much a lane takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakeLimits {
    pub rows: u32,
    pub bytes: u64,
    pub delay: Duration,
}

/// What a lane finds when it asks for work.
#[derive(Debug)]
pub(crate) enum Taken {
    Batch(Vec<Pending>),
    /// Something waits for company until then.
    NotBefore(Instant),
    /// Something waits for its sync.
    AwaitsSync,
    Nothing,
}

pub(crate) struct Queue {
    pub(crate) inner: Mutex<Inner>,
    marks: watch::Sender<FlushMarks>,
    /// Wakes whoever waits for lanes to be empty or for a claim.
    pub(crate) changed: Notify,
    capacity: u64,
    /// Bytes in use, for a look without the lock; written under it.
    used: AtomicU64,
    rows_max: u64,
}

pub(crate) struct Inner {
    /// Reserved, queued and in flight.
    bytes: u64,
    /// Everything at or below was queued (or is no transaction).
    enqueued_upto: u64,
    /// Not routed yet: before the claim, and during a change of lanes.
    staged: VecDeque<Pending>,
    pub(crate) lanes: Vec<LaneQueue>,
    /// True while new transactions go to `staged`.
    staging: bool,
    /// Queued and not committed, per slot.
    by_slot: Vec<u32>,
    /// Last sequence committed, per slot: a crash of the backend may take it back until its lane
    /// has confirmed it.
    committed: Vec<u64>,
}

impl Queue {
    pub(crate) fn new(capacity: u64, rows_max: u32, staged_after: u64) -> Arc<Self> {
        let marks = FlushMarks::unclaimed(staged_after);
        Arc::new(Self {
            inner: Mutex::new(Inner {
                bytes: 0,
                enqueued_upto: staged_after,
                staged: VecDeque::new(),
                lanes: Vec::new(),
                staging: true,
                by_slot: vec![0; usize::from(SLOT_COUNT)],
                committed: vec![0; usize::from(SLOT_COUNT)],
            }),
            marks: watch::Sender::new(marks),
            changed: Notify::new(),
            capacity,
            used: AtomicU64::new(0),
            rows_max: u64::from(rows_max),
        })
    }

    /// Sets bytes aside before anything is journaled.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Reservation, QueueFull> {
        let mut inner = self.inner.lock();
        // one transaction larger than the bound may pass an empty queue, else it never could
        if inner.bytes > 0 && inner.bytes.saturating_add(bytes) > self.capacity {
            let retry_after = Duration::from_millis(200);
            return Err(QueueFull { bytes: inner.bytes, capacity: self.capacity, retry_after });
        }
        inner.bytes += bytes;
        self.used.store(inner.bytes, Ordering::Relaxed);
        Ok(Reservation { queue: Arc::clone(self), bytes })
    }

    /// How long the next write should wait, so that writers are slowed before they are refused.
    pub(crate) fn slowdown(&self) -> Duration {
        pressure::slowdown(self.used.load(Ordering::Relaxed), self.capacity)
    }

    /// Queues a transaction whose sequence is known, beyond the bound if need be.
    pub(crate) fn enqueue(&self, pending: Pending) -> Result<(), OutOfOrder> {
        let mut inner = self.inner.lock();
        if pending.sequence <= inner.enqueued_upto {
            return Err(OutOfOrder { sequence: pending.sequence, upto: inner.enqueued_upto });
        }
        inner.bytes += pending.bytes;
        self.admit(&mut inner, pending);
        Ok(())
    }

    /// Tells the queue of a journal frame that is no transaction.
    pub(crate) fn note(&self, sequence: u64) {
        let mut inner = self.inner.lock();
        inner.enqueued_upto = inner.enqueued_upto.max(sequence);
    }

    fn admit(&self, inner: &mut Inner, pending: Pending) {
        inner.enqueued_upto = inner.enqueued_upto.max(pending.sequence);
        if let Some(count) = inner.by_slot.get_mut(pending.slot.index()) {
            *count += 1;
        }
        if inner.staging {
            inner.staged.push_back(pending);
            return;
        }
        inner.route(pending, self.rows_max);
    }

    pub(crate) fn lane_of(&self, slot: SlotId) -> Option<u16> {
        let lanes = self.inner.lock().lanes.len();
        (lanes > 0).then(|| lane_of(slot, lanes as u16))
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<FlushMarks> {
        self.marks.subscribe()
    }

    pub(crate) fn backlog(&self) -> Backlog {
        self.inner.lock().backlog()
    }

    /// Transactions of these slots that the backend does not have for sure: slots may be given
    /// away when this is 0.
    pub(crate) fn transactions_of(&self, slots: &SlotSet) -> u64 {
        let inner = self.inner.lock();
        let queued = slots.iter().filter_map(|s| inner.by_slot.get(s.index()));
        // what is sent again, or not confirmed yet, is not counted by transaction
        let revocable = u64::from(slots.iter().any(|s| inner.is_revocable(s)));
        revocable + queued.map(|n| u64::from(*n)).sum::<u64>()
    }

    /// Whether something that awaits the backend's decision is staged at or below its lane's position.
    pub(crate) fn staged_awaited(&self, lanes: &[LaneClaim]) -> bool {
        let inner = self.inner.lock();
        let count = lanes.len() as u16;
        inner.staged.iter().filter(|pending| pending.is_awaited()).any(|pending| {
            let lane = lanes.iter().find(|l| l.lane == lane_of(pending.slot, count));
            lane.is_some_and(|lane| pending.sequence <= lane.position)
        })
    }

    /// Takes the next batch of a lane, if it is time.
    pub(crate) fn take(&self, lane: u16, synced: u64, limits: TakeLimits) -> Taken {
        let mut inner = self.inner.lock();
        match inner.lanes.get_mut(usize::from(lane)) {
            Some(queue) => queue.take(synced, limits, now()),
            None => Taken::Nothing,
        }
    }

    /// A lane committed (or set aside, or dropped) transactions it had taken.
    pub(crate) fn settled(&self, lane: u16, done: &[Pending], position: u64, confirmed: bool) {
        let mut inner = self.inner.lock();
        for pending in done {
            inner.bytes = inner.bytes.saturating_sub(pending.bytes);
            if let Some(count) = inner.by_slot.get_mut(pending.slot.index()) {
                *count = count.saturating_sub(1);
            }
            if let Some(last) = inner.committed.get_mut(pending.slot.index()) {
                // what was dropped lies above the position, and needs no confirmation
                *last = (*last).max(pending.sequence.min(position));
            }
        }
        if let Some(queue) = inner.lanes.get_mut(usize::from(lane)) {
            queue.settled(done, position, confirmed);
        }
        self.publish(&inner);
    }

    /// A lane's asynchronous commits up to `position` are on the backend's disk.
    pub(crate) fn confirmed(&self, lane: u16, position: u64) {
        let mut inner = self.inner.lock();
        if let Some(queue) = inner.lanes.get_mut(usize::from(lane)) {
            queue.confirmed = queue.confirmed.max(position);
        }
        self.publish(&inner);
    }

    /// The backend's position went back; until `caught_up` the lane sends from the journal. The
    /// marks are promises given: they do not go back, they stand still meanwhile.
    pub(crate) fn rewound(&self, lane: u16, position: u64) {
        let mut inner = self.inner.lock();
        if let Some(queue) = inner.lanes.get_mut(usize::from(lane)) {
            queue.rewind(position);
        }
        self.publish(&inner);
    }

    /// Nothing counts as confirmed before the lanes have looked again.
    pub(crate) fn doubt(&self) {
        let mut inner = self.inner.lock();
        inner.lanes.iter_mut().for_each(|queue| queue.confirmed = 0);
        self.publish(&inner);
    }

    pub(crate) fn caught_up(&self, lane: u16) {
        let mut inner = self.inner.lock();
        if let Some(queue) = inner.lanes.get_mut(usize::from(lane)) {
            queue.catching_up = false;
        }
        self.publish(&inner);
    }

    /// Up to where an idle lane's position may be moved: nothing of it is queued or in flight.
    pub(crate) fn idle_upto(&self, lane: u16, synced: u64) -> Option<u64> {
        let inner = self.inner.lock();
        let queue = inner.lanes.get(usize::from(lane))?;
        let idle = queue.is_empty() && inner.staged.is_empty();
        let upto = inner.enqueued_upto.min(synced);
        (idle && upto > queue.position).then_some(upto)
    }

    pub(crate) fn publish(&self, inner: &Inner) {
        self.used.store(inner.bytes, Ordering::Relaxed);
        let marks = inner.marks();
        self.marks.send_modify(|old| old.advance_to(marks));
        self.changed.notify_waiters();
    }
}

/// Tokio's clock, which a simulator can hold.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// The lane of a slot in a lane map of `lanes` lanes. Part of the bookkeeping's meaning.
pub fn lane_of(slot: SlotId, lanes: u16) -> u16 {
    slot.number() % lanes.max(1)
}

/// Bytes set aside in the queue; given back when dropped unused.
pub struct Reservation {
    queue: Arc<Queue>,
    bytes: u64,
}

impl Reservation {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends to the journal and queues, as one step under the queue's lock: whatever order
    /// callers come in, the queue's order is the journal's. `append` must not block.
    pub fn commit<E>(
        mut self,
        draft: Draft,
        append: impl FnOnce() -> Result<u64, E>,
    ) -> Result<u64, E> {
        let queue = Arc::clone(&self.queue);
        let mut inner = queue.inner.lock();
        let sequence = match append() {
            Ok(sequence) => sequence,
            Err(refused) => {
                drop(inner);
                return Err(refused);
            }
        };
        let bytes = std::mem::take(&mut self.bytes);
        queue.admit(&mut inner, draft.at(sequence, bytes));
        drop(inner);
        Ok(sequence)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let mut inner = self.queue.inner.lock();
            inner.bytes = inner.bytes.saturating_sub(self.bytes);
            self.queue.used.store(inner.bytes, Ordering::Relaxed);
        }
    }
}

impl Inner {
    fn route(&mut self, pending: Pending, rows_max: u64) {
        let lanes = self.lanes.len() as u16;
        let lane = usize::from(lane_of(pending.slot, lanes));
        if let Some(queue) = self.lanes.get_mut(lane) {
            queue.push(pending, rows_max);
        }
    }

    /// A crash of the backend could take back, or took back, commits of this slot.
    fn is_revocable(&self, slot: SlotId) -> bool {
        let lane = usize::from(lane_of(slot, self.lanes.len() as u16));
        let last = self.committed.get(slot.index()).copied().unwrap_or_default();
        self.lanes.get(lane).is_some_and(|q| q.catching_up || q.confirmed < last)
    }

    fn backlog(&self) -> Backlog {
        let mut backlog = Backlog { bytes: self.bytes, ..Backlog::default() };
        let now = now();
        let age = |since: Instant| now.saturating_duration_since(since);
        backlog.transactions = self.by_slot.iter().map(|n| u64::from(*n)).sum();
        let staged = self.staged.front().map(|p| age(p.since));
        let oldest = self.lanes.iter().filter_map(LaneQueue::oldest).map(age).chain(staged).max();
        backlog.oldest_age = oldest.unwrap_or_default();
        backlog.unconfirmed_lanes =
            self.lanes.iter().filter(|q| q.catching_up || q.confirmed < q.position).count() as u16;
        backlog
    }

    fn marks(&self) -> FlushMarks {
        let staged = self.staged.front().map(|p| p.sequence);
        let lanes = self
            .lanes
            .iter()
            .map(|queue| {
                let head = queue.head().or(staged);
                let flushed = head.map_or(self.enqueued_upto, |first| first.saturating_sub(1));
                let confirmed =
                    if queue.confirmed < queue.position { queue.confirmed } else { flushed };
                let held = queue.position.min(queue.confirmed);
                LaneMark { position: queue.position, flushed, confirmed, held }
            })
            .collect();
        FlushMarks::of_lanes(lanes, staged.map(|s| s.saturating_sub(1)), self.enqueued_upto)
    }

    /// Gives every staged transaction to its lane, dropping what its lane has already flushed.
    pub(crate) fn route_staged(&mut self, rows_max: u64) -> Vec<Pending> {
        self.staging = false;
        let mut known = Vec::new();
        let lanes = self.lanes.len() as u16;
        for pending in std::mem::take(&mut self.staged) {
            let lane = usize::from(lane_of(pending.slot, lanes));
            if self.lanes.get(lane).is_some_and(|q| pending.sequence <= q.position) {
                self.bytes = self.bytes.saturating_sub(pending.bytes);
                if let Some(count) = self.by_slot.get_mut(pending.slot.index()) {
                    *count = count.saturating_sub(1);
                }
                known.push(pending);
            } else {
                self.route(pending, rows_max);
            }
        }
        known
    }

    /// Everything routed is committed, and no crash of the backend takes it back.
    pub(crate) fn is_drained(&self) -> bool {
        self.lanes.iter().all(|q| q.is_empty() && q.confirmed >= q.position)
    }

    pub(crate) fn begin_staging(&mut self) {
        self.staging = true;
    }

    pub(crate) fn reset_lanes(&mut self, lanes: &[LaneClaim]) {
        self.lanes = lanes.iter().map(|lane| LaneQueue::at(lane.position)).collect();
    }
}

#[cfg(test)]
mod tests;
