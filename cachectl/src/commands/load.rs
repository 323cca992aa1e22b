//! `load`: how far the load is, per table, with rate and what remains.

use super::status::ask;
use crate::arguments::{Format, LoadArguments};
use crate::exit::Exit;
use crate::output::{self, seconds};
use crate::reach::Reach;
use anyhow::{Context, Result};
use cachetier_client::wire::StatusResponse;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

const POLL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Progress {
    load_id: String,
    slots_serving: u64,
    slots_covered: u64,
    rows_per_second: f64,
    stopped_by_memory: bool,
    /// Rows here, and the backend's estimate.
    tables: BTreeMap<String, (u64, u64)>,
}

impl Progress {
    fn of(statuses: &[StatusResponse]) -> Self {
        let mut sums = Self::default();
        for status in statuses {
            sums.slots_serving += u64::from(status.slots_serving);
            sums.slots_covered += u64::from(status.slots_covered);
            let Some(load) = &status.load else { continue };
            sums.load_id.clone_from(&load.load_id);
            sums.rows_per_second += load.rows_per_second;
            sums.stopped_by_memory |= load.stopped_by_memory;
            for t in &load.tables {
                let table = sums.tables.entry(t.table.clone()).or_default();
                table.0 += t.rows;
                // Every node knows the same estimate of the whole table.
                table.1 = table.1.max(t.expected_rows);
            }
        }
        sums
    }

    fn complete(&self) -> bool {
        self.slots_serving > 0 && self.slots_covered == self.slots_serving
    }

    fn percent(&self) -> u64 {
        let (rows, expected) = self.rows();
        match self.complete() {
            true => 100,
            false if expected > 0 => (100 * rows / expected).min(99),
            false => 0,
        }
    }

    fn rows(&self) -> (u64, u64) {
        self.tables.values().fold((0, 0), |sum, t| (sum.0 + t.0, sum.1 + t.1))
    }

    /// Seconds to go at the present rate.
    fn remaining_seconds(&self) -> Option<f64> {
        let (rows, expected) = self.rows();
        let left = expected.saturating_sub(rows) as f64;
        (!self.complete() && self.rows_per_second > 0.0).then_some(left / self.rows_per_second)
    }
}

pub async fn run(reach: &Reach, arguments: &LoadArguments, format: Format) -> Result<Exit> {
    let until = Instant::now() + Duration::from_secs(arguments.timeout);
    let bar = ProgressBar::new(100).with_style(
        ProgressStyle::with_template("{spinner} loaded {pos}% {wide_bar} {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let progress = loop {
        let progress = Progress::of(&statuses(reach).await?);
        if !arguments.wait || progress.complete() || Instant::now() >= until {
            break progress;
        }
        bar.set_position(progress.percent());
        bar.set_message(format!("{:.0} rows/s", progress.rows_per_second));
        tokio::time::sleep(POLL).await;
    };
    bar.finish_and_clear();
    match format {
        Format::Json => output::print_json(&to_json(&progress))?,
        Format::Table => print(&progress),
    }
    Ok(Exit::good(progress.complete()))
}

async fn statuses(reach: &Reach) -> Result<Vec<StatusResponse>> {
    let answers = ask(reach).await.into_iter();
    answers
        .map(|(node, answer)| answer.with_context(|| format!("{} does not answer", node.name)))
        .collect()
}

fn to_json(progress: &Progress) -> Json {
    let tables: Map<String, Json> = progress
        .tables
        .iter()
        .map(|(name, (rows, expected))| {
            (name.clone(), json!({"rows": rows, "expectedRows": expected}))
        })
        .collect();
    json!({
        "load": progress.load_id,
        "complete": progress.complete(),
        "percent": progress.percent(),
        "slotsCovered": progress.slots_covered,
        "slotsServing": progress.slots_serving,
        "rowsPerSecond": progress.rows_per_second,
        "remainingSeconds": progress.remaining_seconds(),
        "stoppedByMemory": progress.stopped_by_memory,
        "tables": tables,
    })
}

fn print(progress: &Progress) {
    say!(
        "{} % loaded, {} of {} served slots complete{}",
        progress.percent(),
        progress.slots_covered,
        progress.slots_serving,
        progress.remaining_seconds().map_or(String::new(), |s| format!(", {} to go", seconds(s)))
    );
    if progress.stopped_by_memory {
        say!("stopped: the nodes' memory is full; raise spec.memory.capacity");
    }
    let mut table = output::table(["table", "rows", "expected"]);
    for (name, (rows, expected)) in &progress.tables {
        table.add_row([name.clone(), rows.to_string(), expected.to_string()]);
    }
    output::print_table(&table);
}

#[cfg(test)]
mod tests {
    use super::*;
    use cachetier_client::wire::{LoadStatus, TableLoad};

    #[test]
    fn d24_a_load_has_a_percentage_a_rate_and_a_time_to_go() {
        let node = |rows, covered| StatusResponse {
            slots_serving: 2048,
            slots_covered: covered,
            load: Some(LoadStatus {
                rows_per_second: 50.0,
                tables: vec![TableLoad { table: "t".into(), rows, expected_rows: 1_000 }],
                ..LoadStatus::default()
            }),
            ..StatusResponse::default()
        };
        let half = Progress::of(&[node(300, 0), node(200, 0)]);
        assert_eq!((half.percent(), half.remaining_seconds()), (50, Some(5.0)));
        let whole = Progress::of(&[node(500, 2048), node(480, 2048)]);
        assert_eq!((whole.percent(), whole.remaining_seconds()), (100, None));
    }
}
