//! Writers that count: each subscriber's `vlr_location` goes 1, 2, 3 … by one writer, so that loss,
//! doubling and reordering show in the final values.

use super::hlr;
use anyhow::{Context, Result, ensure};
use cachetier_client::{Client, ClientError, Condition, Guard};
use cachetier_model::{Comparison, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

/// Running writers.
pub struct CounterLoad {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    writers: Vec<JoinHandle<Result<Vec<Counted>>>>,
}

/// What is known of one subscriber.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    pub id: i64,
    /// Highest value acknowledged.
    pub acknowledged: i64,
    /// Highest value sent; above `acknowledged` when the last answer is unknown.
    pub sent: i64,
}

pub struct CounterReport {
    pub counted: Vec<Counted>,
    pub acknowledged: u64,
}

impl CounterLoad {
    /// `writers` tasks over the subscribers `1..=subscribers`, each subscriber by one task.
    pub fn start(client: &Client, writers: i64, subscribers: i64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(AtomicU64::new(0));
        let writers = (0..writers)
            .map(|w| {
                let ids: Vec<i64> = (1..=subscribers).filter(|id| id % writers == w).collect();
                tokio::spawn(count(client.clone(), ids, stop.clone(), acknowledged.clone()))
            })
            .collect();
        Self { stop, acknowledged, writers }
    }

    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Waits until `more` further writes are acknowledged.
    pub async fn progress(&self, more: u64) -> Result<()> {
        let target = self.acknowledged() + more;
        super::eventually("writes to go on", Duration::from_secs(60), || async {
            let now = self.acknowledged();
            ensure!(now >= target, "{now} of {target}");
            Ok(Some(()))
        })
        .await
    }

    pub async fn stop(self) -> Result<CounterReport> {
        self.stop.store(true, Ordering::Relaxed);
        let mut counted = Vec::new();
        for writer in self.writers {
            counted.extend(writer.await.context("a writer panicked")??);
        }
        Ok(CounterReport { counted, acknowledged: self.acknowledged.load(Ordering::Relaxed) })
    }
}

impl CounterReport {
    /// Every acknowledged write is in the backend, and nothing that was never sent.
    pub async fn verify(&self, database: &tokio_postgres::Client) -> Result<()> {
        ensure!(self.acknowledged > 0, "nothing was acknowledged");
        for counted in &self.counted {
            let sql = "SELECT vlr_location FROM subscriber WHERE s_id = $1";
            let found: i64 = database.query_one(sql, &[&counted.id]).await?.get(0);
            ensure!(
                (counted.acknowledged..=counted.sent).contains(&found),
                "the backend has {found}, of {counted:?}"
            );
        }
        Ok(())
    }
}

async fn count(
    client: Client,
    ids: Vec<i64>,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
) -> Result<Vec<Counted>> {
    let mut counted: Vec<Counted> =
        ids.into_iter().map(|id| Counted { id, acknowledged: 0, sent: 0 }).collect();
    'rounds: while !stop.load(Ordering::Relaxed) {
        for entry in &mut counted {
            if stop.load(Ordering::Relaxed) {
                break 'rounds;
            }
            step(&client, entry, &acknowledged).await?;
        }
    }
    Ok(counted)
}

/// One write `n → n + 1`, guarded by `n`, so that a repetition of one that happened is seen.
async fn step(client: &Client, entry: &mut Counted, acknowledged: &AtomicU64) -> Result<()> {
    let next = entry.sent.max(entry.acknowledged + 1);
    entry.sent = next;
    let mut transact = hlr::set_vlr(hlr::by_id(entry.id), next);
    let before = Condition {
        column: "vlr_location".to_owned(),
        comparison: Comparison::In,
        // after an unknown answer the value may be there already
        values: vec![Value::Int(next - 1), Value::Int(next)],
    };
    transact.guards.push(Guard {
        table: "subscriber".to_owned(),
        conditions: vec![before],
        absent: false,
    });
    match client.transact(&transact).await {
        Ok(_) => {
            entry.acknowledged = next;
            acknowledged.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        Err(error) if tolerable(&error) => {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok(())
        }
        Err(error) => Err(error).with_context(|| format!("writing {entry:?}")),
    }
}

/// Nothing happened, or nobody knows: the same value is written again. A failed guard would mean
/// that an acknowledged write was lost.
fn tolerable(error: &ClientError) -> bool {
    use cachetier_client::Reason as R;
    error.in_doubt()
        || matches!(error, ClientError::Unreachable { .. } | ClientError::Unsent { .. })
        || error.reason().is_some_and(|r| {
            r.retry_is_safe()
                || matches!(
                    r,
                    R::BacklogFull | R::JournalFull | R::Busy | R::BackendAway | R::PeerAway
                )
        })
}
