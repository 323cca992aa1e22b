//! Traffic of the demo: the bench driver against both sides, the write load, the proofs.

use super::cluster::Cluster;
use crate::{process, workspace};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const THREADS: &str = "16";

/// The programs of ours that the demo runs on the host.
pub struct Programs {
    pub bench: PathBuf,
    pub cachectl: PathBuf,
}

impl Programs {
    pub fn new() -> Self {
        let folder = workspace::target_dir().join("image");
        Self { bench: folder.join("bench"), cachectl: folder.join("cachectl") }
    }

    pub fn build(&self) -> Result<()> {
        crate::image::build("image")
    }
}

/// Which subscribers a timed run asks for, and for how long.
pub struct RunLength {
    pub subscribers: u64,
    pub seconds: u64,
}

/// One timed run: mean latency per transaction and the rate.
pub struct Run {
    pub mean_ms: BTreeMap<String, f64>,
    pub per_second: f64,
}

pub fn backend_uri(cluster: &Cluster, role: &str, database: &str) -> Result<String> {
    let uri = cluster.setting(role)?;
    let (base, _) = uri.rsplit_once('/').context("the backend's URI has no database name")?;
    Ok(format!("{base}/{database}"))
}

/// Lets the product's role work on the tables, as a DBA would.
pub fn grant(cluster: &Cluster, database: &str) -> Result<()> {
    let sql = format!(
        "GRANT CREATE ON DATABASE {database} TO cachetier; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO cachetier"
    );
    let admin = backend_uri(cluster, "CACHETIER_PG_ADMIN", database)?;
    process::capture(Command::new("psql").args(["-q", "-v", "ON_ERROR_STOP=1", "-c", &sql, &admin]))
        .map(drop)
}

/// A copy of a loaded database, made while nobody uses the original.
pub fn copy_database(cluster: &Cluster, from: &str, to: &str) -> Result<()> {
    let admin = backend_uri(cluster, "CACHETIER_PG_ADMIN", "postgres")?;
    let drop = format!("DROP DATABASE IF EXISTS {to} WITH (FORCE)");
    let create = format!("CREATE DATABASE {to} TEMPLATE {from}");
    let arguments = ["-q", "-v", "ON_ERROR_STOP=1", "-c", &drop, "-c", &create, &admin];
    process::capture(Command::new("psql").args(arguments)).map(|_| ())
}

pub fn against_backend(
    cluster: &Cluster,
    programs: &Programs,
    database: &str,
    length: &RunLength,
) -> Result<Run> {
    let uri = backend_uri(cluster, "CACHETIER_PG_ADMIN", database)?;
    let mut command = cluster.program(&programs.bench);
    command.args(["run", "--target", "backend", "--backend", &uri]);
    timed_run(command, length)
}

pub fn against_cache(cluster: &Cluster, programs: &Programs, length: &RunLength) -> Result<Run> {
    let folder = client_certificate(cluster)?;
    let mut command = with_cluster_dns(cluster, &programs.bench)?;
    command.args(["run", "--target", "cache", "--server", SERVER]);
    command.arg("--tls-dir").arg(folder.path());
    timed_run(command, length)
}

const SERVER: &str = "hlr-0.hlr-nodes.telecom.svc:7070";

fn timed_run(mut command: Command, length: &RunLength) -> Result<Run> {
    let file = tempfile::NamedTempFile::new()?;
    command.args(["--subscribers", &length.subscribers.to_string(), "--threads", THREADS]);
    command.args(["--seconds", &length.seconds.to_string(), "--json"]);
    process::run(command.arg(file.path()))?;
    let report: Value = serde_json::from_str(&std::fs::read_to_string(file.path())?)?;
    let transactions = report["transactions"].as_object().context("no transactions reported")?;
    let mean_ms = transactions
        .iter()
        .filter_map(|(name, t)| Some((name.clone(), t["mean_ms"].as_f64()?)))
        .collect();
    let per_second = report["per_second"].as_f64().context("no rate reported")?;
    Ok(Run { mean_ms, per_second })
}

/// The group's client certificate, in a folder that goes away with the value.
fn client_certificate(cluster: &Cluster) -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    for name in ["ca.crt", "tls.crt", "tls.key"] {
        let template = format!("go-template={{{{index .data \"{name}\" | base64decode}}}}",);
        let text = cluster.kubectl(&[
            "-n",
            "telecom",
            "get",
            "secret",
            "hlr-client-tls",
            "-o",
            &template,
        ])?;
        std::fs::write(folder.path().join(name), text)?;
    }
    Ok(folder)
}

/// A program that resolves names by the cluster's DNS, in a mount namespace of its own.
fn with_cluster_dns(cluster: &Cluster, program: &Path) -> Result<Command> {
    let mut command = cluster.program(Path::new("unshare"));
    command
        .args(["--mount", "--propagation", "private", "sh", "-c"])
        .arg("mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"")
        .arg(cluster.setting("CACHETIER_RESOLV_CONF")?)
        .arg(program);
    Ok(command)
}

/// A running `bench writes`; its log holds every acknowledged write.
pub struct WriteLoad {
    child: Child,
    log: PathBuf,
    _certificate: tempfile::TempDir,
}

impl WriteLoad {
    pub fn start(cluster: &Cluster, programs: &Programs, seconds: u64, log: &Path) -> Result<Self> {
        let certificate = client_certificate(cluster)?;
        let child = with_cluster_dns(cluster, &programs.bench)?
            .args(["writes", "--server", SERVER, "--threads", THREADS])
            .args(["--seconds", &seconds.to_string(), "--log"])
            .arg(log)
            .arg("--tls-dir")
            .arg(certificate.path())
            .stdout(Stdio::null())
            .spawn()
            .context("starting the write load")?;
        Ok(Self { child, log: log.to_owned(), _certificate: certificate })
    }

    fn acknowledged(&self) -> u64 {
        std::fs::read_to_string(&self.log).map_or(0, |text| text.lines().count() as u64)
    }

    pub fn wait_for_writes(&self, more_than: u64) -> Result<u64> {
        process::wait_until("acknowledged writes", Duration::from_secs(30), || {
            self.acknowledged() > more_than
        })?;
        Ok(self.acknowledged())
    }

    pub fn finish(mut self) -> Result<u64> {
        let status = self.child.wait()?;
        ensure!(status.success(), "the write load ended with {status}");
        Ok(self.acknowledged())
    }
}

impl Drop for WriteLoad {
    fn drop(&mut self) {
        // ended already in the good case; a failed step must not leave writers behind
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ends the cache-node process of a pod with signal 9, found by the pod's UID in its cgroup.
pub fn kill_node(cluster: &Cluster, pod: &str) -> Result<()> {
    let uid =
        cluster.kubectl(&["-n", "telecom", "get", "pod", pod, "-o", "jsonpath={.metadata.uid}"])?;
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path();
        let cgroup = std::fs::read_to_string(path.join("cgroup")).unwrap_or_default();
        let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        if !cgroup.contains(&uid) || name.trim() != "cache-node" {
            continue;
        }
        let pid = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.parse().ok());
        let pid = pid.and_then(rustix::process::Pid::from_raw).context("no process id")?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
        return Ok(());
    }
    bail!("no cache-node process of pod {pod} on this machine")
}

pub fn verify_writes(
    cluster: &Cluster,
    programs: &Programs,
    database: &str,
    log: &Path,
) -> Result<()> {
    let uri = backend_uri(cluster, "CACHETIER_PG_ADMIN", database)?;
    let mut command = cluster.program(&programs.bench);
    command.args(["verify-writes", "--backend", &uri, "--log"]).arg(log);
    process::run(&mut command)
}

/// Rows compared and differences found, by `cachectl compare`.
pub fn compare(cluster: &Cluster, programs: &Programs) -> Result<(u64, u64)> {
    let mut command = cluster.program(&programs.cachectl);
    command.args(["-n", "telecom", "-g", "hlr", "compare", "-o", "json"]);
    let output = command.output().context("starting cachectl compare")?;
    let report: Value = serde_json::from_slice(&output.stdout).with_context(|| {
        format!("cachectl compare said: {}", String::from_utf8_lossy(&output.stderr))
    })?;
    let number = |key: &str| report[key].as_u64().with_context(|| format!("no {key} in {report}"));
    Ok((number("rows")?, number("differences")?))
}
