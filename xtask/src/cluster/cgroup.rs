//! Control groups of the nodes: one root per node in every hierarchy, version 1 or 2.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::layout::Node;
use crate::process;

const MOUNTS: &str = "/sys/fs/cgroup";

/// Whether the machine has the old hierarchies, one folder per controller.
pub fn is_v1() -> bool {
    !Path::new(MOUNTS).join("cgroup.controllers").exists()
}

/// Mount points of all hierarchies.
fn hierarchies() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let (_, place, kind) = (fields.next()?, fields.next()?, fields.next()?);
            (kind == "cgroup" || kind == "cgroup2").then(|| PathBuf::from(place))
        })
        .collect()
}

/// Creates the node's group in each hierarchy.
pub fn ensure(node: Node) -> Result<()> {
    for hierarchy in hierarchies() {
        let group = hierarchy.join(node.cgroup());
        fs::create_dir_all(&group).with_context(|| format!("creating {}", group.display()))?;
        if !is_v1() {
            delegate(&hierarchy);
        }
        // a new cpuset is empty, and nothing may run in an empty one
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if is_v1() && hierarchy.join(file).exists() {
                let value = fs::read_to_string(hierarchy.join(file))?;
                fs::write(group.join(file), value.trim())
                    .with_context(|| format!("setting {file} of {}", group.display()))?;
            }
        }
        weigh(&group);
    }
    Ok(())
}

/// A pretended machine has no processors of its own. By default its pods, all together, would weigh
/// as much as one process of this machine, and a database or a driver beside them would starve
/// them.
fn weigh(group: &Path) {
    for (file, weight) in [("cpu.shares", "8192"), ("cpu.weight", "800")] {
        let file = group.join(file);
        if file.exists() {
            let _ = fs::write(file, weight);
        }
    }
}

/// Version 2: lets child groups have the controllers that a kubelet asks for, where they exist.
fn delegate(hierarchy: &Path) {
    for controller in ["cpu", "cpuset", "memory", "pids", "io", "hugetlb"] {
        let _ = fs::write(hierarchy.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

/// Processes in the node's groups, pods included.
pub fn contains(node: Node, pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| {
        text.lines().any(|line| {
            line.split(':').nth(2).is_some_and(|path| {
                path.trim_start_matches('/').split('/').next() == Some(&node.cgroup())
            })
        })
    })
}

/// Removes the node's groups, children first.
pub fn remove(node: Node) {
    for hierarchy in hierarchies() {
        let group = hierarchy.join(node.cgroup());
        if group.exists() {
            let limit = std::time::Duration::from_secs(5);
            // a group is busy until the kernel has finished with its last process
            let _ = process::wait_until("a control group to empty", limit, || remove_tree(&group));
        }
    }
}

/// Tells whether the whole tree is gone.
fn remove_tree(group: &Path) -> bool {
    if let Ok(entries) = fs::read_dir(group) {
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove_tree(&entry.path());
            }
        }
    }
    let _ = fs::remove_dir(group);
    !group.exists()
}
