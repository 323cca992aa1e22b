//! Loads by the real preload process into real nodes.

use anyhow::{Context, Result, ensure};
use cachetier_client::{Read, Source};
use std::time::Duration;
use system_tests::local::{CounterLoad, TestGroup, TestGroupOptions, eventually, hlr};

const SUBSCRIBERS: i64 = 3_000;

async fn group(nodes: usize) -> Result<TestGroup> {
    let subscribers = SUBSCRIBERS;
    TestGroup::start(TestGroupOptions { nodes, subscribers, ..Default::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn d24_a_preload_covers_every_slot_and_says_how_far_it_is() -> Result<()> {
    let group = group(3).await?;
    group.load("first", "").await?;
    let mut instances = 0;
    for n in 0..3 {
        let status = group.status(n).await?;
        ensure!(status.slots_covered == status.slots_serving, "{status:?}");
        let load = status.load.context("the load is in the status")?;
        ensure!(load.load_id == "first" && load.chunks_done == load.chunks_total, "{load:?}");
        instances += status.instances;
    }
    ensure!(instances == SUBSCRIBERS as u64, "{instances} instances");
    let client = group.client().await?;
    for id in [1, 77, SUBSCRIBERS] {
        let answer = client.read(&Read::whole(hlr::by_number(id))).await?;
        ensure!(answer.source == Source::Cache && answer.rows("access_info").len() == 2);
    }
    let compared = group.compare().await?;
    ensure!(compared.instances == SUBSCRIBERS as u64 && compared.not_loaded == 0, "{compared:?}");
    ensure!(compared.differences == 0 && compared.rows == 5 * SUBSCRIBERS as u64, "{compared:?}");
    // the instrument itself: a change behind the cache's back is a difference
    group.database.execute("UPDATE access_info SET data1 = 999 WHERE s_id = 5", &[]).await?;
    ensure!(group.compare().await?.differences == 2, "two rows changed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_under_writes_never_goes_back_in_time() -> Result<()> {
    let group = group(2).await?;
    let client = group.client().await?;
    let load = CounterLoad::start(&client, 4, 400);
    load.progress(100).await?;
    group.load("under-writes", "").await?;
    load.progress(100).await?;
    let report = load.stop().await?;
    group.flushed().await?;
    report.verify(&group.database).await?;
    for counted in &report.counted {
        let answer = client.read(&Read::whole(hlr::by_id(counted.id))).await?;
        let cached = &answer.rows("subscriber")[0][6];
        let stored = group.vlr_in_backend(counted.id).await?;
        ensure!(*cached == cachetier_model::Value::Int(stored), "{counted:?}: {cached:?}");
    }
    ensure!(group.compare().await?.differences == 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d19_a_node_restarted_during_a_load_is_never_called_covered_by_it() -> Result<()> {
    let mut group = group(2).await?;
    let preload = group.preload("broken", "")?.spawn()?;
    eventually("the load to reach the node", Duration::from_secs(60), || async {
        let status = group.status(1).await?;
        ensure!(status.instances > 0, "nothing yet");
        Ok(Some(()))
    })
    .await?;
    group.nodes[1].kill()?;
    group.nodes[1].start()?;
    group.settled(2).await?;
    // the process ends, whatever it says about a load that lost a share
    preload.wait_with_output().await?;
    let status = group.status(1).await?;
    let covered = status.slots_covered == status.slots_serving;
    ensure!(!covered || group.compare().await?.not_loaded == 0, "{status:?}");
    group.load("again", "").await?;
    let status = group.status(1).await?;
    ensure!(status.slots_covered == status.slots_serving, "{status:?}");
    ensure!(group.compare().await?.not_loaded == 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d21_reads_during_a_filtered_load_find_what_is_not_loaded() -> Result<()> {
    let group = group(1).await?;
    group.load("part", "preload: {where: \"s_id <= 1000\"}").await?;
    let status = group.status(0).await?;
    ensure!(status.instances == 1_000, "{}", status.instances);
    let client = group.client().await?;
    let outside = client.read(&Read::whole(hlr::by_number(2_000))).await?;
    ensure!(outside.found && outside.source == Source::ReadThrough, "{outside:?}");
    ensure!(!client.read(&Read::whole(hlr::by_number(9_999))).await?.found);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d23_a_load_larger_than_memory_stops_and_the_node_goes_on() -> Result<()> {
    let extra = "memory: {capacityBytes: 2000000}".to_owned();
    let subscribers = SUBSCRIBERS;
    let group = TestGroup::start(TestGroupOptions { extra, subscribers, ..Default::default() });
    let group = group.await?;
    let output = group.preload("large", "")?.output().await?;
    let status = group.status(0).await?;
    ensure!(status.memory_bytes <= status.memory_capacity_bytes, "{status:?}");
    let full = status.instances < SUBSCRIBERS as u64;
    ensure!(full, "the store was meant to be too small: {status:?}");
    let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
    ensure!(status.problems.iter().any(|p| p.reason == "MemoryFull"), "{status:?} {said}");
    ensure!(said.contains("memory"), "{said}");
    let client = group.client().await?;
    for id in [1, SUBSCRIBERS] {
        ensure!(client.read(&Read::whole(hlr::by_id(id))).await?.found, "subscriber {id}");
    }
    Ok(())
}

/// A load says, row for row, what it brought and what was there already; one that has nothing to do
/// says that, and nothing is missing then.
#[tokio::test(flavor = "multi_thread")]
async fn d20_a_reload_says_what_it_inserted_what_was_there_and_when_it_did_nothing() -> Result<()> {
    const READ_BEFORE: u64 = 50;
    let group = group(2).await?;
    let client = group.client().await?;
    for id in 1..=READ_BEFORE {
        client.read(&Read::whole(hlr::by_id(i64::try_from(id)?))).await?;
    }
    let all = u64::try_from(SUBSCRIBERS)?;
    let output = group.preload("first", "")?.output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (mut inserted, mut skipped) = (0, 0);
    for n in 0..2 {
        let load = group.status(n).await?.load.context("no load in the status")?;
        ensure!(load.chunks_done == load.chunks_total && load.chunks_total > 0, "{load:?}");
        inserted += load.inserted;
        skipped += load.skipped;
    }
    ensure!((inserted, skipped) == (all - READ_BEFORE, READ_BEFORE), "{inserted} and {skipped}");
    let last = last_word(&output.stderr)?;
    ensure!(last["inserted"] == inserted && last["skipped"] == skipped, "{last}");
    let output = group.preload("again", "")?.output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let last = last_word(&output.stderr)?;
    ensure!(last["inserted"] == 0 && last["skipped"] == 0, "{last}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(said.contains("nothing was loaded"), "it was silent: {said}");
    let compared = group.compare().await?;
    ensure!(compared.not_loaded == 0 && compared.instances == all, "{compared:?}");
    Ok(())
}

/// The line with the figures of a load's process.
fn last_word(log: &[u8]) -> Result<serde_json::Value> {
    let text = String::from_utf8_lossy(log);
    let line = text.lines().find(|line| line.contains("\"load complete\""));
    Ok(serde_json::from_str(line.with_context(|| format!("no last word in {text}"))?)?)
}

/// Reads go on while a load runs: none fails, and the slow ones are not slow.
#[tokio::test(flavor = "multi_thread")]
async fn d22_no_read_times_out_while_a_load_runs() -> Result<()> {
    let group = group(1).await?;
    let client = group.client().await?;
    for id in 1..=50 {
        client.read(&Read::whole(hlr::by_id(id))).await?;
    }
    let mut preload = group.preload("beside-reads", "")?.spawn()?;
    let mut took = Vec::new();
    // reads of what is held, until the load has ended
    while preload.try_wait()?.is_none() || took.len() < 500 {
        let id = i64::try_from(took.len() % 50)? + 1;
        let started = std::time::Instant::now();
        let answer = client.read(&Read::whole(hlr::by_id(id))).await?;
        took.push(started.elapsed());
        ensure!(answer.found && answer.source == Source::Cache, "{answer:?}");
    }
    ensure!(preload.wait().await?.success(), "the load failed");
    let covered = group.status(0).await?;
    ensure!(covered.slots_covered == covered.slots_serving, "{covered:?}");
    took.sort();
    let p99 = took.get(took.len() * 99 / 100).copied().unwrap_or_default();
    println!("{} reads beside a load, p99 {p99:?}, slowest {:?}", took.len(), took.last());
    // a debug build on a busy machine; a client gives up after seconds
    ensure!(p99 < Duration::from_millis(500), "p99 is {p99:?}");
    Ok(())
}
