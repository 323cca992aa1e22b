//! Writers and readers of one round.
//!
//! A write takes a counter from n-1 to n, adds event n and removes event n-8, all or nothing and
//! only if the counter is n-1. Events are rows with keys of their own, so that a write applied twice
//! or in another order meets a key that is there or a row that is not.

use super::counters::{Counters, Violation};
use crate::local::hlr;
use anyhow::{Context, Result};
use cachetier_client::{
    Client, ClientError, Condition, Delete, Guard, Insert, Operation, Read, Reason, Source,
    TableRead, Transact,
};
use cachetier_model::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

/// Events a counter has at rest.
pub const EVENTS: i64 = 8;
/// Event keys are a smallint: they repeat long after the event of before is gone.
const EVENT_KEYS: i64 = 30_000;
const PAUSE: Duration = Duration::from_millis(20);
/// A writer ends although its last write is not settled: the node must answer again before.
const SETTLE: Duration = Duration::from_secs(90);

pub fn event_key(value: i64) -> i64 {
    value % EVENT_KEYS
}

pub struct Load {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Result<()>>>,
}

impl Load {
    /// One writer per client over its share of the counters, and a reader for every fourth.
    pub fn start(clients: Vec<Client>, counters: &Arc<Counters>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let count = clients.len() as i64;
        let mut tasks = Vec::new();
        for (number, client) in clients.into_iter().enumerate() {
            let ids: Vec<i64> = counters.ids().filter(|id| id % count == number as i64).collect();
            if number % 4 == 0 {
                let (client, ids) = (client.clone(), counters.ids().collect());
                tasks.push(tokio::spawn(read(client, ids, number, counters.clone(), stop.clone())));
            }
            let writer = Writer { client, counters: counters.clone(), stop: stop.clone() };
            tasks.push(tokio::spawn(writer.run(ids)));
        }
        Self { stop, tasks }
    }

    /// Ends them once every write is settled.
    pub async fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            task.await.context("a client panicked")??;
        }
        Ok(())
    }
}

struct Writer {
    client: Client,
    counters: Arc<Counters>,
    stop: Arc<AtomicBool>,
}

impl Writer {
    async fn run(self, ids: Vec<i64>) -> Result<()> {
        while !self.stop.load(Ordering::SeqCst) {
            for id in &ids {
                if self.stop.load(Ordering::SeqCst) {
                    break;
                }
                self.increment(*id).await?;
            }
        }
        Ok(())
    }

    /// One write, until it is settled; a write that surely did not happen may be given up.
    async fn increment(&self, id: i64) -> Result<()> {
        let counters = &self.counters;
        let next = counters.acknowledged(id) + 1;
        counters.sending(id, next);
        let mut doubtful = false;
        let mut stopped_at = None;
        loop {
            let error = match self.client.transact(&increment(id, next)).await {
                Ok(_) => {
                    counters.event(id, &format!("{next} acknowledged"));
                    counters.acknowledge(id, next);
                    return Ok(());
                }
                Err(error) => error,
            };
            let reason = error.reason().map_or("CONNECTION", Reason::as_str);
            counters
                .event(id, &format!("{next} refused: {reason}, in doubt: {}", error.in_doubt()));
            counters.refused(reason);
            if error.in_doubt() && !doubtful {
                doubtful = true;
                counters.doubt();
            }
            if error.reason() == Some(Reason::GuardFailed) {
                let held = self.read_until_answered(id).await?;
                if held == next && doubtful {
                    counters.event(id, &format!("{next} found: it had happened"));
                    counters.acknowledge(id, next);
                } else {
                    self.guard_failed(id, next, held);
                }
                return Ok(());
            }
            fatal(&error).with_context(|| format!("writing {next} to counter {id}"))?;
            if self.stop.load(Ordering::SeqCst) {
                if !doubtful {
                    // it surely did not happen
                    counters.sending(id, next - 1);
                    return Ok(());
                }
                let since = *stopped_at.get_or_insert_with(std::time::Instant::now);
                if since.elapsed() > SETTLE {
                    return Err(error).context("a write in doubt could not be settled");
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn guard_failed(&self, id: i64, next: i64, held: i64) {
        let what = format!("the guard of {next} failed, the counter is {held}");
        let violation = if held < next - 1 { Violation::Lost } else { Violation::Duplicated };
        self.counters.violated(violation, held.abs_diff(next - 1).max(1), id, &what);
        self.counters.acknowledge(id, held);
    }

    async fn read_until_answered(&self, id: i64) -> Result<i64> {
        let started = std::time::Instant::now();
        loop {
            match self.client.read(&value_of(id, true)).await {
                Ok(answer) => return value_in(answer.rows("subscriber")),
                Err(error) => {
                    fatal(&error)?;
                    if started.elapsed() > SETTLE {
                        return Err(error).context("a counter could not be read");
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Reads counters in turn: none may show less than was acknowledged before the read began.
async fn read(
    client: Client,
    ids: Vec<i64>,
    number: usize,
    counters: Arc<Counters>,
    stop: Arc<AtomicBool>,
) -> Result<()> {
    for id in ids.iter().cycle().skip(number * 7) {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let acknowledged = counters.acknowledged(*id);
        let Ok(answer) = client.read(&value_of(*id, false)).await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        counters.was_read();
        if answer.source == Source::Bypass {
            // says so itself: it may be older
            continue;
        }
        let held = value_in(answer.rows("subscriber"))?;
        let sent = counters.sent(*id);
        if held < acknowledged || held > sent.max(acknowledged + 1) {
            let what = format!(
                "a read ({:?}) showed {held}, acknowledged before {acknowledged}, sent {sent}",
                answer.source
            );
            counters.violated(Violation::Reordered, 1, *id, &what);
        }
        // readers must not crowd out the writers
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// Errors that no waiting cures.
fn fatal(error: &ClientError) -> Result<()> {
    let reason = error.reason();
    let lasting = matches!(
        reason,
        Some(
            Reason::Quarantined
                | Reason::BackendRefused
                | Reason::RowCount
                | Reason::PrimaryKey
                | Reason::ForeignKey
                | Reason::Unique
                | Reason::NotNull
                | Reason::Value
                | Reason::Schema
                | Reason::Request
                | Reason::Role
                | Reason::NotFound
        )
    );
    anyhow::ensure!(!lasting, "{error}");
    Ok(())
}

pub fn value_of(id: i64, no_bypass: bool) -> Read {
    let table = TableRead {
        table: "subscriber".to_owned(),
        columns: vec!["vlr_location".to_owned()],
        conditions: vec![],
    };
    let mut read = Read::tables(hlr::by_id(id), vec![table]);
    read.no_bypass = no_bypass;
    read
}

pub fn value_in(rows: &[cachetier_model::Row]) -> Result<i64> {
    match rows.first().and_then(|row| row.first()) {
        Some(Value::Int(value)) => Ok(*value),
        other => anyhow::bail!("a counter is {other:?}"),
    }
}

fn increment(id: i64, next: i64) -> Transact {
    let mut transact = hlr::set_vlr(hlr::by_id(id), next);
    transact.operations.push(Operation::Insert(Insert {
        table: "access_info".to_owned(),
        values: vec![
            ("ai_type".to_owned(), Value::Int(event_key(next))),
            ("data1".to_owned(), Value::Int(next % 10_000)),
            ("data2".to_owned(), Value::Int(0)),
            ("data3".to_owned(), Value::Text("EVT".into())),
            ("data4".to_owned(), Value::Text("EVENT".into())),
        ],
    }));
    if next > EVENTS {
        transact.operations.push(Operation::Delete(Delete {
            table: "access_info".to_owned(),
            conditions: vec![Condition::equal("ai_type", Value::Int(event_key(next - EVENTS)))],
            expect: Some(1),
        }));
    }
    transact.guards.push(Guard {
        table: "subscriber".to_owned(),
        conditions: vec![Condition::equal("vlr_location", Value::Int(next - 1))],
        absent: false,
    });
    transact
}
