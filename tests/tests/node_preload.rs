//! The preload Job's program when things go wrong around it: killed loaders, restarted nodes, a
//! wrong certificate.

use anyhow::{Context, Result, ensure};
use cachetier_client::wire::CompareRequest;
use futures::StreamExt;
use hlr_bench::stage::Launch;
use hlr_bench::stage::node::built_for_tests;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{Output, Stdio};
use std::time::Duration;
use system_tests::local::{TestGroup, TestGroupOptions, eventually};
use tokio::process::Command;

const PATIENCE: Duration = Duration::from_secs(90);

/// The loader's configuration: the first node's, with the loader's certificate.
fn loader_config(group: &TestGroup) -> Result<PathBuf> {
    let directory = &group.node(0)?.directory;
    let text = std::fs::read_to_string(directory.join("node.yaml"))?;
    let own = group.certificates.role("node")?.display().to_string();
    let loader = group.certificates.role("loader")?.display().to_string();
    let path = directory.join("loader.yaml");
    std::fs::write(&path, text.replace(&own, &loader))?;
    Ok(path)
}

fn loader(group: &TestGroup, load_id: &str) -> Result<Command> {
    let mut command = Command::from(Launch::KILLED.command(built_for_tests()?));
    command
        .arg("preload")
        .arg("--config")
        .arg(loader_config(group)?)
        .args(["--nodes", &group.node(0)?.endpoint().address, "--load-id", load_id])
        .args(["--parallelism", "2", "--log-format", "pretty"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    Ok(command)
}

async fn run_loader(group: &TestGroup, load_id: &str) -> Result<Output> {
    loader(group, load_id)?
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .await
        .context("starting the loader")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

/// Slots served and slots covered, over all nodes.
async fn coverage(group: &TestGroup) -> Result<(u32, u32)> {
    let mut sums = (0, 0);
    for n in 0..group.nodes.len() {
        let status = group.status(n).await?;
        sums.0 += status.slots_serving;
        sums.1 += status.slots_covered;
    }
    Ok(sums)
}

/// Instances compared, missing and different, over all nodes.
async fn compare(group: &TestGroup) -> Result<(u64, u64, u64)> {
    let sum = group.compare().await?;
    Ok((sum.instances, sum.not_loaded, sum.differences))
}

#[tokio::test(flavor = "multi_thread")]
async fn d19_a_killed_loader_costs_a_chunk_and_another_finishes_the_load() -> Result<()> {
    let group =
        TestGroup::start(TestGroupOptions { nodes: 2, subscribers: 8_000, ..Default::default() })
            .await?;
    let mut first = loader(&group, "killed")?.spawn()?;
    let done = eventually("a first chunk", PATIENCE, || async {
        let load = group.status(0).await?.load;
        Ok(load.map(|l| l.chunks_done).filter(|done| *done > 0))
    })
    .await?;
    first.kill().await?;
    let output = run_loader(&group, "killed").await?;
    ensure!(output.status.success(), "after {done} chunks: {}", text(&output));
    ensure!(coverage(&group).await? == (4096, 4096));
    ensure!(compare(&group).await? == (8_000, 0, 0), "{:?}", compare(&group).await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn r20_a_node_lost_in_mid_load_leaves_no_hole_at_the_others() -> Result<()> {
    let mut group =
        TestGroup::start(TestGroupOptions { nodes: 2, subscribers: 10_000, ..Default::default() })
            .await?;
    let mut running = loader(&group, "node-lost")?.spawn()?;
    eventually("a first chunk", PATIENCE, || async {
        let load = group.status(0).await?.load;
        Ok(load.map(|l| l.chunks_done).filter(|done| *done > 0))
    })
    .await?;
    let second = group.nodes.get_mut(1).context("two nodes")?;
    second.kill()?;
    second.start()?;
    ensure!(running.wait().await?.success(), "the loader waits for the node and goes on");
    let first = group.status(0).await?;
    ensure!(first.slots_covered == first.slots_serving, "{first:?}");
    let mut progress = pin!(group.admin(0)?.compare(CompareRequest::default()).await?);
    let mut last = None;
    while let Some(message) = progress.next().await {
        last = Some(message?);
    }
    let last = last.context("the comparison said nothing")?;
    ensure!(last.done && last.differences == 0, "{last:?}");
    ensure!(last.not_loaded == 0, "covered slots with holes: {last:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn r20_a_restarted_node_is_not_called_covered_until_a_new_load_fills_it() -> Result<()> {
    let extra = "memory: {images: Reload}".to_owned();
    let mut group = TestGroup::start(TestGroupOptions {
        nodes: 2,
        subscribers: 2_000,
        extra,
        ..Default::default()
    })
    .await?;
    ensure!(run_loader(&group, "before").await?.status.success());
    let second = group.nodes.get_mut(1).context("two nodes")?;
    second.kill()?;
    second.start()?;
    group.settled(2).await?;
    let (serving, covered) = coverage(&group).await?;
    ensure!(serving == 4096 && covered == 2048, "{covered} of {serving} covered");
    let again = run_loader(&group, "before").await?;
    ensure!(again.status.success(), "{}", text(&again));
    ensure!(coverage(&group).await?.1 == 2048, "a finished load must not vouch for a new process");
    ensure!(run_loader(&group, "after").await?.status.success());
    ensure!(coverage(&group).await? == (4096, 4096));
    ensure!(compare(&group).await? == (2_000, 0, 0), "{:?}", compare(&group).await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loader_with_an_applications_certificate_is_refused_by_name() -> Result<()> {
    let group = TestGroup::start(TestGroupOptions::default()).await?;
    let path = loader_config(&group)?;
    let client = group.certificates.role("client")?.display().to_string();
    let loader = group.certificates.role("loader")?.display().to_string();
    let config = std::fs::read_to_string(&path)?.replace(&loader, &client);
    let wrong = path.with_file_name("wrong.yaml");
    std::fs::write(&wrong, config)?;
    let mut command = Command::from(Launch::KILLED.command(built_for_tests()?));
    command.arg("preload").arg("--config").arg(&wrong);
    command.args(["--nodes", &group.node(0)?.endpoint().address, "--load-id", "x"]);
    let output = command.kill_on_drop(true).output().await?;
    ensure!(!output.status.success());
    let said = text(&output);
    ensure!(said.contains("role"), "it says that the role is wrong: {said}");
    Ok(())
}
