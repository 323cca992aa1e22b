//! Logged counter writes: what was acknowledged, so that a later check can prove all of it.
//!
//! Each key has a counter. A write is a compare-and-set of `subscriber.msc_location` from the last
//! value to the next together with `special_facility.error_cntrl` of every facility, two columns
//! that the seven transactions leave alone, so both may run at once. A lost, doubled or reordered
//! write therefore fails a later compare-and-set, or shows in the backend at the end; a torn one
//! shows as two tables that disagree.

pub mod log;
pub mod verify;

use anyhow::{Context, Result, bail};
use cachetier_client::{
    Client, ClientError, Condition, Guard, Key, Operation, Read, Reason, TableRead, Transact,
    Update,
};
use cachetier_model::Value;
use log::{Entry, LogWriter};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

const RETRY_PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// Subscribers 1..=`keys` are the counters; those that do not exist are left out.
    pub keys: u64,
    pub threads: u64,
    pub duration: Duration,
    /// How long an unsettled write is still retried after the end.
    pub grace: Duration,
    /// All threads together, writes per second.
    pub rate: Option<f64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WriteReport {
    pub acknowledged: u64,
    pub keys: u64,
    /// Writes whose outcome was unknown at first and settled by a retry.
    pub settled: u64,
    /// Writes whose outcome was still unknown at the end.
    pub in_doubt: u64,
    /// Compare-and-sets that found another value than the last acknowledged one.
    pub violations: u64,
    /// Attempts that failed and were tried again, by class.
    pub retries: BTreeMap<String, u64>,
    pub mean_ms: f64,
    /// The longest a worker waited for one acknowledgement, retries included.
    pub longest_ms: f64,
    pub seconds: f64,
}

impl WriteReport {
    fn merge(&mut self, other: WriteReport) {
        let acknowledged = self.acknowledged + other.acknowledged;
        let sum =
            self.mean_ms * self.acknowledged as f64 + other.mean_ms * other.acknowledged as f64;
        self.mean_ms = sum / acknowledged.max(1) as f64;
        self.acknowledged = acknowledged;
        self.keys += other.keys;
        self.settled += other.settled;
        self.in_doubt += other.in_doubt;
        self.violations += other.violations;
        self.longest_ms = self.longest_ms.max(other.longest_ms);
        for (class, count) in other.retries {
            *self.retries.entry(class).or_default() += count;
        }
    }
}

/// Writes until the time is up; every acknowledgement is in the log before the next write of its
/// key is sent.
pub async fn run(client: Client, options: &WriteOptions, log: LogWriter) -> Result<WriteReport> {
    let keys = options.keys.max(1);
    let log = Arc::new(Mutex::new(log));
    let started = Instant::now();
    let workers = options.threads.clamp(1, keys);
    let interval = options.rate.map(|rate| Duration::from_secs_f64(workers as f64 / rate));
    let tasks: Vec<_> = (0..workers)
        .map(|number| {
            let own = (number..keys).step_by(workers as usize).map(|k| (k + 1) as i64);
            let worker = Worker {
                client: client.clone(),
                log: log.clone(),
                counters: own.map(Counter::new).collect(),
                until: started + options.duration,
                settle_until: started + options.duration + options.grace,
                interval,
                report: WriteReport::default(),
            };
            tokio::spawn(worker.run())
        })
        .collect();
    let mut report = WriteReport::default();
    for task in tasks {
        report.merge(task.await??);
    }
    report.seconds = started.elapsed().as_secs_f64();
    if report.keys == 0 {
        bail!("none of the subscribers 1..={keys} exists; load the population first");
    }
    Ok(report)
}

struct Counter {
    s_id: i64,
    /// The subscriber does not exist.
    absent: bool,
    /// Last acknowledged value; `None` before the first read.
    value: Option<i64>,
}

impl Counter {
    fn new(s_id: i64) -> Self {
        Self { s_id, absent: false, value: None }
    }
}

struct Worker {
    client: Client,
    log: Arc<Mutex<LogWriter>>,
    counters: Vec<Counter>,
    until: Instant,
    settle_until: Instant,
    interval: Option<Duration>,
    report: WriteReport,
}

impl Worker {
    async fn run(mut self) -> Result<WriteReport> {
        let mut counters = std::mem::take(&mut self.counters);
        let mut next = self.log.lock().await.first_value();
        let mut intended = Instant::now();
        loop {
            // Counters of a thread share the sequence: each value is used once per key.
            for counter in &mut counters {
                if Instant::now() >= self.until {
                    self.report.keys = present(&counters);
                    return Ok(self.report);
                }
                if counter.absent {
                    continue;
                }
                if let Some(interval) = self.interval {
                    tokio::time::sleep_until(intended).await;
                    intended += interval;
                }
                self.write(counter, next).await?;
            }
            next += 1;
            if present(&counters) == 0 {
                return Ok(self.report);
            }
        }
    }

    /// One write, tried until it is settled or the grace is over.
    async fn write(&mut self, counter: &mut Counter, next: i64) -> Result<()> {
        let started = Instant::now();
        let mut doubtful = false;
        while Instant::now() < self.settle_until {
            let current = match counter.value {
                Some(value) => value,
                None => match self.read(counter.s_id).await {
                    Ok(Some(value)) => *counter.value.insert(value),
                    Ok(None) => {
                        counter.absent = true;
                        return Ok(());
                    }
                    Err(error) => {
                        self.pause(&error).await?;
                        continue;
                    }
                },
            };
            match self.client.transact(&compare_and_set(counter.s_id, current, next)).await {
                Ok(_) => return self.acknowledged(counter, next, doubtful, started).await,
                Err(error) if error.reason() == Some(Reason::GuardFailed) => {
                    match self.read(counter.s_id).await {
                        Ok(Some(found)) if doubtful && found == next => {
                            return self.acknowledged(counter, next, true, started).await;
                        }
                        Ok(found) => {
                            return self.violated(counter, current, found.unwrap_or(-1)).await;
                        }
                        Err(error) => self.pause(&error).await?,
                    }
                }
                Err(error) => {
                    if error.in_doubt() && !doubtful {
                        doubtful = true;
                        self.log.lock().await.write(&Entry::Doubtful(counter.s_id, next))?;
                    }
                    self.pause(&error).await?;
                }
            }
        }
        self.report.in_doubt += u64::from(doubtful);
        // Its outcome is open, so the next write must start from what is there.
        counter.value = None;
        Ok(())
    }

    async fn acknowledged(
        &mut self,
        counter: &mut Counter,
        value: i64,
        doubtful: bool,
        started: Instant,
    ) -> Result<()> {
        self.log.lock().await.write(&Entry::Acknowledged(counter.s_id, value))?;
        counter.value = Some(value);
        let ms = started.elapsed().as_secs_f64() * 1e3;
        self.report.acknowledged += 1;
        self.report.mean_ms += (ms - self.report.mean_ms) / self.report.acknowledged as f64;
        self.report.longest_ms = self.report.longest_ms.max(ms);
        self.report.settled += u64::from(doubtful);
        Ok(())
    }

    async fn violated(&mut self, counter: &mut Counter, wanted: i64, found: i64) -> Result<()> {
        self.log.lock().await.write(&Entry::Violated(counter.s_id, wanted, found))?;
        self.report.violations += 1;
        counter.value = Some(found);
        Ok(())
    }

    /// The counter's value; `None` when there is no such subscriber.
    async fn read(&self, s_id: i64) -> Result<Option<i64>, ClientError> {
        let table = TableRead {
            table: "subscriber".to_owned(),
            columns: vec!["msc_location".to_owned()],
            conditions: vec![],
        };
        let mut read = Read::tables(Key::root([Value::Int(s_id)]), vec![table]);
        read.no_bypass = true;
        let answer = self.client.read(&read).await?;
        let value = answer.rows("subscriber").first().and_then(|row| row.first());
        Ok(match value {
            Some(Value::Int(value)) => Some(*value),
            _ => None,
        })
    }

    /// Waits before the next attempt, or gives up on an error that will not pass.
    async fn pause(&mut self, error: &ClientError) -> Result<()> {
        let class = error.reason().map_or("connection", Reason::as_str);
        *self.report.retries.entry(class.to_owned()).or_default() += 1;
        if let ClientError::Protocol { .. } | ClientError::Convert(_) = error {
            bail!("the counter writes cannot go on: {error}");
        }
        if let Some(Reason::Role | Reason::Schema | Reason::Request | Reason::Value) =
            error.reason()
        {
            bail!("the cache refuses the counter writes: {error}");
        }
        tokio::time::sleep(error.retry_after().unwrap_or(RETRY_PAUSE)).await;
        Ok(())
    }
}

/// Counters whose subscriber exists.
fn present(counters: &[Counter]) -> u64 {
    counters.iter().filter(|c| !c.absent).count() as u64
}

fn compare_and_set(s_id: i64, current: i64, next: i64) -> Transact {
    let update = |table: &str, column: &str, value: i64, expect| {
        Operation::Update(Update {
            table: table.to_owned(),
            conditions: vec![],
            set: vec![(column.to_owned(), Value::Int(value))],
            expect,
        })
    };
    let mut transact = Transact::new(
        Key::root([Value::Int(s_id)]),
        vec![
            update("subscriber", "msc_location", next, Some(1)),
            update("special_facility", "error_cntrl", log::facility_value(next), None),
        ],
    );
    transact.guards.push(Guard {
        table: "subscriber".to_owned(),
        conditions: vec![Condition::equal("msc_location", Value::Int(current))],
        absent: false,
    });
    transact
}

/// Opens the log file of a new run.
pub fn open_log(path: &std::path::Path) -> Result<LogWriter> {
    LogWriter::create(path).with_context(|| format!("cannot write {}", path.display()))
}
