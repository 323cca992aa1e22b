//! The operator and its children: idempotence, drift, other people's objects and fields.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::time::Duration;
use system_tests::local::eventually;
use system_tests::operator::stage::{LIMIT, condition};
use system_tests::operator::{Stage, minimal_group};

async fn ready(name: &str, replicas: u32) -> Result<Stage> {
    let stage = Stage::start(name).await?;
    stage.apply(&minimal_group(replicas)).await?;
    stage.until_ready().await?;
    Ok(stage)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o02_a_ready_group_is_left_alone() -> Result<()> {
    let stage = ready("o02", 2).await?;
    stage.settle().await?;
    let writes = stage.metrics.status_writes.get();
    stage.assert_quiet().await?;
    ensure!(stage.metrics.passes.get() > 5, "the operator did not even look");
    ensure!(stage.metrics.status_writes.get() == writes, "the status was written");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o01_a_size_written_in_another_unit_changes_no_child() -> Result<()> {
    let stage = Stage::start("o01").await?;
    let mut group = minimal_group(1);
    group["spec"]["memory"] = json!({"capacity": "2Gi"});
    stage.apply(&group).await?;
    stage.until_ready().await?;
    // what becoming ready led to is written too
    stage.settle().await?;
    let children = |mut versions: std::collections::BTreeMap<String, (String, String)>| {
        versions.remove("CacheGroup/hlr");
        versions
    };
    let before = children(stage.versions().await?);
    for capacity in ["2048Mi", "2097152Ki", "2147483648"] {
        stage.merge(json!({"spec": {"memory": {"capacity": capacity}}})).await?;
        stage.until_ready().await?;
    }
    stage.settle().await?;
    ensure!(before == children(stage.versions().await?), "a child was written");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o03_a_lasting_error_keeps_one_status() -> Result<()> {
    let mut stage = Stage::without_operator("o03").await?;
    stage.start_operator().await?;
    stage.apply(&minimal_group(1)).await?;
    stage.until_condition("ConfigValid", "False").await?;
    stage.settle().await?;
    stage.assert_quiet_for(Duration::from_secs(15)).await?;
    ensure!(stage.metrics.passes.get() > 5, "the operator did not even look");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o05_what_others_add_to_our_objects_stays() -> Result<()> {
    let stage = ready("o05", 1).await?;
    stage.settle().await?;
    let services = stage.api::<Service>();
    let note = json!({"metadata": {"annotations": {"example.com/note": "mine"}}});
    services.patch("hlr", &PatchParams::default(), &Patch::Merge(&note)).await?;
    stage.assert_quiet_for(Duration::from_secs(10)).await?;
    // also after a pass that writes all children again
    stage.merge(json!({"spec": {"memory": {"capacity": "3Gi"}}})).await?;
    stage.until_ready().await?;
    let service = services.get("hlr").await?;
    ensure!(service.annotations().get("example.com/note").is_some(), "the annotation is gone");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o07_the_same_status_is_not_written_twice() -> Result<()> {
    let stage = ready("o07", 1).await?;
    stage.settle().await?;
    let (writes, passes) = (stage.metrics.status_writes.get(), stage.metrics.passes.get());
    eventually("more passes", LIMIT, || async {
        Ok((stage.metrics.passes.get() > passes + 5).then_some(()))
    })
    .await?;
    ensure!(stage.metrics.status_writes.get() == writes, "the status was written again");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o10_claim_templates_carry_no_owner() -> Result<()> {
    let stage = ready("o10", 1).await?;
    let set = stage.api::<StatefulSet>().get("hlr").await?;
    for claim in set.spec.volume_claim_templates.context("no claims")? {
        ensure!(claim.metadata.owner_references.is_none(), "a claim template has an owner");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o11_a_refused_child_is_said_and_the_workload_stays() -> Result<()> {
    let stage = ready("o11", 1).await?;
    let before = stage.api::<StatefulSet>().get("hlr").await?;
    let bad = json!([{"key": "k", "operator": "Bogus"}]);
    stage.merge(json!({"spec": {"placement": {"tolerations": bad}}})).await?;
    let group = stage
        .until("ApplyRefused", |group| condition(group, "Degraded").1 == "ApplyRefused")
        .await?;
    let message = condition(&group, "Degraded").2;
    ensure!(message.contains("StatefulSet hlr") && message.contains("tolerations"), "{message}");
    let after = stage.api::<StatefulSet>().get("hlr").await?;
    ensure!(before.metadata.uid == after.metadata.uid, "the workload was replaced");
    ensure!(before.spec.template == after.spec.template, "the workload was changed");
    stage.merge(json!({"spec": {"placement": {"tolerations": null}}})).await?;
    stage.until_ready().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o24_the_operator_never_writes_the_spec() -> Result<()> {
    let stage = ready("o24b", 1).await?;
    let group = stage.group().await?;
    for entry in group.metadata.managed_fields.context("no managed fields")? {
        let ours = entry.manager.as_deref() == Some("cachetier-operator");
        let fields = serde_json::to_string(&entry.fields_v1)?;
        ensure!(!(ours && fields.contains("f:spec")), "the operator owns {fields}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o30_large_numbers_fit_the_status() -> Result<()> {
    let stage = ready("o30", 1).await?;
    stage.nodes.edit("hlr-0", |view| {
        view.instances = u64::MAX;
        view.backlog.transactions = u64::MAX;
        view.backlog.bytes = u64::MAX;
        view.rejects = 3_000_000_000;
    });
    stage
        .until("large numbers", |group| {
            let status = group.status.clone().unwrap_or_default();
            status.rejects == 3_000_000_000
                && status.backlog.is_some_and(|backlog| backlog.bytes == i64::MAX)
        })
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o52_the_observed_generation_follows_every_edit() -> Result<()> {
    let stage = ready("o52", 1).await?;
    let first = stage.group().await?;
    stage.merge(json!({"spec": {"deletion": {"deadline": "11m"}}})).await?;
    let second = stage.until_ready().await?;
    ensure!(second.metadata.generation > first.metadata.generation, "no new generation");
    let set = stage.api::<StatefulSet>();
    let template = set.get("hlr").await?.metadata.generation;
    stage.merge(json!({"spec": {"memory": {"capacity": "3Gi"}}})).await?;
    let third = stage.until_ready().await?;
    ensure!(third.metadata.generation > second.metadata.generation, "no new generation");
    ensure!(set.get("hlr").await?.metadata.generation > template, "the template is the old one");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o62_a_missing_secret_is_named_never_made_and_heals() -> Result<()> {
    let mut stage = Stage::without_operator("o62").await?;
    stage.start_operator().await?;
    stage.apply(&minimal_group(1)).await?;
    let (reason, message) = stage.until_condition("ConfigValid", "False").await?;
    ensure!(reason == "SecretNotFound" && message.contains("hlr-backend"), "{reason}: {message}");
    let secret = stage.api::<Secret>().get_opt("hlr-backend").await?;
    ensure!(secret.is_none(), "the operator made the Secret");
    ensure!(stage.object("StatefulSet", "hlr").await?.is_none(), "pods that cannot start");
    stage.create_secret().await?;
    stage.until_ready().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o66_every_deleted_child_returns() -> Result<()> {
    let stage = ready("o66", 1).await?;
    for (kind, name) in [
        ("Service", "hlr"),
        ("Service", "hlr-nodes"),
        ("ConfigMap", "hlr-config"),
        ("ConfigMap", "hlr-topology"),
        ("PodDisruptionBudget", "hlr"),
        ("ServiceAccount", "hlr-node"),
        ("Secret", "hlr-client-tls"),
        ("StatefulSet", "hlr"),
    ] {
        let api = stage.dynamic(kind)?;
        let uid = api.get(name).await?.metadata.uid;
        api.delete(name, &DeleteParams::background()).await?;
        eventually(&format!("{kind} {name} returns"), LIMIT, || async {
            let found = api.get_opt(name).await?;
            Ok(found.filter(|found| found.metadata.uid != uid))
        })
        .await?;
    }
    let group = stage.until_ready().await?;
    let version = group.status.context("no status")?.topology_version;
    ensure!(version > 1, "the rebuilt record went back to version {version}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o84_a_status_written_by_a_person_is_rebuilt() -> Result<()> {
    let stage = ready("o84", 1).await?;
    let status: Value = json!({
        "apiVersion": "cachetier.dev/v1alpha1", "kind": "CacheGroup",
        "metadata": {"name": "hlr"},
        "status": {"phase": "Stopped", "ready": "9/9", "conditions": []},
    });
    let api = stage.api::<cachetier_api::v1alpha1::CacheGroup>();
    api.patch_status("hlr", &PatchParams::apply("a-person").force(), &Patch::Apply(&status))
        .await?;
    stage
        .until("the true status", |group| {
            group.status.as_ref().is_some_and(|status| status.ready == "1/1")
        })
        .await?;
    stage.settle().await?;
    stage.assert_quiet_for(Duration::from_secs(5)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o85_an_object_of_somebody_else_is_neither_taken_nor_deleted() -> Result<()> {
    let mut stage = Stage::without_operator("o85").await?;
    stage.create_secret().await?;
    let theirs: Service = serde_json::from_value(json!({
        "metadata": {"name": "hlr", "labels": {"theirs": "yes"}},
        "spec": {"ports": [{"port": 1}]},
    }))?;
    let theirs = stage.api::<Service>().create(&PostParams::default(), &theirs).await?;
    stage.start_operator().await?;
    stage.apply(&minimal_group(1)).await?;
    let group =
        stage.until("NameTaken", |group| condition(group, "Degraded").1 == "NameTaken").await?;
    ensure!(condition(&group, "Degraded").2.contains("Service hlr"), "the object is not named");
    let now = stage.api::<Service>().get("hlr").await?;
    ensure!(now.metadata.resource_version == theirs.metadata.resource_version, "it was changed");
    stage.api::<Service>().delete("hlr", &DeleteParams::default()).await?;
    stage.until_ready().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o76_a_restarted_operator_changes_nothing() -> Result<()> {
    let mut stage = ready("o76", 2).await?;
    stage.settle().await?;
    let before = stage.versions().await?;
    stage.kill_operator();
    stage.start_operator().await?;
    let passes = stage.metrics.passes.get();
    eventually("some passes", LIMIT, || async {
        Ok((stage.metrics.passes.get() > passes + 3).then_some(()))
    })
    .await?;
    ensure!(before == stage.versions().await?, "the restart wrote something");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o69_the_operator_makes_its_own_lease_and_hands_it_on() -> Result<()> {
    use k8s_openapi::api::coordination::v1::Lease;
    use operator::lease::Lease as Election;
    use operator::metrics::Metrics;
    use system_tests::operator::network::Network;
    use tokio_util::sync::CancellationToken;
    let stage = Stage::without_operator("o69").await?;
    let network = Network::default();
    let start = |holder: &str, client| {
        let election = Election::new(client, &stage.namespace, holder);
        let (token, metrics) = (CancellationToken::new(), Metrics::default());
        let (stop, gauge) = (token.clone(), metrics.leader.clone());
        let acting = token.clone();
        let task = tokio::spawn(async move {
            election.while_held(&metrics, acting.cancelled_owned(), stop).await
        });
        (token, gauge, task)
    };
    let (first_token, first, first_task) = start("first", stage.client.clone());
    eventually("the first acts", LIMIT, || async { Ok((first.get() == 1).then_some(())) }).await?;
    let leases: Api<Lease> = stage.api();
    let holder = leases.get("cachetier-operator").await?.spec.and_then(|s| s.holder_identity);
    ensure!(holder.as_deref() == Some("first"), "{holder:?}");
    let (_second_token, second, _second_task) = start("second", network.client().await?);
    eventually("the second looks at the lease, and again", LIMIT, || async {
        Ok((network.requests().len() >= 4).then_some(()))
    })
    .await?;
    ensure!(second.get() == 0, "two act at once");
    first_token.cancel();
    first_task.await??;
    eventually("the second acts", LIMIT, || async { Ok((second.get() == 1).then_some(())) }).await
}
