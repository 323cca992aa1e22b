//! What the experiment found: ratios only when nothing voids it.

use super::block::{Block, Cost};
use super::verify::Verified;
use crate::drive::Measured;
use crate::ledger::Tally;
use crate::report::{Machine, TransactionReport, heading, ms};
use crate::traffic::Kind;
use anyhow::{Context, Result};
use comfy_table::{Table, presets};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The median with the extremes; of a single value all three are that value.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99: Option<f64>,
}

impl Summary {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |place: usize| values.get(place).copied().unwrap_or_default();
        let last = values.len().saturating_sub(1);
        let median = (at(last / 2) + at(values.len() / 2)) / 2.0;
        Self { median, min: at(0), max: at(last), p99: None }
    }

    /// Of lags in nanoseconds, given in milliseconds.
    pub fn of_lags(lags: &Histogram<u64>) -> Self {
        let ms = |ns: u64| ns as f64 / 1e6;
        Self {
            median: ms(lags.value_at_quantile(0.5)),
            min: ms(lags.min()),
            max: ms(lags.max()),
            p99: Some(ms(lags.value_at_quantile(0.99))),
        }
    }
}

/// One side at one thread count, all repetitions together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SideReport {
    pub per_second: f64,
    pub transactions: BTreeMap<String, TransactionReport>,
    pub all_p99_ms: f64,
    pub cost: Cost,
}

impl SideReport {
    fn new<'a>(blocks: impl Iterator<Item = &'a Block>) -> Result<Self> {
        let mut all = Measured::new()?;
        let (mut cost, mut seconds) = (Cost::default(), 0.0);
        for block in blocks {
            all.merge(&block.measured)?;
            cost.add(&block.cost);
            seconds += block.seconds;
        }
        Ok(Self {
            per_second: all.count() as f64 / seconds,
            transactions: all.transactions(),
            all_p99_ms: p99_ms(&all)?,
            cost,
        })
    }
}

/// One thread count.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    pub threads: usize,
    /// Direct over cached, of each repetition: mean of the seven ratios of means, ratio of the
    /// means over the mix, ratio of the p99 over all transactions.
    pub mean_of_seven: Summary,
    pub mix_weighted: Summary,
    pub p99: Summary,
    /// Transactions of the cached side per second over those the direct side made: 1 when the cache
    /// kept up.
    pub rate_kept: f64,
    pub direct: SideReport,
    pub cached: SideReport,
    /// The cache as fast as it goes with these clients.
    pub peak: SideReport,
}

impl Cell {
    pub fn new(threads: usize, repetitions: &[(Block, Block)], peak: &Block) -> Result<Self> {
        let mut ratios = [Vec::new(), Vec::new(), Vec::new()];
        for (direct, cached) in repetitions {
            let all = ratios_of(&direct.measured, &cached.measured)?;
            ratios.iter_mut().zip(all).for_each(|(list, ratio)| list.push(ratio));
        }
        let [mean_of_seven, mix_weighted, p99] = ratios.map(Summary::of);
        let direct = SideReport::new(repetitions.iter().map(|(direct, _)| direct))?;
        let cached = SideReport::new(repetitions.iter().map(|(_, cached)| cached))?;
        let first_rates: f64 = direct.per_second;
        Ok(Self {
            threads,
            mean_of_seven,
            mix_weighted,
            p99,
            rate_kept: cached.per_second / first_rates,
            direct,
            cached,
            peak: SideReport::new([peak].into_iter())?,
        })
    }
}

fn ratios_of(direct: &Measured, cached: &Measured) -> Result<[f64; 3]> {
    let of_means = direct
        .latencies_ns
        .iter()
        .zip(&cached.latencies_ns)
        .map(|(direct, cached)| direct.mean() / cached.mean());
    let seven = of_means.sum::<f64>() / Kind::ALL.len() as f64;
    let mix = mean_ns(direct) / mean_ns(cached);
    Ok([seven, mix, p99_ms(direct)? / p99_ms(cached)?])
}

/// Weighted by how often each transaction ran.
fn mean_ns(measured: &Measured) -> f64 {
    let sum: f64 = measured.latencies_ns.iter().map(|h| h.mean() * h.len() as f64).sum();
    sum / measured.count().max(1) as f64
}

fn p99_ms(measured: &Measured) -> Result<f64> {
    let mut histograms = measured.latencies_ns.iter();
    let mut all = histograms.next().context("no histograms")?.clone();
    for histogram in histograms {
        all.add(histogram).context("histograms of one run must have the same bounds")?;
    }
    Ok(all.value_at_quantile(0.99) as f64 / 1e6)
}

/// One durability level.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LevelReport {
    pub cells: Vec<Cell>,
    pub direct_cost: Cost,
    pub cached_cost: Cost,
    pub direct_tally: Tally,
    pub cached_tally: Tally,
    pub direct_rows: Verified,
    pub cached_rows: Verified,
    /// From an acknowledgement until its position was in the backend.
    pub flush_lag_ms: Summary,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct CachedAndDirect {
    pub cached: f64,
    pub direct: f64,
}

/// Ratios by level and thread count (`t2`, `t16` …).
pub type Ratios = BTreeMap<String, BTreeMap<String, f64>>;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HlrReport {
    /// Why no ratio is given; empty when nothing is wrong.
    pub void: Vec<String>,
    /// Rows that are not as the acknowledged writes say, or differ between cache and backend.
    pub differences: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub figures: Option<Figures>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub ratios: Option<NamedRatios>,
    pub settings: BTreeMap<String, String>,
    pub machine: Machine,
    /// Load averages when the experiment began; another's work shows here.
    pub load_average_before: String,
}

/// Direct over cached, except where the name says otherwise.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NamedRatios {
    pub mean_of_seven: Ratios,
    pub mix_weighted: Ratios,
    pub p99: Ratios,
    /// Backend CPU per transaction, cached over direct.
    pub backend_cpu_ratio: f64,
    pub backend_cpu_ratio_by_level: BTreeMap<String, f64>,
    /// Share of the active sessions that wait for the commit log, 0 to 1.
    pub wal_wait_share: CachedAndDirect,
    pub flush_lag_p99_ms: BTreeMap<String, f64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    pub levels: BTreeMap<String, LevelReport>,
}

impl HlrReport {
    /// Ratios are worked out here and nowhere else, and only for a run without faults.
    pub fn new(
        levels: BTreeMap<String, LevelReport>,
        void: Vec<String>,
        settings: BTreeMap<String, String>,
        load_average_before: String,
    ) -> Self {
        let of =
            |level: &LevelReport| level.direct_rows.differences() + level.cached_rows.differences();
        let differences = levels.values().map(of).sum();
        let good = void.is_empty() && differences == 0;
        let ratios = good.then(|| NamedRatios::of(&levels));
        Self {
            void,
            differences,
            ratios,
            figures: good.then_some(Figures { levels }),
            settings,
            machine: Machine::here(),
            load_average_before,
        }
    }

    pub fn good(&self) -> bool {
        self.ratios.is_some()
    }

    pub fn table(&self) -> String {
        let mut text =
            heading(&self.settings, &self.machine, &self.load_average_before, &self.void);
        let (Some(figures), Some(ratios)) = (&self.figures, &self.ratios) else {
            let _ = writeln!(text, "no ratio is given; {} rows differ", self.differences);
            return text;
        };
        for (name, level) in &figures.levels {
            for cell in &level.cells {
                let _ = writeln!(text, "{}", cell.table(name));
            }
        }
        let _ = writeln!(text, "{}", ratios.table(figures));
        text
    }
}

impl NamedRatios {
    fn of(levels: &BTreeMap<String, LevelReport>) -> Self {
        let by_cell = |figure: fn(&Cell) -> f64| -> Ratios {
            let of_level = |level: &LevelReport| {
                level.cells.iter().map(|c| (format!("t{}", c.threads), figure(c))).collect()
            };
            levels.iter().map(|(name, level)| (name.clone(), of_level(level))).collect()
        };
        let (mut direct, mut cached) = (Cost::default(), Cost::default());
        for level in levels.values() {
            direct.add(&level.direct_cost);
            cached.add(&level.cached_cost);
        }
        let cpu = |cached: &Cost, direct: &Cost| {
            cached.backend_cpu_s_per_1000() / direct.backend_cpu_s_per_1000()
        };
        let each = |figure: &dyn Fn(&LevelReport) -> f64| {
            levels.iter().map(|(name, level)| (name.clone(), figure(level))).collect()
        };
        Self {
            mean_of_seven: by_cell(|c| c.mean_of_seven.median),
            mix_weighted: by_cell(|c| c.mix_weighted.median),
            p99: by_cell(|c| c.p99.median),
            backend_cpu_ratio: cpu(&cached, &direct),
            backend_cpu_ratio_by_level: each(&|l| cpu(&l.cached_cost, &l.direct_cost)),
            wal_wait_share: CachedAndDirect {
                cached: cached.waits.share(),
                direct: direct.waits.share(),
            },
            flush_lag_p99_ms: each(&|l| l.flush_lag_ms.p99.unwrap_or_default()),
        }
    }

    fn table(&self, figures: &Figures) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header([
            "level",
            "threads",
            "mean of seven",
            "min … max",
            "mix-weighted",
            "p99",
            "direct/s",
            "cached/s",
            "peak/s",
        ]);
        for (name, level) in &figures.levels {
            for c in &level.cells {
                table.add_row([
                    name.clone(),
                    c.threads.to_string(),
                    format!("{:.2}×", c.mean_of_seven.median),
                    format!("{:.2} … {:.2}", c.mean_of_seven.min, c.mean_of_seven.max),
                    format!("{:.2}×", c.mix_weighted.median),
                    format!("{:.2}×", c.p99.median),
                    format!("{:.0}", c.direct.per_second),
                    format!("{:.0}", c.cached.per_second),
                    format!("{:.0}", c.peak.per_second),
                ]);
            }
        }
        let mut text = table.to_string();
        let _ = write!(
            text,
            "\nbackend CPU per transaction, cached ÷ direct: {:.4} (1/{:.1})\n\
             sessions waiting for the log: cached {:.1} %, direct {:.1} %",
            self.backend_cpu_ratio,
            1.0 / self.backend_cpu_ratio,
            100.0 * self.wal_wait_share.cached,
            100.0 * self.wal_wait_share.direct,
        );
        for (name, level) in &figures.levels {
            let (direct, cached) = (&level.direct_cost, &level.cached_cost);
            let us = |cost: &Cost| 1e3 * cost.backend_cpu_s_per_1000();
            let _ = write!(
                text,
                "\n{name}: backend CPU {:.2} µs per transaction cached, {:.1} direct; node {:.1} µs; \
                 WAL syncs {} cached, {} direct; flush lag p50 {} p99 {} ms; {} rows compared, \
                 0 differ",
                us(cached),
                us(direct),
                1e6 * cached.node_cpu_s / cached.transactions.max(1) as f64,
                cached.log.syncs,
                direct.log.syncs,
                ms(level.flush_lag_ms.median),
                ms(level.flush_lag_ms.p99.unwrap_or_default()),
                level.direct_rows.rows + level.cached_rows.rows,
            );
        }
        text
    }
}

impl Cell {
    fn table(&self, level: &str) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header([
            "transaction",
            "side",
            "count",
            "mean ms",
            "p50",
            "p90",
            "p99",
            "p99.9",
            "ratio",
        ]);
        for kind in Kind::ALL {
            let of = |side: &SideReport| side.transactions.get(kind.name()).cloned();
            let (Some(direct), Some(cached)) = (of(&self.direct), of(&self.cached)) else {
                continue;
            };
            let ratio = format!("{:.2}×", direct.mean_ms / cached.mean_ms);
            for (side, t, ratio) in [("direct", direct, String::new()), ("cached", cached, ratio)] {
                let figures = [t.mean_ms, t.p50_ms, t.p90_ms, t.p99_ms, t.p999_ms].map(ms);
                let mut row = vec![kind.name().to_owned(), side.to_owned(), t.count.to_string()];
                row.extend(figures);
                row.push(ratio);
                table.add_row(row);
            }
        }
        format!(
            "{level}, {} threads: direct {:.0}/s, cached {:.0}/s\n{table}",
            self.threads, self.direct.per_second, self.cached.per_second
        )
    }
}
