//! The check after a round: nothing runs, nothing waits; every counter must be what was
//! acknowledged, in cache and backend, with exactly its last events.

use super::counters::{Counters, Violation};
use super::stage::Stage;
use super::writer::{EVENTS, event_key};
use crate::local::hlr;
use anyhow::{Context, Result, ensure};
use cachetier_client::{Client, Read};
use cachetier_model::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A counter with the keys and values of its events.
type Held = (i64, BTreeSet<(i64, i64)>);

pub async fn round(stage: &Stage, counters: &Counters) -> Result<()> {
    let status = stage.group.status(0).await?;
    let rejects = stage.group.admin(0)?.list_rejects(5).await?;
    ensure!(status.rejects == 0, "the backend refused {} writes: {rejects:?}", status.rejects);
    let client = stage.group.client().await?;
    let backend = backend(stage).await?;
    for id in counters.ids() {
        let held = backend.get(&id).with_context(|| format!("no counter {id} in the backend"))?;
        judge(counters, id, held, "backend");
        judge(counters, id, &cached(&client, id).await?, "cache");
    }
    Ok(())
}

fn judge(counters: &Counters, id: i64, held: &Held, place: &str) {
    let (value, events) = held;
    let (acknowledged, sent) = (counters.acknowledged(id), counters.sent(id));
    let told = format!("the {place} has {value}, acknowledged {acknowledged}, sent {sent}");
    if *value < acknowledged {
        counters.violated(Violation::Lost, value.abs_diff(acknowledged), id, &told);
    } else if *value > sent {
        counters.violated(Violation::Duplicated, value.abs_diff(sent), id, &told);
    }
    let first = 1.max(value - EVENTS + 1);
    let expected: BTreeSet<_> = (first..=*value).map(|n| (event_key(n), n % 10_000)).collect();
    if *events != expected {
        let told = format!("the {place} has {value} with the events {events:?}");
        counters.violated(Violation::Reordered, 1, id, &told);
    }
}

async fn backend(stage: &Stage) -> Result<BTreeMap<i64, Held>> {
    let database = &stage.group.database;
    let mut found: BTreeMap<i64, Held> = BTreeMap::new();
    for row in database.query("SELECT s_id, vlr_location FROM subscriber", &[]).await? {
        found.insert(row.get(0), (row.get(1), BTreeSet::new()));
    }
    for row in database.query("SELECT s_id, ai_type, data1 FROM access_info", &[]).await? {
        let (id, key, value): (i64, i16, i16) = (row.get(0), row.get(1), row.get(2));
        found.entry(id).or_default().1.insert((key.into(), value.into()));
    }
    Ok(found)
}

async fn cached(client: &Client, id: i64) -> Result<Held> {
    let mut read = Read::whole(hlr::by_id(id));
    read.no_bypass = true;
    let answer = client.read(&read).await.context("reading a counter back")?;
    let int = |row: &[Value], at: usize| match row.get(at) {
        Some(Value::Int(value)) => *value,
        _ => i64::MIN,
    };
    // the column after all the others of the test's table
    let value = answer.rows("subscriber").first().map_or(i64::MIN, |row| int(row, 6));
    let events = answer.rows("access_info").iter().map(|row| (int(row, 1), int(row, 2)));
    Ok((value, events.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torture::TortureReport;

    fn held(value: i64) -> Held {
        let first = 1.max(value - EVENTS + 1);
        (value, (first..=value).map(|n| (event_key(n), n % 10_000)).collect())
    }

    fn judged(held: &Held) -> TortureReport {
        let counters = Counters::new(1);
        counters.sending(1, 13);
        counters.acknowledge(1, 12);
        judge(&counters, 1, held, "backend");
        let mut report = TortureReport::default();
        counters.fill(&mut report);
        report
    }

    #[test]
    fn lost_doubled_and_misplaced_writes_are_told_apart() {
        for good in [12, 13] {
            assert!(judged(&held(good)).violations.is_empty(), "{good}");
        }
        assert_eq!(judged(&held(10)).lost, 2);
        assert_eq!(judged(&held(14)).duplicated, 1);
        let mut torn = held(12);
        torn.1.pop_last();
        let report = judged(&torn);
        assert_eq!((report.reordered, report.lost, report.violations.len()), (1, 0, 1));
        let empty = (12, BTreeSet::new());
        assert!(!judged(&empty).clean());
    }
}
