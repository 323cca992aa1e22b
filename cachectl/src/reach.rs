//! How the tool gets to a group: which nodes, by which connection, with which certificate.
//!
//! Owns the choice between a cluster's API server (port-forward) and addresses given by hand.
//! Commands see only [`Reach`].

pub mod cluster;
mod forward;

use crate::arguments::ReachArguments;
use crate::exit::misuse;
use anyhow::{Context, Result, anyhow};
use cachetier_api::v1alpha1::CacheGroup;
use cachetier_client::{
    AdminClient, Channels, Client, Endpoint, Options, Routing, TcpTransport, TlsIdentity, Transport,
};
use std::sync::Arc;
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_FOR: Duration = Duration::from_secs(10);
const TOPOLOGY_WAIT: Duration = Duration::from_secs(2);

/// A group within reach. Nothing is asked of a node before a command does: the status of a node
/// that serves nobody must still be seen.
pub struct Reach {
    /// Name of the group, or where it was looked for.
    pub name: String,
    /// The resource, when reached through a cluster.
    pub resource: Option<Box<CacheGroup>>,
    channels: Channels,
    transport: Arc<dyn Transport>,
    nodes: Vec<Node>,
    /// Where a client for rows begins.
    seeds: Vec<Endpoint>,
    /// What to look at when no node answers.
    hint: String,
}

/// One node that admin commands talk to.
#[derive(Clone, Debug)]
pub struct Node {
    pub name: String,
    pub endpoint: Endpoint,
}

impl Reach {
    pub async fn open(arguments: &ReachArguments) -> Result<Self> {
        if arguments.servers.is_empty() {
            cluster::open(arguments).await
        } else {
            open_direct(arguments).await
        }
    }

    /// Nodes for commands that speak to each of them: the one named by `--node`, or all.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub fn admin(&self, node: &Node) -> AdminClient {
        AdminClient::new(self.channels.node(&node.endpoint))
    }

    /// A client for rows, with the group's tables and its topology.
    pub async fn client(&self) -> Result<Client> {
        let seeds = self.seeds.clone();
        let options = self.channels.options().clone();
        let client = Client::connect_with(seeds, options, self.transport.clone()).await;
        let client =
            client.with_context(|| format!("no node of {} serves; {}", self.name, self.hint))?;
        await_topology(&client).await;
        Ok(client)
    }
}

fn options(tls: Option<TlsIdentity>, routing: Routing) -> Options {
    Options {
        // few calls, one after the other
        connections_per_node: 1,
        tls,
        routing,
        connect_timeout: CONNECT_TIMEOUT,
        retry_for: RETRY_FOR,
        ..Options::default()
    }
}

/// Straight to the given addresses; requests for rows are forwarded by the nodes themselves.
async fn open_direct(arguments: &ReachArguments) -> Result<Reach> {
    let tls = arguments.tls_dir.clone().map(TlsIdentity::Directory);
    let hint = match &tls {
        Some(_) => "see the node's log".to_owned(),
        None => "see the node's log; a node with TLS needs --tls-dir".to_owned(),
    };
    let transport: Arc<dyn Transport> = Arc::new(TcpTransport);
    let channels = Channels::with_transport(options(tls, Routing::Seeds), transport.clone());
    let seed = |given: &Endpoint| Node { name: given.address.clone(), endpoint: given.clone() };
    let nodes: Vec<Node> = arguments.servers.iter().map(seed).collect();
    let seeds = nodes.iter().map(|n| n.endpoint.clone()).collect();
    let name = nodes.iter().map(|n| n.name.as_str()).collect::<Vec<_>>().join(", ");
    let mut reach = Reach { name, resource: None, channels, transport, nodes, seeds, hint };
    reach.nodes = direct_nodes(&reach).await;
    if let Some(wanted) = &arguments.node {
        reach.nodes.retain(|n| n.name == *wanted);
        if reach.nodes.is_empty() {
            return Err(misuse(anyhow!("no node is called {wanted}")));
        }
        reach.seeds = reach.nodes.iter().map(|n| n.endpoint.clone()).collect();
    }
    Ok(reach)
}

/// The watch of a fresh client answers within a moment; a group without a topology never does.
async fn await_topology(client: &Client) {
    let until = tokio::time::Instant::now() + TOPOLOGY_WAIT;
    while client.topology().is_none() && tokio::time::Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Several addresses were given: those are the nodes. One: the whole topology it knows.
async fn direct_nodes(reach: &Reach) -> Vec<Node> {
    let mut named = Vec::new();
    let mut serving = true;
    for node in &reach.nodes {
        // A certificate of an application may read and write, and not ask for the status.
        let status = reach.admin(node).status().await.ok();
        serving &= status.as_ref().is_none_or(|s| s.ready);
        let name = status.map_or(node.name.clone(), |s| s.node);
        named.push(Node { name, endpoint: node.endpoint.clone() });
    }
    let [only] = named.as_slice() else { return named };
    // A node that does not serve has no topology to tell.
    let client = if serving { reach.client().await.ok() } else { None };
    let topology = client.and_then(|c| c.topology());
    let Some(topology) = topology else { return named };
    let others = topology.nodes.iter().filter(|n| n.name != only.name);
    let others =
        others.map(|n| Node { name: n.name.clone(), endpoint: Endpoint::from(n.address.as_str()) });
    let mut all: Vec<Node> = others.chain([only.clone()]).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}
