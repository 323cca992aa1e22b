//! The standard health service, per service: `Cache` and the empty name follow readiness; `Admin`
//! and `Peer` answer as long as the process does.

use crate::snapshot::{self, Snapshot};
use tokio_util::sync::CancellationToken;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// Copies readiness into the health service until `stop`.
pub async fn follow(reporter: HealthReporter, mut snapshot: Snapshot, stop: CancellationToken) {
    for service in ["cachetier.v1.Admin", "cachetier.v1.Peer"] {
        reporter.set_service_status(service, ServingStatus::Serving).await;
    }
    loop {
        let status = match snapshot::readiness(&snapshot) {
            Ok(()) => ServingStatus::Serving,
            Err(_) => ServingStatus::NotServing,
        };
        for service in ["", "cachetier.v1.Cache"] {
            reporter.set_service_status(service, status).await;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            changed = snapshot.changed() => if changed.is_err() { return stop.cancelled().await },
        }
    }
}
