//! What the backend's sessions wait for, sampled at 20 Hz.

use crate::backend::connect;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_postgres::Client;

const INTERVAL: Duration = Duration::from_millis(50);

/// Active sessions of a database that are busy, and of these those that wait for the commit log.
const SAMPLE: &str = "\
    SELECT count(*), count(*) FILTER (WHERE wait_event IN ('WALSync', 'WALWrite', 'SyncRep')) \
    FROM pg_stat_activity \
    WHERE datname = $1 AND state = 'active' AND pid <> pg_backend_pid()";

/// Sums over the samples of one block or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    pub samples: u64,
    pub active_sessions: u64,
    pub waiting_for_log: u64,
}

impl Waits {
    pub fn add(&mut self, other: Waits) {
        self.samples += other.samples;
        self.active_sessions += other.active_sessions;
        self.waiting_for_log += other.waiting_for_log;
    }

    /// Of the database's time, 0 to 1.
    pub fn share(&self) -> f64 {
        self.waiting_for_log as f64 / self.active_sessions.max(1) as f64
    }
}

/// A session of our own that looks at the others; its cost is not the backend's.
pub struct Observer {
    client: Client,
    pid: u32,
}

/// The log's counters of the whole server.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct LogWork {
    pub syncs: i64,
    pub sync_ms: f64,
    pub bytes: i64,
}

impl LogWork {
    pub fn since(&self, before: &LogWork) -> LogWork {
        LogWork {
            syncs: self.syncs - before.syncs,
            sync_ms: self.sync_ms - before.sync_ms,
            bytes: self.bytes - before.bytes,
        }
    }
}

impl Observer {
    pub async fn open(uri: &str) -> Result<Self> {
        let client = connect(uri).await?;
        let row = client.query_one("SELECT pg_backend_pid()", &[]).await?;
        let pid: i32 = row.get(0);
        Ok(Self { client, pid: pid.try_into()? })
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub async fn log_work(&self) -> Result<LogWork> {
        let sql = "SELECT wal_sync, wal_sync_time, wal_bytes::bigint FROM pg_stat_wal";
        let row = self.client.query_one(sql, &[]).await.context("reading pg_stat_wal")?;
        Ok(LogWork { syncs: row.get(0), sync_ms: row.get(1), bytes: row.get(2) })
    }

    /// Sequential scans of the database's tables so far.
    pub async fn sequential_scans(&self) -> Result<i64> {
        let sql = "SELECT coalesce(sum(seq_scan), 0)::bigint FROM pg_stat_user_tables \
                   WHERE schemaname = 'public'";
        Ok(self.client.query_one(sql, &[]).await?.get(0))
    }
}

/// A running sampler.
pub struct Sampling {
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<Waits>>,
}

impl Sampling {
    /// Samples the sessions of `database` until it is finished.
    pub fn start(observer: Arc<Observer>, database: &str) -> Self {
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(sample(observer, database.to_owned(), stopped));
        Self { stop, task }
    }

    pub async fn finish(self) -> Result<Waits> {
        // The task may have failed already, which its result says.
        let _ = self.stop.send(true);
        self.task.await?
    }
}

async fn sample(
    observer: Arc<Observer>,
    database: String,
    mut stopped: watch::Receiver<bool>,
) -> Result<Waits> {
    let statement = observer.client.prepare(SAMPLE).await?;
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut waits = Waits::default();
    loop {
        tokio::select! {
            _ = stopped.changed() => return Ok(waits),
            _ = ticks.tick() => {}
        }
        let row = observer.client.query_one(&statement, &[&database]).await?;
        let (active, waiting): (i64, i64) = (row.get(0), row.get(1));
        waits.samples += 1;
        waits.active_sessions += active.unsigned_abs();
        waits.waiting_for_log += waiting.unsigned_abs();
    }
}
