//! One simulated machine: containerd, kubelet and kube-proxy in the node's network namespace, with
//! their own folders, socket and control groups. Starting is idempotent; killing a node ends every
//! process on it at once, as a power failure would.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::json;

use super::build::Tools;
use super::daemon;
use super::kubectl::{Kubectl, text};
use super::layout::{DNS_SERVICE, MEMORY_LABEL, NODES, Node, POD_NETWORK, RunDir};
use super::network;
use super::{cgroup, teardown};
use crate::process::wait_until;

/// Name of the sandbox image in every node's image store.
pub const PAUSE_IMAGE: &str = "cachetier.dev/pause:1";
const RUNTIME_LIMIT: Duration = Duration::from_secs(30);
const READY_LIMIT: Duration = Duration::from_secs(120);

/// Names of a node's daemons, in the order they start.
pub fn daemons(node: Node) -> [String; 3] {
    ["containerd", "kubelet", "proxy"].map(|part| format!("{}-{part}", node.name()))
}

/// Starts what is not running on a node.
pub fn start(run: &RunDir, tools: &Tools, node: Node) -> Result<()> {
    let [containerd, kubelet, proxy] = daemons(node);
    for folder in ["cni", "state", "root", "kubelet", "volumes", "plugins", "pod-logs"] {
        fs::create_dir_all(run.node(node).join(folder))?;
    }
    cgroup::ensure(node)?;
    configure(run, node)?;
    let socket = run.containerd_socket(node);
    if daemon::running(run, &containerd).is_none() {
        // a socket that outlived its server would send the kubelet ahead too early
        let _ = fs::remove_file(&socket);
    }
    daemon::start(run, &containerd, &mut containerd_command(run, tools, node))?;
    wait_until("containerd's socket", RUNTIME_LIMIT, || {
        Path::new(&socket).exists() || daemon::running(run, &containerd).is_none()
    })?;
    daemon::check(run, &containerd)?;
    daemon::start(run, &kubelet, &mut kubelet_command(run, tools, node))?;
    daemon::start(run, &proxy, &mut proxy_command(run, tools, node))?;
    Ok(())
}

/// Waits until every node is Ready, then puts the labels on that a device plugin would.
pub fn await_ready(run: &RunDir, tools: &Tools) -> Result<()> {
    let kubectl = Kubectl::new(run, tools);
    let ready = wait_until("all nodes to be Ready", READY_LIMIT, || {
        kubectl.list(&["nodes"]).is_ok_and(|nodes| {
            NODES.iter().all(|node| {
                nodes.iter().any(|found| {
                    text(found, "/metadata/name") == Some(&node.name()) && is_ready(found)
                })
            })
        })
    });
    for node in NODES {
        for name in daemons(node) {
            daemon::check(run, &name)?;
        }
    }
    ready?;
    for node in NODES {
        let label = match node.memory_rich {
            true => format!("{MEMORY_LABEL}=true"),
            false => format!("{MEMORY_LABEL}-"),
        };
        kubectl.run(&["label", "--overwrite", "node", &node.name(), &label])?;
    }
    Ok(())
}

fn is_ready(node: &serde_json::Value) -> bool {
    node.pointer("/status/conditions").and_then(serde_json::Value::as_array).is_some_and(|list| {
        list.iter().any(|condition| {
            text(condition, "/type") == Some("Ready") && text(condition, "/status") == Some("True")
        })
    })
}

/// Ends everything on a node at once, pods included.
pub fn kill(run: &RunDir, node: Node) -> Result<()> {
    for name in daemons(node).iter().rev() {
        if let Some(process) = daemon::running(run, name) {
            daemon::send(process.pid, Signal::KILL);
        }
    }
    teardown::kill_node_processes(run, node)?;
    for name in daemons(node) {
        daemon::stop(run, &name, Signal::KILL)?;
    }
    Ok(())
}

fn configure(run: &RunDir, node: Node) -> Result<()> {
    let folder = run.node(node);
    let write = |name: &str, content: String| {
        let path = folder.join(name);
        // kube-proxy ends when its file is touched, even with the same content
        if fs::read_to_string(&path).is_ok_and(|known| known == content) {
            return Ok(());
        }
        fs::write(&path, content).with_context(|| format!("writing {}", path.display()))
    };
    write("containerd.toml", containerd_config(run, node))?;
    write("cni/10-pods.conflist", network_config(run, node).to_string())?;
    write("kubelet.json", kubelet_config(run, node).to_string())?;
    write("proxy.json", proxy_config(run, node).to_string())?;
    write("resolv.conf", format!("nameserver {DNS_SERVICE}\n"))?;
    Ok(())
}

fn containerd_command(run: &RunDir, tools: &Tools, node: Node) -> Command {
    let mut command = network::inside(node, tools.containerd("containerd"));
    // containerd finds its shim on the path
    let path = format!(
        "{}:{}:/usr/sbin:/sbin",
        tools.containerd_dir().display(),
        std::env::var("PATH").unwrap_or_default()
    );
    command.env("PATH", path).arg("--config").arg(run.node(node).join("containerd.toml"));
    command
}

fn containerd_config(run: &RunDir, node: Node) -> String {
    let folder = run.node(node).to_string_lossy().into_owned();
    let shim = "plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc";
    format!(
        "version = 3\n\
         root = '{folder}/root'\n\
         state = '{folder}/state'\n\
         disabled_plugins = ['io.containerd.internal.v1.tracing', 'io.containerd.nri.v1.nri']\n\
         [grpc]\n\
         address = '{folder}/containerd.sock'\n\
         [ttrpc]\n\
         address = '{folder}/containerd.sock.ttrpc'\n\
         [plugins.'io.containerd.internal.v1.opt']\n\
         path = '{folder}/opt'\n\
         [plugins.'io.containerd.cri.v1.images'.pinned_images]\n\
         sandbox = '{PAUSE_IMAGE}'\n\
         [plugins.'io.containerd.cri.v1.runtime']\n\
         restrict_oom_score_adj = true\n\
         netns_mounts_under_state_dir = true\n\
         [plugins.'io.containerd.cri.v1.runtime'.cni]\n\
         bin_dirs = ['/usr/lib/cni']\n\
         conf_dir = '{folder}/cni'\n\
         use_internal_loopback = true\n\
         [{shim}]\n\
         runtime_type = 'io.containerd.runc.v2'\n\
         [{shim}.options]\n\
         SystemdCgroup = false\n\
         Root = '{folder}/state/runc'\n"
    )
}

fn network_config(run: &RunDir, node: Node) -> serde_json::Value {
    json!({
        "cniVersion": "1.0.0",
        "name": node.cgroup(),
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": true,
                "ipMasq": false,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": run.text(&format!("{}/addresses", node.name())),
                    "ranges": [[{"subnet": node.pod_network()}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

fn kubelet_command(run: &RunDir, tools: &Tools, node: Node) -> Command {
    let folder = run.node(node);
    let mut command = network::inside(node, tools.kube());
    command
        .arg("kubelet")
        .arg(format!("--config={}", folder.join("kubelet.json").display()))
        .arg(format!("--kubeconfig={}", run.kubeconfig(&node.name())))
        .arg(format!("--hostname-override={}", node.name()))
        .arg(format!("--node-ip={}", node.address()))
        .arg(format!("--root-dir={}", folder.join("kubelet").display()))
        .arg(format!("--cert-dir={}", folder.join("kubelet/pki").display()));
    command
}

fn kubelet_config(run: &RunDir, node: Node) -> serde_json::Value {
    let folder = run.node(node).to_string_lossy().into_owned();
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address(),
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": run.certificate("ca")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": run.certificate(&node.name()),
        "tlsPrivateKeyFile": run.key(&node.name()),
        "containerRuntimeEndpoint": format!("unix://{}", run.containerd_socket(node)),
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "resolvConf": format!("{folder}/resolv.conf"),
        "podLogsDir": format!("{folder}/pod-logs"),
        "volumePluginDir": format!("{folder}/plugins"),
        "failSwapOn": false,
        "cgroupDriver": "cgroupfs",
        "readOnlyPort": 0,
        "healthzPort": 10248,
        "serializeImagePulls": false,
        "registryPullQPS": 0,
        "nodeStatusUpdateFrequency": "4s",
        "nodeLeaseDurationSeconds": 10,
        "syncFrequency": "10s",
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "shutdownGracePeriod": "0s",
    });
    if let (true, Some(fields)) = (cgroup::is_v1(), config.as_object_mut()) {
        fields.insert("failCgroupV1".into(), json!(false));
    }
    if let Some(fields) = config.as_object_mut() {
        fields.insert("cgroupRoot".into(), json!(format!("/{}", node.cgroup())));
    }
    config
}

fn proxy_command(run: &RunDir, tools: &Tools, node: Node) -> Command {
    let mut command = network::inside(node, tools.kube());
    command.arg("proxy").arg(format!("--config={}", run.node(node).join("proxy.json").display()));
    command
}

fn proxy_config(run: &RunDir, node: Node) -> serde_json::Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": run.kubeconfig("proxy")},
        "hostnameOverride": node.name(),
        "clusterCIDR": POD_NETWORK,
        "mode": "nftables",
        "conntrack": {"maxPerCore": 0},
        "nftables": {"minSyncPeriod": "0s", "syncPeriod": "30s"},
    })
}
