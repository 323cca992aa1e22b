//! One lane: an ordered stream of transactions, written through one backend connection.
//!
//! Owns its position, its session and what it has in flight. Takes batches from the queue, plans
//! them, sends them until their outcome is known, and reports. It never gives up: what passes by
//! itself is retried for ever, what a human must change is retried slowly, what the backend
//! refuses for good is set aside, and only a fence ends it.

use crate::backend::claim::LaneClaim;
use crate::backend::flush::{LaneSession, WriterId};
use crate::queue::{TakeLimits, Taken};
use crate::service::shared::Shared;
use cachetier_model::SlotSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) mod backoff;
mod build;
mod confirm;
mod deliver;
mod held;
mod segment;
mod session;
mod travel;
mod verdict;

/// Without work, the writer row is looked at this often at the latest; see
/// [`crate::WriteThroughOptions::idle_position_interval`].
pub(crate) struct Lane {
    shared: Arc<Shared>,
    writer: WriterId,
    token: u64,
    version: u64,
    /// The position believed to be in the writer row.
    position: u64,
    /// Gains of slots already looked at.
    gains_seen: u64,
    /// Slots that were given away, and are in the row again because the backend went back: what was
    /// flushed for them before is sent again.
    returned: SlotSet,
    /// The row was found behind while it lacked slots: the queue's marks are, the lane sends nothing yet.
    marks_went_back: bool,
    /// Since when the backend refuses, for a key, what it had accepted before it lost commits.
    refused_since: Option<Instant>,
    session: Option<Box<dyn LaneSession>>,
    backoff: backoff::Backoff,
    confirm: confirm::Confirm,
    wake: Arc<Notify>,
    stop: CancellationToken,
}

/// The lane must end: it was told to, or it was fenced.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Stopped,
    Fenced,
}

impl Lane {
    pub(crate) fn new(
        shared: Arc<Shared>,
        writer: WriterId,
        token: u64,
        claim: &LaneClaim,
        stop: CancellationToken,
    ) -> Self {
        let mut confirm = confirm::Confirm::default();
        let wake = {
            let inner = shared.queue.inner.lock();
            let queue = inner.lanes.get(usize::from(writer.lane));
            if queue.is_some_and(|q| q.confirmed < claim.position) {
                confirm.committed(claim.position);
            }
            queue.map(|q| Arc::clone(&q.wake))
        };
        Self {
            shared,
            writer,
            token,
            version: claim.version,
            position: claim.position,
            gains_seen: 0,
            returned: SlotSet::empty(),
            marks_went_back: false,
            refused_since: None,
            session: None,
            backoff: backoff::Backoff::default(),
            confirm,
            wake: wake.unwrap_or_default(),
            stop,
        }
    }

    fn limits(&self) -> TakeLimits {
        let options = &self.shared.options;
        TakeLimits {
            rows: options.batch_rows_max,
            bytes: options.batch_bytes_max,
            delay: options.delay_max,
        }
    }
}

/// Runs until told to stop or fenced.
pub(crate) async fn run(mut lane: Lane) {
    let mut synced = lane.shared.synced.clone();
    let mut paused = lane.shared.paused.subscribe();
    let mut log_synced = lane.shared.turns.subscribe();
    let mut calls = lane.shared.convoy.calls();
    let mut called = false;
    let mut looks = lane.shared.looks.subscribe();
    let mut look_at = Instant::now() + lane.shared.options.idle_position_interval;
    loop {
        if log_synced.has_changed().unwrap_or(false) {
            log_synced.mark_unchanged();
            lane.confirm.log_was_synced();
        }
        // before the next batch: a lane that always has one would never look
        let taken = if *paused.borrow_and_update() || lane.confirm.due() {
            Taken::Nothing
        } else {
            let upto = *synced.borrow_and_update();
            let mut limits = lane.limits();
            if std::mem::take(&mut called) {
                // company is there: nothing to wait for
                limits.delay = Duration::ZERO;
            }
            calls.mark_unchanged();
            lane.shared.queue.take(lane.writer.lane, upto, limits)
        };
        let ended = match taken {
            Taken::Batch(batch) => lane.deliver(batch).await,
            _ if lane.confirm.due() => lane.confirm_commits().await,
            _ if Instant::now() >= look_at => {
                look_at = Instant::now() + lane.shared.options.idle_position_interval;
                lane.look_around().await
            }
            other => {
                let until = lane.wait_until(&other, look_at);
                tokio::select! {
                    () = lane.stop.cancelled() => Err(Ended::Stopped),
                    () = lane.wake.notified() => Ok(()),
                    _ = paused.changed() => Ok(()),
                    _ = looks.changed() => {
                        look_at = Instant::now();
                        Ok(())
                    }
                    _ = calls.changed() => {
                        called = true;
                        Ok(())
                    }
                    _ = log_synced.changed() => {
                        lane.confirm.log_was_synced();
                        Ok(())
                    }
                    changed = synced.changed(), if matches!(other, Taken::AwaitsSync) => {
                        changed.map_err(|_| Ended::Stopped)
                    }
                    () = tokio::time::sleep_until(until) => Ok(()),
                }
            }
        };
        if let Err(ended) = ended {
            tracing::info!(node = %lane.writer.node, lane = lane.writer.lane, ?ended, "lane ended");
            return;
        }
        if lane.stop.is_cancelled() {
            return;
        }
    }
}

impl Lane {
    fn wait_until(&self, taken: &Taken, look_at: Instant) -> Instant {
        let mut until = look_at;
        if let Taken::NotBefore(due) = taken {
            until = until.min(Instant::from_std(*due));
        }
        if let Some(due) = self.confirm.next_due() {
            until = until.min(due);
        }
        // a timer that fires a little early would spin
        until.max(Instant::now() + Duration::from_micros(200))
    }
}
