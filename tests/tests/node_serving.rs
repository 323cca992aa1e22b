//! A group of three real nodes: reads and writes reach the right place from everywhere.

use anyhow::{Result, ensure};
use cachetier_client::{
    Answer, Insert, Operation, Read, Reason, Routing, Source, TableRead, Transact,
};
use cachetier_model::Value;
use std::time::Duration;
use system_tests::local::{TestGroup, TestGroupOptions, eventually, hlr};

fn int(value: i64) -> Value {
    Value::Int(value)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_answers_every_key_and_every_write_reaches_the_backend() -> Result<()> {
    let group =
        TestGroup::start(TestGroupOptions { nodes: 3, subscribers: 60, ..Default::default() })
            .await?;
    for n in 0..3 {
        let client = group.client_of(n).await?;
        for id in 1..=20 {
            let by_root = client.read(&Read::whole(hlr::by_id(id))).await?;
            let by_number = client.read(&Read::whole(hlr::by_number(id))).await?;
            for answer in [&by_root, &by_number] {
                ensure!(answer.found, "subscriber {id} at node {n}");
                ensure!(answer.rows("subscriber")[0][5] == int(id * 7), "{answer:?}");
                ensure!(answer.rows("access_info").len() == 2, "{answer:?}");
                ensure!(answer.rows("call_forwarding").len() == 1, "{answer:?}");
            }
        }
        for id in 1..=10 {
            let value = id * 100 + n as i64;
            let position =
                client.transact(&hlr::set_vlr(hlr::by_number(id), value)).await?.position;
            let seen = client.read(&Read::whole(hlr::by_id(id))).await?;
            ensure!(seen.rows("subscriber")[0][6] == int(value), "a write is visible at once");
            let position = position.expect("a write has a position");
            ensure!(client.wait_flushed(&position, Duration::from_secs(20)).await?, "flushed");
            ensure!(group.vlr_in_backend(id).await? == value, "subscriber {id}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_projected_filtered_inserted_and_refused_as_the_tables_say() -> Result<()> {
    let group = TestGroup::start(TestGroupOptions::default()).await?;
    let client = group.client().await?;
    ensure!(client.schema().tables.len() == 4 && client.group() == "telecom/hlr");
    let mut read = TableRead::whole("access_info");
    read.columns = vec!["data4".into(), "data1".into()];
    read.conditions = vec![cachetier_client::Condition::equal("ai_type", int(2))];
    let answer = client.read(&Read::tables(hlr::by_id(7), vec![read])).await?;
    ensure!(answer.tables[0].rows == [vec![Value::Text("ABCDE".into()), int(7)]], "{answer:?}");

    let forwarding = |start: i64, facility: i64| {
        Transact::new(
            hlr::by_number(7),
            vec![Operation::Insert(Insert {
                table: "call_forwarding".into(),
                values: vec![
                    ("sf_type".into(), int(facility)),
                    ("start_time".into(), int(start)),
                    ("end_time".into(), int(start + 3)),
                    ("numberx".into(), Value::Text("123".into())),
                ],
            })],
        )
    };
    ensure!(client.transact(&forwarding(16, 1)).await?.rows == [1]);
    let again = client.transact(&forwarding(16, 1)).await.expect_err("the key is taken");
    ensure!(again.reason() == Some(Reason::PrimaryKey), "{again:?}");
    let orphan = client.transact(&forwarding(0, 4)).await.expect_err("no such facility");
    ensure!(orphan.reason() == Some(Reason::ForeignKey), "{orphan:?}");
    let missing = client.transact(&hlr::set_vlr(hlr::by_number(999_999), 1)).await;
    ensure!(missing.is_err(), "nobody has this number");
    let unknown = Read::tables(hlr::by_id(1), vec![TableRead::whole("nothing")]);
    let unknown = client.read(&unknown).await.expect_err("no such table");
    ensure!(unknown.reason() == Some(Reason::Schema), "{unknown:?}");
    group.flushed().await?;
    let sql = "SELECT count(*) FROM call_forwarding WHERE s_id = 7 AND end_time = 19";
    ensure!(group.database.query_one(sql, &[]).await?.get::<_, i64>(0) == 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_inserted_behind_the_cache_is_read_through() -> Result<()> {
    let group = TestGroup::start(TestGroupOptions { nodes: 2, ..Default::default() }).await?;
    let client = group.client().await?;
    let absent = client.read(&Read::whole(hlr::by_id(5_000))).await?;
    ensure!(!absent.found, "not there yet");
    hlr::populate(&group.database, 5_000, 5_000).await?;
    let first = client.read(&Read::whole(hlr::by_id(5_000))).await?;
    ensure!(first.found && first.source == Source::ReadThrough, "{first:?}");
    let second = client.read(&Read::whole(hlr::by_number(5_000))).await?;
    ensure!(second.found && second.source == Source::Cache, "{second:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d32_a_new_subscriber_is_answered_after_the_backend_accepted_it() -> Result<()> {
    let group = TestGroup::start(TestGroupOptions { nodes: 2, ..Default::default() }).await?;
    let client = group.client().await?;
    let insert = |id: i64, number: i64| {
        Transact::new(
            hlr::by_id(id),
            vec![Operation::Insert(Insert {
                table: "subscriber".into(),
                values: vec![
                    ("sub_nbr".into(), Value::Text(hlr::number(number).into())),
                    ("vlr_location".into(), int(4)),
                ],
            })],
        )
    };
    client.transact(&insert(7_001, 7_001)).await?;
    ensure!(group.vlr_in_backend(7_001).await? == 4, "it is in the backend when answered");
    let taken = client.transact(&insert(7_002, 7_001)).await.expect_err("the number is taken");
    ensure!(taken.reason() == Some(Reason::Unique), "{taken:?}");
    ensure!(!client.read(&Read::whole(hlr::by_id(7_002))).await?.found, "nothing is left of it");
    client.transact(&insert(7_002, 7_002)).await?;
    let swap = |id: i64, number: &str| {
        let mut transact = hlr::set_vlr(hlr::by_id(id), 9);
        if let Some(Operation::Update(update)) = transact.operations.first_mut() {
            update.set = vec![("sub_nbr".into(), Value::Text(number.into()))];
        }
        transact
    };
    client.transact(&swap(7_001, "swap")).await?;
    client.transact(&swap(7_002, &hlr::number(7_001))).await?;
    client.transact(&swap(7_001, &hlr::number(7_002))).await?;
    let first = client.read(&Read::whole(hlr::by_number(7_001))).await?;
    ensure!(first.rows("subscriber")[0][0] == int(7_002), "{first:?}");
    let second = client.read(&Read::whole(hlr::by_number(7_002))).await?;
    ensure!(second.rows("subscriber")[0][0] == int(7_001), "{second:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn many_calls_on_one_connection_do_not_wait_for_nagle() -> Result<()> {
    let group = TestGroup::start(TestGroupOptions::default()).await?;
    let client = group.client().await?;
    client.read(&Read::whole(hlr::by_id(1))).await?;
    let mut fastest = Duration::MAX;
    for _ in 0..50 {
        let started = std::time::Instant::now();
        client.read(&Read::whole(hlr::by_id(1))).await?;
        fastest = fastest.min(started.elapsed());
    }
    // a delayed acknowledgement costs 40 ms at every call
    ensure!(fastest < Duration::from_millis(30), "the fastest of 50 took {fastest:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d28_clients_follow_a_new_topology_without_being_told() -> Result<()> {
    let mut group = TestGroup::start(TestGroupOptions { nodes: 2, ..Default::default() }).await?;
    group.scale(1).await?;
    let client = group.client().await?;
    eventually("the topology to arrive", Duration::from_secs(10), || async {
        Ok(client.topology())
    })
    .await?;
    group.scale(2).await?;
    let epoch = group.topology.as_ref().map(|t| t.epoch);
    eventually("the client to follow", Duration::from_secs(5), || async {
        ensure!(client.topology().map(|t| t.epoch) == epoch);
        Ok(Some(()))
    })
    .await?;
    ensure!(client.channels().options().routing == Routing::Owner);
    let mut write = hlr::set_vlr(hlr::by_id(3), 3);
    write.answer = Answer::Flushed;
    client.transact(&write).await?;
    ensure!(group.vlr_in_backend(3).await? == 3);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn many_calls_at_once_are_answered_each_with_its_own_result() -> Result<()> {
    let group = TestGroup::start(TestGroupOptions { nodes: 2, ..Default::default() }).await?;
    let client = group.client_of(0).await?;
    let calls = (1..=200).map(|id| {
        let client = client.clone();
        async move {
            client.transact(&hlr::set_vlr(hlr::by_id(id), id + 1)).await?;
            let answer = client.read(&Read::whole(hlr::by_number(id))).await?;
            ensure!(answer.rows("subscriber")[0][6] == int(id + 1), "{answer:?}");
            Ok(())
        }
    });
    futures::future::try_join_all(calls).await?;
    let refused = client.transact(&hlr::set_vlr(hlr::by_number(99_999), 1)).await;
    let refused = refused.expect_err("nobody has this number");
    ensure!(refused.reason() == Some(Reason::NotFound), "{refused:?}");
    ensure!(client.read(&Read::whole(hlr::by_id(1))).await?.found, "the stream goes on");
    Ok(())
}
