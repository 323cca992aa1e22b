//! The figures of write-through, given only when nothing voids them.

use super::drain::Drain;
use crate::hlr::{CachedAndDirect, LevelReport};
use crate::report::{Machine, heading, ms};
use comfy_table::{Table, presets};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Lanes whose drain is the headline: what a node has by default.
const HEADLINE_LANES: u16 = 4;

/// One commit mode of the flush transactions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModeReport {
    /// Of a drain with the default number of lanes.
    pub rows_per_backend_cpu_s: f64,
    /// Transactions drained per second, by `lanes_1`, `lanes_2` …
    pub transactions_per_s: BTreeMap<String, f64>,
    /// At the direct side's own rate, all transactions of the mix, all processes of the server.
    pub backend_cpu_us_per_transaction: CachedAndDirect,
    /// Cached over direct.
    pub backend_cpu_ratio: f64,
    pub flush_lag_p50_ms: f64,
    pub flush_lag_p99_ms: f64,
    /// Share of the active sessions that wait for the commit log, 0 to 1.
    pub wal_wait_share: CachedAndDirect,
    /// Seconds to drain a million transactions with the default number of lanes.
    pub drain_s_per_million: f64,
    pub drains: BTreeMap<u16, Drain>,
}

impl ModeReport {
    pub fn new(beside: &LevelReport, drains: BTreeMap<u16, Drain>) -> Self {
        let headline = drains.get(&HEADLINE_LANES).or_else(|| drains.values().last());
        let headline = headline.copied().unwrap_or_default();
        let us = |s_per_1000: f64| 1e3 * s_per_1000;
        let cpu = CachedAndDirect {
            cached: us(beside.cached_cost.backend_cpu_s_per_1000()),
            direct: us(beside.direct_cost.backend_cpu_s_per_1000()),
        };
        let per_s =
            drains.iter().map(|(lanes, d)| (format!("lanes_{lanes}"), d.transactions_per_s()));
        Self {
            rows_per_backend_cpu_s: headline.rows_per_backend_cpu_s(),
            transactions_per_s: per_s.collect(),
            backend_cpu_us_per_transaction: cpu,
            backend_cpu_ratio: cpu.cached / cpu.direct,
            flush_lag_p50_ms: beside.flush_lag_ms.median,
            flush_lag_p99_ms: beside.flush_lag_ms.p99.unwrap_or_default(),
            wal_wait_share: CachedAndDirect {
                cached: beside.cached_cost.waits.share(),
                direct: beside.direct_cost.waits.share(),
            },
            drain_s_per_million: 1e6 / headline.transactions_per_s(),
            drains,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FlushReport {
    /// Why no figure is given; empty when nothing is wrong.
    pub void: Vec<String>,
    /// The mode of the figures beside this; the others are in `modes`.
    pub backend_commit: String,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub headline: Option<ModeReport>,
    pub modes: BTreeMap<String, ModeReport>,
    pub settings: BTreeMap<String, String>,
    pub machine: Machine,
    pub load_average_before: String,
}

impl FlushReport {
    pub fn new(
        modes: BTreeMap<String, ModeReport>,
        headline: &str,
        void: Vec<String>,
        settings: BTreeMap<String, String>,
        load_average_before: String,
    ) -> Self {
        let modes = if void.is_empty() { modes } else { BTreeMap::new() };
        Self {
            void,
            backend_commit: headline.to_owned(),
            headline: modes.get(headline).cloned(),
            modes,
            settings,
            machine: Machine::here(),
            load_average_before,
        }
    }

    pub fn good(&self) -> bool {
        self.headline.is_some()
    }

    pub fn table(&self) -> String {
        let text = heading(&self.settings, &self.machine, &self.load_average_before, &self.void);
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header(["backend commit", "figure", "value"]);
        for (name, mode) in &self.modes {
            for (figure, value) in mode.lines() {
                table.add_row([name.clone(), figure, value]);
            }
        }
        text + &table.to_string()
    }
}

impl ModeReport {
    fn lines(&self) -> Vec<(String, String)> {
        let (cpu, waits) = (self.backend_cpu_us_per_transaction, self.wal_wait_share);
        let mut lines = vec![
            (
                "rows per backend CPU second".to_owned(),
                format!("{:.0}", self.rows_per_backend_cpu_s),
            ),
            (
                "backend CPU per transaction, cached / direct".to_owned(),
                format!(
                    "{:.2} / {:.1} µs (1/{:.1})",
                    cpu.cached,
                    cpu.direct,
                    cpu.direct / cpu.cached
                ),
            ),
            (
                "log waits, cached / direct".to_owned(),
                format!("{:.1} % / {:.1} %", 100.0 * waits.cached, 100.0 * waits.direct),
            ),
            (
                "flush lag p50 / p99".to_owned(),
                format!("{} / {} ms", ms(self.flush_lag_p50_ms), ms(self.flush_lag_p99_ms)),
            ),
            ("drain of a million".to_owned(), format!("{:.1} s", self.drain_s_per_million)),
        ];
        for (lanes, drain) in &self.drains {
            lines.push((
                format!("drain with {lanes} lanes"),
                format!(
                    "{:.0} transactions/s, {:.0} rows per backend CPU second ({} transactions, {} rows)",
                    drain.transactions_per_s(),
                    drain.rows_per_backend_cpu_s(),
                    drain.transactions,
                    drain.rows
                ),
            ));
        }
        lines
    }
}
