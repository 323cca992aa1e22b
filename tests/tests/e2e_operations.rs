//! Installing and removing the operator around living groups.

#![allow(clippy::indexing_slicing, reason = "a field that is missing fails the test")]

use anyhow::{Context, Result, ensure};
use system_tests::e2e::{GroupOptions, Scene, helm, kubectl};

const SUBSCRIBERS: u64 = 200;

/// Uninstalling the chart leaves resources and pods; the data plane goes on serving and writing;
/// installing it again adopts them without replacing a pod.
#[test]
#[ignore = "needs the local cluster: cargo xtask e2e"]
fn e2e_o42_an_uninstalled_chart_leaves_groups_running_and_a_new_install_adopts_them() -> Result<()>
{
    let scene = Scene::ready("uninstall", SUBSCRIBERS, &GroupOptions::default())?;
    let uid = pod_uid(&scene)?;
    helm(&["uninstall", "cachetier", "-n", "cachetier-system", "--wait"])?;
    let during = (|| {
        scene.group().context("the resource must survive")?;
        ensure!(pod_uid(&scene)? == uid, "the pod was replaced");
        scene.cachectl(&["tx", "7", "--update", "subscriber", "--set", "vlr_location=77"])?;
        scene.cachectl(&["get", "7"])?;
        Ok(())
    })();
    let chart = std::env::var("CACHETIER_CHART").unwrap_or_else(|_| "../charts/cachetier".into());
    helm(&[
        "install",
        "cachetier",
        &chart,
        "-n",
        "cachetier-system",
        "--create-namespace",
        "--wait",
        "--timeout=120s",
    ])?;
    during?;
    scene.wait_ready(1)?;
    ensure!(pod_uid(&scene)? == uid, "the new operator replaced the pod");
    scene.compare().map(drop)
}

fn pod_uid(scene: &Scene) -> Result<String> {
    kubectl(&["-n", &scene.namespace, "get", "pod", "hlr-0", "-o", "jsonpath={.metadata.uid}"])
}
