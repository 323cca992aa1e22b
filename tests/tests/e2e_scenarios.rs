//! What administrators do to hosts, Secrets, volumes and namespaces under a living group.

#![allow(
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a field that is missing fails the test, and a person must know what is left behind"
)]

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;
use system_tests::e2e::{GroupOptions, Scene, WriteLoad, helm, kubectl, kubectl_json, wait_until};

const SUBSCRIBERS: u64 = 1_000;
const MINUTE: Duration = Duration::from_secs(60);

fn two() -> GroupOptions {
    GroupOptions { replicas: 2, ..GroupOptions::default() }
}

fn some_writes(load: &WriteLoad, more_than: u64) -> Result<()> {
    wait_until("acknowledged writes", MINUTE * 2, || {
        Ok((load.acknowledged() > more_than).then_some(()))
    })
}

fn flushed(scene: &Scene) -> Result<()> {
    wait_until("an empty queue", MINUTE * 2, || {
        let group = scene.group()?;
        Ok((group["status"]["backlog"]["transactions"] == 0).then_some(()))
    })
}

fn proves_nothing_lost(scene: &Scene, load: WriteLoad) -> Result<()> {
    let finished = load.finish()?;
    flushed(scene)?;
    finished.verify()?;
    scene.compare().map(drop)
}

fn uids(scene: &Scene) -> Result<BTreeMap<String, String>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let pods = scene.pods()?;
    let pair = |p: &Value| (text(&p["metadata"]["name"]), text(&p["metadata"]["uid"]));
    Ok(pods.iter().map(pair).collect())
}

fn all_replaced(scene: &Scene, before: &BTreeMap<String, String>) -> Result<()> {
    wait_until("every pod to be a new one", MINUTE * 5, || {
        let now = uids(scene)?;
        let new = before.iter().all(|(pod, uid)| now.get(pod).is_some_and(|n| n != uid));
        Ok(new.then_some(()))
    })
}

fn host(scene: &Scene, pod: &str) -> Result<String> {
    let path = "jsonpath={.spec.nodeName}";
    kubectl(&["-n", &scene.namespace, "get", "pod", pod, "-o", path])
}

/// Puts a host back in service also when the test fails.
struct Uncordon(String);

impl Drop for Uncordon {
    fn drop(&mut self) {
        if let Err(error) = kubectl(&["uncordon", &self.0]) {
            eprintln!("{} is still cordoned: {error:#}", self.0);
        }
    }
}

fn drain(node: &str, limit: &str) -> Result<Uncordon> {
    let uncordon = Uncordon(node.to_owned());
    let timeout = format!("--timeout={limit}");
    let pods = "--pod-selector=app.kubernetes.io/instance=hlr";
    kubectl(&["drain", node, pods, "--ignore-daemonsets", "--delete-emptydir-data", &timeout])?;
    Ok(uncordon)
}

fn install(release: &str, namespace: &str, settings: &[&str]) -> Result<()> {
    let chart = std::env::var("CACHETIER_CHART").unwrap_or_else(|_| "../charts/cachetier".into());
    let mut arguments = vec!["install", release, &chart, "-n", namespace, "--create-namespace"];
    arguments.extend(["--wait", "--timeout=120s"]);
    for setting in settings {
        arguments.extend(["--set", setting]);
    }
    helm(&arguments).map(drop)
}

/// The operator lives in the namespace that goes: the namespace is gone soon, and what was
/// acknowledged is in the backend.
#[test]
#[ignore = "needs the local cluster: cargo xtask e2e"]
fn e2e_o36_a_namespace_with_operator_and_group_can_be_deleted() -> Result<()> {
    let scene = Scene::empty("o36", SUBSCRIBERS)?;
    helm(&["uninstall", "cachetier", "-n", "cachetier-system", "--wait"])?;
    let result = (|| {
        let watch = format!("watchNamespace={}", scene.namespace);
        install("local", &scene.namespace, &["crds.install=false", &watch])?;
        scene.create_secret(&scene.database.uri)?;
        scene.apply_group(&GroupOptions::default())?;
        scene.wait_ready(1)?;
        scene.cachectl(&["tx", "7", "--update", "subscriber", "--set", "vlr_location=77"])?;
        kubectl(&["delete", "namespace", &scene.namespace, "--timeout=120s"])?;
        let stored = scene.database.number("SELECT vlr_location FROM subscriber WHERE s_id = 7")?;
        ensure!(stored == 77, "the write went with the namespace");
        Ok(())
    })();
    // releases in a namespace that is gone leave objects of the whole cluster behind
    for kind in ["clusterrole", "clusterrolebinding"] {
        let label = "app.kubernetes.io/instance=local";
        kubectl(&["delete", kind, "-l", label, "--ignore-not-found"])?;
    }
    install("cachetier", "cachetier-system", &[])?;
    result
}

/// The documented way to give a lost volume up.
#[test]
#[ignore = "needs the local cluster: cargo xtask e2e"]
fn e2e_o41_a_pod_deleted_with_its_claim_starts_anew_once_the_loss_is_accepted() -> Result<()> {
    let scene = Scene::ready("o41", SUBSCRIBERS, &two())?;
    scene.cachectl(&["tx", "7", "--update", "subscriber", "--set", "vlr_location=77"])?;
    flushed(&scene)?;
    let claim = |path: &str| {
        let path = format!("jsonpath={path}");
        kubectl(&["-n", &scene.namespace, "get", "pvc", "journal-hlr-1", "-o", &path])
    };
    let (before, old) = (uids(&scene)?, claim("{.metadata.uid}")?);
    kubectl(&["-n", &scene.namespace, "delete", "pvc", "journal-hlr-1", "--wait=false"])?;
    kubectl(&["-n", &scene.namespace, "delete", "pod", "hlr-1", "--wait=false"])?;
    wait_until("a new pod on a new claim", MINUTE * 3, || {
        let new = uids(&scene)?.get("hlr-1").is_some_and(|uid| before.get("hlr-1") != Some(uid));
        Ok((new && claim("{.metadata.uid}")? != old).then_some(()))
    })?;
    // an empty journal could hide a loss, so somebody has to say that it is accepted
    let lost = wait_until("the lost journal to be named", MINUTE * 2, || {
        let message = scene.condition("Degraded")?.map(|c| c.2).unwrap_or_default();
        let lost = message.split_once("--journal ").map(|(_, rest)| rest.to_owned());
        Ok(lost.and_then(|rest| rest.get(..36).map(str::to_owned)))
    })?;
    scene.cachectl(&["accept-loss", "hlr-1", "--journal", &lost])?;
    scene.wait_ready(2)?;
    for key in 1..=20 {
        scene.cachectl(&[
            "tx",
            &key.to_string(),
            "--update",
            "subscriber",
            "--set",
            "msc_location=5",
        ])?;
    }
    flushed(&scene)?;
    scene.compare().map(drop)
}

/// After a roll without writes every read is answered from memory again.
#[test]
#[ignore = "needs the local cluster: cargo xtask e2e"]
fn e2e_o45_after_a_roll_everything_is_in_memory_again() -> Result<()> {
    let scene = Scene::ready("o45", SUBSCRIBERS, &two())?;
    let before = uids(&scene)?;
    kubectl(&["-n", &scene.namespace, "rollout", "restart", "statefulset/hlr"])?;
    all_replaced(&scene, &before)?;
    scene.wait_ready(2)?;
    for key in (1..=SUBSCRIBERS).step_by(53) {
        let text = scene.cachectl(&["get", &key.to_string(), "-o", "json"])?;
        let answer: Value = serde_json::from_str(&text)?;
        ensure!(answer["source"] == "cache", "subscriber {key}: {}", answer["source"]);
    }
    for pod in scene.pods()? {
        let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
        ensure!(*restarts == 0, "{} restarted {restarts} times", pod["metadata"]["name"]);
    }
    Ok(())
}

/// An eviction under load: the pod ends well, its slots stay its own, nothing is lost.
#[test]
#[ignore = "needs the local cluster: cargo xtask e2e"]
fn e2e_o55_an_evicted_pod_under_load_keeps_its_slots_and_loses_nothing() -> Result<()> {
    let scene = Scene::ready("o55", SUBSCRIBERS, &two())?;
    let load = WriteLoad::start(&scene, 40)?;
    some_writes(&load, 300)?;
    let (before, epoch) = (uids(&scene)?, scene.group()?["status"]["topologyVersion"].clone());
    let ended = ended_states(&scene)?;
    evict(&scene, "hlr-1")?;
    wait_until("the evicted pod to come back", MINUTE * 3, || {
        let now = uids(&scene)?;
        Ok(now.get("hlr-1").filter(|uid| before.get("hlr-1") != Some(uid)).map(drop))
    })?;
    let phases = ended.finish()?;
    ensure!(!phases.contains("Failed"), "the evicted pod ended in an error: {phases}");
    scene.wait_ready(2)?;
    let now = scene.group()?["status"]["topologyVersion"].clone();
    ensure!(now == epoch, "slots were moved: version {epoch} to {now}");
    proves_nothing_lost(&scene, load)
}

fn evict(scene: &Scene, pod: &str) -> Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    let eviction = serde_json::json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": pod, "namespace": scene.namespace},
    });
    std::fs::write(file.path(), eviction.to_string())?;
    let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", scene.namespace);
    let text = file.path().to_string_lossy().into_owned();
    kubectl(&["create", "--raw", &path, "-f", &text]).map(drop)
}

/// A watch over the pods' phases, for what a pod was just before it went.
struct Phases {
    child: std::process::Child,
    output: tempfile::NamedTempFile,
}

fn ended_states(scene: &Scene) -> Result<Phases> {
    let output = tempfile::NamedTempFile::new()?;
    let program = std::env::var("CACHETIER_KUBECTL").context("CACHETIER_KUBECTL is not set")?;
    let columns = "custom-columns=N:.metadata.name,P:.status.phase";
    let child = std::process::Command::new(program)
        .args(["-n", &scene.namespace, "get", "pods", "--watch", "-o", columns])
        .stdout(output.reopen()?)
        .spawn()?;
    Ok(Phases { child, output })
}

impl Phases {
    fn finish(mut self) -> Result<String> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(std::fs::read_to_string(self.output.path())?)
    }
}

#[test]
#[ignore = "needs the local cluster: cargo xtask e2e"]
fn e2e_o56_hosts_are_drained_one_after_the_other() -> Result<()> {
    let scene = Scene::ready("o56", SUBSCRIBERS, &GroupOptions::default())?;
    // one node: a budget that never lets it go would keep the host for ever
    let uncordon = drain(&host(&scene, "hlr-0")?, "120s")?;
    drop(uncordon);
    scene.wait_ready(1)?;
    let spread = GroupOptions {
        replicas: 3,
        spec: "  placement: {spread: Require}\n".to_owned(),
        ..GroupOptions::default()
    };
    scene.apply_group(&spread)?;
    scene.wait_ready(3)?;
    let (first, second) = (host(&scene, "hlr-0")?, host(&scene, "hlr-1")?);
    let uncordon = drain(&first, "120s")?;
    let refused = drain(&second, "10s").err().map(|error| format!("{error:#}"));
    let refused = refused.context("a second host was drained while the first node was away")?;
    ensure!(refused.contains("disruption budget"), "{refused}");
    let budget = kubectl_json(&["-n", &scene.namespace, "get", "pdb", "hlr"])?;
    ensure!(budget["status"]["expectedPods"] == 3, "{}", budget["status"]);
    drop(uncordon);
    scene.wait_ready(3)?;
    let uncordon = drain(&second, "120s")?;
    drop(uncordon);
    scene.wait_ready(3)
}

/// A new password and a new certificate in the same Secrets, under load and without a restart.
#[test]
#[ignore = "needs the local cluster: cargo xtask e2e"]
fn e2e_o61_passwords_and_certificates_are_rotated_in_place() -> Result<()> {
    let scene = Scene::empty("o61", SUBSCRIBERS)?;
    let sql = |text: &str| scene.database.execute(text);
    sql("DROP ROLE IF EXISTS e2e_o61")?;
    sql("CREATE ROLE e2e_o61 LOGIN PASSWORD 'first' IN ROLE cachetier")?;
    let (_, place) = scene.database.uri.rsplit_once('@').context("no host in the URI")?;
    let uri = |password: &str| format!("postgres://e2e_o61:{password}@{place}");
    scene.create_secret(&uri("first"))?;
    scene.apply_group(&GroupOptions::default())?;
    scene.wait_ready(1)?;
    let before = uids(&scene)?;
    let load = WriteLoad::start(&scene, 150)?;
    some_writes(&load, 200)?;
    sql("ALTER ROLE e2e_o61 PASSWORD 'second'")?;
    sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'e2e_o61'")?;
    // first its sessions are cut, then the new ones are refused
    wait_until("the refused password to be said", MINUTE, || {
        let condition = scene.condition("BackendReachable")?;
        Ok(condition.filter(|c| c.0 == "False" && c.1 == "AuthenticationFailed").map(drop))
    })?;
    scene.create_secret(&uri("second"))?;
    scene.wait_condition("BackendReachable", "True")?;
    let certificate = |key: &str| {
        let secret = kubectl_json(&["-n", &scene.namespace, "get", "secret", "hlr-node-tls"])?;
        Ok::<_, anyhow::Error>(secret["data"][key].clone())
    };
    let (old, authority) = (certificate("tls.crt")?, certificate("ca.crt")?);
    kubectl(&["-n", &scene.namespace, "delete", "secret", "hlr-node-tls"])?;
    wait_until("a new certificate", MINUTE, || {
        let now = certificate("tls.crt").unwrap_or_default();
        ensure!(now != old, "a pass that had read the old certificate put it back");
        Ok((!now.is_null()).then_some(()))
    })?;
    ensure!(certificate("ca.crt")? == authority, "clients would not trust the new one");
    let so_far = load.acknowledged();
    some_writes(&load, so_far + 100)?;
    proves_nothing_lost(&scene, load)?;
    ensure!(uids(&scene)? == before, "the pod was replaced");
    let restarts = &scene.pods()?[0]["status"]["containerStatuses"][0]["restartCount"];
    ensure!(*restarts == 0, "{restarts} restarts");
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: cargo xtask e2e"]
fn e2e_o65_a_roll_under_a_high_rate_of_writes_loses_nothing() -> Result<()> {
    let scene = Scene::ready("o65", SUBSCRIBERS, &two())?;
    let load = WriteLoad::start(&scene, 90)?;
    some_writes(&load, 500)?;
    let before = uids(&scene)?;
    let patch = r#"{"spec":{"memory":{"capacity":"288Mi"}}}"#;
    kubectl(&["-n", &scene.namespace, "patch", "cg", "hlr", "--type", "merge", "-p", patch])?;
    all_replaced(&scene, &before)?;
    scene.wait_ready(2)?;
    proves_nothing_lost(&scene, load)
}
