//! The StatefulSet controller, the Job controller and the kubelet, as far as the operator sees them.

use super::scripted::ScriptedNodes;
use anyhow::Result;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// What the played controllers do; a test switches parts off.
#[derive(Clone, Debug)]
pub struct Play {
    pub run_pods: bool,
    pub complete_jobs: bool,
}

impl Default for Play {
    fn default() -> Self {
        Self { run_pods: true, complete_jobs: true }
    }
}

/// Plays on until it is dropped.
pub async fn play(
    client: Client,
    namespace: String,
    nodes: ScriptedNodes,
    settings: tokio::sync::watch::Receiver<Play>,
) {
    loop {
        let play = settings.borrow().clone();
        // a conflict with the operator is looked at again in the next round
        let _ = round(&client, &namespace, &nodes, &play).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn round(client: &Client, namespace: &str, nodes: &ScriptedNodes, play: &Play) -> Result<()> {
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
    for set in sets.list(&ListParams::default()).await? {
        if set.metadata.deletion_timestamp.is_none() {
            stateful_set(client, namespace, nodes, play, &set).await?;
        }
    }
    if play.complete_jobs {
        complete_jobs(client, namespace, nodes).await?;
    }
    Ok(())
}

async fn stateful_set(
    client: &Client,
    namespace: &str,
    nodes: &ScriptedNodes,
    play: &Play,
    set: &StatefulSet,
) -> Result<()> {
    let name = set.name_any();
    let revision = revision(set);
    let wanted = set.spec.replicas.unwrap_or(1);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let names: BTreeSet<String> = (0..wanted).map(|n| format!("{name}-{n}")).collect();
    let selector =
        format!("app.kubernetes.io/instance={name},app.kubernetes.io/component=cache-node");
    let existing = pods.list(&ListParams::default().labels(&selector)).await?;
    for pod in existing.items.iter().filter(|pod| !names.contains(&pod.name_any())) {
        pods.delete(&pod.name_any(), &DeleteParams::default()).await?;
    }
    for pod in &names {
        if existing.items.iter().any(|known| known.name_any() == *pod) {
            continue;
        }
        claim(client, namespace, set, pod).await?;
        start_pod(&pods, nodes, play, set, pod, &revision).await?;
    }
    let status = json!({"status": {
        "replicas": wanted,
        "observedGeneration": set.metadata.generation,
        "updateRevision": revision,
        "currentRevision": revision,
    }});
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
    sets.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await?;
    Ok(())
}

fn revision(set: &StatefulSet) -> String {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(&set.spec.template).unwrap_or_default().hash(&mut hasher);
    format!("r{:x}", hasher.finish())
}

async fn claim(client: &Client, namespace: &str, set: &StatefulSet, pod: &str) -> Result<()> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let name = format!("journal-{pod}");
    if claims.get_opt(&name).await?.is_some() {
        return Ok(());
    }
    let templates = set.spec.volume_claim_templates.clone().unwrap_or_default();
    let labels = templates.into_iter().next().and_then(|template| template.metadata.labels);
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }))?;
    claims.create(&PostParams::default(), &claim).await?;
    let bound = json!({"status": {"phase": "Bound"}});
    claims.patch_status(&name, &PatchParams::default(), &Patch::Merge(&bound)).await?;
    Ok(())
}

async fn start_pod(
    pods: &Api<Pod>,
    nodes: &ScriptedNodes,
    play: &Play,
    set: &StatefulSet,
    name: &str,
    revision: &str,
) -> Result<()> {
    let mut template: Value = serde_json::to_value(&set.spec.template)?;
    template["metadata"]["name"] = json!(name);
    template["metadata"]["labels"]["controller-revision-hash"] = json!(revision);
    // claims are played, not mounted
    for mount in template["spec"]["containers"][0]["volumeMounts"].as_array_mut().into_iter() {
        mount.retain(|mount| mount["name"] != "journal");
    }
    let pod: Pod = serde_json::from_value(template)?;
    pods.create(&PostParams::default(), &pod).await?;
    nodes.restart(name);
    if play.run_pods {
        let ordinal: u32 = name.rsplit('-').next().unwrap_or("0").parse()?;
        let status = running(ordinal);
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await?;
    }
    Ok(())
}

fn running(ordinal: u32) -> Value {
    json!({"status": {
        "phase": "Running",
        "podIP": format!("10.0.0.{}", ordinal + 1),
        "podIPs": [{"ip": format!("10.0.0.{}", ordinal + 1)}],
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{
            "name": "cache-node", "ready": true, "restartCount": 0, "image": "i", "imageID": "i",
            "started": true, "state": {"running": {}},
        }],
    }})
}

async fn complete_jobs(client: &Client, namespace: &str, nodes: &ScriptedNodes) -> Result<()> {
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    for job in jobs.list(&ListParams::default()).await? {
        if job.metadata.deletion_timestamp.is_some() {
            jobs.patch_metadata(
                &job.name_any(),
                &PatchParams::default(),
                &Patch::Merge(&json!({"metadata": {"finalizers": null}})),
            )
            .await?;
            continue;
        }
        let ended = job.status.as_ref().and_then(|s| s.conditions.as_ref()).is_some();
        if !ended {
            finish_job(&jobs, &job.name_any(), "Complete", "").await?;
            nodes.cover_all();
        }
    }
    Ok(())
}

/// Ends a Job as its controller would.
pub async fn finish_job(jobs: &Api<Job>, name: &str, how: &str, message: &str) -> Result<()> {
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    let target = if how == "Complete" { "SuccessCriteriaMet" } else { "FailureTarget" };
    let condition = |kind: &str| {
        json!({
            "type": kind, "status": "True", "message": message, "reason": "Played",
            "lastTransitionTime": now, "lastProbeTime": now,
        })
    };
    let mut status = json!({"status": {
        "startTime": now,
        "conditions": [condition(target), condition(how)],
    }});
    if how == "Complete" {
        let pods: Job = jobs.get(name).await?;
        status["status"]["completionTime"] = json!(now);
        status["status"]["succeeded"] = json!(pods.spec.and_then(|spec| spec.completions));
    }
    jobs.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await?;
    Ok(())
}
