//! Which node to ask: the last topology seen and the addresses given at connect.
//!
//! Owns the topology cell. Written by the watcher and by refusals that carry a newer topology;
//! never goes back to an older version.

use crate::options::{Endpoint, Routing};
use arc_swap::ArcSwapOption;
use cachetier_model::{SlotId, Topology};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) struct Router {
    seeds: Vec<Endpoint>,
    routing: Routing,
    topology: ArcSwapOption<Topology>,
    next: AtomicUsize,
}

impl Router {
    pub fn new(seeds: Vec<Endpoint>, routing: Routing) -> Self {
        Self { seeds, routing, topology: ArcSwapOption::empty(), next: AtomicUsize::new(0) }
    }

    pub fn topology(&self) -> Option<Arc<Topology>> {
        self.topology.load_full()
    }

    /// Keeps the newer of the two.
    pub fn learn(&self, offered: Topology) {
        let offered = Arc::new(offered);
        self.topology.rcu(|held| match held {
            Some(held) if held.epoch >= offered.epoch => Some(held.clone()),
            _ => Some(offered.clone()),
        });
    }

    /// The owner of a slot, where the topology is known and used.
    pub fn owner(&self, slot: SlotId) -> Option<Endpoint> {
        match self.routing {
            Routing::Seeds => None,
            Routing::Owner => {
                let topology = self.topology.load();
                topology.as_ref()?.owner(slot).map(|n| Endpoint::new(n.address.as_str()))
            }
        }
    }

    /// Every node that may be asked.
    pub fn all(&self) -> Vec<Endpoint> {
        match (self.routing, self.topology.load().as_ref()) {
            (Routing::Owner, Some(topology)) => {
                topology.nodes.iter().map(|n| Endpoint::new(n.address.as_str())).collect()
            }
            _ => self.seeds.clone(),
        }
    }

    /// Some node, another at each call; not `except` where there is a choice.
    pub fn any(&self, except: Option<&Endpoint>) -> Option<Endpoint> {
        let mut nodes = self.all();
        if nodes.len() > 1 {
            nodes.retain(|n| Some(n) != except);
        }
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let position = turn.checked_rem(nodes.len())?;
        nodes.into_iter().nth(position)
    }

    pub fn seeds(&self) -> &[Endpoint] {
        &self.seeds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cachetier_model::{Epoch, NodeEntry};

    fn topology(epoch: u64, names: &[&str]) -> Topology {
        let nodes = names
            .iter()
            .map(|n| NodeEntry { name: (*n).to_owned(), address: format!("{n}:7070") })
            .collect();
        Topology::initial("g", Epoch(epoch), nodes).unwrap()
    }

    #[test]
    fn an_older_topology_never_replaces_a_newer_one() {
        let router = Router::new(vec!["seed:1".into()], Routing::Owner);
        router.learn(topology(5, &["a", "b"]));
        router.learn(topology(4, &["c"]));
        assert_eq!(router.topology().unwrap().epoch, Epoch(5));
        let first = SlotId::new(0).unwrap();
        assert_eq!(router.owner(first), Some("a:7070".into()));
    }

    #[test]
    fn a_retry_goes_to_another_node_and_seed_routing_stays_with_the_seeds() {
        let router = Router::new(vec!["seed:1".into()], Routing::Owner);
        router.learn(topology(1, &["a", "b"]));
        for _ in 0..4 {
            assert_eq!(router.any(Some(&"a:7070".into())), Some("b:7070".into()));
        }
        let gateway = Router::new(vec!["seed:1".into()], Routing::Seeds);
        gateway.learn(topology(1, &["a", "b"]));
        assert_eq!(gateway.owner(SlotId::new(9).unwrap()), None);
        assert_eq!(gateway.any(None), Some("seed:1".into()));
    }
}
