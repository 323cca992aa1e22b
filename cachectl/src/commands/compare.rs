//! `compare`: every node compares its instances with the backend; the sums are printed, and which
//! instances differ, by a hash of their key.

use crate::arguments::{CompareArguments, Format, RepairWay};
use crate::exit::Exit;
use crate::output;
use crate::reach::{Node, Reach};
use anyhow::{Context, Result, bail};
use cachetier_client::wire::{
    CompareProgress, CompareRequest, InstanceDifference, InstanceTable, Repair,
};
use futures::StreamExt;
use futures::future::try_join_all;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use std::pin::pin;

pub async fn run(reach: &Reach, arguments: &CompareArguments, format: Format) -> Result<Exit> {
    let bar = progress_bar();
    let repair = match arguments.repair {
        None => Repair::Unspecified,
        Some(RepairWay::FromBackend) => Repair::FromBackend,
        Some(RepairWay::FromCache) => Repair::FromCache,
    };
    let request = CompareRequest {
        sample: arguments.sample,
        repair: repair.into(),
        rows_per_second: arguments.rows_per_second,
    };
    let finished =
        try_join_all(reach.nodes().iter().map(|n| compare_node(reach, n, request, &bar))).await?;
    bar.finish_and_clear();
    let sums = Sums::of(&finished);
    match format {
        Format::Json => output::print_json(&sums.to_json(&finished))?,
        Format::Table => {
            sums.print();
            finished.iter().for_each(print_found);
        }
    }
    if sums.instances == 0 && arguments.sample > 1 {
        output::complain(format_args!(
            "no instance fell into a sample of one in {}, so nothing is proved; take a smaller --sample",
            arguments.sample
        ));
        return Ok(Exit::NotGood);
    }
    Ok(Exit::good(sums.repaired == sums.differing))
}

/// Differing instances of one node that are kept for printing; the others only count.
const FOUND_MAX: usize = 1_000;

fn progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{spinner} {human_pos}/{human_len} instances {wide_bar} eta {eta}",
    );
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}

/// One node to its end.
async fn compare_node(
    reach: &Reach,
    node: &Node,
    request: CompareRequest,
    bar: &ProgressBar,
) -> Result<Compared> {
    let stopped = || format!("the comparison at {} ended early", node.name);
    let stream = reach.admin(node).compare(request).await.with_context(stopped)?;
    let mut stream = pin!(stream);
    let mut last = CompareProgress::default();
    let (mut differing, mut found) = (0, Vec::new());
    while let Some(progress) = stream.next().await {
        let mut progress = progress.with_context(stopped)?;
        differing += progress.found.len() as u64;
        let room = FOUND_MAX - found.len();
        found.extend(std::mem::take(&mut progress.found).into_iter().take(room));
        if last.expected_instances == 0 {
            bar.inc_length(progress.expected_instances);
        }
        bar.inc(progress.instances.saturating_sub(last.instances));
        last = progress;
    }
    if !last.done {
        bail!("{}; nothing is proved", stopped());
    }
    Ok(Compared { node: node.name.clone(), last, differing, found })
}

/// What came of it at one node.
struct Compared {
    node: String,
    last: CompareProgress,
    /// Instances that differ.
    differing: u64,
    /// The first of them.
    found: Vec<InstanceDifference>,
}

#[derive(Clone, Copy, Debug, Default)]
struct TableSums {
    rows: u64,
    only_in_cache: u64,
    only_in_backend: u64,
    different: u64,
}

#[derive(Debug, Default)]
struct Sums {
    instances: u64,
    rows: u64,
    not_loaded: u64,
    differences: u64,
    differing: u64,
    repaired: u64,
    tables: BTreeMap<String, TableSums>,
}

impl Sums {
    fn of(finished: &[Compared]) -> Self {
        let mut sums = Self::default();
        for Compared { last: node, differing, .. } in finished {
            sums.differing += differing;
            sums.repaired += node.repaired;
            sums.instances += node.instances;
            sums.rows += node.rows;
            sums.not_loaded += node.not_loaded;
            sums.differences += node.differences;
            for t in &node.tables {
                let table = sums.tables.entry(t.table.clone()).or_default();
                table.rows += t.rows;
                table.only_in_cache += t.only_in_cache;
                table.only_in_backend += t.only_in_backend;
                table.different += t.different;
            }
        }
        sums
    }

    fn to_json(&self, finished: &[Compared]) -> Json {
        let tables: Map<String, Json> = self
            .tables
            .iter()
            .map(|(name, t)| {
                let figures = json!({
                    "rows": t.rows,
                    "onlyInCache": t.only_in_cache,
                    "onlyInBackend": t.only_in_backend,
                    "different": t.different,
                });
                (name.clone(), figures)
            })
            .collect();
        let nodes: Map<String, Json> = finished
            .iter()
            .map(|compared| {
                let n = &compared.last;
                let figures = json!({
                    "instances": n.instances,
                    "rows": n.rows,
                    "differences": n.differences,
                    "differingInstances": compared.differing,
                    "repaired": n.repaired,
                    "found": compared.found.iter().map(found_json).collect::<Vec<Json>>(),
                });
                (compared.node.clone(), figures)
            })
            .collect();
        json!({
            "instances": self.instances,
            "rows": self.rows,
            "notLoaded": self.not_loaded,
            "differences": self.differences,
            "differingInstances": self.differing,
            "repaired": self.repaired,
            "tables": tables,
            "nodes": nodes,
        })
    }

    fn print(&self) {
        let mut table =
            output::table(["table", "rows", "only in cache", "only in backend", "different"]);
        for (name, t) in &self.tables {
            table.add_row([
                name.clone(),
                t.rows.to_string(),
                t.only_in_cache.to_string(),
                t.only_in_backend.to_string(),
                t.different.to_string(),
            ]);
        }
        output::print_table(&table);
        say!(
            "{} instances with {} rows compared, {} not loaded, {} differences",
            self.instances,
            self.rows,
            self.not_loaded,
            self.differences
        );
    }
}

fn found_json(found: &InstanceDifference) -> Json {
    let table = |t: &InstanceTable| {
        json!({
            "table": t.table,
            "onlyInCache": t.only_in_cache,
            "onlyInBackend": t.only_in_backend,
            "different": t.different,
            "columns": t.columns,
        })
    };
    json!({
        "keyHash": found.key_hash,
        "tables": found.tables.iter().map(table).collect::<Vec<Json>>(),
        "repaired": found.repaired,
        "left": found.left,
    })
}

fn print_found(compared: &Compared) {
    for found in &compared.found {
        let tables: Vec<String> = found.tables.iter().map(in_words).collect();
        let outcome = match (found.repaired, found.left.as_str()) {
            (true, _) => "; repaired".to_owned(),
            (false, "") => String::new(),
            (false, why) => format!("; not repaired: {why}"),
        };
        say!("{}: instance {}: {}{outcome}", compared.node, found.key_hash, tables.join(", "));
    }
    let more = compared.differing.saturating_sub(compared.found.len() as u64);
    if more > 0 {
        say!("{}: and {more} more instances", compared.node);
    }
}

fn in_words(table: &InstanceTable) -> String {
    let mut parts = Vec::new();
    if table.only_in_cache > 0 {
        parts.push(format!("{} only in cache", table.only_in_cache));
    }
    if table.only_in_backend > 0 {
        parts.push(format!("{} only in backend", table.only_in_backend));
    }
    if table.different > 0 {
        parts.push(format!("{} different in {}", table.different, table.columns.join(" ")));
    }
    format!("{} ({})", table.table, parts.join(", "))
}
