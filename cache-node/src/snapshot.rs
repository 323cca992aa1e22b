//! The node's status as of a moment ago, for probes, health and metrics, which must not wait.
//!
//! Owns the cell; written by [`refresh`] alone, read by everyone.

use cachetier_group::{Group, Phase, Status};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const INTERVAL: Duration = Duration::from_millis(500);

/// The newest status; `None` before the first.
pub type Snapshot = watch::Receiver<Option<Arc<Status>>>;

/// The cell's two ends.
pub fn cell() -> (watch::Sender<Option<Arc<Status>>>, Snapshot) {
    watch::channel(None)
}

/// Keeps the cell fresh until `stop`.
pub async fn refresh(
    group: Group,
    cell: watch::Sender<Option<Arc<Status>>>,
    stop: CancellationToken,
) {
    let mut phase = None;
    loop {
        let status = Arc::new(group.status().await);
        if phase != Some(status.phase) {
            let (node, epoch) = (&status.node, status.topology_version);
            tracing::info!(node, epoch, phase = ?status.phase, ready = status.ready, "phase");
            phase = Some(status.phase);
        }
        cell.send_replace(Some(status));
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}

/// Why the node is not ready, or nothing.
pub fn readiness(snapshot: &Snapshot) -> Result<(), String> {
    let status = snapshot.borrow().clone();
    match status {
        None => Err("starting".to_owned()),
        Some(status) if status.ready => Ok(()),
        Some(status) => {
            let problem = status.problems.first();
            let why = problem.map_or(String::new(), |p| format!(": {}: {}", p.reason, p.message));
            Err(format!(
                "phase {:?}, {} of {} slots served, {} loaded{why}",
                status.phase, status.slots_serving, status.slots_assigned, status.slots_covered
            ))
        }
    }
}

/// A latched journal cannot heal inside this process.
pub fn liveness(snapshot: &Snapshot) -> Result<(), String> {
    let latched = snapshot.borrow().as_ref().is_some_and(|s| s.phase == Phase::Latched);
    if latched { Err("the journal failed; replace this process".to_owned()) } else { Ok(()) }
}
