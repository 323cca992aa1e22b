//! The running write-through of one node: its handle, and the supervisor that starts the lanes.
//!
//! Owns what the lanes share. The group makes one with [`WriteThrough::start`], fills it from the
//! first moment, and hands it the claim when the backend gave one; until then nothing is sent.

use crate::backend::Backend;
use crate::backend::claim::Claim;
use crate::backend::flush::{AsOf, Fence, WriterId};
use crate::events::{BackendHealth, FlushEvent};
use crate::options::WriteThroughOptions;
use crate::pending::Pending;
use crate::queue::{self, Backlog, FlushMarks, OutOfOrder, Queue, QueueFull, Reservation};
use cachetier_model::{GroupSchema, RootKey, SlotId, SlotSet};
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

pub(crate) mod convoy;
pub(crate) mod meter;
pub(crate) mod shared;
mod supervisor;
pub(crate) mod turns;
pub(crate) use supervisor::last_sequences;

pub use meter::FlushCounters;
use shared::Shared;

/// Reads committed transactions back from the journal, for a backend that lost commits.
pub trait Replay: Send + Sync + 'static {
    /// Transactions with `after < sequence <= upto`, in order, about `bytes_max` of them; empty
    /// when there are none left. Annulled transactions are left out.
    fn read_after(
        &self,
        after: u64,
        upto: u64,
        bytes_max: u64,
    ) -> BoxFuture<'_, Result<Vec<Pending>, ReplayError>>;
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    #[error("the journal begins after the position that the backend holds")]
    TooOld,
    #[error("reading the journal failed: {0}")]
    Failed(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    #[error("the transaction has not reached the backend in time")]
    TimedOut,
    #[error("write-through has stopped")]
    Stopped,
}

/// Handle; cheap to clone.
#[derive(Clone)]
pub struct WriteThrough {
    shared: Arc<Shared>,
    /// Only handles hold it: when all are gone without a claim, the supervisor ends.
    claims: mpsc::Sender<Claim>,
}

impl WriteThrough {
    /// Starts it. `synced` is the journal's durable watermark (only what is at or below it leaves,
    /// R1); `staged_after` is the sequence behind which the caller will queue everything.
    pub fn start(
        options: WriteThroughOptions,
        backend: Arc<dyn Backend>,
        schema: Arc<GroupSchema>,
        synced: watch::Receiver<u64>,
        replay: Option<Arc<dyn Replay>>,
        staged_after: u64,
        shutdown: CancellationToken,
    ) -> (Self, mpsc::Receiver<FlushEvent>) {
        let (events, receiver) = mpsc::channel(options.events_max.max(1));
        let (claims, claimed) = mpsc::channel(1);
        let queue = Queue::new(options.backlog_bytes_max, options.batch_rows_max, staged_after);
        let shared = Arc::new(Shared::new(
            options, backend, schema, queue, synced, replay, events, shutdown,
        ));
        tokio::spawn(supervisor::run(Arc::clone(&shared), claimed));
        (Self { shared, claims }, receiver)
    }

    /// The backend gave the claim: the lanes start. Queued transactions at or below their lane's
    /// position are dropped as flushed already. Counts once; later calls change nothing.
    pub fn claimed(&self, claim: Claim) {
        // the channel holds one claim; a second one has nothing to start
        let _ = self.claims.try_send(claim);
    }

    /// True if the backend decided, before this start, on a transaction that is queued as undecided
    /// here: what it decided is not in its position.
    pub fn staged_undecided(&self, claim: &Claim) -> bool {
        self.shared.queue.staged_awaited(&claim.lanes)
    }

    /// Sets bytes of the queue aside; do it before anything is journaled.
    pub fn reserve(&self, bytes: u64) -> Result<Reservation, QueueFull> {
        self.shared.queue.reserve(bytes)
    }

    /// How long the next write should wait before it reserves: nothing below 80 % of the queue's bound,
    /// then more the fuller the queue is, 100 ms at the bound.
    pub fn slowdown(&self) -> Duration {
        self.shared.queue.slowdown()
    }

    /// Queues a transaction that the journal holds already (restart). In ascending order.
    pub fn enqueue(&self, pending: Pending) -> Result<(), OutOfOrder> {
        self.shared.queue.enqueue(pending)
    }

    /// Tells of a journal frame that is no transaction, so that the marks may pass it.
    pub fn note(&self, sequence: u64) {
        self.shared.queue.note(sequence);
    }

    pub fn watch(&self) -> watch::Receiver<FlushMarks> {
        self.shared.queue.subscribe()
    }

    pub fn marks(&self) -> FlushMarks {
        self.shared.queue.subscribe().borrow().clone()
    }

    /// Waits until the backend has `sequence` of `slot`, confirmed (R11).
    pub async fn wait_flushed(
        &self,
        slot: SlotId,
        sequence: u64,
        timeout: Duration,
    ) -> Result<(), WaitError> {
        let mut marks = self.shared.queue.subscribe();
        let reached = marks.wait_for(|m| m.confirmed_of(slot) >= sequence);
        tokio::select! {
            () = self.shared.shutdown.cancelled() => Err(WaitError::Stopped),
            reached = tokio::time::timeout(timeout, reached) => match reached {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(_)) => Err(WaitError::Stopped),
                Err(_) => Err(WaitError::TimedOut),
            },
        }
    }

    /// How far each lane is in the backend, and the newest version its row is known to have had: 0 where
    /// it is known, too, that the row lacks slots, which no newer version hides any more.
    pub fn rows_known(&self) -> (Vec<u64>, Vec<u64>) {
        let positions = self.marks().lanes.iter().map(|lane| lane.position).collect();
        let state = self.shared.state.lock();
        let lanes = state.fences.len() as u16;
        let lacks = |lane: u16| state.awaited.iter().any(|slot| lane_of(slot, lanes) == lane);
        let known = (0..lanes).zip(&state.fences);
        let versions = known.map(|(lane, fence)| if lacks(lane) { 0 } else { fence.0 }).collect();
        (positions, versions)
    }

    /// What a snapshot of the backend must hold to be believed; `None` before the claim, unless
    /// something is known of an earlier one.
    pub fn as_of(&self) -> Option<AsOf> {
        let positions: Vec<u64> = self.marks().lanes.iter().map(|lane| lane.held).collect();
        if positions.is_empty() {
            return self.shared.believed.lock().clone();
        }
        let fences = self.shared.state.lock().fences.clone();
        Some(self.of_this_node(positions, fences.into_iter().map(|(version, _)| version).collect()))
    }

    /// Of an earlier claim, for as long as there is none of this process: how far each lane had come,
    /// confirmed (empty: nobody knows, and no snapshot is believed), and the versions of the rows.
    pub fn believe(&self, positions: &[u64], versions: &[u64]) {
        let unknown = || vec![u64::MAX];
        let positions = if positions.is_empty() { unknown() } else { positions.to_vec() };
        *self.shared.believed.lock() = Some(self.of_this_node(positions, versions.to_vec()));
    }

    fn of_this_node(&self, positions: Vec<u64>, versions: Vec<u64>) -> AsOf {
        let (group_uid, node) = (&self.shared.options.group_uid, &self.shared.options.node);
        AsOf { group_uid: group_uid.clone(), node: node.clone(), positions, versions }
    }

    /// The newest version that the row of each lane is known to have had; `None` before the claim, and
    /// while a row lacks slots.
    pub fn versions(&self) -> Option<Vec<u64>> {
        let state = self.shared.state.lock();
        let known = !state.fences.is_empty() && state.awaited.is_empty();
        known.then(|| state.fences.iter().map(|(version, _)| *version).collect())
    }

    /// A snapshot did not hold it: the lanes that have nothing to do look at their rows now.
    pub fn look(&self) {
        self.shared.looks.send_modify(|looks| *looks += 1);
    }

    pub fn backlog(&self) -> Backlog {
        let rows_per_second = self.shared.meter.rows_per_second();
        Backlog { rows_per_second, ..self.shared.queue.backlog() }
    }

    /// Transactions of these slots that the backend does not have.
    pub fn backlog_of(&self, slots: &SlotSet) -> u64 {
        self.shared.queue.transactions_of(slots)
    }

    pub fn health(&self) -> watch::Receiver<BackendHealth> {
        self.shared.health.subscribe()
    }

    pub fn counters(&self) -> FlushCounters {
        self.shared.meter.counters()
    }

    /// After a takeover, and before anything of these slots is queued. `versions`: of the writer rows
    /// since, as the takeover answered them.
    pub fn slots_gained(&self, slots: &SlotSet, versions: &[(u16, u64)]) {
        self.shared.slots_gained(slots, versions);
    }

    /// Of slots that an event told lost, those that were not gained again since.
    pub fn still_lost(&self, slots: &SlotSet) -> SlotSet {
        let mut lost = slots.clone();
        lost.subtract(&self.shared.state.lock().slots);
        lost
    }

    /// Slots that this process has, or an earlier one of this journal had, and that the rows lack. What
    /// is queued for them waits until they are gained, or given up.
    pub fn await_slots(&self, slots: &SlotSet) {
        let mut state = self.shared.state.lock();
        state.slots.union_with(slots);
        state.awaited.union_with(slots);
        state.doubts += 1;
    }

    /// Whether what the backend has of these slots may be believed (`None`: no), as far as a lost takeover
    /// can tell. What was read of them in between is, when the answer is the same afterwards: a part of
    /// the slots taken again makes the row's version what it was, and hides that others are lacking.
    pub fn trust(&self, slots: &SlotSet) -> Option<u64> {
        let state = self.shared.state.lock();
        let mut lacking = state.awaited.clone();
        lacking.intersect_with(slots);
        lacking.is_empty().then_some(state.doubts)
    }

    /// Slots that the backend forgot to be this node's, and that nobody takes again for it: they are
    /// lost like any others.
    pub fn slots_given_up(&self, slots: &SlotSet) {
        let mut state = self.shared.state.lock();
        state.given_up.union_with(slots);
        state.awaited.subtract(slots);
    }

    /// Instances with open rejects: what comes for them is set aside behind the reject.
    pub fn quarantine(&self, keys: &[RootKey]) {
        self.shared.quarantine(keys);
    }

    /// The reject of this instance was replayed or discarded.
    pub fn release_quarantine(&self, key: &RootKey) {
        self.shared.state.lock().quarantined.remove(key);
    }

    pub fn set_paused(&self, paused: bool) {
        self.shared.paused.send_replace(paused);
    }

    pub fn is_paused(&self) -> bool {
        *self.shared.paused.borrow()
    }

    /// What proves to the backend that this process may act on a slot; `None` before the claim.
    pub fn fence(&self, slot: SlotId) -> Option<Fence> {
        let lane = self.shared.queue.lane_of(slot)?;
        let state = self.shared.state.lock();
        let (version, position) = *state.fences.get(usize::from(lane))?;
        let writer = WriterId {
            group_uid: self.shared.options.group_uid.clone(),
            node: self.shared.options.node.clone(),
            lanes: u16::try_from(state.fences.len()).ok()?,
            lane,
        };
        Some(Fence { writer, token: state.token, version, position })
    }
}

pub use queue::lane_of;
