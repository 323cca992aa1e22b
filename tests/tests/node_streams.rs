//! What the streams of calls promise when much is under way, and when a node ends.

#![allow(clippy::indexing_slicing, reason = "a node that is missing fails the test")]

use anyhow::{Result, ensure};
use cachetier_client::{Answer, Client, ClientError, Read, Transact};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::time::{Duration, Instant};
use system_tests::local::{TestGroup, TestGroupOptions, eventually, hlr};

const PATIENCE: Duration = Duration::from_secs(60);

async fn client(group: &TestGroup) -> Result<Client> {
    let mut options = group.options("client")?;
    // errors come to the caller at once
    options.retry_for = Duration::ZERO;
    Ok(Client::connect([group.node(0)?.endpoint()], options).await?)
}

/// Answered only when the backend has it.
fn waiting_for_the_backend(id: i64) -> Transact {
    Transact { answer: Answer::Flushed, ..hlr::set_vlr(hlr::by_id(id), 77) }
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_are_answered_while_more_calls_than_a_stream_holds_wait_for_the_backend() -> Result<()>
{
    const WAITING: i64 = 700;
    let options = TestGroupOptions { subscribers: 1_000, ..Default::default() };
    let group = TestGroup::start(options).await?;
    let client = client(&group).await?;
    for id in 1..=WAITING {
        client.read(&Read::whole(hlr::by_id(id))).await?;
    }
    group.postgres.crash()?;
    let calls: FuturesUnordered<_> = (1..=WAITING)
        .map(|id| {
            let client = client.clone();
            tokio::spawn(async move { client.transact(&waiting_for_the_backend(id)).await })
        })
        .collect();
    eventually("the writes to be in the journal", PATIENCE, || async {
        let status = group.status(0).await?;
        let waiting = status.backlog.map_or(0, |backlog| backlog.transactions);
        ensure!(waiting >= WAITING as u64, "{waiting} transactions");
        Ok(Some(()))
    })
    .await?;
    let asked = Instant::now();
    ensure!(client.read(&Read::whole(hlr::by_id(1))).await?.found);
    ensure!(asked.elapsed() < Duration::from_secs(5), "it took {:?}", asked.elapsed());
    for call in calls {
        call.abort();
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_ends_in_order_leaves_no_write_in_doubt() -> Result<()> {
    const WRITERS: i64 = 64;
    let mut group = TestGroup::start(TestGroupOptions::default()).await?;
    let client = client(&group).await?;
    let mut writers: FuturesUnordered<_> =
        (1..=WRITERS).map(|id| tokio::spawn(write_until_refused(client.clone(), id))).collect();
    eventually("writes to flow", PATIENCE, || async {
        Ok((group.status(0).await?.appended > 1_000).then_some(()))
    })
    .await?;
    ensure!(group.nodes[0].terminate().await?.success());
    while let Some(ended) = writers.next().await {
        let error = ended?;
        ensure!(!error.in_doubt(), "{error:?}");
    }
    Ok(())
}

async fn write_until_refused(client: Client, id: i64) -> ClientError {
    let mut value = 0;
    loop {
        value += 1;
        if let Err(error) = client.transact(&hlr::set_vlr(hlr::by_id(id), value)).await {
            return error;
        }
    }
}
