//! The cluster's name server: CoreDNS as a process on the bridge address, joined to the cluster by
//! a Service without a selector and an EndpointSlice that points at it.

use std::fs;
use std::process::Command;

use anyhow::Result;
use serde_json::{Value, json};

use super::build::Tools;
use super::daemon;
use super::kubectl::Kubectl;
use super::layout::{BRIDGE_ADDRESS, DNS_SERVICE, Ports, RunDir};

/// Starts the server if needed and publishes it.
pub fn ensure(run: &RunDir, tools: &Tools, ports: Ports) -> Result<()> {
    let kubectl = Kubectl::new(run, tools);
    kubectl.apply(&objects(ports))?;
    let file = run.join("Corefile");
    fs::write(&file, corefile(run, ports))?;
    // for programs outside of pods that want to use the cluster's names
    let search = "search svc.cluster.local cluster.local\noptions ndots:5 timeout:1 attempts:3\n";
    fs::write(run.join("resolv.conf"), format!("nameserver {DNS_SERVICE}\n{search}"))?;
    let mut command = Command::new(tools.coredns());
    command.arg("-conf").arg(&file);
    daemon::start(run, "dns", &mut command)?;
    Ok(())
}

fn corefile(run: &RunDir, ports: Ports) -> String {
    format!(
        ".:{port} {{\n    bind {BRIDGE_ADDRESS}\n    errors\n    health :{health}\n    \
         kubernetes cluster.local in-addr.arpa ip6.arpa {{\n        kubeconfig {kubeconfig}\n    \
         }}\n    loop\n}}\n",
        port = ports.dns(),
        health = ports.dns_health(),
        kubeconfig = run.kubeconfig("dns"),
    )
}

fn objects(ports: Ports) -> Vec<Value> {
    let named = |protocol: &str| protocol.to_lowercase();
    let protocols = ["UDP", "TCP"];
    vec![
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system"},
            "spec": {
                "clusterIP": DNS_SERVICE,
                "ports": protocols.map(|protocol| json!({
                    "name": named(protocol), "protocol": protocol,
                    "port": 53, "targetPort": ports.dns(),
                })),
            },
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "kube-dns-bridge",
                "namespace": "kube-system",
                "labels": {"kubernetes.io/service-name": "kube-dns"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [BRIDGE_ADDRESS], "conditions": {"ready": true}}],
            "ports": protocols.map(|protocol| json!({
                "name": named(protocol), "protocol": protocol, "port": ports.dns(),
            })),
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "cachetier-local-dns"},
            "rules": [
                {
                    "apiGroups": [""],
                    "resources": ["services", "pods", "namespaces", "endpoints"],
                    "verbs": ["list", "watch"],
                },
                {
                    "apiGroups": ["discovery.k8s.io"],
                    "resources": ["endpointslices"],
                    "verbs": ["list", "watch"],
                },
            ],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "cachetier-local-dns"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "cachetier-local-dns",
            },
            "subjects": [{
                "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:coredns",
            }],
        }),
    ]
}
