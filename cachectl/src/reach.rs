//! How the tool gets to a group: which nodes, by which connection, with which certificate.
//!
//! Owns the choice between a cluster's API server (port-forward) and addresses given by hand.
//! Commands see only [`Reach`].

mod cluster;
mod forward;

use crate::arguments::ReachArguments;
use anyhow::{Context, Result, bail};
use cachetier_api::v1alpha1::CacheGroup;
use cachetier_client::{AdminClient, Client, Endpoint, Options, Routing, TlsIdentity};
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_FOR: Duration = Duration::from_secs(10);
const TOPOLOGY_WAIT: Duration = Duration::from_secs(2);

/// A connected group.
pub struct Reach {
    pub client: Client,
    /// The resource, when reached through a cluster.
    pub resource: Option<Box<CacheGroup>>,
    nodes: Vec<Node>,
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
        self.client.admin(&node.endpoint)
    }
}

/// Straight to the given addresses; requests for rows are forwarded by the nodes themselves.
async fn open_direct(arguments: &ReachArguments) -> Result<Reach> {
    if arguments.group.is_some() || arguments.namespace.is_some() {
        bail!("--server goes straight to a node; leave out --namespace and --group");
    }
    let options = Options {
        tls: arguments.tls_dir.clone().map(TlsIdentity::Directory),
        routing: Routing::Seeds,
        connect_timeout: CONNECT_TIMEOUT,
        retry_for: RETRY_FOR,
        ..Options::default()
    };
    let seeds: Vec<Endpoint> =
        arguments.servers.iter().map(|s| Endpoint::from(s.as_str())).collect();
    let client = Client::connect(seeds.clone(), options).await.with_context(|| {
        let hint = if arguments.tls_dir.is_some() { "" } else { " (with TLS it needs --tls-dir)" };
        format!("cannot reach a cache node at {}{hint}", arguments.servers.join(", "))
    })?;
    await_topology(&client).await;
    let mut nodes = direct_nodes(&client, seeds).await?;
    if let Some(wanted) = &arguments.node {
        nodes.retain(|n| n.name == *wanted);
        if nodes.is_empty() {
            bail!("no node is called {wanted}");
        }
    }
    Ok(Reach { client, resource: None, nodes })
}

/// The watch of a fresh client answers within a moment; a group without a topology never does.
async fn await_topology(client: &Client) {
    let until = tokio::time::Instant::now() + TOPOLOGY_WAIT;
    while client.topology().is_none() && tokio::time::Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Several addresses were given: those are the nodes. One: the whole topology it knows.
async fn direct_nodes(client: &Client, seeds: Vec<Endpoint>) -> Result<Vec<Node>> {
    let mut named = Vec::new();
    for endpoint in seeds {
        let status = client.admin(&endpoint).status().await;
        match status {
            Ok(status) => named.push(Node { name: status.node, endpoint }),
            // A certificate of an application may read and write, and not ask for the status.
            Err(_) => named.push(Node { name: endpoint.address.clone(), endpoint }),
        }
    }
    let topology = client.topology();
    let (Some(topology), [only]) = (topology, named.as_slice()) else { return Ok(named) };
    let others = topology.nodes.iter().filter(|n| n.name != only.name);
    let others =
        others.map(|n| Node { name: n.name.clone(), endpoint: Endpoint::from(n.address.as_str()) });
    let mut all: Vec<Node> = others.chain([only.clone()]).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}
