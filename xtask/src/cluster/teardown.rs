//! Leaves nothing behind: processes, mounts, control groups, namespaces, links, routes and files.
//! Works from names and from what the kernel shows, never only from our own records, so that it
//! also cleans up after a crash.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::process::Signal;

use super::daemon;
use super::layout::{NODES, Node, RunDir};
use super::{cgroup, network};
use crate::process::{attempt, command, wait_until};

const GONE_LIMIT: Duration = Duration::from_secs(20);
/// Programs of ours that carry the run folder on their command line.
const PROGRAMS: [&str; 6] =
    ["kube", "containerd", "containerd-shim-runc-v2", "coredns", "postgres", "runc"];
/// Folders that Kubernetes programs create at fixed places, whatever their settings say.
const FIXED_LEFTOVERS: [&str; 3] =
    ["/var/lib/kubelet/device-plugins", "/var/lib/kubelet/plugins_registry", "/var/lib/kubelet"];

/// Stops and removes a whole cluster.
pub fn run(run: &RunDir, full: bool) -> Result<()> {
    stop_daemons(run)?;
    // the nodes' control groups belong to the full cluster, whichever run folder this is
    let nodes: &[Node] = if full { &NODES } else { &[] };
    kill_processes(nodes, run.root())?;
    unmount_below(run.root())?;
    if full {
        for node in NODES {
            cgroup::remove(node);
        }
        network::remove();
        remove_fixed_leftovers(run);
    }
    match fs::remove_dir_all(run.root()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Polite stop of everything recorded: nodes first, then what they depend on.
fn stop_daemons(run: &RunDir) -> Result<()> {
    let mut names = daemon::names(run);
    let rank = |name: &String| match name.as_str() {
        "etcd" => 3,
        "api-server" => 2,
        name if name.starts_with("node-") => 0,
        _ => 1,
    };
    names.sort_by_key(rank);
    for name in &names {
        let signal = if name == "postgres" { Signal::INT } else { Signal::TERM };
        if let Some(process) = daemon::running(run, name) {
            daemon::send(process.pid, signal);
        }
    }
    for name in &names {
        let signal = if name == "postgres" { Signal::INT } else { Signal::TERM };
        daemon::stop(run, name, signal)?;
    }
    Ok(())
}

/// Kills everything on one node, pods included.
pub fn kill_node_processes(run: &RunDir, node: Node) -> Result<()> {
    kill_processes(&[node], &run.node(node))
}

/// Kills what is left in these nodes' control groups or runs out of the folder.
fn kill_processes(nodes: &[Node], folder: &Path) -> Result<()> {
    wait_until("processes of the cluster to end", GONE_LIMIT, || {
        let ours: Vec<i32> = processes()
            .into_iter()
            .filter(|pid| {
                nodes.iter().any(|node| cgroup::contains(*node, *pid)) || runs_from(*pid, folder)
            })
            .collect();
        for pid in &ours {
            daemon::send(*pid, Signal::KILL);
        }
        ours.is_empty()
    })
}

fn processes() -> Vec<i32> {
    let me = i32::try_from(std::process::id()).unwrap_or_default();
    fs::read_dir("/proc")
        .map(|entries| {
            entries
                .flatten()
                .filter_map(|entry| entry.file_name().to_string_lossy().parse().ok())
                .filter(|pid| *pid != me && !ended(*pid))
                .collect()
        })
        .unwrap_or_default()
}

/// A process that ended and waits for its parent needs no more signals.
fn ended(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .map(|stat| stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim().starts_with('Z')))
        .unwrap_or(true)
}

/// Whether this is one of our programs and its command line names the folder.
fn runs_from(pid: i32, folder: &Path) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let name = program.file_name().map(|name| name.to_string_lossy().into_owned());
    // kubectl is the same file, but a user's own session must not be ended
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<String> = words
        .split(|byte| *byte == 0)
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    let client = words.iter().take(2).any(|word| word.ends_with("kubectl"));
    let folder = folder.to_string_lossy();
    name.is_some_and(|name| PROGRAMS.contains(&name.trim_end_matches(" (deleted)")))
        && !client
        && words.iter().any(|word| names_folder(word, &folder))
}

/// Whether a word of a command line names a path at or below the folder.
fn names_folder(word: &str, folder: &str) -> bool {
    word.match_indices(folder).any(|(at, _)| {
        let before = word.get(..at).unwrap_or_default();
        let after = word.get(at + folder.len()..).unwrap_or_default();
        (before.is_empty() || before.ends_with(['=', ':', '/']))
            && (after.is_empty() || after.starts_with('/'))
    })
}

/// Unmounts everything below a folder, deepest first.
pub fn unmount_below(folder: &Path) -> Result<()> {
    let mounted = || -> Vec<String> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let mut places: Vec<String> = mounts
            .lines()
            .filter_map(|line| line.split_whitespace().nth(1))
            .map(|place| place.replace("\\040", " "))
            .filter(|place| Path::new(place).starts_with(folder))
            .collect();
        places.sort();
        places
    };
    for place in mounted().iter().rev() {
        if !attempt(&mut command("umount", &[place])) {
            attempt(&mut command("umount", &["--lazy", place]));
        }
    }
    let left = mounted();
    if !left.is_empty() {
        bail!("still mounted: {}", left.join(" "));
    }
    Ok(())
}

/// Removes traces outside the run folder that point into it or belong to it by name.
fn remove_fixed_leftovers(run: &RunDir) {
    if let Ok(entries) = fs::read_dir("/var/log/containers") {
        for entry in entries.flatten() {
            if fs::read_link(entry.path()).is_ok_and(|to| to.starts_with(run.root())) {
                let _ = fs::remove_file(entry.path());
            }
        }
        // only goes when it is empty
        let _ = fs::remove_dir("/var/log/containers");
    }
    if let Ok(entries) = fs::read_dir("/var/lib/cni/results") {
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if NODES.iter().any(|node| name.starts_with(&node.cgroup())) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
    remove_shim_sockets();
    for socket in ["kubelet.sock", "DEPRECATION", "kubelet_internal_checkpoint"] {
        let _ = fs::remove_file(Path::new("/var/lib/kubelet/device-plugins").join(socket));
    }
    for folder in FIXED_LEFTOVERS.iter().chain(&["/var/lib/cni/results", "/var/lib/cni"]) {
        let _ = fs::remove_dir(folder);
    }
}

/// The runtime's shims put their sockets at a fixed place; those that nobody listens on go.
fn remove_shim_sockets() {
    let folder = Path::new("/run/containerd/s");
    let open = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if !open.lines().any(|line| line.ends_with(&*path.to_string_lossy())) {
            let _ = fs::remove_file(path);
        }
    }
    let _ = fs::remove_dir(folder);
    let _ = fs::remove_dir("/run/containerd");
}

#[cfg(test)]
mod tests {
    use super::names_folder;

    #[test]
    fn only_paths_at_or_below_the_folder_count_as_naming_it() {
        let folder = "/var/lib/ct";
        for word in ["/var/lib/ct", "--config=/var/lib/ct/a", "unix:///var/lib/ct/x.sock"] {
            assert!(names_folder(word, folder), "{word}");
        }
        for word in ["/var/lib/ct-2/a", "/srv/var/lib/other", "var/lib/ct"] {
            assert!(!names_folder(word, folder), "{word}");
        }
    }
}
