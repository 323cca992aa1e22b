//! The nodes a chunk goes to, and their tickets.

use crate::error::PreloadError;
use crate::run::Job;
use cachetier_client::{AdminClient, Client, Endpoint};
use cachetier_model::{Epoch, NodeEntry, SlotId, SlotSet, Topology};
use cachetier_write_through::AsOf;
use futures::future::try_join_all;
use std::time::Duration;
use tokio::time::Instant;

const POLL: Duration = Duration::from_millis(500);

/// One node that wants a chunk.
pub(crate) struct Target {
    pub node: String,
    pub address: String,
    pub ticket: u64,
    /// Slots whose instances it needs.
    pub needed: SlotSet,
    /// What a snapshot must hold for it.
    pub as_of: Option<AsOf>,
}

/// Targets of one chunk, and which of them owns each slot.
pub(crate) struct Targets {
    pub nodes: Vec<Target>,
    owners: Vec<Option<usize>>,
}

impl Targets {
    /// The position of the node that needs this slot's instances.
    pub fn of_slot(&self, slot: SlotId) -> Option<usize> {
        let owner = self.owners.get(slot.index()).copied().flatten()?;
        self.nodes.get(owner)?.needed.contains(slot).then_some(owner)
    }
}

pub(crate) fn admin(client: &Client, address: &str) -> AdminClient {
    client.admin(&Endpoint::from(address))
}

/// Takes a ticket at every node of the topology (R19). Nodes that counted the chunk already, in an
/// earlier attempt or from another pod, are left out. All nodes must hold the topology that the
/// instances are routed by: an owner that nothing was routed to would count the chunk as whole.
pub(crate) async fn take_tickets(job: &Job, chunk: u32) -> Result<Targets, PreloadError> {
    let topology = job.client.topology().ok_or(PreloadError::NoTopology)?;
    // A node that is away must not cost the others a ticket at every attempt.
    let topology = topology.as_ref();
    try_join_all(topology.nodes.iter().map(|node| async move {
        let status = admin(&job.client, &node.address).status().await;
        let status =
            status.map_err(|source| PreloadError::Node { node: node.name.clone(), source })?;
        same_topology(topology, node, Epoch(status.topology_version))
    }))
    .await?;
    let begun = topology.nodes.iter().map(|node| async move {
        let ticket = admin(&job.client, &node.address)
            .begin_load(&job.options.load_id, job.chunks_total, job.expected.clone())
            .await
            .map_err(|source| PreloadError::Node { node: node.name.clone(), source })?;
        same_topology(topology, node, ticket.epoch)?;
        let wanted = !ticket.chunks_done.contains(&chunk);
        Ok::<_, PreloadError>(wanted.then(|| Target {
            node: node.name.clone(),
            address: node.address.clone(),
            ticket: ticket.ticket,
            needed: ticket.slots_needed,
            as_of: (!ticket.positions.is_empty()).then(|| AsOf {
                group_uid: job.options.group_uid.clone(),
                node: ticket.node,
                positions: ticket.positions,
                versions: ticket.versions,
            }),
        }))
    });
    let nodes: Vec<Target> = try_join_all(begun).await?.into_iter().flatten().collect();
    let owners = SlotId::all()
        .map(|slot| {
            let owner = topology.owner(slot)?;
            nodes.iter().position(|n| n.node == owner.name)
        })
        .collect();
    Ok(Targets { nodes, owners })
}

fn same_topology(topology: &Topology, node: &NodeEntry, held: Epoch) -> Result<(), PreloadError> {
    match held == topology.epoch {
        true => Ok(()),
        false => Err(PreloadError::TopologyDiffers { node: node.name.clone() }),
    }
}

/// Waits until every node serves all slots the topology gives it: only slots served when a load
/// begins can be covered by it. Goes on after `patience`, since the operator starts another load
/// for what is then left uncovered; fails where waiting cannot help.
pub(crate) async fn wait_for_serving(
    client: &Client,
    patience: Duration,
) -> Result<(), PreloadError> {
    let until = Instant::now() + patience;
    let mut last = String::new();
    while Instant::now() < until {
        match not_serving(client).await? {
            None => return Ok(()),
            Some(reason) if reason != last => {
                tracing::info!(%reason, "waiting for the nodes to serve their slots");
                last = reason;
            }
            Some(_) => {}
        }
        tokio::time::sleep(POLL).await;
    }
    tracing::warn!(reason = %last, "not all slots are served; the load goes on without them");
    Ok(())
}

/// What is missing, or `None` when all slots are served.
async fn not_serving(client: &Client) -> Result<Option<String>, PreloadError> {
    let Some(topology) = client.topology() else {
        return Ok(Some("no node has a topology yet".to_owned()));
    };
    for node in &topology.nodes {
        let status = match admin(client, &node.address).status().await {
            Ok(status) => status,
            Err(source) => {
                let error = PreloadError::Node { node: node.name.clone(), source };
                if error.is_permanent() {
                    return Err(error);
                }
                return Ok(Some(error.to_string()));
            }
        };
        let assigned = topology.slots_of(&node.name).len();
        if status.topology_version < topology.epoch.0 || (status.slots_serving as usize) < assigned
        {
            return Ok(Some(format!("{} serves not all of its slots yet", node.name)));
        }
    }
    Ok(None)
}
