//! Loads by the real preload process into real nodes.

use anyhow::{Context, Result, ensure};
use cachetier_client::wire::CompareProgress;
use cachetier_client::{Read, Source};
use futures::StreamExt;
use std::time::Duration;
use system_tests::local::{CounterLoad, TestGroup, TestGroupOptions, eventually, hlr};

const SUBSCRIBERS: i64 = 3_000;

async fn group(nodes: usize) -> Result<TestGroup> {
    let subscribers = SUBSCRIBERS;
    TestGroup::start(TestGroupOptions { nodes, subscribers, ..Default::default() }).await
}

/// Sums of a comparison of everything on every node.
async fn compare(group: &TestGroup) -> Result<CompareProgress> {
    let mut sum = CompareProgress::default();
    for n in 0..group.nodes.len() {
        let mut progress = Box::pin(group.admin(n)?.compare(0).await?);
        let mut last = None;
        while let Some(step) = progress.next().await {
            last = Some(step?);
        }
        let last = last.context("a comparison answers")?;
        ensure!(last.done, "{last:?}");
        sum.instances += last.instances;
        sum.rows += last.rows;
        sum.not_loaded += last.not_loaded;
        sum.differences += last.differences;
    }
    Ok(sum)
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
    let compared = compare(&group).await?;
    ensure!(compared.instances == SUBSCRIBERS as u64 && compared.not_loaded == 0, "{compared:?}");
    ensure!(compared.differences == 0 && compared.rows == 5 * SUBSCRIBERS as u64, "{compared:?}");
    // the instrument itself: a change behind the cache's back is a difference
    group.database.execute("UPDATE access_info SET data1 = 999 WHERE s_id = 5", &[]).await?;
    ensure!(compare(&group).await?.differences == 2, "two rows changed");
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
    ensure!(compare(&group).await?.differences == 0);
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
    ensure!(!covered || compare(&group).await?.not_loaded == 0, "{status:?}");
    group.load("again", "").await?;
    let status = group.status(1).await?;
    ensure!(status.slots_covered == status.slots_serving, "{status:?}");
    ensure!(compare(&group).await?.not_loaded == 0);
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
    ensure!(status.problems.iter().any(|p| p.reason == "MemoryFull"), "{:?}", status.problems);
    let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
    ensure!(said.contains("memory"), "{said}");
    let client = group.client().await?;
    for id in [1, SUBSCRIBERS] {
        ensure!(client.read(&Read::whole(hlr::by_id(id))).await?.found, "subscriber {id}");
    }
    Ok(())
}
