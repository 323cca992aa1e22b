//! The real nodes, over gRPC with mutual TLS.
//!
//! Owns one set of connections per group and identity. A pod is dialled by its IP address and must
//! present a certificate for its DNS name.

use super::{
    BacklogView, Identity, LoadView, NodeAddress, NodeError, NodeView, Nodes, ProblemView,
};
use cachetier_client::convert::topology_from_wire;
use cachetier_client::options::{Endpoint, Options};
use cachetier_client::tls::{PemIdentity, TlsIdentity};
use cachetier_client::{AdminClient, channel::Channels};
use cachetier_model::{Epoch, Topology};
use cachetier_proto::v1;
use dashmap::DashMap;
use futures::{FutureExt, future::BoxFuture};
use std::{sync::Arc, time::Duration};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// Connections to the nodes of all groups.
#[derive(Default)]
pub struct GrpcNodes {
    groups: DashMap<String, GroupConnections>,
}

struct GroupConnections {
    identity: Arc<Identity>,
    channels: Channels,
}

impl GrpcNodes {
    fn channels(&self, node: &NodeAddress) -> Channels {
        let mut group = self
            .groups
            .entry(node.group_uid.clone())
            .or_insert_with(|| GroupConnections::new(&node.identity));
        if !Arc::ptr_eq(&group.identity, &node.identity) {
            *group = GroupConnections::new(&node.identity);
        }
        group.channels.clone()
    }

    fn admin(&self, node: &NodeAddress) -> AdminClient {
        let channel = self.channels(node).node(&endpoint(node));
        AdminClient::new(channel).with_timeout(CALL_TIMEOUT)
    }
}

impl GroupConnections {
    fn new(identity: &Arc<Identity>) -> Self {
        let pem = PemIdentity {
            certificate: identity.certificate.clone().into_bytes(),
            key: identity.key.clone().into_bytes(),
            ca: identity.ca.clone().into_bytes(),
        };
        let options = Options {
            // few calls, one after the other
            connections_per_node: 1,
            tls: Some(TlsIdentity::Pem(Arc::new(pem))),
            connect_timeout: CONNECT_TIMEOUT,
            ..Options::default()
        };
        Self { identity: identity.clone(), channels: Channels::new(options) }
    }
}

fn endpoint(node: &NodeAddress) -> Endpoint {
    Endpoint::new(node.address.clone()).with_server_name(node.server_name.clone())
}

impl Nodes for GrpcNodes {
    fn status<'a>(&'a self, node: &'a NodeAddress) -> BoxFuture<'a, Result<NodeView, NodeError>> {
        async move {
            let call = self.admin(node);
            let answer = call.status().await.map_err(|error| NodeError(error.to_string()))?;
            Ok(view(answer))
        }
        .boxed()
    }

    fn topology<'a>(
        &'a self,
        node: &'a NodeAddress,
    ) -> BoxFuture<'a, Result<Option<Topology>, NodeError>> {
        async move {
            let mut cache = self.channels(node).node(&endpoint(node)).cache();
            let first = async {
                let request = v1::WatchTopologyRequest {};
                let mut stream = cache.watch_topology(request).await?.into_inner();
                stream.message().await
            };
            let answer = tokio::time::timeout(CALL_TIMEOUT, first)
                .await
                .map_err(|_| NodeError("no topology within the time limit".to_owned()))?
                .map_err(|status| NodeError(status.message().to_owned()))?;
            answer
                .map(|wire| topology_from_wire(&wire).map_err(|e| NodeError(e.to_string())))
                .transpose()
        }
        .boxed()
    }

    fn apply_topology<'a>(
        &'a self,
        node: &'a NodeAddress,
        topology: &'a Topology,
    ) -> BoxFuture<'a, Result<Epoch, NodeError>> {
        async move {
            let call = self.admin(node);
            call.apply_topology(topology).await.map_err(|error| NodeError(error.to_string()))
        }
        .boxed()
    }

    fn drain<'a>(
        &'a self,
        node: &'a NodeAddress,
        stop_writes: bool,
    ) -> BoxFuture<'a, Result<(), NodeError>> {
        async move {
            let call = self.admin(node);
            call.drain(stop_writes).await.map_err(|error| NodeError(error.to_string()))?;
            Ok(())
        }
        .boxed()
    }

    fn end_group<'a>(
        &'a self,
        node: &'a NodeAddress,
        discard: bool,
    ) -> BoxFuture<'a, Result<(), NodeError>> {
        async move {
            let call = self.admin(node);
            call.end_group(discard).await.map_err(|error| NodeError(error.to_string()))
        }
        .boxed()
    }

    fn retain(&self, group_uid: &str, kept: &[NodeAddress]) {
        if kept.is_empty() {
            self.groups.remove(group_uid);
        } else if let Some(group) = self.groups.get(group_uid) {
            let endpoints: Vec<Endpoint> = kept.iter().map(endpoint).collect();
            group.channels.retain(&endpoints);
        }
    }
}

fn view(answer: v1::StatusResponse) -> NodeView {
    let backlog = answer.backlog.unwrap_or_default();
    NodeView {
        phase: phase(answer.phase()).to_owned(),
        group_uid: answer.group_uid,
        generation: u64::from(answer.generation),
        journal: answer.journal,
        ready: answer.ready,
        topology_version: answer.topology_version,
        slots_assigned: answer.slots_assigned,
        slots_serving: answer.slots_serving,
        slots_covered: answer.slots_covered,
        slots_leaving: answer.slots_leaving,
        backlog: BacklogView {
            transactions: backlog.transactions,
            bytes: backlog.bytes,
            oldest_seconds: backlog.oldest_seconds,
            flush_rows_per_second: backlog.flush_rows_per_second,
        },
        instances: answer.instances,
        rejects: answer.rejects,
        backend_reachable: answer.backend_reachable,
        writes_stopped: answer.writes_stopped,
        problems: answer.problems.into_iter().map(problem).collect(),
        load: answer.load.map(load),
    }
}

fn problem(wire: v1::Problem) -> ProblemView {
    ProblemView { reason: wire.reason, message: wire.message, degraded: wire.degraded }
}

fn load(wire: v1::LoadStatus) -> LoadView {
    LoadView {
        load_id: wire.load_id,
        chunks_done: wire.chunks_done,
        chunks_total: wire.chunks_total,
        rows_per_second: wire.rows_per_second,
        stopped_by_memory: wire.stopped_by_memory,
        tables: wire.tables.into_iter().map(|t| (t.table, t.rows, t.expected_rows)).collect(),
    }
}

fn phase(phase: v1::NodePhase) -> &'static str {
    match phase {
        v1::NodePhase::Unspecified => "Unknown",
        v1::NodePhase::Starting => "Starting",
        v1::NodePhase::AwaitingTopology => "AwaitingTopology",
        v1::NodePhase::TakingSlots => "TakingSlots",
        v1::NodePhase::Serving => "Serving",
        v1::NodePhase::Draining => "Draining",
        v1::NodePhase::Latched => "Latched",
        v1::NodePhase::Fenced => "Fenced",
    }
}
