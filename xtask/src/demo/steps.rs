//! The steps of the demo, in order.

use super::DemoArgs;
use super::cluster::{Cluster, is_ready, xtask};
use super::report::Report;
use super::traffic::{self, Programs, RunLength};
use crate::{process, workspace};
use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::time::Duration;

const DATABASE: &str = "hlr";
/// A copy for the direct run: what it writes must not happen behind the cache's back.
const DIRECT_DATABASE: &str = "hlr_direct";
const READY: Duration = Duration::from_secs(300);

pub fn all(args: &DemoArgs, report: &mut Report) -> Result<()> {
    let mut up = vec!["cluster", "up"];
    up.extend(args.existing.then_some("--existing"));
    report.step(
        "start a three-node Kubernetes and PostgreSQL",
        "`cargo xtask cluster status`, and the logs in the run folder it names",
        |_| {
            process::run(&mut xtask(&up)?)?;
            Ok("cluster and backend are up".to_owned())
        },
    )?;
    let cluster = Cluster::read()?;
    let programs = Programs::new();
    report.step("build the image", "the compiler's output above", |_| {
        process::run(&mut xtask(&["image", "--load", "--profile", "image"])?)?;
        programs.build()?;
        Ok("operator, cache-node and cachectl in one image".to_owned())
    })?;
    prepare(args, report, &cluster, &programs)?;
    serve(args, report, &cluster, &programs)?;
    break_and_prove(args, report, &cluster, &programs)?;
    if !args.keep {
        remove(report, &cluster)?;
    }
    Ok(())
}

/// Database, operator, group.
fn prepare(
    args: &DemoArgs,
    report: &mut Report,
    cluster: &Cluster,
    programs: &Programs,
) -> Result<()> {
    report.step(
        "helm install the operator",
        "`kubectl -n cachetier-system get pods`, then `kubectl -n cachetier-system logs deploy/cachetier-operator`",
        |_| {
            let chart = workspace::root().join("charts/cachetier");
            let chart = chart.to_string_lossy();
            cluster.helm(&[
                "upgrade",
                "--install",
                "cachetier",
                &chart,
                "--namespace",
                "cachetier-system",
                "--create-namespace",
                "--wait",
                "--timeout",
                "120s",
            ])?;
            Ok("the operator runs".to_owned())
        },
    )?;
    let subscribers = args.subscribers.to_string();
    report.step(
        &format!("load {subscribers} subscribers into PostgreSQL"),
        "`cargo xtask cluster status` (is PostgreSQL up?)",
        |_| {
            // what an earlier demo kept would go on working on tables that are replaced now
            cluster.kubectl(&[
                "delete",
                "namespace",
                "telecom",
                "--ignore-not-found",
                "--timeout=120s",
            ])?;
            let backend = traffic::backend_uri(cluster, "CACHETIER_PG_ADMIN", DATABASE)?;
            let mut load = cluster.program(&programs.bench);
            load.args(["load", "--replace", "--subscribers", &subscribers]);
            process::run(load.args(["--backend", &backend]))?;
            traffic::grant(cluster, DATABASE)?;
            traffic::copy_database(cluster, DATABASE, DIRECT_DATABASE)?;
            Ok(format!("{subscribers} subscribers in four tables"))
        },
    )?;
    report.step(
        "kubectl apply -f examples/hlr.yaml, and wait for the preload",
        "`kubectl -n telecom describe cg hlr`, and the Job's pods: `kubectl -n telecom get pods`",
        |_| apply_and_watch(cluster),
    )
}

fn apply_and_watch(cluster: &Cluster) -> Result<String> {
    let uri = traffic::backend_uri(cluster, "CACHETIER_PG", DATABASE)?;
    cluster.apply(&format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: telecom}}\n---\n\
         apiVersion: v1\nkind: Secret\nmetadata: {{name: hlr-backend, namespace: telecom}}\n\
         stringData: {{uri: \"{uri}\"}}\n"
    ))?;
    let example = workspace::root().join("examples/hlr.yaml");
    let example = std::fs::read_to_string(&example)
        .with_context(|| format!("reading {}", example.display()))?;
    cluster.apply(&example)?;
    let bar = ProgressBar::new(100);
    bar.set_style(ProgressStyle::with_template("  preload {bar:40} {pos:>3} %  {msg}")?);
    let group = cluster.wait_group("the group to be ready", READY, |group| {
        let percent = group["status"]["preload"]["percent"].as_f64().unwrap_or(0.0);
        bar.set_position(percent as u64);
        bar.set_message(group["status"]["phase"].as_str().unwrap_or("waiting").to_owned());
        is_ready(group, 1).then(|| group.clone())
    })?;
    bar.finish_and_clear();
    Ok(format!("{} rows preloaded, group ready", preloaded_rows(&group)))
}

fn preloaded_rows(group: &Value) -> u64 {
    let tables = group["status"]["preload"]["tables"].as_array();
    tables.map_or(0, |all| all.iter().filter_map(|t| t["rows"].as_u64()).sum())
}

/// The seven transactions on both sides, then on two nodes.
fn serve(
    args: &DemoArgs,
    report: &mut Report,
    cluster: &Cluster,
    programs: &Programs,
) -> Result<()> {
    let seconds = args.seconds;
    let length = RunLength { subscribers: args.subscribers, seconds };
    report.step(
        &format!("the seven transactions against PostgreSQL, 16 clients, {seconds} s"),
        "the driver's message above",
        |report| {
            let run = traffic::against_backend(cluster, programs, DIRECT_DATABASE, &length)?;
            report.latency_ms.backend = run.mean_ms;
            Ok(format!("{:.0} transactions per second", run.per_second))
        },
    )?;
    report.step(
        &format!("the same clients against the cache, {seconds} s"),
        "`kubectl -n telecom describe cg hlr`",
        |report| {
            let run = traffic::against_cache(cluster, programs, &length)?;
            report.latency_ms.cache = run.mean_ms;
            Ok(format!("{:.0} transactions per second", run.per_second))
        },
    )?;
    report.step(
        "edit replicas 1 → 2 and run on",
        "`kubectl -n telecom describe cg hlr`, and `kubectl -n telecom get pods`",
        |_| {
            cluster.kubectl(&["-n", "telecom", "scale", "cg/hlr", "--replicas=2"])?;
            cluster.wait_group("two ready nodes", READY, |g| is_ready(g, 2).then_some(()))?;
            let run = traffic::against_cache(cluster, programs, &length)?;
            Ok(format!("two nodes, {:.0} transactions per second", run.per_second))
        },
    )
}

/// Kill a node under write load, wait for the queue, compare every row.
fn break_and_prove(
    args: &DemoArgs,
    report: &mut Report,
    cluster: &Cluster,
    programs: &Programs,
) -> Result<()> {
    let log = tempfile::NamedTempFile::new()?;
    report.step(
        "kill -9 one cache node under write load",
        "`kubectl -n telecom get pods`, and the pod's log with `--previous`",
        |report| {
            let load = traffic::WriteLoad::start(cluster, programs, args.seconds + 6, log.path())?;
            let before = load.wait_for_writes(200)?;
            traffic::kill_node(cluster, "hlr-1")?;
            let total = load.finish()?;
            ensure!(total > before, "no write was acknowledged after the kill");
            report.acknowledged_writes = total;
            Ok(format!("{total} writes acknowledged, {before} of them before the kill"))
        },
    )?;
    report.step(
        "wait until the write-behind queue is empty",
        "`kubectl -n telecom get cg` (BACKLOG), and `describe` for what the nodes wait for",
        |_| {
            cluster.wait_group("an empty queue and two ready nodes", READY, |group| {
                let empty = group["status"]["backlog"]["transactions"] == 0;
                (empty && is_ready(group, 2)).then_some(())
            })?;
            Ok("nothing waits any more".to_owned())
        },
    )?;
    report.step(
        "prove that cache and backend are equal, row by row",
        "the tables named above, and `cachectl rejects list`",
        |report| {
            traffic::verify_writes(cluster, programs, DATABASE, log.path())?;
            let (rows, differences) = traffic::compare(cluster, programs)?;
            report.compare.rows = rows;
            report.compare.differences = differences;
            ensure!(differences == 0, "{differences} rows differ");
            Ok(format!("{rows} rows equal; every acknowledged write is in the backend"))
        },
    )
}

fn remove(report: &mut Report, cluster: &Cluster) -> Result<()> {
    report.step(
        "delete the group",
        "`kubectl -n telecom describe cg hlr`: what it still waits for",
        |_| {
            cluster.kubectl(&["-n", "telecom", "delete", "cg", "hlr", "--timeout=120s"])?;
            Ok("drained, then gone".to_owned())
        },
    )
}

/// Ends what the demo started.
pub fn take_down() -> Result<()> {
    process::run(&mut xtask(&["cluster", "down"])?)
}
