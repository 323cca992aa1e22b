//! etcd, API server, controller manager and scheduler: plain processes in the root namespace.
//! Alone they start in seconds, which is what operator tests use; the nodes join them over the
//! bridge address.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::build::Tools;
use super::daemon;
use super::kubectl::Kubectl;
use super::layout::{BRIDGE_ADDRESS, Ports, RunDir, SERVICE_NETWORK};
use crate::process::wait_until;

const READY_LIMIT: Duration = Duration::from_secs(90);

/// Which parts of the control plane to run and how they are reached.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub ports: Ports,
    /// Whether nodes join: then the API server listens on every address and pods are scheduled.
    pub nodes: bool,
    pub controller_manager: bool,
}

impl Shape {
    /// The address that clients in the root namespace use.
    pub fn host(self) -> &'static str {
        "127.0.0.1"
    }
}

/// Starts what is not running and waits until the API server is ready.
pub fn start(run: &RunDir, tools: &Tools, shape: Shape) -> Result<()> {
    for folder in ["etcd", "pki"] {
        fs::create_dir_all(run.join(folder))?;
    }
    for (name, port) in [
        ("etcd", shape.ports.etcd()),
        ("etcd", shape.ports.etcd_peer()),
        ("api-server", shape.ports.api_server()),
        ("controller-manager", shape.ports.controller_manager()),
        ("scheduler", shape.ports.scheduler()),
    ] {
        daemon::port_free(run, name, port)?;
    }
    daemon::start(run, "etcd", &mut etcd(run, tools, shape.ports))?;
    daemon::start(run, "api-server", &mut api_server(run, tools, shape))?;
    let kubectl = Kubectl::new(run, tools);
    let ready = wait_until("the API server to be ready", READY_LIMIT, || {
        kubectl.ready() || daemon::running(run, "api-server").is_none()
    });
    daemon::check(run, "api-server")?;
    ready?;
    if shape.controller_manager {
        daemon::start(run, "controller-manager", &mut controller_manager(run, tools, shape))?;
    }
    if shape.nodes {
        daemon::start(run, "scheduler", &mut scheduler(run, tools, shape))?;
    }
    Ok(())
}

fn kube(run: &RunDir, tools: &Tools, part: &str) -> Command {
    let mut command = daemon::program(run, tools.kube());
    command.arg(part);
    command
}

fn etcd(run: &RunDir, tools: &Tools, ports: Ports) -> Command {
    let client = format!("http://127.0.0.1:{}", ports.etcd());
    let peer = format!("http://127.0.0.1:{}", ports.etcd_peer());
    let mut command = kube(run, tools, "etcd");
    command
        .arg(format!("--data-dir={}", run.text("etcd")))
        .arg(format!("--listen-client-urls={client}"))
        .arg(format!("--advertise-client-urls={client}"))
        .arg(format!("--listen-peer-urls={peer}"))
        .arg(format!("--initial-advertise-peer-urls={peer}"))
        .arg(format!("--initial-cluster=default={peer}"))
        // this cluster may lose its objects with the machine; start-up is what counts
        .arg("--unsafe-no-fsync")
        .arg("--log-level=warn");
    command
}

fn api_server(run: &RunDir, tools: &Tools, shape: Shape) -> Command {
    let mut command = kube(run, tools, "apiserver");
    command
        .arg(format!("--etcd-servers=http://127.0.0.1:{}", shape.ports.etcd()))
        .arg(format!("--secure-port={}", shape.ports.api_server()))
        .arg(format!("--service-cluster-ip-range={SERVICE_NETWORK}"))
        .arg(format!("--cert-dir={}", run.text("pki")))
        .arg(format!("--client-ca-file={}", run.certificate("ca")))
        .arg(format!("--tls-cert-file={}", run.certificate("api-server")))
        .arg(format!("--tls-private-key-file={}", run.key("api-server")))
        .arg(format!("--kubelet-certificate-authority={}", run.certificate("ca")))
        .arg(format!("--kubelet-client-certificate={}", run.certificate("kubelet-client")))
        .arg(format!("--kubelet-client-key={}", run.key("kubelet-client")))
        .arg("--kubelet-preferred-address-types=InternalIP")
        .arg("--service-account-issuer=https://kubernetes.default.svc")
        .arg(format!("--service-account-key-file={}", run.text("pki/service-account.pub")))
        .arg(format!("--service-account-signing-key-file={}", run.key("service-account")))
        .arg("--authorization-mode=Node,RBAC")
        .arg("--enable-admission-plugins=NodeRestriction")
        .arg("--profiling=false");
    if shape.nodes {
        command.arg("--bind-address=0.0.0.0").arg(format!("--advertise-address={BRIDGE_ADDRESS}"));
    } else {
        command
            .arg("--bind-address=127.0.0.1")
            .arg("--advertise-address=127.0.0.1")
            .arg("--endpoint-reconciler-type=none");
    }
    if !shape.controller_manager {
        // nobody would create the default service accounts that this plugin insists on
        command.arg("--disable-admission-plugins=ServiceAccount");
    }
    command
}

fn controller_manager(run: &RunDir, tools: &Tools, shape: Shape) -> Command {
    let mut command = kube(run, tools, "controller-manager");
    command
        .args(authenticated(&run.kubeconfig("controller-manager")))
        .arg("--bind-address=127.0.0.1")
        .arg(format!("--secure-port={}", shape.ports.controller_manager()))
        .arg(format!("--cert-dir={}", run.text("pki")))
        .arg(format!("--root-ca-file={}", run.certificate("ca")))
        .arg(format!("--cluster-signing-cert-file={}", run.certificate("ca")))
        .arg(format!("--cluster-signing-key-file={}", run.key("ca")))
        .arg(format!("--service-account-private-key-file={}", run.key("service-account")))
        .arg("--use-service-account-credentials")
        .arg("--leader-elect=false")
        // a dead machine is noticed in seconds, so that tests of it need no minutes
        .arg("--node-monitor-period=2s")
        .arg("--node-monitor-grace-period=20s");
    command
}

fn scheduler(run: &RunDir, tools: &Tools, shape: Shape) -> Command {
    let mut command = kube(run, tools, "scheduler");
    command
        .args(authenticated(&run.kubeconfig("scheduler")))
        .arg("--bind-address=127.0.0.1")
        .arg(format!("--secure-port={}", shape.ports.scheduler()))
        .arg(format!("--cert-dir={}", run.text("pki")))
        .arg("--leader-elect=false");
    command
}

/// The same identity for calling the API server and for asking it who calls us.
fn authenticated(kubeconfig: &str) -> [String; 3] {
    ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"]
        .map(|flag| format!("--{flag}={kubeconfig}"))
}
