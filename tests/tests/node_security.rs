//! Certificates, roles, probes and metrics of a real node.

use anyhow::{Result, ensure};
use cachetier_client::{Client, Options, Read, Reason};
use std::time::Duration;
use system_tests::local::{TestGroup, TestGroupOptions, eventually, hlr};

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_reaches_only_the_services_of_its_role() -> Result<()> {
    let group = TestGroup::start(TestGroupOptions::default()).await?;
    for role in ["operator", "admin", "loader", "node"] {
        group.admin_as(role, 0)?.status().await?;
    }
    let refused = group.admin_as("client", 0)?.status().await.expect_err("not for clients");
    ensure!(refused.reason() == Some(Reason::Role), "{refused:?}");
    let drain = group.admin_as("loader", 0)?.drain(true).await.expect_err("not for loaders");
    ensure!(drain.reason() == Some(Reason::Role), "{drain:?}");
    let options = group.options("stranger")?;
    let stranger = Client::connect([group.node(0)?.endpoint()], options).await;
    let stranger = stranger.err().expect("an unknown name is no role");
    ensure!(stranger.reason() == Some(Reason::Role), "{stranger:?}");
    let plain = Options { retry_for: Duration::ZERO, ..Options::default() };
    ensure!(Client::connect([group.node(0)?.endpoint()], plain).await.is_err(), "no certificate");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d27_a_rotated_certificate_is_used_without_a_restart() -> Result<()> {
    let group = TestGroup::start(TestGroupOptions::default()).await?;
    let client = group.client().await?;
    client.read(&Read::whole(hlr::by_id(1))).await?;
    let directory = group.certificates.role("node")?;
    group.certificates.issue("node", &directory)?;
    eventually("the node to renew its certificates", Duration::from_secs(20), || async {
        Ok(group.node(0)?.log().contains("certificates renewed").then_some(()))
    })
    .await?;
    client.read(&Read::whole(hlr::by_id(1))).await?;
    let fresh = group.client().await?;
    fresh.read(&Read::whole(hlr::by_id(1))).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_and_metrics_tell_what_the_node_does() -> Result<()> {
    let mut group = TestGroup::without_topology(TestGroupOptions::default()).await?;
    eventually("the node to be alive and not ready", Duration::from_secs(60), || async {
        let (live, _) = group.node(0)?.http("/livez").await?;
        let (ready, why) = group.node(0)?.http("/readyz").await?;
        ensure!(live == 200 && ready == 503 && why.contains("AwaitingTopology"), "{why}");
        Ok(Some(()))
    })
    .await?;
    group.scale(1).await?;
    eventually("the node to be ready", Duration::from_secs(60), || async {
        let (ready, why) = group.node(0)?.http("/readyz").await?;
        ensure!(ready == 200, "{why}");
        Ok(Some(()))
    })
    .await?;
    let client = group.client().await?;
    client.transact(&hlr::set_vlr(hlr::by_id(1), 1)).await?;
    let (_, metrics) = group.node(0)?.http("/metrics").await?;
    for name in [
        "cachetier_node_slots_serving 4096",
        "cachetier_node_calls_total{method=\"Transact\",outcome=\"OK\"} 1",
        "cachetier_node_call_duration_seconds_bucket",
        "cachetier_node_writes_total 1",
    ] {
        ensure!(metrics.contains(name), "{name} is missing in\n{metrics}");
    }
    Ok(())
}
