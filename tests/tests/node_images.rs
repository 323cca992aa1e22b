//! A restarted process takes its whole store back from the images of its slots, without the
//! backend; what came after them comes from the journal.

#![allow(clippy::indexing_slicing, reason = "a node that is missing fails the test")]

use anyhow::{Result, ensure};
use cachetier_client::{Client, Read, Source};
use std::time::Duration;
use system_tests::local::{TestGroup, TestGroupOptions, eventually, hlr};

const SUBSCRIBERS: i64 = 20_000;
const PATIENCE: Duration = Duration::from_secs(120);

/// A sample of them is read, and all of it must come from memory.
async fn all_held(client: &Client) -> Result<()> {
    for id in (1..=SUBSCRIBERS).step_by(97) {
        let read = client.read(&Read::whole(hlr::by_id(id))).await?;
        ensure!(read.found && read.source == Source::Cache, "subscriber {id}: {read:?}");
    }
    Ok(())
}

/// Slots covered and instances held.
async fn store(group: &TestGroup) -> Result<(u32, u64)> {
    let status = group.status(0).await?;
    Ok((status.slots_covered, status.instances))
}

async fn warm(group: &TestGroup) -> Result<()> {
    eventually("the whole store to be back", PATIENCE, || async {
        let store = store(group).await?;
        ensure!(store == (4_096, SUBSCRIBERS as u64), "{store:?}");
        Ok(Some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preloaded_node_restarts_warm_while_the_backend_is_away() -> Result<()> {
    let options = TestGroupOptions { subscribers: SUBSCRIBERS, ..Default::default() };
    let mut group = TestGroup::start(options).await?;
    group.load("first", "").await?;
    ensure!(store(&group).await? == (4_096, SUBSCRIBERS as u64));
    let client = group.client().await?;
    client.transact(&hlr::set_vlr(hlr::by_id(5), 555)).await?;
    group.flushed().await?;
    ensure!(group.nodes[0].terminate().await?.success(), "{}", group.nodes[0].log());

    group.postgres.crash()?;
    group.nodes[0].start()?;
    warm(&group).await?;
    all_held(&client).await?;

    // killed with changes that nothing but the journal has
    for id in 1..=500 {
        client.transact(&hlr::set_vlr(hlr::by_id(id), 7_000 + id)).await?;
    }
    group.nodes[0].kill()?;
    group.nodes[0].start()?;
    warm(&group).await?;
    all_held(&client).await?;

    group.postgres.up().await?;
    group.settled(1).await?;
    group.flushed().await?;
    let compared = group.compare().await?;
    ensure!(compared.differences == 0 && compared.not_loaded == 0, "{compared:?}");
    ensure!(compared.instances == SUBSCRIBERS as u64, "{compared:?}");
    Ok(())
}
