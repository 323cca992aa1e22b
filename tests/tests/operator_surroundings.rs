//! What surrounds a group and is not its own: namespaces, hosts, Secrets, versions of the server.

#![allow(clippy::indexing_slicing, reason = "a field that is missing fails the test")]

use anyhow::{Context, Result, ensure};
use cachetier_api::crd;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use system_tests::local::eventually;
use system_tests::operator::stage::{LIMIT, condition};
use system_tests::operator::{Stage, minimal_group};

async fn ready(name: &str, replicas: u32) -> Result<Stage> {
    let stage = Stage::start(name).await?;
    stage.apply(&minimal_group(replicas)).await?;
    stage.until_ready().await?;
    Ok(stage)
}

async fn uids(stage: &Stage) -> Result<BTreeMap<String, String>> {
    let pods = stage.api::<Pod>().list(&Default::default()).await?;
    Ok(pods.items.iter().map(|p| (p.name_any(), p.uid().unwrap_or_default())).collect())
}

async fn patch_pod(stage: &Stage, name: &str, patch: Value) -> Result<()> {
    let pods = stage.api::<Pod>();
    let status = patch.get("status").is_some();
    let (parameters, patch) = (PatchParams::default(), Patch::Merge(&patch));
    match status {
        true => pods.patch_status(name, &parameters, &patch).await?,
        false => pods.patch(name, &parameters, &patch).await?,
    };
    Ok(())
}

/// The Secret once it holds another certificate than `old`, of the same authority.
async fn issued_after(stage: &Stage, name: &str, old: &Secret) -> Result<Secret> {
    let text = |secret: &Secret, key: &str| {
        secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.clone())
    };
    eventually("a new certificate", LIMIT, || async {
        let Some(now) = stage.api::<Secret>().get_opt(name).await? else { return Ok(None) };
        let new = text(&now, "tls.crt");
        let issued = new.as_ref().is_some_and(|pem| pem.starts_with(b"-----BEGIN"));
        ensure!(text(&now, "ca.crt") == text(old, "ca.crt"), "another authority");
        Ok((issued && new != text(old, "tls.crt")).then_some(now))
    })
    .await
}

/// Certificates are renewed where they are: nothing that refers to them changes, and nothing is
/// immutable that would have to be replaced under another name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o14_certificates_are_renewed_in_place_and_no_pod_is_replaced() -> Result<()> {
    let stage = ready("o14", 2).await?;
    let (pods, secrets) = (uids(&stage).await?, stage.api::<Secret>());
    let template = |set: StatefulSet| set.spec.template;
    let before = template(stage.api::<StatefulSet>().get("hlr").await?);
    let authority = secrets.get("hlr-ca").await.ok().map(|secret| secret.data);
    for name in ["hlr-node-tls", "hlr-client-tls"] {
        let old = secrets.get(name).await?;
        ensure!(old.immutable != Some(true), "{name} is immutable");
        let rotate = json!({"stringData": {"tls.crt": "none", "tls.key": "none"}});
        // once: a pass that has read the old one must not put it back
        secrets.patch(name, &PatchParams::default(), &Patch::Merge(&rotate)).await?;
        let new = issued_after(&stage, name, &old).await?;
        ensure!(new.metadata.uid == old.metadata.uid, "{name} was made again");
        secrets.delete(name, &DeleteParams::default()).await?;
        let again = issued_after(&stage, name, &new).await?;
        ensure!(again.metadata.uid != old.metadata.uid, "{name} was not deleted");
    }
    stage.settle().await?;
    ensure!(authority == secrets.get("hlr-ca").await.ok().map(|secret| secret.data));
    ensure!(template(stage.api::<StatefulSet>().get("hlr").await?) == before, "pods are rolled");
    ensure!(uids(&stage).await? == pods, "a pod was replaced");
    Ok(())
}

/// The newest server checks every rule strictly; the oldest one knows every function that they use,
/// and the chart renders for both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o32_the_definition_and_the_chart_suit_the_oldest_and_the_newest_server() -> Result<()> {
    let stage = Stage::without_operator("o32").await?;
    let definition = crd::cache_group();
    let definitions: Api<CustomResourceDefinition> = Api::all(stage.client.clone());
    let strict = PatchParams::apply("tests").force().dry_run().validation_strict();
    let name = definition.name_any();
    definitions.patch(&name, &strict, &Patch::Apply(&definition)).await?;
    // macros and libraries of a 1.30 server; quantity came with 1.29
    let known: BTreeSet<&str> =
        ["has", "all", "exists", "filter", "size", "matches", "duration", "quantity", "string"]
            .into_iter()
            .chain(["compareTo", "isQuantity", "isGreaterThan", "isLessThan", "map", "startsWith"])
            .chain(["contains", "exists_one", "int", "add"])
            .collect();
    let mut rules = Vec::new();
    collect_rules(&serde_json::to_value(&definition)?, &mut rules);
    ensure!(rules.len() > 20, "only {} rules were found", rules.len());
    for rule in &rules {
        for function in functions(rule) {
            ensure!(known.contains(function), "{function} of {rule:?} is not known to 1.30");
        }
    }
    let chart = std::env::var("CACHETIER_CHART").context("CACHETIER_CHART is not set")?;
    let helm = std::env::var("CACHETIER_HELM").context("CACHETIER_HELM is not set")?;
    for version in ["1.30.0", "1.36.3"] {
        let output = Command::new(&helm)
            .args(["template", "x", &chart, "--kube-version", version])
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{version}: {said}");
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(text.contains("kind: CustomResourceDefinition"), "{version}: no definition");
    }
    let too_old =
        Command::new(&helm).args(["template", "x", &chart, "--kube-version", "1.29.9"]).output()?;
    ensure!(!too_old.status.success(), "an older server is not refused");
    Ok(())
}

/// What a chart of these settings says: its objects, or why there are none.
fn rendered(settings: &[&str]) -> Result<(bool, String)> {
    let chart = std::env::var("CACHETIER_CHART").context("CACHETIER_CHART is not set")?;
    let helm = std::env::var("CACHETIER_HELM").context("CACHETIER_HELM is not set")?;
    let mut command = Command::new(helm);
    command.args(["template", "x", &chart, "--kube-version", "1.30.0"]);
    command.args(["--api-versions", "monitoring.coreos.com/v1"]);
    settings.iter().for_each(|setting| {
        command.args(["--set", setting]);
    });
    let output = command.output()?;
    let fine = output.status.success();
    let text = if fine { output.stdout } else { output.stderr };
    Ok((fine, String::from_utf8_lossy(&text).into_owned()))
}

#[tokio::test]
async fn parts_of_the_chart_may_be_left_out_and_blanks_are_refused_by_the_setting() -> Result<()> {
    for part in ["monitoring", "log", "crds", "resources", "podAnnotations", "log.format"] {
        let (fine, text) = rendered(&[&format!("{part}=null")])?;
        ensure!(fine && text.contains("kind: Deployment"), "{part}: {text}");
        ensure!(text.contains("helm.sh/resource-policy"), "{part}: groups would go with the chart");
        ensure!(text.contains("CACHETIER_LOG, value: \"info"), "{part}: no log filter");
    }
    let (fine, text) = rendered(&["monitoring=null"])?;
    ensure!(fine && !text.contains("PodMonitor"), "{text}");
    for (setting, named) in [
        ("image=null", "image"),
        ("image.tag=null", "tag"),
        ("image.tag=", "tag"),
        ("image.tag=a b", "tag"),
        ("image.repository= ", "repository"),
        ("clusterDomain=", "clusterDomain"),
        ("clusterDomain=Cluster_Local", "clusterDomain"),
        ("watchNamespace=Team A", "watchNamespace"),
        ("log.filter= ", "filter"),
        ("pollSeconds=null", "pollSeconds"),
        ("replicas=null", "replicas"),
        ("image.pullSecrets[0].name=A b", "pullSecrets"),
    ] {
        let (fine, text) = rendered(&[setting])?;
        ensure!(!fine && text.contains(named), "{setting}: {text}");
        ensure!(!text.contains("nil pointer"), "{setting}: {text}");
    }
    Ok(())
}

fn collect_rules(value: &Value, rules: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            if let (Some(Value::String(rule)), true) =
                (fields.get("rule"), fields.contains_key("message"))
            {
                rules.push(rule.clone());
            }
            fields.values().for_each(|field| collect_rules(field, rules));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_rules(item, rules)),
        _ => {}
    }
}

/// Words directly before an opening bracket, outside of quotes.
fn functions(rule: &str) -> Vec<&str> {
    let code: Vec<&str> = rule.split(['\'', '"']).step_by(2).collect();
    let mut found = Vec::new();
    for part in code {
        for (at, _) in part.match_indices('(') {
            let head = part.get(..at).unwrap_or_default();
            let start = head.rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let word = head.get(start.map_or(0, |s| s + 1)..).unwrap_or_default();
            found.extend((!word.is_empty()).then_some(word));
        }
    }
    found
}

/// The operator lives in the namespace that is deleted: pods go first, itself among them, so it
/// lets its groups go before it ends. Elsewhere it leaves them alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o36_a_namespace_that_is_deleted_with_its_operator_is_not_kept_for_ever() -> Result<()> {
    let mut stage = ready("o36", 1).await?;
    stage.kill_operator();
    let client = stage.client.clone();
    ensure!(operator::farewell::leave(&client, &stage.namespace).await? == 0, "it was not asked");
    ensure!(stage.group().await?.finalizers().len() == 1, "the finalizer is gone too early");
    stage
        .merge(json!({"metadata": {"finalizers": [
            "cachetier.dev/drain", "example.com/theirs",
        ]}}))
        .await?;
    Api::<Namespace>::all(client.clone())
        .delete(&stage.namespace, &DeleteParams::default())
        .await?;
    ensure!(operator::farewell::leave(&client, &stage.namespace).await? == 1, "it did not let go");
    ensure!(stage.group().await?.finalizers() == ["example.com/theirs"], "another's is gone");
    ensure!(operator::farewell::leave(&client, &stage.namespace).await? == 0, "once is enough");
    Ok(())
}

/// Its slots are drained and its process is well, and the kubelet's word comes late: the pod is
/// deleted by us and not waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o48_a_drained_pod_whose_readiness_lags_is_replaced_and_taken_away() -> Result<()> {
    let stage = ready("o48", 3).await?;
    let before = uids(&stage).await?;
    let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    patch_pod(&stage, "hlr-1", unready.clone()).await?;
    stage.merge(json!({"spec": {"memory": {"capacity": "3Gi"}}})).await?;
    eventually("all replaced", LIMIT, || async {
        let now = uids(&stage).await?;
        Ok(before.iter().all(|(pod, uid)| now.get(pod) != Some(uid)).then_some(()))
    })
    .await?;
    stage.until_ready().await?;
    patch_pod(&stage, "hlr-2", unready).await?;
    stage.merge(json!({"spec": {"replicas": 2}})).await?;
    stage.until_ready().await?;
    ensure!(!uids(&stage).await?.contains_key("hlr-2"), "the drained pod is still there");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o53_a_host_that_is_missing_for_persistent_memory_is_named_by_its_label() -> Result<()> {
    let stage = Stage::start("o53").await?;
    stage.play(|play| play.run_pods = false);
    let mut group = minimal_group(1);
    group["spec"]["memory"] = json!({"medium": "AppDirect", "capacity": "30Gi"});
    let refused = stage.apply(&group).await.err().map(|error| error.to_string());
    let refused = refused.context("a store larger than the volume it lies on was accepted")?;
    ensure!(refused.contains("journal.volume.size") && refused.contains("AppDirect"), "{refused}");
    group["spec"]["memory"] = json!({"medium": "MemoryMode"});
    stage.apply(&group).await?;
    eventually("the pod", LIMIT, || async { Ok(stage.api::<Pod>().get_opt("hlr-0").await?) })
        .await?;
    let words = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.";
    let pending = json!({"status": {"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words},
    ]}});
    patch_pod(&stage, "hlr-0", pending).await?;
    let group =
        stage.until("said", |group| condition(group, "Ready").1 == "NoMatchingNode").await?;
    let message = condition(&group, "Ready").2;
    let label = "feature.node.kubernetes.io/memory-nv.present=true";
    ensure!(message.contains(label) && message.contains("spec.memory.medium"), "{message}");
    Ok(())
}

/// A pod that is evicted flushes for a while: its slots stay its own, no other pod is touched, and
/// it comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o55_slots_of_an_evicted_pod_that_still_flushes_are_not_given_away() -> Result<()> {
    let stage = ready("o55", 3).await?;
    let before = uids(&stage).await?;
    let version = |group: &cachetier_api::v1alpha1::CacheGroup| {
        group.status.as_ref().map_or(0, |status| status.topology_version)
    };
    let epoch = version(&stage.group().await?);
    patch_pod(&stage, "hlr-1", json!({"metadata": {"finalizers": ["example.com/slow"]}})).await?;
    stage.nodes.edit("hlr-1", |view| view.backlog.transactions = 500);
    stage.api::<Pod>().delete("hlr-1", &DeleteParams::default()).await?;
    let disrupted = json!({"status": {"conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"},
        {"type": "Ready", "status": "False"},
    ]}});
    patch_pod(&stage, "hlr-1", disrupted).await?;
    // what would replace pods, and what would move slots
    stage.merge(json!({"spec": {"memory": {"capacity": "3Gi"}}})).await?;
    stage.several_passes().await?;
    stage.nodes.silence("hlr-1", true);
    stage.several_passes().await?;
    ensure!(version(&stage.group().await?) == epoch, "slots were given away");
    ensure!(uids(&stage).await? == before, "another pod was touched meanwhile");
    patch_pod(&stage, "hlr-1", json!({"metadata": {"finalizers": null}})).await.ok();
    stage.nodes.edit("hlr-1", |view| view.backlog.transactions = 0);
    stage.nodes.silence("hlr-1", false);
    let group = stage.until_ready().await?;
    ensure!(version(&group) == epoch, "slots moved although the pod came back");
    Ok(())
}
