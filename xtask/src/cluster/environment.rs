//! What users of a cluster need to know: variables for shells and tests, process ids for tests that
//! break things, and a status for people.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::json;

use super::layout::{NODES, RunDir};
use super::record::{self, Kind};
use super::{NOT_UP, build, daemon, storage};

/// Variables by name.
pub fn variables(run: &RunDir) -> Result<BTreeMap<&'static str, String>> {
    let record = record::read(run)?.context(NOT_UP)?;
    let tools = build::located()?;
    let mut variables = BTreeMap::new();
    variables.insert("CACHETIER_RUN", run.root().to_string_lossy().into_owned());
    if let Some(kubeconfig) = record.kubeconfig(run) {
        variables.insert("KUBECONFIG", kubeconfig);
        variables.insert("CACHETIER_KUBECTL", tools.kubectl().to_string_lossy().into_owned());
        variables.insert("CACHETIER_HELM", tools.helm().to_string_lossy().into_owned());
    }
    if record.has_backend() {
        let server = record.server(run);
        variables.insert("CACHETIER_PG_ADMIN", server.admin_uri()?);
        variables.insert("CACHETIER_PG", server.role_uri()?);
        if run.join("pki/ca.crt").exists() {
            variables.insert("CACHETIER_PG_CA", run.certificate("ca"));
        }
    }
    if record.kind == Kind::Full {
        variables.insert("CACHETIER_RESOLV_CONF", run.text("resolv.conf"));
        variables.insert("CACHETIER_STORAGE_CLASS", storage::CLASS.to_owned());
    }
    Ok(variables)
}

/// Prints the variables as shell exports, or everything as JSON.
pub fn print(run: &RunDir, as_json: bool) -> Result<()> {
    let variables = variables(run)?;
    if as_json {
        let record = record::read(run)?.context(NOT_UP)?;
        let answer = json!({
            "kind": record.kind,
            "env": variables,
            "pids": pids(run),
            "nodes": NODES.map(|node| json!({
                "name": node.name(), "address": node.address(), "namespace": node.namespace(),
                "memoryRich": node.memory_rich, "folder": run.node(node),
                "containerd": run.containerd_socket(node),
            })),
            "logs": run.join("log"),
        });
        println!("{}", serde_json::to_string_pretty(&answer)?);
        return Ok(());
    }
    for (name, value) in variables {
        println!("export {name}='{value}'");
    }
    let tools = build::located()?;
    if let (Some(kubectl), Some(helm)) = (tools.kubectl().parent(), tools.helm().parent()) {
        // before others of these names: they are as old as the cluster
        println!("export PATH=\"{}:{}:$PATH\"", kubectl.display(), helm.display());
    }
    Ok(())
}

fn pids(run: &RunDir) -> BTreeMap<String, Option<i32>> {
    daemon::names(run)
        .into_iter()
        .map(|name| {
            let pid = daemon::running(run, &name).map(|process| process.pid);
            (name, pid)
        })
        .collect()
}

/// One line per part; fails when something is down, so that scripts can ask.
pub fn print_status(run: &RunDir) -> Result<()> {
    let Some(record) = record::read(run)? else {
        println!("no cluster in {}", run.root().display());
        return Ok(());
    };
    println!("{:?} cluster in {}", record.kind, run.root().display());
    let mut down = Vec::new();
    for (name, pid) in pids(run) {
        match pid {
            Some(pid) => println!("  {name:<24} runs     pid {pid}"),
            None => {
                println!("  {name:<24} is down  {}", run.text(&format!("log/{name}.log")));
                down.push(name);
            }
        }
    }
    if record.has_control_plane() {
        let kubectl = super::kubectl::Kubectl::new(run, &build::located()?);
        print!("{}", kubectl.run(&["get", "nodes", "-o", "wide"]).unwrap_or_default());
    }
    anyhow::ensure!(down.is_empty(), "down: {}; `cargo xtask cluster up` heals", down.join(", "));
    Ok(())
}

/// What to type next.
pub fn hint(run: &RunDir) -> String {
    let default = run.root() == std::path::Path::new(super::DEFAULT_RUN_DIR);
    let place =
        if default { String::new() } else { format!(" --run-dir {}", run.root().display()) };
    format!("eval \"$(cargo xtask cluster env{place})\"")
}
