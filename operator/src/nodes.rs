//! What the operator asks of cache nodes, as a trait, so that decisions can be driven by scripted
//! nodes in tests. `grpc` is the real side.
//!
//! Owns the plain view of a node. Must never decide anything: answers go to the pure steps.

pub mod grpc;

use cachetier_model::{Epoch, Topology};
use futures::future::BoxFuture;
use std::sync::Arc;

/// Where one node is reached and who asks.
#[derive(Clone, Debug)]
pub struct NodeAddress {
    /// UID of the group; connections are kept per group.
    pub group_uid: String,
    /// Name of the pod.
    pub pod: String,
    /// `ip:port` to dial.
    pub address: String,
    /// Name that the node's certificate carries.
    pub server_name: String,
    pub identity: Arc<Identity>,
}

/// The operator's own certificate towards one group's nodes, as PEM.
pub struct Identity {
    pub certificate: String,
    pub key: String,
    pub ca: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity(..)")
    }
}

/// The node did not answer, or refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NodeError(pub String);

/// Calls to nodes. Each is bounded in time by the implementation.
pub trait Nodes: Send + Sync + 'static {
    fn status<'a>(&'a self, node: &'a NodeAddress) -> BoxFuture<'a, Result<NodeView, NodeError>>;
    /// The topology the node holds, if any.
    fn topology<'a>(
        &'a self,
        node: &'a NodeAddress,
    ) -> BoxFuture<'a, Result<Option<Topology>, NodeError>>;
    /// Offers a topology; answers the version held afterwards.
    fn apply_topology<'a>(
        &'a self,
        node: &'a NodeAddress,
        topology: &'a Topology,
    ) -> BoxFuture<'a, Result<Epoch, NodeError>>;
    /// Stops writes, or takes them again.
    fn drain<'a>(
        &'a self,
        node: &'a NodeAddress,
        stop_writes: bool,
    ) -> BoxFuture<'a, Result<(), NodeError>>;
    /// The group is being deleted: the node removes its part of the bookkeeping from the backend,
    /// the last one all of it; with `discard`, any one removes all.
    fn end_group<'a>(
        &'a self,
        node: &'a NodeAddress,
        discard: bool,
    ) -> BoxFuture<'a, Result<(), NodeError>>;
    /// Forgets connections of the group to nodes that are not listed.
    fn retain(&self, group_uid: &str, kept: &[NodeAddress]);
}

/// What a node said about itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeView {
    pub group_uid: String,
    /// Changes with every start of the process.
    pub generation: u64,
    pub journal: String,
    /// As in the status, e.g. `Serving`.
    pub phase: String,
    pub ready: bool,
    pub topology_version: u64,
    pub slots_assigned: u32,
    pub slots_serving: u32,
    pub slots_covered: u32,
    pub slots_leaving: u32,
    pub backlog: BacklogView,
    pub instances: u64,
    pub rejects: u64,
    pub backend_reachable: bool,
    pub writes_stopped: bool,
    pub problems: Vec<ProblemView>,
    pub load: Option<LoadView>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct BacklogView {
    pub transactions: u64,
    pub bytes: u64,
    pub oldest_seconds: f64,
    pub flush_rows_per_second: f64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProblemView {
    pub reason: String,
    pub message: String,
    pub degraded: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadView {
    pub load_id: String,
    pub chunks_done: u32,
    pub chunks_total: u32,
    pub rows_per_second: f64,
    pub stopped_by_memory: bool,
    /// Name, rows here, rows expected in the whole backend table.
    pub tables: Vec<(String, u64, u64)>,
}

impl NodeView {
    /// Serves every slot that `version` gives to it and holds none that `version` gives to others.
    pub fn settled_at(&self, version: u64) -> bool {
        self.topology_version == version
            && self.slots_serving == self.slots_assigned
            && self.slots_leaving == 0
    }

    /// Whether the process knows its tables; before that its backlog is what its journal says.
    pub fn has_started(&self) -> bool {
        !matches!(self.phase.as_str(), "Starting" | "Unknown" | "")
    }

    pub fn backlog_empty(&self) -> bool {
        self.backlog.transactions == 0
    }
}
