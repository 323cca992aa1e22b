//! Import rules between crates, from cargo's own view of the dependency graph.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{process, workspace};

/// Which crates of the workspace each member may name; a member that is absent may name any.
const ALLOWED: [(&str, &[&str]); 14] = [
    ("cachetier-model", &[]),
    ("cachetier-proto", &[]),
    // a switch that is constant in everything shipped
    ("cachetier-defects", &[]),
    ("cachetier-journal", &["cachetier-defects"]),
    ("cachetier-runtime", &[]),
    ("cachetier-api", &["cachetier-model"]),
    ("cachetier-engine", &["cachetier-model", "cachetier-journal"]),
    ("cachetier-write-through", &["cachetier-model", "cachetier-defects"]),
    (
        "cachetier-group",
        &[
            "cachetier-model",
            "cachetier-engine",
            "cachetier-journal",
            "cachetier-write-through",
            "cachetier-defects",
        ],
    ),
    ("cachetier-client", &["cachetier-model", "cachetier-proto"]),
    ("cachetier-preload", &["cachetier-model", "cachetier-write-through", "cachetier-client"]),
    (
        "operator",
        &[
            "cachetier-model",
            "cachetier-api",
            "cachetier-client",
            "cachetier-proto",
            "cachetier-runtime",
        ],
    ),
    (
        "cache-node",
        &[
            "cachetier-model",
            "cachetier-proto",
            "cachetier-group",
            "cachetier-client",
            "cachetier-preload",
            // the loader process hands the backend to the preload
            "cachetier-write-through",
            "cachetier-runtime",
        ],
    ),
    ("xtask", &[]),
];

/// What must not be reachable from a member by any path, and why.
const ABSENT: [(&[&str], &[&str], &str); 3] = [
    (
        &["cache-node", "cachetier-group", "cachetier-client", "cachetier-preload"],
        &["kube", "kube-client", "k8s-openapi"],
        "the data plane never sees Kubernetes",
    ),
    (
        &["operator"],
        &["cachetier-journal", "cachetier-write-through", "cachetier-engine", "tokio-postgres"],
        "the operator never sees the journal or SQL",
    ),
    (
        &["cachetier-group"],
        &["tonic", "cachetier-proto"],
        "nothing below the node's rpc knows gRPC",
    ),
];

/// Packages by name, and for each the names that its normal dependencies resolve to.
type Graph = BTreeMap<String, BTreeSet<String>>;

pub fn check() -> Result<Vec<String>> {
    let graph = read()?;
    let mut findings = direct(&graph);
    findings.extend(reachable(&graph));
    Ok(findings)
}

fn direct(graph: &Graph) -> Vec<String> {
    let mut findings = Vec::new();
    for (member, allowed) in ALLOWED {
        for dependency in graph.get(member).into_iter().flatten() {
            let ours = dependency.starts_with("cachetier-")
                || ["operator", "cache-node", "cachectl", "bench"].contains(&dependency.as_str());
            if ours && !allowed.contains(&dependency.as_str()) {
                findings.push(format!("{member} must not depend on {dependency}"));
            }
        }
    }
    findings
}

fn reachable(graph: &Graph) -> Vec<String> {
    let mut findings = Vec::new();
    for (members, forbidden, why) in ABSENT {
        for member in members {
            let below = closure(graph, member);
            for package in forbidden.iter().filter(|package| below.contains(**package)) {
                findings.push(format!("{member} reaches {package}: {why}"));
            }
        }
    }
    findings
}

fn closure(graph: &Graph, from: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![from.to_owned()];
    while let Some(name) = open.pop() {
        for next in graph.get(&name).into_iter().flatten() {
            if found.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    found
}

/// Normal edges only: what tests and build scripts use is theirs.
fn read() -> Result<Graph> {
    let mut command = workspace::cargo();
    command.args(["metadata", "--format-version=1", "--quiet"]);
    let metadata: Value = serde_json::from_str(&process::capture(&mut command)?)?;
    let list = |value: &Value, pointer: &str| -> Vec<Value> {
        value.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let text = |value: &Value, field: &str| -> String {
        value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let names: BTreeMap<String, String> = list(&metadata, "/packages")
        .iter()
        .map(|package| (text(package, "id"), text(package, "name")))
        .collect();
    let mut graph = Graph::new();
    for node in list(&metadata, "/resolve/nodes") {
        let name = names.get(&text(&node, "id")).context("a package without a name")?;
        let edges = graph.entry(name.clone()).or_default();
        for dependency in list(&node, "/deps") {
            let normal = list(&dependency, "/dep_kinds")
                .iter()
                .any(|kind| kind.get("kind").is_none_or(Value::is_null));
            if let (true, Some(to)) = (normal, names.get(&text(&dependency, "pkg"))) {
                edges.insert(to.clone());
            }
        }
    }
    Ok(graph)
}

#[cfg(test)]
mod tests {
    use super::{Graph, direct, reachable};

    fn graph(edges: &[(&str, &str)]) -> Graph {
        let mut graph = Graph::new();
        for (from, to) in edges {
            graph.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        graph
    }

    #[test]
    fn a_forbidden_package_is_found_behind_another() {
        let graph = graph(&[("operator", "x"), ("x", "tokio-postgres")]);
        assert_eq!(reachable(&graph).len(), 1);
    }

    #[test]
    fn the_model_names_no_crate_of_ours() {
        let graph = graph(&[("cachetier-model", "cachetier-engine"), ("cachetier-model", "serde")]);
        assert_eq!(direct(&graph).len(), 1);
    }
}
