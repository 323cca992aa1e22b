//! Slow, cut and crowded ways to the API server; upgrades; nodes that hang.

use anyhow::{Context, Result, ensure};
use cachetier_api::v1alpha1::CacheGroup;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease as LeaseObject;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use operator::lease::Lease;
use operator::metrics::Metrics;
use serde_json::json;
use std::time::Duration;
use system_tests::local::eventually;
use system_tests::operator::stage::{LIMIT, condition};
use system_tests::operator::{Network, Stage, minimal_group};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

async fn ready(name: &str, replicas: u32) -> Result<Stage> {
    let stage = Stage::start(name).await?;
    stage.apply(&minimal_group(replicas)).await?;
    stage.until_ready().await?;
    Ok(stage)
}

async fn gone(stage: &Stage) -> Result<()> {
    eventually("the group is gone", LIMIT, || async {
        Ok(stage.api::<CacheGroup>().get_opt("hlr").await?.is_none().then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o04_passes_that_take_seconds_do_not_loop() -> Result<()> {
    let stage = ready("o04", 1).await?;
    stage.settle().await?;
    stage.network.slow_down(Duration::from_millis(150));
    stage.merge(json!({"spec": {"memory": {"capacity": "3Gi"}}})).await?;
    stage.until_ready().await?;
    eventually("the slow passes settle", LIMIT, || async {
        stage.assert_quiet_for(Duration::from_secs(8)).await?;
        Ok(Some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o06_children_of_an_older_format_are_written_once() -> Result<()> {
    let mut stage = ready("o06", 1).await?;
    stage.settle().await?;
    stage.kill_operator();
    for name in ["hlr", "hlr-nodes"] {
        let old = json!({"metadata": {"labels": {"app.kubernetes.io/instance": null}}});
        stage.api::<Service>().patch(name, &PatchParams::default(), &Patch::Merge(&old)).await?;
    }
    let before = stage.versions().await?;
    stage.start_operator().await?;
    eventually("relabelled", LIMIT, || async {
        let service = stage.api::<Service>().get("hlr-nodes").await?;
        Ok(service.labels().get("app.kubernetes.io/instance").map(drop))
    })
    .await?;
    stage.settle().await?;
    let after = stage.versions().await?;
    let changed = after.iter().filter(|(key, value)| before.get(*key) != Some(value)).count();
    ensure!(changed == 2, "{changed} objects were written");
    stage.assert_quiet_for(Duration::from_secs(5)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o09_claim_templates_of_an_older_operator_are_left_as_they_are() -> Result<()> {
    let mut stage = ready("o09", 1).await?;
    stage.kill_operator();
    let sets = stage.api::<StatefulSet>();
    let mut old = sets.get("hlr").await?;
    sets.delete("hlr", &DeleteParams::orphan()).await?;
    let drop_finalizers = json!({"metadata": {"finalizers": null}});
    sets.patch("hlr", &PatchParams::default(), &Patch::Merge(&drop_finalizers)).await.ok();
    eventually("the set is gone", LIMIT, || async {
        Ok(sets.get_opt("hlr").await?.is_none().then_some(()))
    })
    .await?;
    old.metadata.uid = None;
    old.metadata.resource_version = None;
    old.metadata.managed_fields = None;
    old.status = None;
    let claims = old.spec.volume_claim_templates.as_mut().context("no claim templates")?;
    claims[0].metadata.labels = Some([("format".to_owned(), "old".to_owned())].into());
    let old = sets.create(&PostParams::default(), &old).await?;
    stage.start_operator().await?;
    stage.merge(json!({"spec": {"memory": {"capacity": "3Gi"}}})).await?;
    stage.until_ready().await?;
    let now = sets.get("hlr").await?;
    ensure!(now.metadata.uid == old.metadata.uid, "the StatefulSet was made again");
    ensure!(now.spec.volume_claim_templates == old.spec.volume_claim_templates, "not frozen");
    ensure!(now.spec.template != old.spec.template, "the edit did not arrive");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o12_a_set_on_its_way_out_is_waited_for_and_made_once() -> Result<()> {
    let stage = ready("o12", 1).await?;
    let sets = stage.api::<StatefulSet>();
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    let held = sets.patch("hlr", &PatchParams::default(), &Patch::Merge(&hold)).await?;
    sets.delete("hlr", &DeleteParams::background()).await?;
    let passes = stage.metrics.passes.get();
    eventually("some passes", LIMIT, || async {
        Ok((stage.metrics.passes.get() > passes + 3).then_some(()))
    })
    .await?;
    ensure!(sets.get("hlr").await?.metadata.uid == held.metadata.uid, "it is another one");
    let release = json!({"metadata": {"finalizers": null}});
    sets.patch("hlr", &PatchParams::default(), &Patch::Merge(&release)).await?;
    stage.until_ready().await?;
    ensure!(sets.get("hlr").await?.metadata.uid != held.metadata.uid, "it never went");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o16_a_running_load_does_not_hold_up_a_stop() -> Result<()> {
    let stage = Stage::start("o16").await?;
    stage.play(|play| play.complete_jobs = false);
    stage.apply(&minimal_group(1)).await?;
    stage.until("loading", |group| condition(group, "Preloaded").1 == "Loading").await?;
    stage.merge(json!({"spec": {"replicas": 0}})).await?;
    let group = stage
        .until("stopped", |group| {
            group.status.as_ref().is_some_and(|s| s.replicas == 0 && s.ready == "0/0")
                && condition(group, "Ready").0 == "True"
        })
        .await?;
    ensure!(condition(&group, "Degraded").0 == "False", "{:?}", group.status);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o20_an_order_to_drain_that_fails_is_given_again() -> Result<()> {
    let stage = ready("o20", 2).await?;
    stage.nodes.refuse_drains("hlr-1", 2);
    stage.merge(json!({"spec": {"replicas": 0}})).await?;
    stage.until("stopped", |group| group.status.as_ref().is_some_and(|s| s.replicas == 0)).await?;
    ensure!(stage.nodes.view("hlr-1").writes_stopped, "the pod went without being drained");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o40_a_foreground_deletion_takes_only_our_finalizer() -> Result<()> {
    let stage = ready("o40", 1).await?;
    stage.api::<CacheGroup>().delete("hlr", &DeleteParams::foreground()).await?;
    let group = stage
        .until("ours is gone", |group| {
            !group.finalizers().iter().any(|finalizer| finalizer.starts_with("cachetier.dev/"))
        })
        .await?;
    ensure!(group.finalizers() == ["foregroundDeletion"], "{:?}", group.finalizers());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o50_a_rollout_restart_replaces_every_pod_by_our_rules() -> Result<()> {
    let stage = ready("o50", 2).await?;
    let pods = stage.api::<Pod>();
    let before: Vec<Option<String>> =
        pods.list(&Default::default()).await?.iter().map(ResourceExt::uid).collect();
    let restart = json!({"spec": {"template": {"metadata": {"annotations": {
        "kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z",
    }}}}});
    let sets = stage.api::<StatefulSet>();
    sets.patch("hlr", &PatchParams::default(), &Patch::Merge(&restart)).await?;
    eventually("all pods are new", LIMIT, || async {
        let now = pods.list(&Default::default()).await?;
        let new = now.iter().all(|pod| !before.contains(&pod.uid()));
        Ok((new && now.items.len() == 2).then_some(()))
    })
    .await?;
    stage.until_ready().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o67_a_field_that_is_dropped_from_the_spec_goes_from_the_children() -> Result<()> {
    let stage = ready("o67", 1).await?;
    let selector = json!({"spec": {"placement": {"nodeSelector": {"example.com/k": "v"}}}});
    stage.merge(selector).await?;
    let of = |set: StatefulSet| set.spec.template.spec.and_then(|spec| spec.node_selector);
    let sets = stage.api::<StatefulSet>();
    eventually("the selector arrives", LIMIT, || async { Ok(of(sets.get("hlr").await?)) }).await?;
    stage.merge(json!({"spec": {"placement": {"nodeSelector": null}}})).await?;
    eventually("the selector goes", LIMIT, || async {
        Ok(of(sets.get("hlr").await?).is_none().then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o72_create_delete_restart_again_and_again() -> Result<()> {
    let mut stage = Stage::start("o72").await?;
    for round in 0..4 {
        stage.apply(&minimal_group(1)).await?;
        if round % 2 == 0 {
            stage.until_ready().await?;
        }
        stage.api::<CacheGroup>().delete("hlr", &DeleteParams::default()).await?;
        stage.kill_operator();
        stage.start_operator().await?;
        gone(&stage).await?;
        stage.collect_garbage().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o74_an_operator_of_one_namespace_lists_nothing_else() -> Result<()> {
    let stage = ready("o74", 1).await?;
    let inside = format!("/namespaces/{}", stage.namespace);
    let allowed = |path: &str| {
        path.contains(&inside)
            || path.contains("/storageclasses/")
            || path.contains("/api/v1/nodes/")
    };
    for request in stage.network.requests() {
        ensure!(allowed(&request), "outside of the namespace: {request}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o73_foreign_secrets_are_watched_by_nobody() -> Result<()> {
    let stage = ready("o73", 1).await?;
    let secrets = format!("/api/v1/namespaces/{}/secrets", stage.namespace);
    let listed = stage.network.requests().iter().any(|request| request.ends_with(&secrets));
    ensure!(listed, "our own Secrets are not watched");
    // whatever is listed is restricted to our label: an unlabelled Secret makes no pass
    stage.settle().await?;
    let reads = |name: &str| {
        let path = format!("{secrets}/{name}");
        stage.network.requests().iter().filter(|request| request.ends_with(&path)).count()
    };
    let foreign = json!({"metadata": {"name": "foreign"}, "stringData": {"k": "v"}});
    let foreign: k8s_openapi::api::core::v1::Secret = serde_json::from_value(foreign)?;
    stage.api().create(&PostParams::default(), &foreign).await?;
    stage.settle().await?;
    ensure!(reads("foreign") == 0, "a foreign Secret was read");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o77_a_restart_during_a_node_failure_resets_nothing() -> Result<()> {
    let mut stage = ready("o77", 2).await?;
    stage.settle().await?;
    stage.nodes.silence("hlr-1", true);
    stage.until("said", |group| condition(group, "Degraded").1 == "NodeUnreachable").await?;
    let pods = stage.api::<Pod>();
    let uids = |list: Vec<Pod>| list.iter().map(ResourceExt::uid).collect::<Vec<_>>();
    let before = uids(pods.list(&Default::default()).await?.items);
    let version = stage.group().await?.status.context("no status")?.topology_version;
    stage.kill_operator();
    stage.start_operator().await?;
    let passes = stage.metrics.passes.get();
    eventually("some passes", LIMIT, || async {
        Ok((stage.metrics.passes.get() > passes + 5).then_some(()))
    })
    .await?;
    ensure!(uids(pods.list(&Default::default()).await?.items) == before, "a pod was replaced");
    let now = stage.group().await?.status.context("no status")?.topology_version;
    ensure!(now == version, "slots were given away");
    stage.nodes.silence("hlr-1", false);
    stage.until_ready().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o78_a_hanging_node_does_not_hold_up_the_next_change() -> Result<()> {
    let stage = ready("o78", 2).await?;
    stage.nodes.hang("hlr-0", true);
    stage.until("said", |group| condition(group, "Degraded").1 == "NodeUnreachable").await?;
    stage.merge(json!({"spec": {"deletion": {"deadline": "7m"}}})).await?;
    stage
        .until("the new generation", |group| {
            group.status.as_ref().and_then(|s| s.observed_generation) == group.metadata.generation
        })
        .await?;
    stage.nodes.hang("hlr-0", false);
    stage.until_ready().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o83_a_server_that_refuses_for_a_while_is_not_stormed() -> Result<()> {
    let stage = ready("o83", 1).await?;
    stage.settle().await?;
    stage.network.cut(true);
    let start = stage.network.requests().len();
    // a window: how little happens in it is what is measured
    tokio::time::sleep(Duration::from_secs(12)).await;
    let refused = stage.network.requests().len() - start;
    ensure!(refused < 300, "{refused} requests in 12 s against a server that refuses");
    stage.network.cut(false);
    stage.merge(json!({"spec": {"memory": {"capacity": "3Gi"}}})).await?;
    stage.until_ready().await?;
    Ok(())
}

/// One replica that takes part in the election.
struct Replica {
    network: Network,
    metrics: Metrics,
    token: CancellationToken,
    task: JoinHandle<Result<(), operator::lease::LeaseError>>,
}

impl Replica {
    async fn start(stage: &Stage, name: &str) -> Result<Self> {
        let network = Network::default();
        let lease = Lease::new(network.client().await?, &stage.namespace, name);
        let (token, metrics) = (CancellationToken::new(), Metrics::default());
        let (gauge, acting, stop) = (metrics.clone(), token.clone(), token.clone());
        let task =
            tokio::spawn(
                async move { lease.while_held(&gauge, acting.cancelled_owned(), stop).await },
            );
        Ok(Self { network, metrics, token, task })
    }

    fn acts(&self) -> bool {
        self.metrics.leader.get() == 1
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.token.cancel();
        self.task.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o70_a_leader_that_cannot_renew_stops_before_another_begins() -> Result<()> {
    let stage = Stage::without_operator("o70").await?;
    let first = Replica::start(&stage, "first").await?;
    eventually("the first acts", LIMIT, || async { Ok(first.acts().then_some(())) }).await?;
    let second = Replica::start(&stage, "second").await?;
    first.network.cut(true);
    eventually("the second acts", LIMIT, || async {
        ensure!(!(first.acts() && second.acts()), "two act at once");
        Ok(second.acts().then_some(()))
    })
    .await?;
    ensure!(!first.acts(), "two act at once");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o80_a_slow_server_does_not_cost_the_lead() -> Result<()> {
    let stage = Stage::without_operator("o80").await?;
    let first = Replica::start(&stage, "first").await?;
    eventually("the first acts", LIMIT, || async { Ok(first.acts().then_some(())) }).await?;
    let second = Replica::start(&stage, "second").await?;
    first.network.slow_down(Duration::from_secs(2));
    let end = tokio::time::Instant::now() + Duration::from_secs(25);
    while tokio::time::Instant::now() < end {
        ensure!(first.acts() && !second.acts(), "the lead went");
        // a window, longer than a term: nothing must change in it
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o82_clocks_of_replicas_are_never_compared() -> Result<()> {
    let stage = Stage::without_operator("o82").await?;
    let leases = stage.api::<LeaseObject>();
    // a holder whose clock is far behind, and alive: its times say that the term ended long ago
    let lease = |second: u32| {
        json!({
            "metadata": {"name": "cachetier-operator"},
            "spec": {
                "holderIdentity": "far-away", "leaseDurationSeconds": 30,
                "renewTime": format!("2020-01-01T00:00:{second:02}.000000Z"),
            },
        })
    };
    let object: LeaseObject = serde_json::from_value(lease(0))?;
    leases.create(&PostParams::default(), &object).await?;
    let standby = Replica::start(&stage, "standby").await?;
    for second in 1..10 {
        // the holder's own rhythm; all renewals together take longer than its term
        tokio::time::sleep(Duration::from_secs(4)).await;
        let renewed = json!({"spec": lease(second)["spec"]});
        leases
            .patch("cachetier-operator", &PatchParams::default(), &Patch::Merge(&renewed))
            .await?;
        ensure!(!standby.acts(), "a living holder was pushed aside");
    }
    eventually("the standby acts when renewals end", LIMIT, || async {
        Ok(standby.acts().then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o71_after_both_replicas_were_cut_off_exactly_one_acts() -> Result<()> {
    let stage = Stage::without_operator("o71").await?;
    let first = Replica::start(&stage, "first").await?;
    eventually("the first acts", LIMIT, || async { Ok(first.acts().then_some(())) }).await?;
    let second = Replica::start(&stage, "second").await?;
    first.network.cut(true);
    second.network.cut(true);
    eventually("nobody acts", LIMIT, || async {
        Ok((!first.acts() && !second.acts()).then_some(()))
    })
    .await?;
    // the one that lost the lease ends, and its pod starts again
    drop(first);
    let first = Replica::start(&stage, "first").await?;
    second.network.cut(false);
    let end = tokio::time::Instant::now() + Duration::from_secs(15);
    eventually("one acts", LIMIT, || async { Ok((first.acts() || second.acts()).then_some(())) })
        .await?;
    while tokio::time::Instant::now() < end {
        ensure!(first.acts() != second.acts(), "not exactly one acts");
        // a window: nothing must change in it
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o79_a_standby_answers_its_probes_and_goes_on() -> Result<()> {
    let stage = Stage::without_operator("o79").await?;
    let program = std::env::var_os("CACHETIER_BIN_DIR")
        .map(|directory| std::path::PathBuf::from(directory).join("operator"))
        .context("CACHETIER_BIN_DIR is not set; run by `cargo xtask test --level operator`")?;
    let mut replicas = Vec::new();
    for (name, port) in [("one", 27_391), ("two", 27_392)] {
        let child = tokio::process::Command::new(&program)
            .args(["run", "--namespace", &stage.namespace])
            .args(["--lease-namespace", &stage.namespace, "--replica-name", name])
            .args(["--admin-listen", &format!("127.0.0.1:{port}"), "--log-filter", "error"])
            .kill_on_drop(true)
            .spawn()?;
        replicas.push((child, port));
    }
    let leaders = || async {
        let mut leaders = 0;
        for (_, port) in [("one", 27_391), ("two", 27_392)] {
            let ready = http_get(port, "/readyz").await?;
            ensure!(ready.starts_with("HTTP/1.1 200"), "{port}: {ready}");
            let metrics = http_get(port, "/metrics").await?;
            leaders += u32::from(metrics.contains("\ncachetier_operator_leader 1\n"));
        }
        Ok((leaders == 1).then_some(()))
    };
    eventually("one leads and both are ready", LIMIT, leaders).await?;
    let leases = stage.api::<LeaseObject>();
    let renewed = || async {
        let lease = leases.get("cachetier-operator").await?;
        anyhow::Ok(lease.metadata.resource_version)
    };
    let before = renewed().await?;
    eventually("the lease is renewed", LIMIT, || async {
        Ok((renewed().await? != before).then_some(()))
    })
    .await?;
    eventually("still", LIMIT, leaders).await?;
    for (child, _) in &mut replicas {
        ensure!(child.try_wait()?.is_none(), "a replica ended");
    }
    Ok(())
}

async fn http_get(port: u16, path: &str) -> Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
