//! Starts the lanes once the backend gave the claim, and changes the lane map at a barrier (R10).

use super::shared::Shared;
use crate::backend::claim::{Claim, LaneChange, LaneClaim};
use crate::backend::flush::WriterId;
use crate::error::Disposition;
use crate::events::FlushEvent;
use crate::lane::{self, Lane, backoff::Backoff};
use crate::pending::Pending;
use cachetier_model::RootKey;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(super) async fn run(shared: Arc<Shared>, mut claims: mpsc::Receiver<Claim>) {
    let claim = tokio::select! {
        () = shared.shutdown.cancelled() => return,
        claim = claims.recv() => match claim {
            Some(claim) => claim,
            None => return,
        },
    };
    shared.quarantine(&claim.quarantined);
    shared.adopt(claim.token, &claim.lanes);
    let wanted = shared.options.lanes.max(1);
    let mut lanes = claim.lanes;
    let change = lanes.len() != usize::from(wanted);
    install(&shared, &lanes, change).await;
    if change {
        match run_to_barrier(&shared, claim.token, &lanes, wanted).await {
            Some(changed) => lanes = changed,
            None => return,
        }
        shared.adopt(claim.token, &lanes);
        install(&shared, &lanes, false).await;
    }
    let stop = shared.shutdown.child_token();
    let mut running = spawn(&shared, claim.token, &lanes, &stop);
    while let Some(ended) = running.join_next().await {
        report_end(&shared, ended).await;
    }
}

/// Gives the staged transactions to the lanes; with `hold`, later ones are staged again.
async fn install(shared: &Arc<Shared>, lanes: &[LaneClaim], hold: bool) {
    let known = {
        let mut inner = shared.queue.inner.lock();
        inner.reset_lanes(lanes);
        let known = inner.route_staged(u64::from(shared.options.batch_rows_max));
        if hold {
            inner.begin_staging();
        }
        shared.queue.publish(&inner);
        known
    };
    // what the backend had already before this start
    let mut by_lane: BTreeMap<u16, Vec<Pending>> = BTreeMap::new();
    for pending in known {
        let lane = crate::queue::lane_of(pending.slot, lanes.len() as u16);
        by_lane.entry(lane).or_default().push(pending);
    }
    for (lane, pending) in by_lane {
        let upto = pending.last().map_or(0, |p| p.sequence);
        let waiting = pending.iter().filter(|p| p.is_awaited());
        let accepted = waiting.map(|p| (p.key.clone(), p.sequence)).collect();
        let keys = last_sequences(&pending);
        let (resent, known) = (false, true);
        shared.tell(FlushEvent::Flushed { lane, upto, keys, accepted, resent, known }).await;
    }
}

/// Each instance with its last sequence.
pub(crate) fn last_sequences(pending: &[Pending]) -> Vec<(RootKey, u64)> {
    let mut last: BTreeMap<&RootKey, u64> = BTreeMap::new();
    pending.iter().for_each(|p| {
        last.insert(&p.key, p.sequence);
    });
    last.into_iter().map(|(key, sequence)| (key.clone(), sequence)).collect()
}

fn spawn(
    shared: &Arc<Shared>,
    token: u64,
    lanes: &[LaneClaim],
    stop: &CancellationToken,
) -> JoinSet<u16> {
    let mut running = JoinSet::new();
    let count = lanes.len() as u16;
    for claim in lanes {
        let writer = WriterId {
            group_uid: shared.options.group_uid.clone(),
            node: shared.options.node.clone(),
            lanes: count,
            lane: claim.lane,
        };
        let lane = Lane::new(Arc::clone(shared), writer, token, claim, stop.clone());
        let number = claim.lane;
        running.spawn(async move {
            lane::run(lane).await;
            number
        });
    }
    running
}

/// Flushes everything under the old lane map, then writes the rows of the new one.
async fn run_to_barrier(
    shared: &Arc<Shared>,
    token: u64,
    lanes: &[LaneClaim],
    wanted: u16,
) -> Option<Vec<LaneClaim>> {
    let mut lanes = lanes.to_vec();
    let mut backoff = Backoff::default();
    loop {
        if !cachetier_defects::on("r10-lanes-without-barrier") {
            drain(shared, token, &lanes).await?;
        }
        let marks = shared.queue.subscribe().borrow().lanes.clone();
        let believed: Vec<u64> = marks.iter().map(|l| l.position).collect();
        for (lane, position) in lanes.iter_mut().zip(&believed) {
            lane.position = *position;
        }
        let change = LaneChange {
            group_uid: shared.options.group_uid.clone(),
            node: shared.options.node.clone(),
            token,
            lanes: wanted,
            position: believed.iter().copied().max().unwrap_or_default(),
            believed,
        };
        if let Some(changed) = change_lanes(shared, &change, &mut backoff).await? {
            return Some(changed);
        }
        tracing::warn!(
            node = %shared.options.node,
            "the backend lost commits before the lanes changed; the old lanes run again"
        );
        shared.queue.doubt();
        pause(shared, backoff.next(Disposition::Retry)).await?;
    }
}

/// Runs the lanes until the backend has everything for sure; `None` when the process ends.
async fn drain(shared: &Arc<Shared>, token: u64, lanes: &[LaneClaim]) -> Option<()> {
    let stop = shared.shutdown.child_token();
    let mut running = spawn(shared, token, lanes, &stop);
    loop {
        let changed = shared.queue.changed.notified();
        if shared.queue.inner.lock().is_drained() {
            break;
        }
        tokio::select! {
            () = shared.shutdown.cancelled() => return None,
            () = changed => {}
            Some(ended) = running.join_next() => report_end(shared, ended).await,
        }
    }
    stop.cancel();
    while running.join_next().await.is_some() {}
    Some(())
}

/// Asks until the backend answers. The outer `None`: this process ends, or was fenced; the inner
/// one: the rows are not as believed.
async fn change_lanes(
    shared: &Shared,
    change: &LaneChange,
    backoff: &mut Backoff,
) -> Option<Option<Vec<LaneClaim>>> {
    loop {
        let error = match shared.backend.change_lanes(change.clone()).await {
            Ok(answer) => return Some(answer),
            Err(error) => error,
        };
        if error.disposition() == Disposition::Fenced {
            let (reason, message) = (error.reason, error.message.clone());
            shared.tell(FlushEvent::Fenced { reason, message }).await;
            return None;
        }
        shared.backend_is_down(&error).await;
        pause(shared, backoff.next(error.disposition())).await?;
    }
}

async fn pause(shared: &Shared, wait: Duration) -> Option<()> {
    tokio::select! {
        () = shared.shutdown.cancelled() => None,
        () = tokio::time::sleep(wait) => Some(()),
    }
}

async fn report_end(shared: &Shared, ended: Result<u16, tokio::task::JoinError>) {
    match ended {
        Ok(_) => {}
        Err(error) if error.is_cancelled() => {}
        Err(_) => {
            tracing::error!(node = %shared.options.node, "a lane ended unexpectedly");
            shared.tell(FlushEvent::Stopped { lane: 0 }).await;
        }
    }
}
