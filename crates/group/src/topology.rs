//! Accepting a topology: newer ones only, persisted before they count.
//!
//! Owns the order "note, then act". A node never goes back to an older version, whoever brings it
//! (R22); the addresses of nodes that are no longer members are kept, because slots are fetched
//! from them.

use std::sync::Arc;

use cachetier_model::{Epoch, NodeEntry, Topology};

use crate::error::GroupError;
use crate::shared::Shared;

impl Shared {
    /// Takes over a newer topology; an older or equal one changes nothing. Answers the version
    /// held.
    pub(crate) async fn apply_topology(&self, topology: Topology) -> Result<Epoch, GroupError> {
        if topology.group != self.config.group.uid {
            return Err(GroupError::ForeignTopology {
                found: topology.group,
                expected: self.config.group.uid.clone(),
            });
        }
        let mut addresses = self.topology_change.lock().await;
        let held = self.topology.borrow().as_ref().map(|t| t.epoch);
        let any = cachetier_defects::on("r22-older-topology");
        if let Some(held) = held.filter(|held| topology.epoch <= *held && !any) {
            return Ok(held);
        }
        for node in &topology.nodes {
            addresses.insert(node.name.clone(), node.address.clone());
        }
        self.notebook.set_topology(&topology, &addresses).await?;
        let epoch = topology.epoch;
        self.adopt_topology(topology);
        Ok(epoch)
    }

    /// Makes a persisted topology the one in force.
    pub(crate) fn adopt_topology(&self, topology: Topology) {
        let assigned = topology.slots_of(&self.node.name);
        tracing::info!(group = %self.config.group.name, node = %self.node.name,
            epoch = topology.epoch.0, slots = assigned.len(), nodes = topology.nodes.len(),
            "topology applied");
        self.topology.send_replace(Some(Arc::new(topology)));
        self.slots.apply(|machine| machine.assign(assigned));
    }

    /// Where a node is or was reached, member of the topology or not. A node that never saw a
    /// topology with the other one tries the address that differs from its own by the name.
    pub(crate) async fn address_of(&self, name: &str) -> Option<NodeEntry> {
        let addresses = self.topology_change.lock().await;
        let address = match addresses.get(name) {
            Some(known) => known.clone(),
            None => address_beside(&self.node, name)?,
        };
        Some(NodeEntry { name: name.to_owned(), address })
    }
}

/// The address of another node of the group, where addresses begin with the nodes' names, as those
/// of pods behind one service do.
fn address_beside(own: &NodeEntry, name: &str) -> Option<String> {
    let rest = own.address.strip_prefix(own.name.as_str())?;
    rest.starts_with(['.', ':']).then(|| format!("{name}{rest}"))
}

#[cfg(test)]
mod tests {
    use super::address_beside;
    use cachetier_model::NodeEntry;

    #[test]
    fn r23_a_holder_that_no_topology_here_names_is_asked_at_the_address_beside_ours() {
        let own = |address: &str| NodeEntry { name: "hlr-0".into(), address: address.into() };
        let beside = |address: &str| address_beside(&own(address), "hlr-2");
        let expected = Some("hlr-2.hlr-nodes.telecom.svc:7070".to_owned());
        assert_eq!(beside("hlr-0.hlr-nodes.telecom.svc:7070"), expected);
        assert_eq!(beside("hlr-0:7070").as_deref(), Some("hlr-2:7070"));
        assert_eq!(beside("10.0.0.7:7070"), None);
        assert_eq!(beside("hlr-01:7070"), None, "another name that begins like ours");
    }
}
