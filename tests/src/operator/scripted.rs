//! Cache nodes made of a few numbers: they take topologies, stop writes, and say what a test wants.

use cachetier_model::{Epoch, Topology};
use futures::FutureExt;
use futures::future::BoxFuture;
use operator::nodes::{NodeAddress, NodeError, NodeView, Nodes};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone, Debug, Default)]
struct Node {
    view: NodeView,
    topology: Option<Topology>,
    silent: bool,
    /// Never answers, and never refuses either.
    hanging: bool,
    /// Orders to stop writes that are refused before one is taken.
    refused_drains: u32,
    /// Takes topologies and does not take slots over yet.
    slow: bool,
    /// Was told that the group ends.
    ended: bool,
    restarts_at_end: Option<u64>,
}

/// All nodes of one test, by pod name.
#[derive(Clone, Debug, Default)]
pub struct ScriptedNodes {
    nodes: Arc<Mutex<BTreeMap<String, Node>>>,
}

impl ScriptedNodes {
    fn with<T>(&self, pod: &str, act: impl FnOnce(&mut Node) -> T) -> T {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        act(nodes.entry(pod.to_owned()).or_default())
    }

    /// Changes what a node says.
    pub fn edit(&self, pod: &str, change: impl FnOnce(&mut NodeView)) {
        self.with(pod, |node| change(&mut node.view));
    }

    pub fn view(&self, pod: &str) -> NodeView {
        self.with(pod, |node| node.view.clone())
    }

    /// Makes a node stop answering, or answer again.
    pub fn silence(&self, pod: &str, silent: bool) {
        self.with(pod, |node| node.silent = silent);
    }

    /// Makes calls to a node hang for ever, or answer again.
    pub fn hang(&self, pod: &str, hanging: bool) {
        self.with(pod, |node| node.hanging = hanging);
    }

    /// The next orders to stop writes fail.
    pub fn refuse_drains(&self, pod: &str, count: u32) {
        self.with(pod, |node| node.refused_drains = count);
    }

    /// Slots stay where they are until the test lets go.
    pub fn hold_moves(&self, pod: &str, slow: bool) {
        self.with(pod, |node| {
            node.slow = slow;
            if !slow {
                take_over(pod, node);
            }
        });
    }

    /// A load has filled every node.
    pub fn cover_all(&self) {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        for node in nodes.values_mut() {
            node.view.slots_covered = node.view.slots_serving;
        }
    }

    /// The process is a new one: nothing is loaded.
    pub fn restart(&self, pod: &str) {
        self.with(pod, |node| {
            node.view.generation += 1;
            node.view.slots_covered = 0;
            node.view.writes_stopped = false;
        });
    }

    /// When the group is about to end, the process turns out to be a new one that took writes.
    pub fn restart_at_end(&self, pod: &str, transactions: u64) {
        self.with(pod, |node| node.restarts_at_end = Some(transactions));
    }

    /// Some node was told to remove the group's bookkeeping.
    pub fn group_ended(&self) -> bool {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.values().any(|node| node.ended)
    }

    pub fn versions(&self) -> BTreeMap<String, u64> {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.iter().map(|(pod, node)| (pod.clone(), node.view.topology_version)).collect()
    }
}

fn take_over(pod: &str, node: &mut Node) {
    let view = &mut node.view;
    view.slots_serving = view.slots_assigned;
    view.slots_leaving = 0;
    view.slots_covered = view.slots_covered.min(view.slots_serving);
    view.phase = "Serving".to_owned();
    view.journal = format!("journal-of-{pod}");
}

impl Nodes for ScriptedNodes {
    fn status<'a>(&'a self, node: &'a NodeAddress) -> BoxFuture<'a, Result<NodeView, NodeError>> {
        let answer = self.with(&node.pod, |known| {
            if known.silent {
                return Err(NodeError("connection refused".to_owned()));
            }
            if known.topology.is_none() {
                known.view.group_uid.clone_from(&node.group_uid);
                known.view.phase = "AwaitingTopology".to_owned();
                known.view.backend_reachable = true;
            }
            Ok(known.view.clone())
        });
        let hanging = self.with(&node.pod, |known| known.hanging);
        async move {
            if hanging {
                std::future::pending::<()>().await;
            }
            answer
        }
        .boxed()
    }

    fn topology<'a>(
        &'a self,
        node: &'a NodeAddress,
    ) -> BoxFuture<'a, Result<Option<Topology>, NodeError>> {
        let topology = self.with(&node.pod, |known| known.topology.clone());
        async move { Ok(topology) }.boxed()
    }

    fn apply_topology<'a>(
        &'a self,
        node: &'a NodeAddress,
        topology: &'a Topology,
    ) -> BoxFuture<'a, Result<Epoch, NodeError>> {
        let held = self.with(&node.pod, |known| {
            if topology.epoch.0 > known.view.topology_version {
                let slots = topology.slots_of(&node.pod).len();
                known.view.slots_assigned = u32::try_from(slots).unwrap_or(u32::MAX);
                known.view.topology_version = topology.epoch.0;
                known.topology = Some(topology.clone());
                if !known.slow {
                    take_over(&node.pod, known);
                }
            }
            Epoch(known.view.topology_version)
        });
        async move { Ok(held) }.boxed()
    }

    fn drain<'a>(
        &'a self,
        node: &'a NodeAddress,
        stop_writes: bool,
    ) -> BoxFuture<'a, Result<(), NodeError>> {
        let answer = self.with(&node.pod, |known| {
            if known.refused_drains > 0 {
                known.refused_drains -= 1;
                return Err(NodeError("not now".to_owned()));
            }
            known.view.writes_stopped = stop_writes;
            Ok(())
        });
        async move { answer }.boxed()
    }

    fn end_group<'a>(
        &'a self,
        node: &'a NodeAddress,
        _: bool,
    ) -> BoxFuture<'a, Result<(), NodeError>> {
        let answer = self.with(&node.pod, |known| {
            if known.silent {
                return Err(NodeError("connection refused".to_owned()));
            }
            if let Some(transactions) = known.restarts_at_end.take() {
                known.view.writes_stopped = false;
                known.view.backlog.transactions = transactions;
                return Err(NodeError("stop writes and drain first".to_owned()));
            }
            known.ended = true;
            Ok(())
        });
        async move { answer }.boxed()
    }

    fn retain(&self, _: &str, _: &[NodeAddress]) {}
}
