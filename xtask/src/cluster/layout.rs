//! Names, addresses, ports and paths of one local cluster. Everything a cluster creates on the
//! machine is derived here, so that teardown can find it again without any record of it.

use std::path::{Path, PathBuf};

/// Address of the root namespace on the cluster's bridge.
pub const BRIDGE_ADDRESS: &str = "10.99.0.1";
/// The bridge link that joins the nodes' namespaces.
pub const BRIDGE: &str = "ct-br0";
/// Addresses of Services.
pub const SERVICE_NETWORK: &str = "10.96.0.0/16";
/// Service address of the API server.
pub const KUBERNETES_SERVICE: &str = "10.96.0.1";
/// Service address of the name server.
pub const DNS_SERVICE: &str = "10.96.0.10";
/// Addresses of all pods.
pub const POD_NETWORK: &str = "10.244.0.0/16";
/// Local volumes that each node offers.
pub const VOLUMES_PER_NODE: usize = 12;
/// First port of the full cluster.
pub const FULL_PORT_BASE: u16 = 26440;
/// First port of a control plane on its own.
pub const CONTROL_PLANE_PORT_BASE: u16 = 26540;
/// First port of the parts that `cargo xtask test` starts.
pub const TEST_PORT_BASE: u16 = 26640;
/// The label that marks a host with persistent memory.
pub const MEMORY_LABEL: &str = "feature.node.kubernetes.io/memory-nv.present";

/// One simulated machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    pub number: u8,
    pub memory_rich: bool,
}

/// The three machines; two of them have much memory.
pub const NODES: [Node; 3] = [
    Node { number: 1, memory_rich: true },
    Node { number: 2, memory_rich: true },
    Node { number: 3, memory_rich: false },
];

impl Node {
    pub fn name(self) -> String {
        format!("node-{}", self.number)
    }
    pub fn address(self) -> String {
        format!("10.99.0.{}", 10 + self.number)
    }
    pub fn pod_network(self) -> String {
        format!("10.244.{}.0/24", self.number)
    }
    /// Name of the network namespace.
    pub fn namespace(self) -> String {
        format!("ct-node-{}", self.number)
    }
    /// The link's end in the root namespace.
    pub fn link(self) -> String {
        format!("ct-veth{}", self.number)
    }
    /// Root of the node's control groups, in every hierarchy.
    pub fn cgroup(self) -> String {
        format!("cachetier-node-{}", self.number)
    }
    pub fn find(name: &str) -> Option<Node> {
        NODES.into_iter().find(|node| node.name() == name)
    }
}

/// Ports of the processes in the root namespace, consecutive from a base.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    base: u16,
}

impl Ports {
    pub fn from(base: u16) -> Ports {
        Ports { base }
    }
    pub fn api_server(self) -> u16 {
        self.base
    }
    pub fn etcd(self) -> u16 {
        self.base + 1
    }
    pub fn etcd_peer(self) -> u16 {
        self.base + 2
    }
    pub fn controller_manager(self) -> u16 {
        self.base + 3
    }
    pub fn scheduler(self) -> u16 {
        self.base + 4
    }
    pub fn postgres(self) -> u16 {
        self.base + 5
    }
    pub fn dns(self) -> u16 {
        self.base + 6
    }
    pub fn dns_health(self) -> u16 {
        self.base + 7
    }
}

/// The folder that holds all state of one cluster.
#[derive(Clone, Debug)]
pub struct RunDir {
    root: PathBuf,
    /// Its processes end with the one that started them, however that one ends.
    tied: bool,
}

impl RunDir {
    pub fn at(root: impl Into<PathBuf>) -> RunDir {
        RunDir { root: root.into(), tied: false }
    }
    /// The same, for the length of one command.
    pub fn tied(self) -> RunDir {
        RunDir { tied: true, ..self }
    }
    pub fn is_tied(&self) -> bool {
        self.tied
    }
    pub fn root(&self) -> &Path {
        &self.root
    }
    pub fn join(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
    /// Path as text, for command lines and configuration files.
    pub fn text(&self, name: &str) -> String {
        self.join(name).to_string_lossy().into_owned()
    }
    pub fn certificate(&self, name: &str) -> String {
        self.text(&format!("pki/{name}.crt"))
    }
    pub fn key(&self, name: &str) -> String {
        self.text(&format!("pki/{name}.key"))
    }
    pub fn kubeconfig(&self, name: &str) -> String {
        self.text(&format!("{name}.kubeconfig"))
    }
    pub fn node(&self, node: Node) -> PathBuf {
        self.join(&node.name())
    }
    pub fn containerd_socket(&self, node: Node) -> String {
        self.text(&format!("{}/containerd.sock", node.name()))
    }
}
