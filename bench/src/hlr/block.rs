//! One block of a side: traffic for a while, and all that it cost.

use super::waits::{LogWork, Observer, Sampling, Waits};
use crate::drive::{self, Measured, RunOptions, Watchers};
use crate::stage::Postgres;
use crate::stage::node::Node;
use crate::target::Target;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Longest wait for the write-behind queue after a block.
const DRAIN_MAX: Duration = Duration::from_secs(300);
const DRAIN_POLL: Duration = Duration::from_millis(20);

/// What the backend and the node did for a number of transactions, the ramp and the flush of what
/// was left included.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Cost {
    /// Transactions sent.
    pub transactions: u64,
    pub backend_cpu_s: f64,
    pub node_cpu_s: f64,
    pub waits: Waits,
    pub log: LogWork,
    /// Flushing what was left after the last transaction.
    pub drain_s: f64,
    pub sequential_scans: i64,
}

impl Cost {
    pub fn add(&mut self, other: &Cost) {
        self.transactions += other.transactions;
        self.backend_cpu_s += other.backend_cpu_s;
        self.node_cpu_s += other.node_cpu_s;
        self.waits.add(other.waits);
        self.log.syncs += other.log.syncs;
        self.log.sync_ms += other.log.sync_ms;
        self.log.bytes += other.log.bytes;
        self.drain_s += other.drain_s;
        self.sequential_scans += other.sequential_scans;
    }

    /// Of the backend's processes, per 1,000 transactions.
    pub fn backend_cpu_s_per_1000(&self) -> f64 {
        1e3 * self.backend_cpu_s / self.transactions.max(1) as f64
    }
}

/// One side with its clients.
pub struct Side<'a> {
    pub database: String,
    pub postgres: &'a Postgres,
    /// The cache in front; `None` on the direct side.
    pub node: Option<&'a Node>,
    pub clients: Vec<Arc<Target>>,
    pub watchers: Watchers,
    /// One that samples and one that reads counters; they live as long as the side, since the time
    /// of an ended session counts as the server's.
    pub observers: [Arc<Observer>; 2],
}

pub struct Block {
    pub measured: Measured,
    pub cost: Cost,
    pub seconds: f64,
}

impl Block {
    /// Attempts answered per measured second.
    pub fn per_second(&self) -> f64 {
        self.measured.count() as f64 / self.seconds
    }
}

/// Runs the traffic, waits until the cache's queue is empty, and adds up.
pub async fn run(side: &Side<'_>, options: &RunOptions) -> Result<Block> {
    let [observer, sampler] = &side.observers;
    let pids = BTreeSet::from([observer.pid(), sampler.pid()]);
    let (log, scans) = (observer.log_work().await?, observer.sequential_scans().await?);
    let backend_cpu = side.postgres.cpu(&pids)?;
    let node_cpu = side.node.map(Node::cpu).transpose()?.unwrap_or_default();
    let sampling = Sampling::start(sampler.clone(), &side.database);
    let measured = drive::measure(options, &side.clients, &side.watchers).await?;
    let waits = sampling.finish().await?;
    let drain_from = Instant::now();
    if let Some(node) = side.node {
        drained(node).await?;
    }
    let drain_s = drain_from.elapsed().as_secs_f64();
    let spent = side.postgres.cpu(&pids)?.saturating_sub(backend_cpu);
    let node_spent = side.node.map(Node::cpu).transpose()?.unwrap_or_default();
    let cost = Cost {
        transactions: measured.sent,
        backend_cpu_s: spent.as_secs_f64(),
        node_cpu_s: node_spent.saturating_sub(node_cpu).as_secs_f64(),
        waits,
        log: observer.log_work().await?.since(&log),
        drain_s,
        sequential_scans: observer.sequential_scans().await? - scans,
    };
    Ok(Block { measured, cost, seconds: options.duration.as_secs_f64() })
}

/// Waits until nothing waits for the backend.
pub async fn drained(node: &Node) -> Result<()> {
    let admin = node.admin()?;
    let started = Instant::now();
    loop {
        let status = admin.status().await.context("asking the node for its backlog")?;
        let backlog = status.backlog.unwrap_or_default();
        if backlog.transactions == 0 {
            return Ok(());
        }
        ensure!(
            started.elapsed() < DRAIN_MAX,
            "{} transactions still wait for the backend: {:?}",
            backlog.transactions,
            status.problems
        );
        tokio::time::sleep(DRAIN_POLL).await;
    }
}
