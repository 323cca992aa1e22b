//! Topology: which node owns which slot, versioned. The version is the epoch.
//!
//! Written by the operator alone (or by a standalone node for itself); nodes persist the last one
//! they accepted and never accept an older one.

use crate::slot::{SLOT_COUNT, SlotId, SlotSet};
use serde::{Deserialize, Serialize};

/// Version of a topology; only grows.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

/// One cache node of a topology.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeEntry {
    /// Stable name, e.g. the pod's name.
    pub name: String,
    /// `host:port` of its gRPC endpoint; the host is the TLS server name.
    pub address: String,
}

/// Owner of each slot. Serialised as slot ranges, so that it stays readable and small.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", try_from = "TopologyRecord", into = "TopologyRecord")]
pub struct Topology {
    /// Incarnation (UID) of the group this belongs to.
    pub group: String,
    pub epoch: Epoch,
    pub nodes: Vec<NodeEntry>,
    /// `owners[slot]` is an index into `nodes`; always `SLOT_COUNT` long.
    owners: Vec<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    #[error("slot range {0} is not `first-last` with first <= last < 4096")]
    BadRange(String),
    #[error("slot {0} has no owner")]
    Unowned(u16),
    #[error("slot {0} has two owners")]
    OwnedTwice(u16),
    #[error("the topology has no nodes")]
    NoNodes,
}

impl Topology {
    /// A first topology that spreads the slots evenly over `nodes`.
    pub fn initial(
        group: &str,
        epoch: Epoch,
        nodes: Vec<NodeEntry>,
    ) -> Result<Self, TopologyError> {
        if nodes.is_empty() {
            return Err(TopologyError::NoNodes);
        }
        let count = nodes.len();
        let owners = (0..usize::from(SLOT_COUNT))
            .map(|s| (s * count / usize::from(SLOT_COUNT)) as u16)
            .collect();
        Ok(Self { group: group.to_owned(), epoch, nodes, owners })
    }

    /// The next version with these nodes (`members`): slots of nodes that stay in place where the
    /// even share allows it, as few slots as possible move. Nodes of the old topology that are not
    /// members but still own nothing new are kept in `nodes` only if listed in `members`.
    pub fn rebalanced(&self, members: Vec<NodeEntry>) -> Result<Self, TopologyError> {
        if members.is_empty() {
            return Err(TopologyError::NoNodes);
        }
        let total = usize::from(SLOT_COUNT);
        let count = members.len();
        let quota = |n: usize| total / count + usize::from(n < total % count);
        let mut held = vec![0_usize; count];
        let mut owners: Vec<Option<u16>> = Vec::with_capacity(total);
        for slot in SlotId::all() {
            let kept = self
                .owner(slot)
                .and_then(|old| members.iter().position(|m| m.name == old.name))
                .filter(|n| held.get(*n).is_some_and(|h| *h < quota(*n)));
            if let Some(held) = kept.and_then(|n| held.get_mut(n)) {
                *held += 1;
            }
            owners.push(kept.map(|n| n as u16));
        }
        let mut next = 0;
        for owner in owners.iter_mut().filter(|o| o.is_none()) {
            while held.get(next).is_some_and(|h| *h >= quota(next)) {
                next += 1;
            }
            if let Some(held) = held.get_mut(next) {
                *held += 1;
            }
            *owner = Some(next as u16);
        }
        Ok(Self {
            group: self.group.clone(),
            epoch: Epoch(self.epoch.0 + 1),
            nodes: members,
            owners: owners.into_iter().flatten().collect(),
        })
    }

    pub fn owner(&self, slot: SlotId) -> Option<&NodeEntry> {
        self.owners.get(slot.index()).and_then(|n| self.nodes.get(usize::from(*n)))
    }

    pub fn node(&self, name: &str) -> Option<&NodeEntry> {
        self.nodes.iter().find(|n| n.name == name)
    }

    /// Slots owned by the named node; empty when it is not part of the topology.
    pub fn slots_of(&self, name: &str) -> SlotSet {
        SlotId::all().filter(|s| self.owner(*s).is_some_and(|n| n.name == name)).collect()
    }
}

/// The serialised form.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TopologyRecord {
    group: String,
    epoch: Epoch,
    nodes: Vec<NodeRecord>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NodeRecord {
    name: String,
    address: String,
    /// `["0-1365", "4000-4000"]`
    slots: Vec<String>,
}

impl From<Topology> for TopologyRecord {
    fn from(topology: Topology) -> Self {
        let nodes = topology
            .nodes
            .iter()
            .map(|n| NodeRecord {
                name: n.name.clone(),
                address: n.address.clone(),
                slots: ranges(&topology.slots_of(&n.name)),
            })
            .collect();
        Self { group: topology.group, epoch: topology.epoch, nodes }
    }
}

impl TryFrom<TopologyRecord> for Topology {
    type Error = TopologyError;

    fn try_from(record: TopologyRecord) -> Result<Self, TopologyError> {
        let mut owners: Vec<Option<u16>> = vec![None; usize::from(SLOT_COUNT)];
        for (n, node) in record.nodes.iter().enumerate() {
            for range in &node.slots {
                for slot in parse_range(range)? {
                    let owner = owners
                        .get_mut(usize::from(slot))
                        .ok_or_else(|| TopologyError::BadRange(range.clone()))?;
                    if owner.replace(n as u16).is_some() {
                        return Err(TopologyError::OwnedTwice(slot));
                    }
                }
            }
        }
        if let Some(slot) = owners.iter().position(Option::is_none) {
            return Err(TopologyError::Unowned(slot as u16));
        }
        Ok(Self {
            group: record.group,
            epoch: record.epoch,
            nodes: record
                .nodes
                .into_iter()
                .map(|n| NodeEntry { name: n.name, address: n.address })
                .collect(),
            owners: owners.into_iter().flatten().collect(),
        })
    }
}

fn ranges(slots: &SlotSet) -> Vec<String> {
    let mut out: Vec<(u16, u16)> = Vec::new();
    for slot in slots.iter().map(SlotId::number) {
        match out.last_mut() {
            Some((_, last)) if *last + 1 == slot => *last = slot,
            _ => out.push((slot, slot)),
        }
    }
    out.into_iter().map(|(first, last)| format!("{first}-{last}")).collect()
}

fn parse_range(text: &str) -> Result<std::ops::RangeInclusive<u16>, TopologyError> {
    let bad = || TopologyError::BadRange(text.to_owned());
    let (first, last) = text.split_once('-').ok_or_else(bad)?;
    let (first, last): (u16, u16) =
        (first.parse().map_err(|_| bad())?, last.parse().map_err(|_| bad())?);
    if first > last || last >= SLOT_COUNT {
        return Err(bad());
    }
    Ok(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: usize) -> Vec<NodeEntry> {
        (0..count)
            .map(|n| NodeEntry { name: format!("hlr-{n}"), address: format!("hlr-{n}:7070") })
            .collect()
    }

    #[test]
    fn scaling_moves_no_more_slots_than_the_new_shares_need() {
        let one = Topology::initial("g", Epoch(1), nodes(1)).unwrap();
        let three = one.rebalanced(nodes(3)).unwrap();
        let shares: Vec<usize> =
            three.nodes.iter().map(|n| three.slots_of(&n.name).len()).collect();
        assert_eq!(shares, [1366, 1365, 1365]);
        let moved = SlotId::all()
            .filter(|s| one.owner(*s).map(|n| &n.name) != three.owner(*s).map(|n| &n.name))
            .count();
        assert_eq!(moved, 4096 - 1366);
        let back = three.rebalanced(nodes(1)).unwrap();
        assert_eq!(back.epoch, Epoch(3));
        assert_eq!(back.slots_of("hlr-0").len(), 4096);
    }

    #[test]
    fn a_topology_round_trips_through_json_and_holes_are_refused() {
        let three = Topology::initial("g", Epoch(7), nodes(3)).unwrap();
        let json = serde_json::to_string(&three).unwrap();
        assert_eq!(serde_json::from_str::<Topology>(&json).unwrap(), three);
        let holed = json.replace("0-1365", "1-1365");
        let error = serde_json::from_str::<Topology>(&holed).unwrap_err().to_string();
        assert!(error.contains("slot 0 has no owner"), "{error}");
    }
}
