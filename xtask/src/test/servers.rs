//! The PostgreSQL and the API server that tests without pods use: started before, stopped after,
//! each in its own run folder, so that a developer's cluster is left alone.

use std::collections::BTreeMap;

use anyhow::Result;
use rustix::process::Signal;

use super::Level;
use crate::cluster::{self, Alone, Running};
use crate::{image, workspace};

/// What runs for one test run.
pub struct Servers {
    started: Vec<Running>,
    environment: BTreeMap<&'static str, String>,
}

impl Servers {
    pub fn start(levels: &[Level]) -> Result<Servers> {
        end_with_parent();
        let mut servers = Servers { started: Vec::new(), environment: BTreeMap::new() };
        let programs = image::programs_dir("dev").to_string_lossy().into_owned();
        servers.environment.insert("CACHETIER_BIN_DIR", programs);
        let chart = workspace::root().join("charts/cachetier").to_string_lossy().into_owned();
        servers.environment.insert("CACHETIER_CHART", chart);
        let program = workspace::this_program()?.to_string_lossy().into_owned();
        servers.environment.insert("CACHETIER_XTASK", program);
        if levels.contains(&Level::Unit) {
            cluster::ensure_pooler()?;
        }
        if levels.contains(&Level::Unit) || levels.contains(&Level::Node) {
            servers.one(Alone::Backend)?;
        }
        if levels.contains(&Level::Operator) {
            servers.one(Alone::ControlPlane)?;
        }
        Ok(servers)
    }

    fn one(&mut self, part: Alone) -> Result<()> {
        let running = cluster::start_alone(part)?;
        self.environment.extend(running.variables.clone());
        self.started.push(running);
        // the run folder of one part says nothing about the other
        self.environment.remove("CACHETIER_RUN");
        Ok(())
    }

    /// Variables for the test programs.
    pub fn environment(&self) -> &BTreeMap<&'static str, String> {
        &self.environment
    }

    pub fn stop(mut self) -> Result<()> {
        self.started.drain(..).try_for_each(|running| cluster::stop_alone(running.part))
    }
}

/// Under `cargo xtask`, whoever kills cargo means this process too; its servers follow it.
fn end_with_parent() {
    if std::env::var_os("CARGO").is_some() {
        // a kernel that cannot do this leaves the servers to the next run, which removes them
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for running in self.started.drain(..) {
            // only on the way out of a failed run, whose own error is the one to show
            let _ = cluster::stop_alone(running.part);
        }
    }
}
