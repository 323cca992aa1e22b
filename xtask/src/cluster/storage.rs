//! Local volumes: a storage class without a provisioner, a fixed number of volumes per node that
//! are plain folders, and a recycler, since nothing else would ever empty a released one.

use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::build::Tools;
use super::kubectl::{Kubectl, text};
use super::layout::{NODES, Node, RunDir, VOLUMES_PER_NODE};

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
