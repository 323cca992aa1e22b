//! Commands as a person would type them, with their output or their error text.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::{env, path::PathBuf, process::Command};

/// A setting that `cargo xtask e2e` exports.
pub fn setting(name: &str) -> Result<String> {
    env::var(name).with_context(|| format!("{name} is not set; run the tests by `cargo xtask e2e`"))
}

/// Runs a command to its end; standard output on success, an error with standard error otherwise.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{:?} ended with {}: {}{}",
            command,
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub fn kubectl(arguments: &[&str]) -> Result<String> {
    run(Command::new(setting("CACHETIER_KUBECTL")?).args(arguments))
}

/// `kubectl … -o json`, parsed.
pub fn kubectl_json(arguments: &[&str]) -> Result<Value> {
    let text =
        run(Command::new(setting("CACHETIER_KUBECTL")?).args(arguments).args(["-o", "json"]))?;
    serde_json::from_str(&text).context("kubectl printed something that is not JSON")
}

/// `kubectl apply` of a manifest given as text.
pub fn apply(manifest: &str) -> Result<String> {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile()?;
    std::fs::write(file.path(), manifest)?;
    let path = file.path().to_string_lossy().into_owned();
    kubectl(&["apply", "-f", &path])
}

pub fn helm(arguments: &[&str]) -> Result<String> {
    run(Command::new(setting("CACHETIER_HELM")?).args(arguments))
}

pub fn cachectl(arguments: &[&str]) -> Result<String> {
    run(Command::new(binary("cachectl")?).args(arguments))
}

pub fn bench(arguments: &[&str]) -> Result<String> {
    run(Command::new(binary("bench")?).args(arguments))
}

/// A developer command of this workspace, for faults on the machine (stop the backend, kill a node).
pub fn xtask(arguments: &[&str]) -> Result<String> {
    run(Command::new(setting("CACHETIER_XTASK")?).args(arguments))
}

/// The folder of the built binaries.
pub fn binary(name: &str) -> Result<PathBuf> {
    Ok(PathBuf::from(setting("CACHETIER_BIN_DIR")?).join(name))
}

/// A command that resolves names by the cluster's DNS, in a mount namespace of its own.
pub fn with_cluster_dns(program: &std::path::Path) -> Result<Command> {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-c"])
        .arg("mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"")
        .arg(setting("CACHETIER_RESOLV_CONF")?)
        .arg(program);
    Ok(command)
}
