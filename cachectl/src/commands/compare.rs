//! `compare`: every node compares its instances with the backend; the sums are printed.

use crate::arguments::{CompareArguments, Format};
use crate::exit::Exit;
use crate::output;
use crate::reach::{Node, Reach};
use anyhow::{Context, Result, bail};
use cachetier_client::wire::CompareProgress;
use futures::StreamExt;
use futures::future::try_join_all;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use std::pin::pin;

pub async fn run(reach: &Reach, arguments: &CompareArguments, format: Format) -> Result<Exit> {
    let bar = progress_bar();
    let sample = arguments.sample;
    let finished =
        try_join_all(reach.nodes().iter().map(|n| compare_node(reach, n, sample, &bar))).await?;
    bar.finish_and_clear();
    let sums = Sums::of(&finished);
    match format {
        Format::Json => output::print_json(&sums.to_json(&finished))?,
        Format::Table => sums.print(),
    }
    Ok(Exit::good(sums.differences == 0))
}

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
    sample: u32,
    bar: &ProgressBar,
) -> Result<(String, CompareProgress)> {
    let stopped = || format!("the comparison at {} ended early", node.name);
    let stream = reach.admin(node).compare(sample).await.with_context(stopped)?;
    let mut stream = pin!(stream);
    let mut last = CompareProgress::default();
    while let Some(progress) = stream.next().await {
        let progress = progress.with_context(stopped)?;
        if last.expected_instances == 0 {
            bar.inc_length(progress.expected_instances);
        }
        bar.inc(progress.instances.saturating_sub(last.instances));
        last = progress;
    }
    if !last.done {
        bail!("{}; nothing is proved", stopped());
    }
    Ok((node.name.clone(), last))
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
    tables: BTreeMap<String, TableSums>,
}

impl Sums {
    fn of(finished: &[(String, CompareProgress)]) -> Self {
        let mut sums = Self::default();
        for (_, node) in finished {
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

    fn to_json(&self, finished: &[(String, CompareProgress)]) -> Json {
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
            .map(|(name, n)| {
                let figures = json!({
                    "instances": n.instances,
                    "rows": n.rows,
                    "differences": n.differences,
                });
                (name.clone(), figures)
            })
            .collect();
        json!({
            "instances": self.instances,
            "rows": self.rows,
            "notLoaded": self.not_loaded,
            "differences": self.differences,
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
