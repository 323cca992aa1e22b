//! Real processes killed, stopped, moved and cut off under load: nothing acknowledged is lost.

use anyhow::{Context, Result, ensure};
use cachetier_client::{Read, Reason, Source};
use std::time::Duration;
use system_tests::local::{CounterLoad, TestGroup, TestGroupOptions, eventually, hlr};

const WRITERS: i64 = 8;

async fn group(nodes: usize) -> Result<TestGroup> {
    TestGroup::start(TestGroupOptions { nodes, ..Default::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_loses_no_acknowledged_write() -> Result<()> {
    let mut group = group(2).await?;
    let client = group.client().await?;
    let load = CounterLoad::start(&client, WRITERS, 200);
    load.progress(200).await?;
    for victim in [0, 1, 0] {
        group.nodes[victim].kill()?;
        group.nodes[victim].start()?;
        group.settled(2).await?;
        load.progress(100).await?;
    }
    let report = load.stop().await?;
    group.flushed().await?;
    report.verify(&group.database).await
}

#[tokio::test(flavor = "multi_thread")]
async fn d17_a_stopped_backend_loses_nothing_and_a_node_restarts_without_it() -> Result<()> {
    let mut group = group(1).await?;
    let client = group.client().await?;
    for id in 1..=50 {
        client.read(&Read::whole(hlr::by_id(id))).await?;
    }
    let load = CounterLoad::start(&client, WRITERS, 50);
    load.progress(100).await?;
    group.postgres.crash()?;
    load.progress(500).await?;
    eventually("the node to say that the backend is away", Duration::from_secs(30), || async {
        let status = group.status(0).await?;
        ensure!(!status.backend_reachable && !status.problems.is_empty(), "{status:?}");
        Ok(Some(()))
    })
    .await?;
    let held = client.read(&Read::whole(hlr::by_id(1))).await?;
    ensure!(held.found && held.source == Source::Cache, "cached reads go on: {held:?}");
    let report = load.stop().await?;
    group.nodes[0].kill()?;
    group.nodes[0].start()?;
    eventually("the journal to be served again", Duration::from_secs(60), || async {
        let again = client.read(&Read::whole(hlr::by_id(1))).await?;
        ensure!(again.found, "{again:?}");
        Ok(Some(()))
    })
    .await?;
    group.postgres.up().await?;
    group.settled(1).await?;
    group.flushed().await?;
    // the connection of before went down with the server
    group.database = group.postgres.connect(system_tests::local::group::DATABASE).await?;
    report.verify(&group.database).await
}

#[tokio::test(flavor = "multi_thread")]
async fn scaling_from_one_to_three_to_one_under_writes_loses_nothing() -> Result<()> {
    let mut group =
        TestGroup::without_topology(TestGroupOptions { nodes: 3, ..Default::default() }).await?;
    group.scale(1).await?;
    let client = group.client().await?;
    let load = CounterLoad::start(&client, WRITERS, 200);
    load.progress(100).await?;
    for count in [3, 1] {
        group.scale(count).await?;
        load.progress(100).await?;
    }
    let report = load.stop().await?;
    group.flushed().await?;
    for n in [1, 2] {
        let status = group.status(n).await?;
        ensure!(status.slots_serving == 0 && status.slots_leaving == 0, "{status:?}");
    }
    report.verify(&group.database).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_backend_bounds_the_queue_and_writers_are_told_to_wait() -> Result<()> {
    let extra = "writeThrough: {lanes: 1, maxBacklogBytes: 65536}".to_owned();
    let group = TestGroup::start(TestGroupOptions { extra, ..Default::default() }).await?;
    let client = group.client().await?;
    client.read(&Read::whole(hlr::by_id(1))).await?;
    group.postgres.stop()?;
    let mut refused = None;
    for value in 1..20_000 {
        if let Err(error) = client.transact(&hlr::set_vlr(hlr::by_id(1), value)).await {
            refused = Some(error);
            break;
        }
    }
    let refused = refused.expect("a queue of 64 KiB fills up");
    ensure!(refused.reason() == Some(cachetier_client::Reason::BacklogFull), "{refused:?}");
    ensure!(refused.retry_after().is_some(), "{refused:?}");
    let backlog = group.status(0).await?.backlog.unwrap_or_default();
    ensure!(backlog.bytes <= 65_536, "{backlog:?}");
    ensure!(client.read(&Read::whole(hlr::by_id(1))).await?.found, "reads go on");
    group.postgres.up().await?;
    eventually("writes to be taken again", Duration::from_secs(60), || async {
        client.transact(&hlr::set_vlr(hlr::by_id(1), 1)).await?;
        Ok(Some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_of_a_dead_nodes_slots_go_to_the_backend_and_say_so() -> Result<()> {
    let mut group = group(2).await?;
    let client = group.client_of(0).await?;
    group.nodes[1].kill()?;
    let mut bypassed = 0;
    for id in 1..=40 {
        let answer = client.read(&Read::whole(hlr::by_id(id))).await?;
        ensure!(answer.found, "subscriber {id}");
        bypassed += u32::from(answer.source == Source::Bypass);
    }
    ensure!(bypassed > 0, "half of the slots belong to the dead node");
    group.nodes[1].start()?;
    group.settled(2).await?;
    eventually("the owner to answer again", Duration::from_secs(20), || async {
        for id in 1..=40 {
            let answer = client.read(&Read::whole(hlr::by_id(id))).await?;
            ensure!(answer.source != Source::Bypass, "subscriber {id}");
        }
        Ok(Some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn r25_past_a_dead_owner_a_read_says_what_it_lacks_and_holds_the_position_asked_for()
-> Result<()> {
    let extra = "bypass: {holdTimeoutMs: 500}".to_owned();
    let options = TestGroupOptions { nodes: 2, extra, ..Default::default() };
    let mut group = TestGroup::start(options).await?;
    let client = group.client_of(0).await?;
    let owner = group.status(1).await?.journal;
    group.admin(1)?.pause_flushing(true).await?;
    let mut last = None;
    for id in 1..=40 {
        let answer = client.transact(&hlr::set_vlr(hlr::by_id(id), 7_777)).await?;
        let position = answer.position.context("nothing was changed")?;
        if position.journal == owner {
            last = Some((id, position));
        }
    }
    let (id, position) = last.context("half of the slots belong to the second node")?;
    let whole = Read::whole(hlr::by_id(id));
    let held = client.read(&whole.clone().not_before(position.clone())).await?;
    ensure!(held.source == Source::Cache, "its owner is there: {held:?}");
    group.nodes[1].kill()?;
    let refused = client.read(&whole.clone().not_before(position.clone())).await;
    let refused = refused.expect_err("the backend has it not");
    ensure!(refused.reason() == Some(Reason::PositionNotReached), "{refused:?}");
    let past = client.read(&whole).await?;
    ensure!(past.found && past.source == Source::Bypass, "{past:?}");
    let confirmed = past.confirmed.context("the owner's position is not said")?;
    ensure!(confirmed.journal == owner, "{confirmed:?}");
    ensure!(confirmed.sequence < position.sequence, "{confirmed:?} {position:?}");
    let again = client.read(&whole.clone().not_before(confirmed)).await?;
    ensure!(again.source == Source::Bypass, "what is there may be read: {again:?}");
    group.nodes[1].start()?;
    group.settled(2).await?;
    let answer = client.read(&whole.not_before(position)).await?;
    ensure!(answer.found && answer.source != Source::Bypass, "{answer:?}");
    group.flushed().await?;
    ensure!(group.vlr_in_backend(id).await? == 7_777);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d16_a_terminated_node_flushes_first_and_exits_cleanly() -> Result<()> {
    let mut group = group(1).await?;
    let client = group.client().await?;
    for id in 1..=100 {
        client.transact(&hlr::set_vlr(hlr::by_id(id), id)).await?;
    }
    let status = group.nodes[0].terminate().await?;
    ensure!(status.success(), "{status:?}");
    for id in 1..=100 {
        ensure!(group.vlr_in_backend(id).await? == id, "subscriber {id}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_owner_is_read_past_once_it_is_known_to_be_away_and_loses_nothing() -> Result<()> {
    let group = group(2).await?;
    let client = group.client_of(0).await?;
    let load = CounterLoad::start(&client, WRITERS, 100);
    load.progress(100).await?;
    group.nodes[1].freeze()?;
    eventually("reads of the frozen node's slots", Duration::from_secs(60), || async {
        let mut bypassed = 0;
        for id in 1..=20 {
            let answer = client.read(&Read::whole(hlr::by_id(id))).await?;
            ensure!(answer.found, "subscriber {id}");
            bypassed += u32::from(answer.source == Source::Bypass);
        }
        ensure!(bypassed > 0, "nobody was bypassed");
        Ok(Some(()))
    })
    .await?;
    group.nodes[1].thaw()?;
    load.progress(200).await?;
    let report = load.stop().await?;
    group.flushed().await?;
    report.verify(&group.database).await
}
