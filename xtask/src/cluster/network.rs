//! The simulated machines' network: one bridge in the root namespace, one network namespace and
//! one pair of links per node, static routes to every node's pods and to the Services.
//! Every step looks first, so that starting twice changes nothing.

use anyhow::{Context, Result};

use super::layout::{BRIDGE, BRIDGE_ADDRESS, NODES, Node, POD_NETWORK, SERVICE_NETWORK};
use crate::process::{attempt, capture, command};

fn ip(args: &str) -> Result<String> {
    let words: Vec<&str> = args.split_whitespace().collect();
    capture(&mut command("ip", &words))
}

fn ip_in(node: Node, args: &str) -> Result<String> {
    ip(&format!("-n {} {args}", node.namespace()))
}

fn holds(args: &str) -> bool {
    ip(args).is_ok_and(|text| !text.trim().is_empty())
}

/// A command inside a node's network namespace. Unlike `ip netns exec` it keeps /sys, and with it
/// the control groups, as they are.
pub fn inside(node: Node, program: impl AsRef<std::ffi::OsStr>) -> std::process::Command {
    let mut command = std::process::Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{}", node.namespace())).arg("--").arg(program);
    command
}

/// Creates bridge, namespaces, links and routes that are missing.
pub fn ensure() -> Result<()> {
    bridge()?;
    for node in NODES {
        machine(node).with_context(|| format!("network of {}", node.name()))?;
    }
    for node in NODES {
        routes(node).with_context(|| format!("routes of {}", node.name()))?;
    }
    // Services are answered by the packet filter of a node; the first one serves the root namespace
    if let Some(first) = NODES.first() {
        ip(&format!("route replace {SERVICE_NETWORK} via {}", first.address()))?;
    }
    Ok(())
}

fn bridge() -> Result<()> {
    if !holds(&format!("link show {BRIDGE}")) {
        ip(&format!("link add {BRIDGE} type bridge"))?;
    }
    ip(&format!("addr replace {BRIDGE_ADDRESS}/24 dev {BRIDGE}"))?;
    ip(&format!("link set {BRIDGE} up"))?;
    Ok(())
}

fn machine(node: Node) -> Result<()> {
    let (namespace, link) = (node.namespace(), node.link());
    if !std::path::Path::new(&format!("/run/netns/{namespace}")).exists() {
        ip(&format!("netns add {namespace}"))?;
    }
    if !holds(&format!("link show {link}")) {
        ip(&format!("link add {link} type veth peer name eth0 netns {namespace}"))?;
        ip(&format!("link set {link} master {BRIDGE}"))?;
    }
    ip(&format!("link set {link} up"))?;
    ip_in(node, "link set lo up")?;
    ip_in(node, &format!("addr replace {}/24 dev eth0", node.address()))?;
    ip_in(node, "link set eth0 up")?;
    let mut forward = inside(node, "sh");
    forward.args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]);
    capture(&mut forward)?;
    Ok(())
}

fn routes(node: Node) -> Result<()> {
    ip_in(node, &format!("route replace default via {BRIDGE_ADDRESS}"))?;
    for other in NODES.into_iter().filter(|other| *other != node) {
        ip_in(node, &format!("route replace {} via {}", other.pod_network(), other.address()))?;
    }
    ip(&format!("route replace {} via {}", node.pod_network(), node.address()))?;
    Ok(())
}

/// Takes a node off the network, or puts it back.
pub fn connect(node: Node, connected: bool) -> Result<()> {
    let state = if connected { "up" } else { "down" };
    ip(&format!("link set {} {state}", node.link()))?;
    Ok(())
}

/// Removes everything that [`ensure`] creates; what is absent is no error.
pub fn remove() {
    for network in [SERVICE_NETWORK, POD_NETWORK] {
        attempt(&mut command("ip", &["route", "del", network]));
    }
    for node in NODES {
        attempt(&mut command("ip", &["route", "del", &node.pod_network()]));
        attempt(&mut command("ip", &["link", "del", &node.link()]));
        attempt(&mut command("ip", &["netns", "del", &node.namespace()]));
    }
    attempt(&mut command("ip", &["link", "del", BRIDGE]));
}
