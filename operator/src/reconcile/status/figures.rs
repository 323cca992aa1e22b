//! Sums over nodes, rounded so that a status at rest stays the same.

use super::super::Context;
use crate::metrics::GroupLabels;
use crate::nodes::NodeView;
use crate::observed::Observed;
use crate::plan::Plan;
use crate::preload::State;
use cachetier_api::v1alpha1::{
    BacklogStatus, CacheGroupStatus, MediumStatus, Phase, PreloadStatus, TableStatus,
};
use std::collections::BTreeMap;

/// Steps to which times are rounded up, seconds.
const STEPS_SECONDS: [u64; 12] = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200];

pub fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn views(observed: &Observed) -> impl Iterator<Item = &NodeView> {
    observed.answers.values().filter_map(|answer| answer.as_ref().ok())
}

pub fn backlog(observed: &Observed) -> Option<BacklogStatus> {
    views(observed).next()?;
    let transactions: u64 = views(observed).map(|view| view.backlog.transactions).sum();
    let oldest = views(observed).map(|view| view.backlog.oldest_seconds).fold(0.0, f64::max);
    let drained = views(observed)
        .filter(|view| !view.backlog_empty())
        .map(|view| view.backlog.transactions as f64 / view.backlog.flush_rows_per_second)
        .fold(0.0, f64::max);
    Some(BacklogStatus {
        transactions: signed(transactions),
        bytes: signed(views(observed).map(|view| view.backlog.bytes).sum()),
        age: if transactions == 0 { "0s".to_owned() } else { span(oldest) },
        drained_in: (transactions > 0 && drained.is_finite()).then(|| span(drained)),
    })
}

/// Rounded up to a step, as Kubernetes writes it.
pub fn span(seconds: f64) -> String {
    let Some(step) = STEPS_SECONDS.iter().find(|step| seconds <= **step as f64) else {
        return format!("{}h", (seconds / 3_600.0).ceil() as u64);
    };
    match step {
        0..60 => format!("{step}s"),
        60..3_600 => format!("{}m", step / 60),
        _ => format!("{}h", step / 3_600),
    }
}

pub fn rejects(observed: &Observed) -> i64 {
    signed(views(observed).map(|view| view.rejects).sum())
}

pub fn preload(observed: &Observed, plan: &Plan) -> Option<PreloadStatus> {
    if plan.preload.state == State::NotRequested {
        return None;
    }
    let loads: Vec<_> = views(observed).filter_map(|view| view.load.as_ref()).collect();
    let name = match &plan.preload.state {
        State::Loading { job } | State::Failed { job, .. } => job.clone(),
        _ => loads.iter().map(|load| load.load_id.clone()).max().unwrap_or_default(),
    };
    let mut tables: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (table, rows, expected) in loads.iter().flat_map(|load| &load.tables) {
        let sum = tables.entry(table).or_default();
        sum.0 += rows;
        // each node states the estimate of the whole table
        sum.1 = sum.1.max(*expected);
    }
    let complete = plan.preload.state == State::Complete;
    let percent = if complete { 100 } else { percent_loaded(observed) };
    let rows: u64 = tables.values().map(|(rows, _)| rows).sum();
    let rate: f64 =
        if complete { 0.0 } else { loads.iter().map(|load| load.rows_per_second).sum() };
    let missing: u64 = tables.values().map(|(rows, all)| all.saturating_sub(*rows)).sum();
    Some(PreloadStatus {
        load: name,
        loaded: format!("{percent}%"),
        percent,
        rows: signed(rows),
        rows_per_second: rate as i64,
        remaining: (!complete && rate >= 1.0).then(|| span(missing as f64 / rate)),
        tables: tables
            .into_iter()
            .map(|(name, (rows, expected))| TableStatus {
                name: name.to_owned(),
                rows: signed(rows),
                expected_rows: signed(expected),
                percent: if complete { 100 } else { share(rows, expected) },
            })
            .collect(),
    })
}

/// Never 100 before everything is there.
fn share(part: u64, whole: u64) -> i32 {
    if whole == 0 {
        return 0;
    }
    i32::try_from((u128::from(part) * 100 / u128::from(whole)).min(99)).unwrap_or(99)
}

fn percent_loaded(observed: &Observed) -> i32 {
    let shares: Vec<i32> = views(observed)
        .filter(|view| view.slots_serving > 0)
        .map(|view| {
            if view.slots_covered >= view.slots_serving {
                return 100;
            }
            let covered = share(u64::from(view.slots_covered), u64::from(view.slots_serving));
            let chunks = view
                .load
                .as_ref()
                .map_or(0, |load| share(u64::from(load.chunks_done), u64::from(load.chunks_total)));
            covered.max(chunks)
        })
        .collect();
    let count = i32::try_from(shares.len()).unwrap_or(i32::MAX).max(1);
    (shares.iter().sum::<i32>() / count).min(99)
}

pub fn medium(observed: &Observed) -> Option<MediumStatus> {
    use cachetier_api::v1alpha1::Medium;
    let asked = observed.group.spec.memory.medium;
    let hosts: Vec<(&String, bool)> = observed
        .pods
        .values()
        .filter_map(|pod| pod.host.as_ref())
        .map(|host| (host, observed.hosts.get(host).copied().unwrap_or(false)))
        .collect();
    if hosts.is_empty() {
        return None;
    }
    let without = hosts.iter().filter(|(_, labelled)| !labelled).count();
    let (in_use, message) = match asked {
        Medium::Auto if without == 0 => ("MemoryMode", String::new()),
        Medium::Auto => (
            if without == hosts.len() { "DRAM" } else { "MemoryMode and DRAM" },
            format!(
                "MediumFellBack: {without} of {} nodes run on hosts without persistent memory, in \
                 ordinary memory",
                hosts.len()
            ),
        ),
        Medium::AppDirect => match without_direct_access(observed) {
            0 => (asked.as_str(), String::new()),
            nodes => (
                "File",
                format!(
                    "MediumFellBack: the volumes of {nodes} of {} nodes are not persistent memory that \
                     can be mapped; their stores lie in ordinary files",
                    hosts.len()
                ),
            ),
        },
        other => (other.as_str(), String::new()),
    };
    Some(MediumStatus { requested: asked.as_str().to_owned(), in_use: in_use.to_owned(), message })
}

fn without_direct_access(observed: &Observed) -> usize {
    let views = observed.answers.values().filter_map(|answer| answer.as_ref().ok());
    views.filter(|view| view.problems.iter().any(|p| p.reason == "DaxUnavailable")).count()
}

pub fn export(
    context: &Context,
    observed: &Observed,
    status: &CacheGroupStatus,
    labels: GroupLabels,
) {
    let ready = i64::from(status.phase == Phase::Ready);
    context.metrics.ready.get_or_create(&labels).set(ready);
    let silent = observed
        .pods
        .iter()
        .filter(|(ordinal, pod)| {
            pod.running && observed.answers.get(ordinal).is_some_and(Result::is_err)
        })
        .count();
    let silent = i64::try_from(silent).unwrap_or(i64::MAX);
    context.metrics.nodes_unreachable.get_or_create(&labels).set(silent);
}
