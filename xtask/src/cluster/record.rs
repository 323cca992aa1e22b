//! What was started in a run folder, so that later commands know which parts to expect.

use std::fs;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::layout::{Ports, RunDir};
use super::postgres::Server;

/// Which parts a run folder holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Full,
    ControlPlane,
    Backend,
    /// Somebody else's cluster and our database.
    Existing,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub kind: Kind,
    pub port_base: u16,
    /// Address of the database for pods.
    pub backend_host: String,
    pub controller_manager: bool,
    /// Kubeconfig of a cluster that is not ours.
    pub kubeconfig: Option<String>,
}

impl Record {
    pub fn ports(&self) -> Ports {
        Ports::from(self.port_base)
    }

    pub fn server<'a>(&'a self, run: &'a RunDir) -> Server<'a> {
        Server { run, ports: self.ports(), host: &self.backend_host }
    }

    pub fn has_backend(&self) -> bool {
        self.kind != Kind::ControlPlane
    }

    pub fn has_control_plane(&self) -> bool {
        matches!(self.kind, Kind::Full | Kind::ControlPlane)
    }

    /// The kubeconfig that clients of this cluster use.
    pub fn kubeconfig(&self, run: &RunDir) -> Option<String> {
        match self.kind {
            Kind::Backend => None,
            Kind::Existing => self.kubeconfig.clone(),
            Kind::Full | Kind::ControlPlane => Some(run.kubeconfig("admin")),
        }
    }
}

pub fn read(run: &RunDir) -> Result<Option<Record>> {
    let path = run.join("cluster.json");
    match fs::read_to_string(&path) {
        Ok(text) => {
            let record = serde_json::from_str(&text);
            Ok(Some(record.with_context(|| format!("reading {}", path.display()))?))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

pub fn write(run: &RunDir, record: &Record) -> Result<()> {
    fs::create_dir_all(run.root())?;
    let aside = run.join("cluster.json.new");
    fs::write(&aside, serde_json::to_string_pretty(record)?)?;
    Ok(fs::rename(aside, run.join("cluster.json"))?)
}
