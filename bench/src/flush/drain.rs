//! One drain: writes pile up behind a lock, the lock goes, and the lanes show how fast they are.

use super::FlushOptions;
use crate::drive::{self, Pace, RunOptions, Watchers};
use crate::hlr::{Level, Stage, drained, verify};
use crate::ledger::Ledger;
use crate::stage::node::{Node, NodeSettings};
use crate::target::Target;
use crate::target::cache::CacheTarget;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::{Client, Row};

/// Enough writers to pile up quickly.
const WRITERS: usize = 64;
/// Counters of ended sessions appear a moment later.
const COUNTERS_PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Drain {
    pub transactions: u64,
    /// Rows the backend inserted, updated or deleted: the net effect of the transactions.
    pub rows: u64,
    pub seconds: f64,
    pub backend_cpu_s: f64,
}

impl Drain {
    pub fn transactions_per_s(&self) -> f64 {
        self.transactions as f64 / self.seconds
    }

    pub fn rows_per_backend_cpu_s(&self) -> f64 {
        self.rows as f64 / self.backend_cpu_s
    }
}

/// Drains with this many lanes on a fresh copy of the population.
pub async fn run(
    options: &FlushOptions,
    stage: &Stage,
    mode: &'static str,
    lanes: u16,
) -> Result<(Drain, Vec<String>)> {
    let database = format!("drain_{}_{lanes}", mode.to_lowercase());
    stage.postgres.copy_database(crate::hlr::BASE, &database).await?;
    let beside = &options.beside;
    let settings = NodeSettings {
        backend_commit: mode,
        lanes,
        max_batch_rows: options.drain_batch_rows,
        ..beside.node_settings(Level::Relaxed)
    };
    let node = Node::start(&beside.pinning, &stage.postgres, &database, settings).await?;
    let ledger = Arc::new(Ledger::new(beside.population, beside.cached_up_to()));
    let mut drain = pile_up_and_drain(options, stage, &node, &ledger, &database).await?;
    let backend = stage.postgres.connect(&database).await?;
    let mut faults = Vec::new();
    let cache = node.client().await?;
    let (population, up_to) = (beside.population, beside.cached_up_to());
    let verified = verify::verify(&backend, Some(&cache), population, &ledger, up_to).await?;
    if verified.differences() > 0 {
        faults.push(format!("{mode}, {lanes} lanes: rows differ: {verified:?}"));
    }
    let tally = ledger.tally();
    if tally.wrong_values + tally.wrong_finds + tally.doubled_positions + tally.in_doubt > 0 {
        faults.push(format!("{mode}, {lanes} lanes: wrong answers: {tally:?}"));
    }
    drop((cache, node));
    drain.rows = rows_of_ended_sessions(&backend).await? - drain.rows;
    drop(backend);
    stage.postgres.drop_database(&database).await?;
    Ok((drain, faults))
}

/// The drain, with `rows` still being those changed before it.
async fn pile_up_and_drain(
    options: &FlushOptions,
    stage: &Stage,
    node: &Node,
    ledger: &Arc<Ledger>,
    database: &str,
) -> Result<Drain> {
    let client = node.client().await?;
    let target = || Arc::new(Target::Cache(CacheTarget::new(client.clone())));
    let targets: Vec<_> = (0..WRITERS).map(|_| target()).collect();
    let beside = &options.beside;
    let traffic = RunOptions {
        population: beside.population,
        keys: beside.keys(),
        uniform: beside.uniform,
        seed: beside.traffic_seed,
        duration: options.pile_up,
        ramp: Duration::ZERO,
        rate: None,
        pace: Pace::InTurn,
        writes_only: true,
        never_sleep: true,
    };
    let watchers = Watchers { ledger: Some(ledger.clone()), positions: None };
    // As in a server that has run for a while: pages were written since the last checkpoint.
    let warm = RunOptions { seed: beside.traffic_seed ^ 1, ..traffic.clone() };
    drive::measure(&warm, &targets, &watchers).await?;
    drained(node).await?;
    let rows_before = rows_of_ended_sessions(&stage.postgres.connect(database).await?).await?;
    let mut holder = stage.postgres.connect(database).await?;
    let lock = holder.transaction().await?;
    lock.batch_execute("LOCK TABLE cachetier.writer IN SHARE ROW EXCLUSIVE MODE").await?;
    let measured = drive::measure(&traffic, &targets, &watchers).await?;
    ensure!(measured.failures.is_empty(), "writes failed: {:?}", measured.failures);
    let backlog = node.status().await?.backlog.context("the node names no backlog")?;
    let none = BTreeSet::new();
    let cpu = stage.postgres.cpu(&none)?;
    let started = Instant::now();
    lock.commit().await?;
    drained(node).await?;
    let seconds = started.elapsed().as_secs_f64();
    let spent = stage.postgres.cpu(&none)?.saturating_sub(cpu);
    let transactions = backlog.transactions;
    Ok(Drain { transactions, rows: rows_before, seconds, backend_cpu_s: spent.as_secs_f64() })
}

/// Rows changed in the four tables. Sessions report what they did when they end, at the latest, so
/// all others of the database are ended first; lanes connect again by themselves.
async fn rows_of_ended_sessions(client: &Client) -> Result<u64> {
    const OTHERS: &str = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() \
                          AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let pids = |rows: Vec<Row>| rows.iter().map(|row| row.get(0)).collect::<BTreeSet<i32>>();
    let ended = pids(client.query(OTHERS, &[]).await?);
    let end = format!("SELECT pg_terminate_backend(pid) FROM ({OTHERS}) others");
    client.query(&end, &[]).await?;
    crate::stage::eventually("the database's sessions to end", COUNTERS_PATIENCE, || async {
        let left = pids(client.query(OTHERS, &[]).await?);
        Ok(left.is_disjoint(&ended).then_some(()))
    })
    .await?;
    let sql = "SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint \
               FROM pg_stat_user_tables WHERE schemaname = 'public'";
    let rows: i64 = client.query_one(sql, &[]).await?.get(0);
    Ok(rows.unsigned_abs())
}
