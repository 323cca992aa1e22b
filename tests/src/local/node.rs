//! One cache-node process.

use super::http;
use anyhow::{Context, Result, ensure};
use cachetier_client::Endpoint;
use hlr_bench::stage::Launch;
use hlr_bench::stage::node::built_for_tests;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};

/// A node's fixed parts: they outlive its process.
pub struct NodeProcess {
    pub name: String,
    pub grpc_port: u16,
    pub admin_port: u16,
    pub directory: PathBuf,
    child: Option<Child>,
}

impl NodeProcess {
    pub fn new(name: &str, directory: &Path, grpc_port: u16, admin_port: u16) -> Self {
        let directory = directory.to_owned();
        Self { name: name.to_owned(), grpc_port, admin_port, directory, child: None }
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::new(format!("127.0.0.1:{}", self.grpc_port))
    }

    /// Starts the process on `node.yaml` in its directory. Its log is `log` beside it.
    pub fn start(&mut self) -> Result<()> {
        ensure!(self.child.is_none(), "node {} runs already", self.name);
        let log = File::options().create(true).append(true).open(self.directory.join("log"))?;
        let child = Launch::KILLED
            .command(built_for_tests()?)
            .arg("--config")
            .arg(self.directory.join("node.yaml"))
            .args(["--node-name", &self.name, "--drain-seconds", "10"])
            .args(["--advertise", &format!("127.0.0.1:{}", self.grpc_port)])
            .args(["--log-filter", "info,cachetier_group=debug,cachetier_write_through=debug"])
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting cache-node")?;
        self.child = Some(child);
        Ok(())
    }

    /// Kill -9.
    pub fn kill(&mut self) -> Result<()> {
        let mut child = self.child.take().context("the node does not run")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// SIGTERM, then its exit status.
    pub async fn terminate(&mut self) -> Result<ExitStatus> {
        let mut child = self.child.take().context("the node does not run")?;
        signal(&child, Signal::TERM)?;
        tokio::task::spawn_blocking(move || child.wait()).await?.map_err(Into::into)
    }

    /// SIGTERM, not waited for.
    pub fn ask_to_end(&self) -> Result<()> {
        signal(self.child.as_ref().context("the node does not run")?, Signal::TERM)
    }

    /// Whether the process has installed its handler of SIGTERM.
    pub fn takes_term(&self) -> Result<bool> {
        let child = self.child.as_ref().context("the node does not run")?;
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()))?;
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.context("no SigCgt")?.trim(), 16)?;
        Ok(caught & (1 << (Signal::TERM.as_raw() - 1)) != 0)
    }

    /// Stops the process without ending it, as a node that hangs; [`NodeProcess::thaw`] undoes it.
    pub fn freeze(&self) -> Result<()> {
        signal(self.child.as_ref().context("the node does not run")?, Signal::STOP)
    }

    pub fn thaw(&self) -> Result<()> {
        signal(self.child.as_ref().context("the node does not run")?, Signal::CONT)
    }

    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Status code and body of a path of the admin endpoint.
    pub async fn http(&self, path: &str) -> Result<(u16, String)> {
        http::get(self.admin_port, path).await
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        if self.child.is_some() {
            // It may have ended by itself.
            let _ = self.kill();
        }
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- last lines of node {}", self.name);
            for line in lines.iter().skip(lines.len().saturating_sub(40)) {
                eprintln!("{line}");
            }
        }
    }
}

fn signal(child: &Child, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(child.id().try_into()?).context("the process has no id")?;
    Ok(kill_process(pid, signal)?)
}
