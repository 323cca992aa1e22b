//! Real nodes and the administrator's calls on them: writes repeated under their key from anywhere,
//! what others changed in the backend, a pause.

use anyhow::{Context, Result, ensure};
use cachetier_client::wire::{CompareRequest, Refreshed, Repair};
use cachetier_client::{Read, Reason};
use cachetier_model::Value;
use futures::StreamExt;
use std::pin::pin;
use system_tests::local::{TestGroup, TestGroupOptions, hlr};

#[tokio::test(flavor = "multi_thread")]
async fn r26_a_write_repeated_through_another_node_is_answered_as_the_first() -> Result<()> {
    let extra = "idempotency: {windowSeconds: 600}\n".to_owned();
    let options = TestGroupOptions { nodes: 2, subscribers: 20, extra, ..Default::default() };
    let group = TestGroup::start(options).await?;
    let (one, other) = (group.client_of(0).await?, group.client_of(1).await?);
    for id in 1..=10 {
        let write = |value| hlr::set_vlr(hlr::by_id(id), value).with_idempotency_key("a key");
        let first = one.transact(&write(77)).await?;
        one.transact(&hlr::set_vlr(hlr::by_id(id), 78)).await?;
        ensure!(other.transact(&write(77)).await? == first, "subscriber {id}");
        let seen = other.read(&Read::whole(hlr::by_id(id))).await?;
        ensure!(seen.rows("subscriber")[0][6] == Value::Int(78), "it was applied again");
        let refused = other.transact(&write(79)).await.err().and_then(|e| e.reason());
        ensure!(refused == Some(Reason::KeyReused), "{refused:?}");
    }
    let by_number = hlr::set_vlr(hlr::by_number(3), 1).with_idempotency_key("a key");
    let refused = one.transact(&by_number).await.err().context("a lookup key")?.to_string();
    ensure!(refused.contains("it needs the root key"), "{refused}");
    let long = hlr::set_vlr(hlr::by_id(3), 1).with_idempotency_key(vec![7; 65]);
    let refused = one.transact(&long).await.err().context("a long key")?.to_string();
    ensure!(refused.contains("1 to 64 bytes"), "{refused}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_changed_is_found_mended_and_read_again() -> Result<()> {
    let group =
        TestGroup::start(TestGroupOptions { subscribers: 20, ..Default::default() }).await?;
    let (client, admin) = (group.client().await?, group.admin(0)?);
    for id in 1..=20 {
        client.read(&Read::whole(hlr::by_id(id))).await?;
    }
    let others = "UPDATE subscriber SET vlr_location = 5 WHERE s_id IN (3, 4)";
    group.database.batch_execute(others).await?;
    let refreshed = admin.refresh(&[vec![Value::Int(3)], vec![Value::Int(99)]]).await?;
    ensure!(refreshed == [Refreshed::Done, Refreshed::NotLoaded], "{refreshed:?}");
    let seen = client.read(&Read::whole(hlr::by_id(3))).await?;
    ensure!(seen.rows("subscriber")[0][6] == Value::Int(5), "{seen:?}");
    let request = CompareRequest { repair: Repair::FromCache.into(), ..Default::default() };
    let mut progress = pin!(admin.compare(request).await?);
    let mut found = Vec::new();
    while let Some(step) = progress.next().await {
        found.append(&mut step?.found);
    }
    let [found] = found.as_slice() else { anyhow::bail!("{found:?}") };
    ensure!(found.repaired && found.tables[0].columns == ["vlr_location"], "{found:?}");
    ensure!(group.vlr_in_backend(4).await? != 5, "the cache's row was written through");
    ensure!(group.compare().await?.differences == 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_is_seen_in_the_status_and_ends_with_resume() -> Result<()> {
    let group = TestGroup::start(TestGroupOptions { subscribers: 5, ..Default::default() }).await?;
    let (client, admin) = (group.client().await?, group.admin(0)?);
    admin.pause_flushing(true).await?;
    client.transact(&hlr::set_vlr(hlr::by_id(3), 77)).await?;
    let status = group.status(0).await?;
    ensure!(status.flushing_paused, "{status:?}");
    ensure!(status.problems.iter().any(|p| p.reason == "WriteThroughPaused"), "{status:?}");
    ensure!(admin.pause_flushing(false).await?.transactions == 1, "nothing was flushed meanwhile");
    group.flushed().await?;
    ensure!(group.vlr_in_backend(3).await? == 77);
    Ok(())
}
