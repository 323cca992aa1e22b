//! Scaling, loading, rolling, stopping and deleting, with scripted nodes.

use anyhow::{Context, Result, ensure};
use cachetier_api::v1alpha1::CacheGroup;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;
use system_tests::local::eventually;
use system_tests::operator::controllers::finish_job;
use system_tests::operator::stage::{LIMIT, condition};
use system_tests::operator::{Stage, minimal_group};

async fn ready(name: &str, replicas: u32) -> Result<Stage> {
    let stage = Stage::start(name).await?;
    stage.apply(&minimal_group(replicas)).await?;
    stage.until_ready().await?;
    Ok(stage)
}

async fn scale(stage: &Stage, replicas: u32) -> Result<()> {
    stage.merge(json!({"spec": {"replicas": replicas}})).await?;
    Ok(())
}

async fn pods_wanted(stage: &Stage) -> Result<i32> {
    Ok(stage.api::<StatefulSet>().get("hlr").await?.spec.replicas.unwrap_or(1))
}

fn is_ready(group: &CacheGroup) -> bool {
    let seen = group.status.as_ref().and_then(|status| status.observed_generation);
    seen == group.metadata.generation && condition(group, "Ready").0 == "True"
}

fn version(group: &CacheGroup) -> i64 {
    group.status.as_ref().map_or(0, |status| status.topology_version)
}

async fn gone(stage: &Stage) -> Result<()> {
    eventually("the group is gone", LIMIT, || async {
        Ok(stage.api::<CacheGroup>().get_opt("hlr").await?.is_none().then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o22_a_scale_goes_on_after_the_operator_is_killed_at_any_step() -> Result<()> {
    let mut stage = ready("o22", 1).await?;
    for target in [3, 1, 2] {
        scale(&stage, target).await?;
        // killed after each write, until there is nothing left to write
        for _ in 0..8 {
            let writes = stage.writes();
            eventually("a write, or the end", LIMIT, || async {
                let done = is_ready(&stage.group().await?);
                Ok((stage.writes() > writes || done).then_some(()))
            })
            .await?;
            stage.kill_operator();
            stage.start_operator().await?;
        }
        let group = stage.until_ready().await?;
        ensure!(pods_wanted(&stage).await? == i32::try_from(target)?, "pods do not follow");
        ensure!(version(&group) > 1, "no new topology");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_taken_away_only_after_their_slots_and_their_writes_are_gone() -> Result<()> {
    let stage = ready("drain", 3).await?;
    stage.nodes.hold_moves("hlr-0", true);
    stage.nodes.edit("hlr-2", |view| view.backlog.transactions = 7);
    scale(&stage, 1).await?;
    stage.until("slots move", |group| version(group) == 2).await?;
    stage.nodes.edit("hlr-2", |view| view.slots_leaving = 5);
    stage.until("said", |group| condition(group, "Progressing").1 == "ScalingIn").await?;
    ensure!(pods_wanted(&stage).await? == 3, "a pod was taken while slots were moving");
    stage.nodes.hold_moves("hlr-0", false);
    stage.nodes.edit("hlr-2", |view| {
        view.slots_leaving = 0;
        view.backlog.transactions = 7;
    });
    stage.several_passes().await?;
    ensure!(pods_wanted(&stage).await? == 3, "a pod was taken with writes waiting in it");
    stage.nodes.edit("hlr-2", |view| view.backlog.transactions = 0);
    stage.until_ready().await?;
    ensure!(pods_wanted(&stage).await? == 1, "pods do not follow");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o15_to_zero_and_back() -> Result<()> {
    let stage = ready("o15", 2).await?;
    stage.nodes.edit("hlr-1", |view| view.backlog.transactions = 3);
    scale(&stage, 0).await?;
    let (_, message) = {
        stage.until("draining", |group| condition(group, "Progressing").1 == "Draining").await?;
        stage.until_condition("DrainSafe", "False").await?
    };
    ensure!(!message.is_empty(), "nothing is said");
    ensure!(stage.nodes.view("hlr-0").writes_stopped, "writes were not stopped");
    ensure!(pods_wanted(&stage).await? == 2, "pods were taken with writes waiting");
    stage.nodes.edit("hlr-1", |view| view.backlog.transactions = 0);
    stage
        .until("stopped", |group| {
            group.status.as_ref().is_some_and(|s| s.replicas == 0 && s.ready == "0/0")
        })
        .await?;
    scale(&stage, 2).await?;
    stage.until_ready().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o19_scale_in_waits_for_a_silent_node_and_says_so() -> Result<()> {
    let stage = ready("o19", 2).await?;
    stage.nodes.silence("hlr-1", true);
    scale(&stage, 1).await?;
    let (reason, message) = stage.until_condition("DrainSafe", "False").await?;
    ensure!(reason == "NodeUnreachable" && message.contains("hlr-1"), "{reason}: {message}");
    ensure!(pods_wanted(&stage).await? == 2, "the silent node's pod was taken");
    stage.nodes.silence("hlr-1", false);
    stage.until_ready().await?;
    ensure!(pods_wanted(&stage).await? == 1, "pods do not follow");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o64_a_failed_load_is_said_and_tried_again() -> Result<()> {
    let stage = Stage::start("o64").await?;
    stage.play(|play| play.complete_jobs = false);
    stage.apply(&minimal_group(1)).await?;
    let jobs = stage.api::<Job>();
    let job = eventually("a Job", LIMIT, || async {
        Ok(jobs.list(&Default::default()).await?.items.pop())
    })
    .await?;
    let (reason, _) = stage.until_condition("Preloaded", "False").await?;
    ensure!(["Loading", "Starting"].contains(&reason.as_str()), "{reason}");
    finish_job(&jobs, &job.name_any(), "Failed", "the backend is away").await?;
    let group =
        stage.until("LoadFailed", |group| condition(group, "Preloaded").1 == "LoadFailed").await?;
    ensure!(condition(&group, "Preloaded").2.contains("the backend is away"), "no cause");
    stage.play(|play| play.complete_jobs = true);
    stage.until_condition("Preloaded", "True").await?;
    let again = jobs.list(&Default::default()).await?.items.pop().context("no second Job")?;
    ensure!(again.metadata.uid != job.metadata.uid, "the failed Job was not replaced");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_node_is_loaded_again() -> Result<()> {
    let stage = ready("reload", 1).await?;
    stage.until_condition("Preloaded", "True").await?;
    stage.play(|play| play.complete_jobs = false);
    let first: Vec<String> = names(&stage).await?;
    stage.nodes.restart("hlr-0");
    stage.until_condition("Preloaded", "False").await?;
    eventually("a second Job", LIMIT, || async {
        let now = names(&stage).await?;
        if now.iter().any(|name| !first.contains(name)) {
            return Ok(Some(()));
        }
        let (node, status) = (stage.nodes.view("hlr-0"), stage.group().await?.status);
        anyhow::bail!("Jobs {now:?}, node {node:?}, status {status:?}")
    })
    .await?;
    stage.play(|play| play.complete_jobs = true);
    stage.until_condition("Preloaded", "True").await?;
    Ok(())
}

async fn names(stage: &Stage) -> Result<Vec<String>> {
    let jobs = stage.api::<Job>().list(&Default::default()).await?;
    Ok(jobs.items.iter().map(ResourceExt::name_any).collect())
}

async fn uids(stage: &Stage) -> Result<BTreeMap<String, String>> {
    let pods = stage.api::<Pod>().list(&Default::default()).await?;
    Ok(pods.items.iter().map(|p| (p.name_any(), p.uid().unwrap_or_default())).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o44_a_changed_template_replaces_pods_one_at_a_time() -> Result<()> {
    let stage = ready("o44", 3).await?;
    let before = uids(&stage).await?;
    stage.nodes.edit("hlr-0", |view| view.backlog.oldest_seconds = 100.0);
    stage.merge(json!({"spec": {"memory": {"capacity": "3Gi"}}})).await?;
    stage.until("rolling", |group| condition(group, "Ready").1 == "RollingUpdate").await?;
    stage.several_passes().await?;
    ensure!(uids(&stage).await? == before, "a pod was replaced while another's queue was long");
    stage.nodes.edit("hlr-0", |view| view.backlog.oldest_seconds = 0.0);
    let last = std::sync::Mutex::new(before.clone());
    eventually("all replaced", LIMIT, || async {
        let now = uids(&stage).await?;
        let known = std::mem::replace(&mut *last.lock().expect("one task"), now.clone());
        let changed = now.iter().filter(|(pod, uid)| known.get(*pod).is_some_and(|k| k != *uid));
        assert!(changed.count() <= 1, "two pods were replaced at once");
        Ok(now.iter().all(|(pod, uid)| before.get(pod) != Some(uid)).then_some(()))
    })
    .await?;
    stage.until_ready().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o38_a_group_that_never_became_ready_goes_at_once() -> Result<()> {
    let mut stage = Stage::without_operator("o38").await?;
    stage.start_operator().await?;
    stage.apply(&minimal_group(1)).await?;
    stage.until_condition("ConfigValid", "False").await?;
    stage.api::<CacheGroup>().delete("hlr", &DeleteParams::default()).await?;
    gone(&stage).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o37_a_deletion_waits_for_the_queue_and_can_be_overridden() -> Result<()> {
    let stage = ready("o37", 2).await?;
    stage.nodes.edit("hlr-1", |view| view.backlog.transactions = 11);
    stage.merge(json!({"spec": {"deletion": {"deadline": "1s"}}})).await?;
    stage.api::<CacheGroup>().delete("hlr", &DeleteParams::default()).await?;
    let group = stage
        .until("deadline", |group| condition(group, "DrainSafe").1 == "DeadlinePassed")
        .await?;
    let message = condition(&group, "DrainSafe").2;
    ensure!(message.contains("11 transactions") && message.contains("Discard"), "{message}");
    ensure!(stage.nodes.view("hlr-0").writes_stopped, "writes were not stopped");
    ensure!(stage.api::<StatefulSet>().get_opt("hlr").await?.is_some(), "the pods are gone");
    stage.merge(json!({"spec": {"deletion": {"policy": "Discard"}}})).await?;
    gone(&stage).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_ends_when_the_queue_is_empty_and_ends_the_bookkeeping() -> Result<()> {
    let stage = ready("delete", 2).await?;
    stage.nodes.edit("hlr-1", |view| view.backlog.transactions = 11);
    stage.api::<CacheGroup>().delete("hlr", &DeleteParams::default()).await?;
    stage.until("deleting", |group| condition(group, "DrainSafe").1 == "Draining").await?;
    stage.nodes.edit("hlr-1", |view| view.backlog.transactions = 0);
    gone(&stage).await?;
    ensure!(stage.nodes.group_ended(), "no node was told that the group ends");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_took_writes_since_it_was_asked_holds_the_deletion_up() -> Result<()> {
    let stage = ready("delete-again", 2).await?;
    stage.nodes.restart_at_end("hlr-1", 7);
    stage.api::<CacheGroup>().delete("hlr", &DeleteParams::default()).await?;
    let group = stage
        .until("held", |group| condition(group, "DrainSafe").2.contains("7 transactions"))
        .await?;
    ensure!(condition(&group, "DrainSafe").0 == "False", "deleted over a full journal");
    stage.nodes.edit("hlr-1", |view| view.backlog.transactions = 0);
    gone(&stage).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o39_finalizers_of_others_are_kept_and_ours_is_there_once() -> Result<()> {
    let stage = Stage::start("o39").await?;
    let mut group = minimal_group(1);
    group["metadata"]["finalizers"] = json!(["example.com/theirs"]);
    stage.apply(&group).await?;
    let group = stage.until_ready().await?;
    let finalizers = group.metadata.finalizers.clone().unwrap_or_default();
    ensure!(finalizers.len() == 2, "{finalizers:?}");
    stage.api::<CacheGroup>().delete("hlr", &DeleteParams::default()).await?;
    stage
        .until("ours is gone", |group| {
            group.metadata.finalizers.as_deref() == Some(&["example.com/theirs".to_owned()])
        })
        .await?;
    stage.merge(json!({"metadata": {"finalizers": null}})).await.ok();
    gone(&stage).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o33_groups_can_be_edited_while_the_operator_is_away() -> Result<()> {
    let mut stage = ready("o33", 1).await?;
    stage.kill_operator();
    scale(&stage, 2).await?;
    stage.api::<CacheGroup>().delete("hlr", &DeleteParams::default()).await?;
    ensure!(stage.group().await?.metadata.deletion_timestamp.is_some(), "not even marked");
    stage.start_operator().await?;
    gone(&stage).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_group_is_left_alone_and_still_reported() -> Result<()> {
    let stage = ready("paused", 1).await?;
    stage.merge(json!({"spec": {"paused": true, "replicas": 3}})).await?;
    stage.until_condition("Paused", "True").await?;
    stage.several_passes().await?;
    ensure!(pods_wanted(&stage).await? == 1, "a paused group was scaled");
    stage.merge(json!({"spec": {"paused": false}})).await?;
    stage.until_ready().await?;
    ensure!(pods_wanted(&stage).await? == 3, "pods do not follow");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_group_that_is_made_again_takes_its_volumes_up() -> Result<()> {
    let stage = ready("again", 2).await?;
    let first = stage.group().await?.metadata.uid;
    stage.api::<CacheGroup>().delete("hlr", &DeleteParams::default()).await?;
    gone(&stage).await?;
    stage.collect_garbage().await?;
    let claims = stage.api::<PersistentVolumeClaim>();
    let left = claims.get("journal-hlr-1").await?;
    ensure!(left.annotations().get("cachetier.dev/drained").is_some(), "{:?}", left.metadata);
    stage.apply(&minimal_group(2)).await?;
    let second = stage.until_ready().await?.metadata.uid;
    let taken = claims.get("journal-hlr-1").await?;
    ensure!(taken.metadata.uid == left.metadata.uid, "the claim was made again");
    ensure!(
        taken.annotations().get("cachetier.dev/drained").is_none(),
        "it still counts as drained"
    );
    let incarnation = taken.labels().get("cachetier.dev/group-uid").cloned();
    ensure!(incarnation == second && incarnation != first, "{incarnation:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_made_again_does_not_bury_writes_that_were_given_up_by_force() -> Result<()> {
    let mut stage = ready("buried", 1).await?;
    stage.kill_operator();
    stage.merge(json!({"metadata": {"finalizers": null}})).await?;
    stage.api::<CacheGroup>().delete("hlr", &DeleteParams::default()).await?;
    gone(&stage).await?;
    stage.collect_garbage().await?;
    stage.start_operator().await?;
    stage.apply(&minimal_group(1)).await?;
    let group =
        stage.until("said", |group| condition(group, "Ready").1 == "VolumeOfEarlierGroup").await?;
    ensure!(condition(&group, "Ready").2.contains("journal-hlr-0"), "the claim is not named");
    ensure!(stage.object("StatefulSet", "hlr").await?.is_none(), "pods on foreign writes");
    let give_up = json!({"metadata": {"annotations": {"cachetier.dev/drained": "true"}}});
    let claims = stage.api::<PersistentVolumeClaim>();
    claims.patch("journal-hlr-0", &PatchParams::default(), &Patch::Merge(&give_up)).await?;
    stage.until_ready().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o17_claims_of_nodes_that_left_stay_and_are_used_again() -> Result<()> {
    let stage = ready("o17", 3).await?;
    let claims = stage.api::<PersistentVolumeClaim>();
    let before = claims.get("journal-hlr-2").await?.metadata.uid;
    scale(&stage, 1).await?;
    stage.until_ready().await?;
    stage.merge(json!({"spec": {"memory": {"capacity": "3Gi"}}})).await?;
    stage.until_ready().await?;
    scale(&stage, 3).await?;
    stage.until_ready().await?;
    ensure!(claims.get("journal-hlr-2").await?.metadata.uid == before, "a claim was replaced");
    let set = stage.api::<StatefulSet>().get("hlr").await?;
    let policy = set.spec.persistent_volume_claim_retention_policy.context("no policy")?;
    ensure!(policy.when_scaled.as_deref() == Some("Retain"), "{policy:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o18_volumes_outlive_the_drain_also_when_they_go_with_the_pod() -> Result<()> {
    let stage = ready("o18", 2).await?;
    stage.merge(json!({"spec": {"journal": {"volume": {"retention": "Delete"}}}})).await?;
    stage.until_ready().await?;
    let set = stage.api::<StatefulSet>().get("hlr").await?;
    let policy = set.spec.persistent_volume_claim_retention_policy.context("no policy")?;
    ensure!(policy.when_scaled.as_deref() == Some("Delete"), "{policy:?}");
    stage.nodes.edit("hlr-1", |view| view.backlog.transactions = 4);
    scale(&stage, 1).await?;
    stage.until("slots moved", |group| version(group) == 2).await?;
    stage.several_passes().await?;
    ensure!(pods_wanted(&stage).await? == 2, "the pod, and its volume, went before the drain");
    stage.nodes.edit("hlr-1", |view| view.backlog.transactions = 0);
    stage.until_ready().await?;
    ensure!(pods_wanted(&stage).await? == 1, "pods do not follow");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o23_an_autoscaler_finds_the_pods_by_the_scale_s_selector() -> Result<()> {
    let stage = ready("o23", 2).await?;
    let scale = stage.api::<CacheGroup>().get_scale("hlr").await?;
    let status = scale.status.context("no status")?;
    let selector = status.selector.context("no selector")?;
    ensure!(status.replicas == 2, "{} replicas", status.replicas);
    let pods = stage.api::<Pod>().list(&ListParams::default().labels(&selector)).await?;
    ensure!(pods.items.len() == 2, "{selector} selects {} pods", pods.items.len());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o25_a_slow_drain_of_one_group_does_not_hold_up_another() -> Result<()> {
    let stage = ready("o25", 2).await?;
    stage.nodes.hold_moves("hlr-0", true);
    scale(&stage, 1).await?;
    stage.until("scaling", |group| condition(group, "Progressing").1 == "ScalingIn").await?;
    let mut other = minimal_group(2);
    other["metadata"]["name"] = json!("other");
    stage.apply(&other).await?;
    eventually("the other group is ready", LIMIT, || async {
        let group = stage.api::<CacheGroup>().get("other").await?;
        Ok((condition(&group, "Ready").0 == "True").then_some(()))
    })
    .await?;
    ensure!(pods_wanted(&stage).await? == 2, "the slow one was not slow");
    stage.nodes.hold_moves("hlr-0", false);
    stage.until_ready().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o47_a_node_that_is_slow_once_leaves_no_mark() -> Result<()> {
    let stage = ready("o47", 2).await?;
    stage.nodes.silence("hlr-1", true);
    stage.until_condition("Degraded", "True").await?;
    stage.nodes.silence("hlr-1", false);
    let clear = std::time::Instant::now();
    stage.until_condition("Degraded", "False").await?;
    ensure!(clear.elapsed() < Duration::from_secs(30), "it took {:?}", clear.elapsed());
    stage.until_ready().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o49_an_upgraded_operator_keeps_pods_or_replaces_them_one_at_a_time() -> Result<()> {
    let mut stage = ready("o49", 2).await?;
    stage.until_condition("Preloaded", "True").await?;
    let before = uids(&stage).await?;
    stage.kill_operator();
    stage.start_operator().await?;
    let passes = stage.metrics.passes.get();
    eventually("some passes", LIMIT, || async {
        Ok((stage.metrics.passes.get() > passes + 4).then_some(()))
    })
    .await?;
    ensure!(uids(&stage).await? == before, "the same template replaced pods");
    stage.kill_operator();
    stage.image = "cachetier.dev/cachetier:next".to_owned();
    stage.nodes.edit("hlr-0", |view| view.backlog.oldest_seconds = 100.0);
    stage.start_operator().await?;
    stage.until("announced", |group| condition(group, "Ready").1 == "RollingUpdate").await?;
    ensure!(uids(&stage).await? == before, "pods were replaced while a queue was long");
    stage.nodes.edit("hlr-0", |view| view.backlog.oldest_seconds = 0.0);
    stage.until_ready().await?;
    let after = uids(&stage).await?;
    ensure!(before.iter().all(|(pod, uid)| after.get(pod) != Some(uid)), "not all were replaced");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o68_a_deleted_pod_is_noticed_by_its_event_not_by_a_timer() -> Result<()> {
    let mut stage = Stage::without_operator("o68").await?;
    stage.create_secret().await?;
    stage.poll = Duration::from_secs(600);
    stage.start_operator().await?;
    stage.apply(&minimal_group(2)).await?;
    stage.until_ready().await?;
    stage.until_condition("Preloaded", "True").await?;
    stage.settle().await?;
    let passes = stage.metrics.passes.get();
    stage.api::<Pod>().delete("hlr-1", &DeleteParams::default()).await?;
    eventually("a pass", Duration::from_secs(10), || async {
        Ok((stage.metrics.passes.get() > passes).then_some(()))
    })
    .await
}
