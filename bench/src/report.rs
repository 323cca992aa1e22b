//! What a run measured: as JSON for other programs, as a table for people.

use crate::self_check::SelfCheck;
use crate::traffic::Kind;
use comfy_table::{Table, presets};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// `backend` or `cache`.
    pub target: String,
    pub threads: usize,
    pub seconds: f64,
    /// Transactions per second asked for; absent in a closed loop.
    pub rate: Option<f64>,
    pub subscribers: u64,
    pub uniform: bool,
    /// Of the traffic: the same seed asks the same questions.
    pub seed: u64,
    /// Attempts per second.
    pub per_second: f64,
    /// By name.
    pub transactions: BTreeMap<String, TransactionReport>,
    pub mean_of_seven_ms: f64,
    pub mix_weighted_mean_ms: f64,
    /// Failures by class; they are in no latency figure.
    pub failures: BTreeMap<String, u64>,
    /// Why this run proves nothing; absent when it is good.
    pub void: Option<String>,
    pub self_check: Option<SelfCheck>,
    pub machine: Machine,
    pub backend_settings: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TransactionReport {
    pub count: u64,
    pub hits: u64,
    pub hit_rate_percent: f64,
    pub expected_hit_rate_percent: f64,
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub max_ms: f64,
}

impl TransactionReport {
    pub fn new(kind: Kind, latencies_ns: &Histogram<u64>, hits: u64) -> Self {
        let count = latencies_ns.len();
        let at = |quantile: f64| latencies_ns.value_at_quantile(quantile) as f64 / 1e6;
        Self {
            count,
            hits,
            hit_rate_percent: 100.0 * hits as f64 / count.max(1) as f64,
            expected_hit_rate_percent: kind.hit_rate_percent(),
            mean_ms: latencies_ns.mean() / 1e6,
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: latencies_ns.max() as f64 / 1e6,
        }
    }
}

/// The box a figure was taken on; figures of different boxes are not comparable.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    pub cpus: usize,
    pub load_average: String,
    pub last_level_cache: String,
}

impl Machine {
    pub fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let load = read("/proc/loadavg");
        Self {
            cpus: crate::stage::Processors::online().count(),
            load_average: load.split_whitespace().take(3).collect::<Vec<_>>().join(" "),
            last_level_cache: read("/sys/devices/system/cpu/cpu0/cache/index3/size")
                .trim()
                .to_owned(),
        }
    }
}

/// What stands above the figures of an experiment: how, where, and why there are none.
pub fn heading(
    settings: &BTreeMap<String, String>,
    machine: &Machine,
    load_average_before: &str,
    void: &[String],
) -> String {
    let settings = settings.iter().map(|(name, value)| format!("{name}: {value}\n"));
    let Machine { cpus, load_average, last_level_cache } = machine;
    let machine = format!(
        "{cpus} CPUs, load average {load_average_before} before and {load_average} after, \
         last-level cache {last_level_cache}\n"
    );
    let void = void.iter().map(|reason| format!("VOID: {reason}\n"));
    settings.chain([machine]).chain(void).collect()
}

impl Report {
    /// The transactions in the order the workload lists them.
    pub fn in_order(&self) -> impl Iterator<Item = (&'static str, &TransactionReport)> {
        Kind::ALL.into_iter().filter_map(|k| Some((k.name(), self.transactions.get(k.name())?)))
    }

    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header([
            "transaction",
            "count",
            "mean ms",
            "p50",
            "p90",
            "p99",
            "p99.9",
            "hit %",
            "expected",
        ]);
        for (name, t) in self.in_order() {
            table.add_row([
                name.to_owned(),
                t.count.to_string(),
                ms(t.mean_ms),
                ms(t.p50_ms),
                ms(t.p90_ms),
                ms(t.p99_ms),
                ms(t.p999_ms),
                format!("{:.1}", t.hit_rate_percent),
                format!("{:.1}", t.expected_hit_rate_percent),
            ]);
        }
        let mut text = format!(
            "{}: {} clients, {:.1} s{}, {} subscribers{}\n{table}\n{:.0} transactions/s, \
             mean of the seven {} ms, mix-weighted mean {} ms\n{} CPUs, load {}, last-level cache {}",
            self.target,
            self.threads,
            self.seconds,
            self.rate.map_or(String::new(), |r| format!(" at {r:.0}/s")),
            self.subscribers,
            if self.uniform { ", uniform keys" } else { "" },
            self.per_second,
            ms(self.mean_of_seven_ms),
            ms(self.mix_weighted_mean_ms),
            self.machine.cpus,
            self.machine.load_average,
            self.machine.last_level_cache,
        );
        for (class, count) in &self.failures {
            text.push_str(&format!("\nfailed: {count} × {class}"));
        }
        if let Some(reason) = &self.void {
            text.push_str(&format!("\nVOID: {reason}"));
        }
        text
    }
}

/// Milliseconds with as many digits as a person reads.
pub fn ms(value: f64) -> String {
    match value {
        v if v < 1.0 => format!("{v:.3}"),
        v if v < 100.0 => format!("{v:.2}"),
        v => format!("{v:.0}"),
    }
}
