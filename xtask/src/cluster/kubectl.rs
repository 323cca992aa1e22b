//! kubectl as a library: the cluster commands read and write Kubernetes objects through it, so that
//! this crate needs no Kubernetes client.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::build::Tools;
use super::layout::RunDir;
use crate::process;

/// A kubectl program and the cluster it talks to.
#[derive(Clone, Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: String,
}

impl Kubectl {
    /// Administrator of the cluster in this run folder.
    pub fn new(run: &RunDir, tools: &Tools) -> Kubectl {
        Kubectl { program: tools.kubectl(), kubeconfig: run.kubeconfig("admin") }
    }

    /// Administrator of some other cluster.
    pub fn existing(tools: &Tools, kubeconfig: &str) -> Kubectl {
        Kubectl { program: tools.kubectl(), kubeconfig: kubeconfig.to_owned() }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(args);
        command
    }

    pub fn run(&self, args: &[&str]) -> Result<String> {
        process::capture(&mut self.command(args))
    }

    pub fn attempt(&self, args: &[&str]) -> bool {
        process::attempt(&mut self.command(args))
    }

    /// Whether the API server answers and has finished starting.
    pub fn ready(&self) -> bool {
        self.attempt(&["get", "--raw", "/readyz", "--request-timeout=2s"])
    }

    /// Reads objects as JSON.
    pub fn get(&self, args: &[&str]) -> Result<Value> {
        let mut words = vec!["get", "-o", "json"];
        words.extend(args);
        serde_json::from_str(&self.run(&words)?).context("reading kubectl's answer")
    }

    /// Items of a list.
    pub fn list(&self, args: &[&str]) -> Result<Vec<Value>> {
        let answer = self.get(args)?;
        Ok(answer.get("items").and_then(Value::as_array).cloned().unwrap_or_default())
    }

    /// Applies objects server-side, all in one call.
    pub fn apply(&self, objects: &[Value]) -> Result<()> {
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let mut command = self.command(&[
            "apply",
            "--server-side",
            "--force-conflicts",
            "--field-manager=cachetier-xtask",
            "-f",
            "-",
        ]);
        process::feed(&mut command, &list.to_string())?;
        Ok(())
    }
}

/// A text inside an object, or nothing.
pub fn text<'a>(object: &'a Value, pointer: &str) -> Option<&'a str> {
    object.pointer(pointer).and_then(Value::as_str)
}
