//! Local volumes: a storage class without a provisioner, a fixed number of volumes per node that
//! are plain folders, and a recycler, since nothing else would ever empty a released one.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::build::{self, Tools};
use super::daemon;
use super::kubectl::{Kubectl, text};
use super::layout::{NODES, Node, RunDir, VOLUMES_PER_NODE};
use crate::workspace;

/// Pause between two passes of the recycler.
const WATCH_PAUSE: Duration = Duration::from_secs(3);
/// Name of the storage class.
pub const CLASS: &str = "local";

fn volume_name(node: Node, number: usize) -> String {
    format!("{}-volume-{number:02}", node.name())
}

/// Creates the class and all volumes that are missing.
pub fn ensure(run: &RunDir, tools: &Tools) -> Result<()> {
    let kubectl = Kubectl::new(run, tools);
    let mut objects = vec![json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": CLASS},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    })];
    for node in NODES {
        for number in 1..=VOLUMES_PER_NODE {
            let name = volume_name(node, number);
            fs::create_dir_all(run.node(node).join("volumes").join(&name))?;
            objects.push(volume(run, node, &name));
        }
    }
    kubectl.apply(&objects)
}

fn volume(run: &RunDir, node: Node, name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "50Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": CLASS,
            "volumeMode": "Filesystem",
            "local": {"path": run.node(node).join("volumes").join(name)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [node.name()]},
            ]}]}},
        },
    })
}

/// Starts the process that recycles volumes for as long as the cluster runs.
pub fn start_recycler(run: &RunDir) -> Result<()> {
    let mut command = Command::new(workspace::this_program()?);
    command.arg("cluster").arg("--run-dir").arg(run.root()).args(["recycle", "--watch"]);
    daemon::start(run, "recycler", &mut command)?;
    Ok(())
}

/// Recycles until the process is ended. A pass that fails is said and tried again: the API server
/// may be away for a while, on purpose.
pub fn watch(run: &RunDir) -> Result<()> {
    let tools = build::located()?;
    loop {
        match recycle(run, &tools) {
            Ok(names) if names.is_empty() => {}
            Ok(names) => println!("recycled {}", names.join(" ")),
            Err(error) => println!("recycling failed: {error:#}"),
        }
        std::thread::sleep(WATCH_PAUSE);
    }
}

/// Empties volumes whose claim was deleted and offers them again; gives their names.
pub fn recycle(run: &RunDir, tools: &Tools) -> Result<Vec<String>> {
    let kubectl = Kubectl::new(run, tools);
    let volumes = kubectl.list(&["persistentvolumes"])?;
    let released: Vec<&str> = volumes
        .iter()
        .filter(|volume| text(volume, "/spec/storageClassName") == Some(CLASS))
        .filter(|volume| matches!(text(volume, "/status/phase"), Some("Released" | "Failed")))
        .filter_map(|volume| text(volume, "/metadata/name"))
        .collect();
    let mut recycled = Vec::new();
    let mut objects = Vec::new();
    for node in NODES {
        for number in 1..=VOLUMES_PER_NODE {
            let name = volume_name(node, number);
            if released.contains(&name.as_str()) {
                kubectl.run(&["delete", "persistentvolume", &name, "--wait=true"])?;
                let folder = run.node(node).join("volumes").join(&name);
                fs::remove_dir_all(&folder).with_context(|| format!("emptying {name}"))?;
                fs::create_dir_all(&folder)?;
                objects.push(volume(run, node, &name));
                recycled.push(name);
            }
        }
    }
    if !objects.is_empty() {
        kubectl.apply(&objects)?;
    }
    Ok(recycled)
}
