//! Follows the topology: one stream to some node, another when that one ends.

use crate::channel::Channels;
use crate::convert::topology_from_wire;
use crate::options::Endpoint;
use crate::routing::Router;
use cachetier_proto::v1::WatchTopologyRequest;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::{CancellationToken, DropGuard};

const PAUSE: Duration = Duration::from_millis(200);

/// Runs until the guard is dropped.
pub(super) fn spawn(channels: Channels, router: Arc<Router>) -> DropGuard {
    let token = CancellationToken::new();
    let guard = token.clone().drop_guard();
    tokio::spawn(async move {
        tokio::select! {
            () = token.cancelled() => {}
            () = follow(&channels, &router) => {}
        }
    });
    guard
}

async fn follow(channels: &Channels, router: &Router) {
    let mut last: Option<Endpoint> = None;
    for round in 0_usize.. {
        // Every fourth round asks a seed: when all nodes of the topology are gone it leads back.
        let seeds = router.seeds();
        let seed = (round % 4 == 3).then(|| seeds.get((round / 4) % seeds.len().max(1)).cloned());
        if let Some(node) = seed.flatten().or_else(|| router.any(last.as_ref())) {
            if let Err(status) = follow_one(channels, router, &node).await {
                tracing::debug!(node = node.address, code = %status.code(), "topology watch ended");
            }
            last = Some(node);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn follow_one(
    channels: &Channels,
    router: &Router,
    node: &Endpoint,
) -> Result<(), tonic::Status> {
    let mut cache = channels.node(node).cache();
    let mut stream = cache.watch_topology(WatchTopologyRequest {}).await?.into_inner();
    while let Some(offered) = stream.message().await? {
        match topology_from_wire(&offered) {
            Ok(topology) => router.learn(topology),
            Err(error) => tracing::warn!(node = node.address, %error, "topology not usable"),
        }
    }
    Ok(())
}
