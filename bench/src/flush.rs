//! What write-through costs the backend, and how fast it goes.
//!
//! Two experiments for each commit mode of the flush transactions. *Beside*: the side-by-side
//! blocks of [`crate::hlr`] at one thread count, for CPU per transaction, log waits and lag at the
//! direct side's own rate. *Drain*: the writes of the mix pile up while a lock keeps the lanes
//! waiting; then the lock goes, and the drain is timed, for several numbers of lanes. Every drain
//! ends with the row-by-row proof; a difference voids the run.

mod drain;
mod result;

pub use result::{FlushReport, ModeReport};

use crate::hlr::{self, HlrOptions, Level, Stage, level};
use crate::report::Machine;
use anyhow::Result;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct FlushOptions {
    /// Population, processors, and the side-by-side part.
    pub beside: HlrOptions,
    pub lanes: Vec<u16>,
    /// `Async`, `Sync`: the first one's figures are the headline.
    pub modes: Vec<&'static str>,
    /// Largest batch of a drain, in rows.
    pub drain_batch_rows: u32,
    /// How long writes pile up; the lanes wait for a lock no longer than ten seconds.
    pub pile_up: Duration,
}

/// The whole experiment.
pub async fn run(options: &FlushOptions) -> Result<FlushReport> {
    let load_average_before = Machine::here().load_average;
    let (stage, mut settings, mut void) = hlr::prepare(&options.beside).await?;
    let FlushOptions { drain_batch_rows, pile_up, .. } = options;
    settings.insert(
        "drains".to_owned(),
        format!(
            "writes of the mix for {:.1} s behind a lock, batches of at most {drain_batch_rows} rows",
            pile_up.as_secs_f64()
        ),
    );
    let mut modes = BTreeMap::new();
    for mode in &options.modes {
        if !void.is_empty() {
            break;
        }
        let (report, faults) = self::mode(options, &stage, mode).await?;
        void.extend(faults);
        modes.insert(mode.to_lowercase(), report);
    }
    let headline = options.modes.first().map(|mode| mode.to_lowercase()).unwrap_or_default();
    Ok(FlushReport::new(modes, &headline, void, settings, load_average_before))
}

async fn mode(
    options: &FlushOptions,
    stage: &Stage,
    mode: &'static str,
) -> Result<(ModeReport, Vec<String>)> {
    let beside = HlrOptions { backend_commit: mode, ..options.beside.clone() };
    let (level, mut faults) = level::run(&beside, stage, Level::Sync).await?;
    let mut drains = BTreeMap::new();
    for lanes in &options.lanes {
        let (drain, more) = drain::run(options, stage, mode, *lanes).await?;
        faults.extend(more);
        drains.insert(*lanes, drain);
    }
    Ok((ModeReport::new(&level, drains), faults))
}
