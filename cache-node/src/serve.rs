//! The life of a serving process: start in the background, serve, drain, exit.
//!
//! Owns the order. Ports are taken and certificates read first, the journal comes after; ports open
//! once the group is there. The group's start goes on behind the open ports, so that a wrong password or a
//! missing table is seen in `Status` and not in a crash loop.

use crate::metrics::{Metrics, RpcMetrics};
use crate::peers::NodePeers;
use crate::rpc::{self, Services};
use crate::snapshot::{self, Snapshot};
use anyhow::{Context, bail};
use cachetier_group::{Ended, Group, GroupError, GroupOptions};
use cachetier_model::NodeEntry;
use cachetier_model::node_config::{ListenConfig, NodeConfig};
use cachetier_runtime::{AdminEndpoint, Port, Tasks};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long background tasks get to end once the group is closed.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// How long a stopping node waits for a backend that does not answer. What is left is replayed.
const AWAY_GRACE: Duration = Duration::from_secs(2);

/// What a process is started with.
pub struct Process {
    pub config: NodeConfig,
    pub name: String,
    pub advertise: Option<String>,
    pub drain_seconds: u64,
}

/// Serves until `shutdown` is cancelled or the group cannot go on.
pub async fn run(process: Process, shutdown: CancellationToken) -> anyhow::Result<()> {
    let Process { config, name, advertise, drain_seconds } = process;
    if config.tls.is_none() {
        tracing::warn!("no tls in the configuration: every caller is trusted, traffic is readable");
    }
    let address = advertise.unwrap_or_else(|| default_address(&name, &config.listen));
    let node = NodeEntry { name, address };
    let peers = Arc::new(NodePeers::new(&config));
    let bypass = config.bypass.clone();
    // what the configuration alone can have wrong is found before the journal is touched
    let entrance = rpc::Entrance::prepare(&config.listen.grpc, config.tls.as_ref()).await?;
    let admin_port = Port::take(&config.listen.admin).await.context("listen.admin")?;
    // cancelled only after the group is closed: reads are answered while the queue drains
    let stop = CancellationToken::new();
    let options = GroupOptions { config: config.clone(), node, peers: peers.clone() };
    let group = tokio::select! {
        started = Group::start(options, stop.clone()) => started.context("starting the group")?,
        () = shutdown.cancelled() => {
            // nothing was accepted yet, and a journal that is being read is left as it is
            tracing::info!("stopped before the start");
            return Ok(());
        }
    };
    let (cell, snapshot) = snapshot::cell();
    let rpc_metrics = RpcMetrics::default();
    let services = Services {
        group: group.clone(),
        group_name: config.group.name.clone(),
        peers: peers.clone(),
        bypass,
        snapshot: snapshot.clone(),
        metrics: rpc_metrics.clone(),
    };
    let mut tasks = Tasks::new(stop.clone());
    tasks.spawn("grpc", entrance.serve(services, stop.clone()));
    let metrics = Metrics { group: group.clone(), snapshot: snapshot.clone(), rpc: rpc_metrics };
    let admin = admin_endpoint(metrics, &snapshot);
    tasks.spawn("admin", admin.serve(admin_port, stop.clone()));
    tasks.spawn("status", endless(snapshot::refresh(group.clone(), cell, stop.clone())));
    tasks.spawn("schema", endless(publish_schema(group.clone(), peers, stop.clone())));
    let closer = close_at(group, shutdown, stop, Duration::from_secs(drain_seconds));
    let (supervised, ended) = tokio::join!(tasks.supervise(STOP_GRACE), closer);
    ended?;
    supervised.context("a part of the process failed")
}

/// Waits for the signal or the group's end, closes the group in order, then stops everything else.
async fn close_at(
    group: Group,
    shutdown: CancellationToken,
    stop: CancellationToken,
    grace: Duration,
) -> anyhow::Result<()> {
    let ended = tokio::select! {
        ended = group.ended() => Some(ended),
        () = shutdown.cancelled() => None,
        () = stop.cancelled() => None,
    };
    let reachable = group.status().await.backend_reachable;
    group.close(if reachable { grace } else { grace.min(AWAY_GRACE) }).await;
    tracing::info!("group closed");
    stop.cancel();
    match ended {
        None | Some(Ended::Closed) => Ok(()),
        Some(Ended::Latched(reason)) => bail!("the journal failed: {reason}"),
        Some(Ended::RestartNeeded(why)) => bail!("a fresh start is needed: {why}"),
        Some(Ended::TaskEnded(task)) => bail!("background task {task} of the group ended"),
    }
}

fn admin_endpoint(metrics: Metrics, snapshot: &Snapshot) -> AdminEndpoint {
    let (live, ready) = (snapshot.clone(), snapshot.clone());
    AdminEndpoint::new(Arc::new(metrics.into_registry()))
        .live(move || snapshot::liveness(&live))
        .ready(move || snapshot::readiness(&ready))
}

/// Tells the peers the tables once the group knows them.
async fn publish_schema(group: Group, peers: Arc<NodePeers>, stop: CancellationToken) {
    loop {
        match group.schema() {
            Ok(schema) => {
                peers.set_schema(schema);
                return stop.cancelled().await;
            }
            Err(GroupError::Starting { .. }) => {}
            Err(error) => tracing::debug!(%error, "tables not known yet"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(Duration::from_millis(100)) => {}
        }
    }
}

async fn endless(task: impl Future<Output = ()>) -> Result<(), Infallible> {
    task.await;
    Ok(())
}

/// Without `--advertise`: the address listened on, or the host's name where that is every address.
fn default_address(name: &str, listen: &ListenConfig) -> String {
    match listen.grpc.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_unspecified() => format!("{name}:{}", address.port()),
        _ => listen.grpc.clone(),
    }
}
