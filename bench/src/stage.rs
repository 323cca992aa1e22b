//! The machines of one experiment, all on this host: a throw-away PostgreSQL, one cache node, and
//! what it cost them.
//!
//! Owns directories, certificates and child processes; all of them end with the value. Servers are
//! started on their own processors, away from the driver. Everything listens on 127.0.0.1. Must
//! never decide what is measured.

pub mod certificates;
pub mod cpu;
pub mod node;
pub mod postgres;

use anyhow::{Context, Result, bail, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::future::Future;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(50);

/// Which processors belong to whom, as lists that `taskset` understands (`0`, `0,2`).
#[derive(Clone, Debug)]
pub struct Pinning {
    pub servers: String,
    pub driver: String,
}

impl Pinning {
    /// The lower half of the processors for the servers, the rest for the driver.
    pub fn halves() -> Self {
        let cpus = processors();
        let list = |from: usize, to: usize| {
            (from..to).map(|n| n.to_string()).collect::<Vec<_>>().join(",")
        };
        match cpus {
            1 => Self { servers: "0".to_owned(), driver: "0".to_owned() },
            _ => Self { servers: list(0, cpus / 2), driver: list(cpus / 2, cpus) },
        }
    }

    /// Ties this thread, and every thread it starts from now on, to the driver's processors.
    pub fn pin_driver(&self) -> Result<()> {
        let mut set = CpuSet::new();
        for number in self.driver.split(',') {
            let cpu = number.trim().parse().with_context(|| {
                format!("--driver-cpus {:?} is not a list like 1 or 2,3", self.driver)
            })?;
            set.set(cpu);
        }
        sched_setaffinity(None, &set).context("pinning the driver to its processors")
    }

    /// A program on the servers' processors.
    pub fn server_command(&self, program: &Path) -> Command {
        let mut command = Command::new("taskset");
        command.args(["-c", &self.servers]).arg(program);
        command
    }
}

/// Processors of this host, whatever this thread is tied to.
pub fn processors() -> usize {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let count = |range: &str| -> Option<usize> {
        match range.split_once('-') {
            Some((first, last)) => {
                Some(last.parse::<usize>().ok()? - first.parse::<usize>().ok()? + 1)
            }
            None => range.parse::<usize>().ok().map(|_| 1),
        }
    };
    online.trim().split(',').filter_map(count).sum::<usize>().max(1)
}

/// A port nobody listens on now.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("looking for a free port")?;
    Ok(listener.local_addr()?.port())
}

/// Runs a program to its end; its output is the error when it fails.
fn run(command: &mut Command) -> Result<()> {
    let Output { status, stdout, stderr } =
        command.output().with_context(|| format!("starting {command:?}"))?;
    let text = [stdout, stderr].concat();
    ensure!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&text).trim());
    Ok(())
}

/// Polls until `check` yields a value; an error counts as "not yet" and is told at the end.
pub async fn eventually<T, F>(
    what: &str,
    limit: Duration,
    mut check: impl FnMut() -> F,
) -> Result<T>
where
    F: Future<Output = Result<Option<T>>>,
{
    let start = Instant::now();
    let mut last = "not yet".to_owned();
    loop {
        match check().await {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => {}
            Err(error) => last = format!("{error:#}"),
        }
        if start.elapsed() > limit {
            bail!("waited {} s for {what}; last: {last}", limit.as_secs());
        }
        tokio::time::sleep(POLL).await;
    }
}
