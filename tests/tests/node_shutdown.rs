//! SIGTERM in every phase of a node's life ends it with success, and soon.

#![allow(clippy::indexing_slicing, reason = "a node that is missing fails the test")]

use anyhow::{Result, ensure};
use cachetier_client::Read;
use std::time::{Duration, Instant};
use system_tests::local::{TestGroup, TestGroupOptions, eventually, hlr};

/// Far below the 60 s after which a kubelet kills, and enough for a debug build on a busy machine.
const SOON: Duration = Duration::from_secs(15);
const PATIENCE: Duration = Duration::from_secs(60);

async fn ends_well(group: &mut TestGroup, phase: &str) -> Result<()> {
    let asked = Instant::now();
    let status = group.nodes[0].terminate().await?;
    ensure!(status.success(), "{phase}: {status:?}\n{}", group.nodes[0].log());
    ensure!(asked.elapsed() < SOON, "{phase}: it took {:?}", asked.elapsed());
    Ok(())
}

async fn unready_by(group: &TestGroup, wanted: &str) -> Result<()> {
    eventually(&format!("the node to say {wanted}"), PATIENCE, || async {
        let (_, text) = group.nodes[0].http("/readyz").await?;
        ensure!(text.contains(wanted), "{text}");
        Ok(Some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_term_signal_during_the_start_ends_the_node_with_success() -> Result<()> {
    let mut group = TestGroup::without_topology(TestGroupOptions::default()).await?;
    unready_by(&group, "AwaitingTopology").await?;
    ends_well(&mut group, "waiting for a topology").await?;
    for _ in 0..5 {
        group.nodes[0].start()?;
        eventually("the process to listen to signals", PATIENCE, || async {
            Ok(group.nodes[0].takes_term()?.then_some(()))
        })
        .await?;
        ends_well(&mut group, "opening").await?;
    }
    group.postgres.crash()?;
    group.nodes[0].start()?;
    // with or without what an earlier start noted in the journal: then it opens all the same
    unready_by(&group, "BackendUnreachable").await?;
    ends_well(&mut group, "waiting for the backend").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_term_signal_with_calls_open_ends_the_node_with_success() -> Result<()> {
    let mut group = TestGroup::start(TestGroupOptions::default()).await?;
    // its stream of topologies stays open, and so do its connections
    let client = group.client().await?;
    for round in 1..=8 {
        group.settled(1).await?;
        eventually("a read", PATIENCE, || async {
            client.read(&Read::whole(hlr::by_id(round))).await?;
            Ok(Some(()))
        })
        .await?;
        ends_well(&mut group, "serving").await?;
        group.nodes[0].start()?;
    }
    Ok(())
}

/// The backend is away: what is not flushed stays in the journal, so waiting would win nothing. A
/// container runtime may repeat the signal.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_term_signal_with_writes_pending_ends_the_node_with_success() -> Result<()> {
    let mut group = TestGroup::start(TestGroupOptions::default()).await?;
    let client = group.client().await?;
    client.read(&Read::whole(hlr::by_id(1))).await?;
    group.postgres.crash()?;
    client.transact(&hlr::set_vlr(hlr::by_id(1), 77)).await?;
    eventually("the node to see that the backend is away", PATIENCE, || async {
        let status = group.status(0).await?;
        ensure!(!status.backend_reachable, "{status:?}");
        Ok(Some(()))
    })
    .await?;
    group.nodes[0].ask_to_end()?;
    ends_well(&mut group, "draining without a backend").await?;
    ensure!(group.nodes[0].log().contains("they stay in the journal"), "nothing was pending");
    group.postgres.up().await?;
    group.database = group.postgres.connect(system_tests::local::group::DATABASE).await?;
    group.nodes[0].start()?;
    group.settled(1).await?;
    group.flushed().await?;
    ensure!(group.vlr_in_backend(1).await? == 77, "the write is lost");
    Ok(())
}
