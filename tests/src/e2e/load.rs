//! Write load against a group, with a record of what was acknowledged.

use super::command::{bench, binary, kubectl_json, with_cluster_dns};
use super::scene::Scene;
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::process::{Child, Stdio};

/// A running `bench writes`. Its log holds every acknowledged write.
pub struct WriteLoad {
    child: Child,
    log: PathBuf,
    folder: tempfile::TempDir,
    backend: String,
}

impl WriteLoad {
    /// Starts writers that go on for `seconds`.
    pub fn start(scene: &Scene, seconds: u64) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        write_client_certificate(scene, folder.path())?;
        let log = folder.path().join("acknowledged.log");
        let server = format!("hlr-0.hlr-nodes.{}.svc:7070", scene.namespace);
        let child = with_cluster_dns(&binary("bench")?)?
            .args(["writes", "--server", &server, "--threads", "8"])
            .args(["--seconds", &seconds.to_string()])
            .arg("--tls-dir")
            .arg(folder.path())
            .arg("--log")
            .arg(&log)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting the write load")?;
        Ok(Self { child, log, folder, backend: scene.database.admin_uri.clone() })
    }

    /// How many writes have been acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        std::fs::read_to_string(&self.log).map_or(0, |text| text.lines().count() as u64)
    }

    /// Waits for the writers to end.
    pub fn finish(self) -> Result<FinishedLoad> {
        let output = self.child.wait_with_output()?;
        ensure!(
            output.status.success(),
            "the write load failed: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        let text = std::fs::read_to_string(&self.log)?;
        let acknowledged = text.lines().count() as u64;
        ensure!(acknowledged > 0, "no write was acknowledged");
        Ok(FinishedLoad {
            acknowledged,
            log: self.log,
            backend: self.backend,
            _folder: self.folder,
        })
    }
}

pub struct FinishedLoad {
    pub acknowledged: u64,
    log: PathBuf,
    backend: String,
    _folder: tempfile::TempDir,
}

impl FinishedLoad {
    /// Checks that the backend has every acknowledged write, in order, none twice.
    pub fn verify(&self) -> Result<()> {
        let log = self.log.to_string_lossy();
        bench(&["verify-writes", "--log", &log, "--backend", &self.backend]).map(drop)
    }
}

/// Puts the group's client certificate where the load driver reads it.
fn write_client_certificate(scene: &Scene, folder: &std::path::Path) -> Result<()> {
    let secret = kubectl_json(&["-n", &scene.namespace, "get", "secret", "hlr-client-tls"])?;
    for name in ["ca.crt", "tls.crt", "tls.key"] {
        let encoded =
            secret["data"][name].as_str().with_context(|| format!("{name} is missing"))?;
        let bytes: k8s_openapi::ByteString =
            serde_json::from_value(serde_json::Value::String(encoded.to_owned()))?;
        std::fs::write(folder.join(name), bytes.0)?;
    }
    Ok(())
}
