//! Faults under load: nothing acknowledged is lost.

#![allow(clippy::indexing_slicing, reason = "a field that is missing fails the test")]

use anyhow::{Context, Result, ensure};
use std::time::Duration;
use system_tests::e2e::{GroupOptions, Scene, WriteLoad, kubectl, wait_until, xtask};

const SUBSCRIBERS: u64 = 1_000;
const MINUTE: Duration = Duration::from_secs(60);

fn some_writes(load: &WriteLoad, more_than: u64) -> Result<()> {
    wait_until(
        "acknowledged writes",
        MINUTE,
        || Ok((load.acknowledged() > more_than).then_some(())),
    )
}

fn proves_nothing_lost(scene: &Scene, load: WriteLoad) -> Result<u64> {
    let finished = load.finish()?;
    wait_until("an empty queue", MINUTE * 2, || {
        let group = scene.group()?;
        Ok((group["status"]["backlog"]["transactions"] == 0).then_some(()))
    })?;
    finished.verify()?;
    scene.compare()?;
    Ok(finished.acknowledged)
}

#[test]
#[ignore = "needs the local cluster: cargo xtask e2e"]
fn e2e_scaling_one_to_three_to_one_under_writes_loses_nothing() -> Result<()> {
    let scene = Scene::ready("scale", SUBSCRIBERS, &GroupOptions::default())?;
    let load = WriteLoad::start(&scene, 60)?;
    some_writes(&load, 500)?;
    scene.scale(3)?;
    scene.wait_ready(3)?;
    let before = load.acknowledged();
    some_writes(&load, before + 100)?;
    scene.scale(1)?;
    scene.wait_ready(1)?;
    proves_nothing_lost(&scene, load).map(drop)
}

#[test]
#[ignore = "needs the local cluster: cargo xtask e2e"]
fn e2e_a_node_killed_under_load_loses_no_acknowledged_write() -> Result<()> {
    let options = GroupOptions { replicas: 2, ..GroupOptions::default() };
    let scene = Scene::ready("kill", SUBSCRIBERS, &options)?;
    let load = WriteLoad::start(&scene, 30)?;
    some_writes(&load, 500)?;
    kill_process(&scene, "hlr-1")?;
    wait_until("the restart of the killed node", MINUTE, || {
        let pods = scene.pods()?;
        let restarts = pods
            .iter()
            .find(|p| p["metadata"]["name"] == "hlr-1")
            .and_then(|p| p["status"]["containerStatuses"][0]["restartCount"].as_u64());
        Ok(restarts.filter(|n| *n > 0).map(drop))
    })?;
    proves_nothing_lost(&scene, load)?;
    scene.wait_ready(2)
}

/// Ends the cache-node process of a pod with signal 9, found by its pod's UID in its cgroup.
fn kill_process(scene: &Scene, pod: &str) -> Result<()> {
    let uid =
        kubectl(&["-n", &scene.namespace, "get", "pod", pod, "-o", "jsonpath={.metadata.uid}"])?;
    let mut killed = 0;
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path();
        let cgroup = std::fs::read_to_string(path.join("cgroup")).unwrap_or_default();
        let command = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        if cgroup.contains(&uid) && command.trim() == "cache-node" {
            let pid: i32 = path
                .file_name()
                .and_then(|n| n.to_str())
                .context("a process folder without a name")?
                .parse()?;
            let pid = rustix::process::Pid::from_raw(pid).context("process 0")?;
            rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
            killed += 1;
        }
    }
    ensure!(killed == 1, "found {killed} cache-node processes of pod {pod}");
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: cargo xtask e2e"]
fn e2e_the_operator_killed_in_mid_scale_finishes_after_its_return() -> Result<()> {
    let scene = Scene::ready("opkill", SUBSCRIBERS, &GroupOptions::default())?;
    let load = WriteLoad::start(&scene, 40)?;
    some_writes(&load, 200)?;
    scene.scale(2)?;
    wait_until("the second pod", MINUTE, || Ok((scene.pods()?.len() == 2).then_some(())))?;
    kubectl(&[
        "-n",
        "cachetier-system",
        "delete",
        "pod",
        "-l",
        "app.kubernetes.io/name=cachetier",
        "--grace-period=0",
        "--force",
    ])?;
    scene.wait_ready(2)?;
    proves_nothing_lost(&scene, load).map(drop)
}

#[test]
#[ignore = "needs the local cluster: cargo xtask e2e"]
fn e2e_a_backend_stopped_for_twenty_seconds_loses_nothing() -> Result<()> {
    let scene = Scene::ready("outage", SUBSCRIBERS, &GroupOptions::default())?;
    let load = WriteLoad::start(&scene, 45)?;
    some_writes(&load, 200)?;
    xtask(&["cluster", "backend", "stop"])?;
    let outage = std::time::Instant::now();
    let result = (|| {
        let before = load.acknowledged();
        some_writes(&load, before + 200).context("writes go on while the backend is away")?;
        let (reason, message) = scene.wait_condition("BackendReachable", "False")?;
        ensure!(!reason.is_empty() && !message.is_empty(), "no reason given");
        Ok(())
    })();
    // the outage lasts as long as the name says, also when everything was seen sooner
    std::thread::sleep(Duration::from_secs(20).saturating_sub(outage.elapsed()));
    xtask(&["cluster", "backend", "start"])?;
    result?;
    scene.wait_condition("BackendReachable", "True")?;
    proves_nothing_lost(&scene, load).map(drop)
}

#[test]
#[ignore = "needs the local cluster: cargo xtask e2e"]
fn e2e_deleting_a_group_with_a_full_queue_drains_it_first() -> Result<()> {
    let scene = Scene::ready("delete", SUBSCRIBERS, &GroupOptions::default())?;
    let load = WriteLoad::start(&scene, 15)?;
    some_writes(&load, 200)?;
    xtask(&["cluster", "backend", "stop"])?;
    let finished = load.finish();
    let pending = kubectl(&["-n", &scene.namespace, "delete", "cg", "hlr", "--wait=false"])
        .and_then(|_| {
            wait_until("a status that says what is pending", MINUTE, || {
                let condition = scene.condition("Ready")?;
                let said = condition.filter(|c| c.1 == "Deleting").map(|c| c.2);
                Ok(said.filter(|message| message.contains("transactions")))
            })
        });
    xtask(&["cluster", "backend", "start"])?;
    let pending = pending?;
    ensure!(pending.chars().any(|c| c.is_ascii_digit()), "no count in {pending:?}");
    wait_until("the group to be gone", MINUTE * 2, || {
        let left = kubectl(&["-n", &scene.namespace, "get", "cg", "-o", "name"])?;
        Ok(left.trim().is_empty().then_some(()))
    })?;
    finished?.verify()
}
