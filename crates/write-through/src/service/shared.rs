//! What the handle, the supervisor and the lanes of one node share.

use super::Replay;
use super::convoy::Convoy;
use super::meter::Meter;
use super::turns::Turns;
use crate::backend::Backend;
use crate::backend::claim::LaneClaim;
use crate::backend::flush::AsOf;
use crate::error::BackendError;
use crate::events::{BackendHealth, FlushEvent};
use crate::options::WriteThroughOptions;
use crate::queue::Queue;
use cachetier_model::{GroupSchema, RootKey, SlotSet};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

pub(crate) struct Shared {
    pub options: WriteThroughOptions,
    pub backend: Arc<dyn Backend>,
    pub schema: Arc<GroupSchema>,
    pub queue: Arc<Queue>,
    pub synced: watch::Receiver<u64>,
    pub replay: Option<Arc<dyn Replay>>,
    pub events: mpsc::Sender<FlushEvent>,
    pub health: watch::Sender<BackendHealth>,
    pub paused: watch::Sender<bool>,
    pub meter: Meter,
    pub turns: Turns,
    pub convoy: Convoy,
    /// Counts the times that somebody wanted idle lanes to look at their rows.
    pub looks: watch::Sender<u64>,
    /// Before the claim: how far the lanes are known to have come.
    pub believed: Mutex<Option<AsOf>>,
    pub shutdown: CancellationToken,
    pub state: Mutex<SharedState>,
}

/// Written by the supervisor (claim), the lanes (losses, versions) and the handle (gains).
#[derive(Default)]
pub(crate) struct SharedState {
    pub token: u64,
    /// Slots this process knows to be its own.
    pub slots: SlotSet,
    /// Grows whenever slots are gained: a lane that has not seen it reads its writer row first.
    pub gains: u64,
    /// Instances with open rejects, each with the sequence of its head (0: from before).
    pub quarantined: HashMap<RootKey, u64>,
    /// Slots that are this node's and that the rows lack: taken again before anything of them is sent.
    pub awaited: SlotSet,
    /// How often slots were found to be lacking.
    pub doubts: u64,
    /// Slots that are not taken again, though the backend lost how they were taken.
    pub given_up: SlotSet,
    /// Version and position per lane, for acts beside the lanes.
    pub fences: Vec<(u64, u64)>,
}

impl Shared {
    #[allow(clippy::too_many_arguments, reason = "one call, from the handle's start")]
    pub fn new(
        options: WriteThroughOptions,
        backend: Arc<dyn Backend>,
        schema: Arc<GroupSchema>,
        queue: Arc<Queue>,
        synced: watch::Receiver<u64>,
        replay: Option<Arc<dyn Replay>>,
        events: mpsc::Sender<FlushEvent>,
        shutdown: CancellationToken,
    ) -> Self {
        let paused = watch::Sender::new(options.paused);
        let turns = Turns::new(options.log_wait_interval);
        Self {
            options,
            backend,
            schema,
            queue,
            synced,
            replay,
            events,
            health: watch::Sender::new(BackendHealth::Unknown),
            paused,
            meter: Meter::default(),
            turns,
            convoy: Convoy::default(),
            looks: watch::Sender::new(0),
            believed: Mutex::new(None),
            shutdown,
            state: Mutex::new(SharedState::default()),
        }
    }

    /// Sends an event; waits while the group is behind, gives up only when it is gone.
    pub async fn tell(&self, event: FlushEvent) {
        tokio::select! {
            () = self.shutdown.cancelled() => {}
            sent = self.events.send(event) => {
                if sent.is_err() {
                    tracing::debug!("nobody listens to flush events any more");
                }
            }
        }
    }

    pub async fn backend_is_up(&self) {
        let changed = self.health.send_if_modified(|health| {
            let changed = *health != BackendHealth::Up;
            *health = BackendHealth::Up;
            changed
        });
        if changed {
            tracing::info!(node = %self.options.node, "backend is reachable");
            self.tell(FlushEvent::BackendUp).await;
        }
    }

    pub async fn backend_is_down(&self, error: &BackendError) {
        let disposition = error.disposition();
        let down = BackendHealth::Down {
            disposition,
            reason: error.reason,
            message: error.message.clone(),
        };
        let changed = self.health.send_if_modified(|health| {
            let same =
                matches!(health, BackendHealth::Down { reason, .. } if *reason == error.reason);
            *health = down;
            !same
        });
        if changed {
            let reason = error.reason;
            tracing::warn!(node = %self.options.node, %reason, "backend does not take flushes");
            let message = error.message.clone();
            self.tell(FlushEvent::BackendDown { disposition, reason, message }).await;
        }
    }

    pub fn slots_gained(&self, slots: &SlotSet, versions: &[(u16, u64)]) {
        let mut state = self.state.lock();
        for (lane, version) in versions {
            if let Some(fence) = state.fences.get_mut(usize::from(*lane)) {
                // a lower one is believed once the lane has seen that nothing is lacking
                fence.0 = fence.0.max(*version);
            }
        }
        state.slots.union_with(slots);
        state.given_up.subtract(slots);
        state.awaited.subtract(slots);
        state.gains += 1;
        drop(state);
        // idle lanes learn their rows' new versions at once
        self.looks.send_modify(|looks| *looks += 1);
    }

    pub fn quarantine(&self, keys: &[RootKey]) {
        let mut state = self.state.lock();
        for key in keys {
            state.quarantined.entry(key.clone()).or_insert(0);
        }
    }

    pub fn adopt(&self, token: u64, lanes: &[LaneClaim]) {
        let mut state = self.state.lock();
        state.token = token;
        lanes.iter().for_each(|lane| state.slots.union_with(&lane.slots));
        state.fences = lanes.iter().map(|lane| (lane.version, lane.position)).collect();
    }
}
