//! Topologies; the record's rules (no hole, no double owner) are the model's.

use super::error::ConvertError;
use cachetier_model::Topology;
use cachetier_proto::v1;
use serde_json::json;

pub fn topology_to_wire(topology: &Topology) -> v1::Topology {
    let record = serde_json::to_value(topology).unwrap_or_default();
    let text = |v: &serde_json::Value| v.as_str().unwrap_or_default().to_owned();
    let nodes = record.get("nodes").and_then(|n| n.as_array()).map_or(&[][..], Vec::as_slice);
    v1::Topology {
        group: topology.group.clone(),
        version: topology.epoch.0,
        nodes: nodes
            .iter()
            .map(|node| v1::NodeAddress {
                name: node.get("name").map(text).unwrap_or_default(),
                address: node.get("address").map(text).unwrap_or_default(),
                slots: node
                    .get("slots")
                    .and_then(|s| s.as_array())
                    .map(|ranges| ranges.iter().map(text).collect())
                    .unwrap_or_default(),
            })
            .collect(),
    }
}

pub fn topology_from_wire(wire: &v1::Topology) -> Result<Topology, ConvertError> {
    let nodes: Vec<_> = wire
        .nodes
        .iter()
        .map(|n| json!({"name": n.name, "address": n.address, "slots": n.slots}))
        .collect();
    let record = json!({"group": wire.group, "epoch": wire.version, "nodes": nodes});
    serde_json::from_value(record).map_err(|e| ConvertError::Topology(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cachetier_model::{Epoch, NodeEntry};

    #[test]
    fn a_topology_survives_the_wire_and_a_hole_is_refused() {
        let nodes = ["a", "b", "c"]
            .map(|n| NodeEntry { name: n.to_owned(), address: format!("{n}:7070") })
            .to_vec();
        let topology = Topology::initial("uid", Epoch(4), nodes).unwrap();
        let mut wire = topology_to_wire(&topology);
        assert_eq!(topology_from_wire(&wire).unwrap(), topology);
        wire.nodes[1].slots.clear();
        assert!(topology_from_wire(&wire).is_err());
    }
}
