//! Images in the nodes' stores: the sandbox image is made here, others come as archives.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::build::{self, Tools};
use super::layout::{NODES, Node, RunDir};
use super::node::PAUSE_IMAGE;
use super::record::{self, Kind};
use super::{NOT_UP, kubectl};
use crate::image::archive::{Image, Layer};
use crate::{process, workspace};

const PAUSE_SOURCE: &str = "// The process that holds a pod's namespaces: it does nothing, for ever.\n\
                            fn main() {\n    loop {\n        std::thread::park();\n    }\n}\n";

/// Makes the sandbox image once per machine and imports it where it is missing.
pub fn ensure_pause(run: &RunDir, tools: &Tools) -> Result<()> {
    let archive = pause_archive()?;
    for node in NODES {
        if !has(run, tools, node, PAUSE_IMAGE)? {
            import(run, tools, node, &archive)?;
        }
    }
    Ok(())
}

fn pause_archive() -> Result<PathBuf> {
    let folder = workspace::cache_dir().join("tools/pause-1");
    let archive = folder.join("pause.tar");
    if archive.exists() {
        return Ok(archive);
    }
    fs::create_dir_all(&folder)?;
    let (source, program) = (folder.join("pause.rs"), folder.join("pause"));
    fs::write(&source, PAUSE_SOURCE)?;
    let mut rustc = Command::new("rustc");
    rustc.args([
        "-O",
        "-C",
        "target-feature=+crt-static",
        "-C",
        "panic=abort",
        "-C",
        "strip=symbols",
    ]);
    process::capture(rustc.arg("-o").arg(&program).arg(&source)).context("compiling pause")?;
    let mut layer = Layer::default();
    layer.file("pause", 0o755, fs::read(&program)?);
    let image = Image {
        tag: PAUSE_IMAGE.into(),
        user: "65535:65535".into(),
        entrypoint: vec!["/pause".into()],
        layers: vec![layer],
    };
    image.write(&archive)?;
    Ok(archive)
}

/// Imports an archive into whatever cluster the run folder describes.
pub fn load(run: &RunDir, archive: &Path) -> Result<()> {
    let record = record::read(run)?.context(NOT_UP)?;
    let tools = build::located()?;
    match record.kind {
        Kind::Full => NODES.into_iter().try_for_each(|node| import(run, &tools, node, archive)),
        Kind::Existing => load_existing(&tools, record.kubeconfig.as_deref(), archive),
        Kind::ControlPlane | Kind::Backend => bail!("this cluster has no nodes to load into"),
    }
}

/// kind is the one foreign cluster whose nodes take an archive from here.
fn load_existing(tools: &Tools, kubeconfig: Option<&str>, archive: &Path) -> Result<()> {
    let kubectl = kubectl::Kubectl::existing(tools, kubeconfig.unwrap_or_default());
    let context = kubectl.run(&["config", "current-context"])?;
    let Some(name) = context.trim().strip_prefix("kind-") else {
        bail!(
            "push {} to a registry that the cluster pulls from; only kind loads archives",
            archive.display()
        );
    };
    let mut kind = process::command("kind", &["load", "image-archive", "--name", name]);
    process::run(kind.arg(archive))
}

/// Looks whether a cluster that is not ours has the image; if not, loads the archive into kind, and
/// elsewhere says what the operator's pods will wait for.
pub fn offer(run: &RunDir, image: &str, archive: &Path) -> Result<()> {
    let record = record::read(run)?.context(NOT_UP)?;
    let tools = build::located()?;
    let kubeconfig = record.kubeconfig.as_deref();
    let kubectl = kubectl::Kubectl::existing(&tools, kubeconfig.unwrap_or_default());
    if reported(&kubectl.list(&["nodes"])?, image) {
        return Ok(());
    }
    let context = kubectl.run(&["config", "current-context"])?;
    if !context.starts_with("kind-") {
        println!(
            "no node of this cluster reports {image}: unless its nodes can pull it, the operator \
             will not start; push it to a registry that they pull from"
        );
        return Ok(());
    }
    if !archive.exists() {
        bail!("no node has {image}, nor is there {}: `cargo xtask image` first", archive.display());
    }
    load_existing(&tools, kubeconfig, archive)
}

/// Whether a node says that it has the image. Nodes list no more than fifty.
fn reported(nodes: &[Value], image: &str) -> bool {
    let images = |node: &Value| node.pointer("/status/images").and_then(Value::as_array).cloned();
    let names = |entry: &Value| entry.get("names").and_then(Value::as_array).cloned();
    nodes
        .iter()
        .flat_map(images)
        .flatten()
        .flat_map(|entry| names(&entry))
        .flatten()
        .any(|n| n == image)
}

fn ctr(run: &RunDir, tools: &Tools, node: Node, args: &[&str]) -> Command {
    let mut command = Command::new(tools.containerd("ctr"));
    command.arg("--address").arg(run.containerd_socket(node)).args(["--namespace", "k8s.io"]);
    command.args(args);
    command
}

fn has(run: &RunDir, tools: &Tools, node: Node, image: &str) -> Result<bool> {
    let list = process::capture(&mut ctr(run, tools, node, &["images", "list", "--quiet"]))?;
    Ok(list.lines().any(|line| line == image))
}

fn import(run: &RunDir, tools: &Tools, node: Node, archive: &Path) -> Result<()> {
    let mut command = ctr(run, tools, node, &["images", "import", "--all-platforms"]);
    process::capture(command.arg(archive))
        .with_context(|| format!("importing {} on {}", archive.display(), node.name()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn an_image_is_there_when_one_node_lists_it_by_that_name() {
        let nodes = [
            json!({"status": {}}),
            json!({"status": {"images": [{"names": ["a/b@sha256:0", "a/b:1"]}, {"names": null}]}}),
        ];
        assert!(super::reported(&nodes, "a/b:1"));
        assert!(!super::reported(&nodes, "a/b:2"));
    }
}
