//! The demo's view of the cluster: settings from `cluster env`, kubectl and helm.

use crate::process;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

/// What `cargo xtask cluster env --json` says: names and values of environment variables.
pub struct Cluster {
    settings: BTreeMap<String, String>,
}

impl Cluster {
    pub fn read() -> Result<Self> {
        let text = process::capture(&mut xtask(&["cluster", "env", "--json"])?)?;
        let value: Value =
            serde_json::from_str(&text).context("reading the settings of the cluster")?;
        let settings = serde_json::from_value(value["env"].clone())
            .context("the settings of the cluster have no `env`")?;
        Ok(Self { settings })
    }

    pub fn setting(&self, name: &str) -> Result<&str> {
        self.settings
            .get(name)
            .map(String::as_str)
            .with_context(|| format!("`cluster env --json` does not name {name}"))
    }

    fn tool(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.envs(&self.settings);
        command
    }

    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        process::capture(self.tool(self.setting("CACHETIER_KUBECTL")?).args(arguments))
    }

    pub fn apply(&self, manifest: &str) -> Result<String> {
        let mut command = self.tool(self.setting("CACHETIER_KUBECTL")?);
        process::feed(command.args(["apply", "-f", "-"]), manifest)
    }

    pub fn helm(&self, arguments: &[&str]) -> Result<String> {
        process::capture(self.tool(self.setting("CACHETIER_HELM")?).args(arguments))
    }

    /// A program of ours that talks to the cluster, with the same settings.
    pub fn program(&self, path: &std::path::Path) -> Command {
        let mut command = Command::new(path);
        command.envs(&self.settings);
        command
    }

    /// The group `hlr` as it is now.
    pub fn group(&self) -> Result<Value> {
        let text = self.kubectl(&["-n", "telecom", "get", "cachegroup", "hlr", "-o", "json"])?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Waits until `check` of the group yields a value, passing each look to it.
    pub fn wait_group<T>(
        &self,
        what: &str,
        limit: Duration,
        mut check: impl FnMut(&Value) -> Option<T>,
    ) -> Result<T> {
        let start = Instant::now();
        loop {
            let group = self.group()?;
            if let Some(value) = check(&group) {
                return Ok(value);
            }
            anyhow::ensure!(
                start.elapsed() < limit,
                "waited {} s for {what}; status: {}",
                limit.as_secs(),
                group["status"]
            );
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

/// This very program with other arguments.
pub fn xtask(arguments: &[&str]) -> Result<Command> {
    let mut command =
        Command::new(crate::workspace::this_program().context("finding this program")?);
    command.args(arguments);
    Ok(command)
}

/// Ready for the present generation with this many nodes and a complete preload.
pub fn is_ready(group: &Value, replicas: u64) -> bool {
    let status = &group["status"];
    let is = |kind: &str| {
        status["conditions"]
            .as_array()
            .is_some_and(|all| all.iter().any(|c| c["type"] == kind && c["status"] == "True"))
    };
    status["readyReplicas"].as_u64() == Some(replicas)
        && status["replicas"].as_u64() == Some(replicas)
        && status["observedGeneration"] == group["metadata"]["generation"]
        && is("Ready")
        && is("Preloaded")
}
