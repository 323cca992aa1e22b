//! Torture: real processes under load, killed, frozen, cut off and starved of disk at random; after
//! each round every acknowledged write must be in cache and backend, once and in order.
//!
//! One seed decides which faults come when (not how the processes race with them). Owns a stage of
//! [`crate::local`], a proxy in front of the backend and one in front of the node, and a small
//! volume for the journal. Must never take an unknown outcome for either answer: it is in doubt
//! until the next read of that counter settles it.

pub mod counters;
pub mod faults;
pub mod proxy;
pub mod stage;
pub mod verify;
pub mod volume;
mod writer;

use anyhow::{Context, Result};
use counters::Counters;
use faults::Fault;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use stage::Stage;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use writer::Load;

/// Once all is well again, each writer must get so many writes through, on average.
const ACKNOWLEDGED_AFTER: u64 = 20;

#[derive(Clone, Debug)]
pub struct TortureOptions {
    pub duration: Duration,
    pub seed: u64,
    pub writers: usize,
    pub counters: i64,
    /// `Sync` or `Async`, of the flush transactions.
    pub backend_commit: String,
    /// Fault and settling time of one round.
    pub round: Duration,
    /// Where the stage's logs are copied when something is wrong.
    pub keep: PathBuf,
}

/// The keys are an interface.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TortureReport {
    pub rounds: u64,
    /// Processes ended with signal 9.
    pub kills: u64,
    pub acknowledged: u64,
    /// Acknowledged writes that are not there.
    pub lost: u64,
    /// Writes that happened though nobody sent them (again).
    pub duplicated: u64,
    /// Reads that went backwards, and rows that do not fit each other.
    pub reordered: u64,
    /// Writes whose outcome was unknown when they were answered; each was settled later.
    pub in_doubt: u64,
    pub reads: u64,
    pub seed: u64,
    pub seconds: f64,
    pub faults: BTreeMap<String, u64>,
    /// Refusals that were waited out, by reason.
    pub refusals: BTreeMap<String, u64>,
    /// What was wrong, with the last events of the counter.
    pub violations: Vec<String>,
    /// What kept a round from being checked.
    pub error: Option<String>,
}

impl TortureReport {
    pub fn clean(&self) -> bool {
        let wrong = self.lost + self.duplicated + self.reordered;
        wrong == 0 && self.violations.is_empty() && self.error.is_none() && self.acknowledged > 0
    }
}

/// Rounds until the time is over, or until something is wrong.
pub async fn run(options: &TortureOptions, tell: fn(&str)) -> Result<TortureReport> {
    let started = Instant::now();
    let mut report = TortureReport { seed: options.seed, ..TortureReport::default() };
    let mut stage = Stage::start(options).await.context("setting up")?;
    let outcome = rounds(options, &mut stage, &mut report, started, tell).await;
    report.error = outcome.err().map(|error| format!("{error:#}"));
    report.seconds = started.elapsed().as_secs_f64();
    if !report.clean() {
        stage.keep_logs(&options.keep).context("keeping the logs")?;
    }
    Ok(report)
}

async fn rounds(
    options: &TortureOptions,
    stage: &mut Stage,
    report: &mut TortureReport,
    started: Instant,
    tell: fn(&str),
) -> Result<()> {
    let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
    let counters = Arc::new(Counters::new(options.counters));
    while report.rounds == 0 || started.elapsed() < options.duration {
        let load = Load::start(stage.clients(options.writers).await?, &counters);
        let until = Instant::now() + options.round;
        let mut happened = Vec::new();
        while Instant::now() < until {
            // a moment of undisturbed load, of random length, is part of the fault's timing
            let pause = Duration::from_millis(rng.random_range(50..1_500));
            tokio::time::sleep(pause).await;
            let fault = Fault::draw(&mut rng);
            counters.note(&format!("{fault:?}"));
            let kills = fault.inflict(stage, &mut rng).await;
            report.kills += kills.with_context(|| format!("inflicting {fault:?}"))?;
            *report.faults.entry(fault.name().to_owned()).or_default() += 1;
            happened.push(fault.name());
        }
        counters.note("healing");
        stage.heal().await.context("healing after the round")?;
        let before = report.acknowledged;
        let more = ACKNOWLEDGED_AFTER * options.writers as u64;
        counters.progress(more).await.context("writing on after the round")?;
        load.stop().await?;
        stage.flushed().await.context("flushing after the round")?;
        verify::round(stage, &counters).await.context("checking after the round")?;
        counters.fill(report);
        report.rounds += 1;
        tell(&format!(
            "round {}: {} acknowledged, {} in doubt, faults: {}",
            report.rounds,
            report.acknowledged - before,
            report.in_doubt,
            happened.join(" ")
        ));
        if !report.violations.is_empty() {
            break;
        }
    }
    Ok(())
}
