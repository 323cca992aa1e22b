//! `cargo xtask sim`: many seeds, one seed, or the proof that the simulator can fail.

// a command-line tool talks to its user on the standard streams
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use serde::Serialize;
use sim::Outcome;

/// Lines of a failing history that are printed; all of one seed with `--seed`.
const LINES_MAX: usize = 120;

#[derive(Parser)]
#[command(name = "cargo xtask sim", about = "Simulate whole nodes and try to lose a write")]
struct Args {
    /// How many seeds
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first of them; 0: drawn from the clock
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Run this one seed and print its whole history
    #[arg(long)]
    seed: Option<u64>,
    /// Plant this defect and look for it; needs the feature `defects`, which `cargo xtask` sets
    #[arg(long)]
    defect: Option<String>,
    /// Plant each defect in turn and say how many seeds it took
    #[arg(long)]
    defects: bool,
    /// Write the figures here
    #[arg(long)]
    json: Option<PathBuf>,
    /// Print what the nodes log, too
    #[arg(long)]
    log: bool,
    /// Stop after this many failing seeds
    #[arg(long, default_value_t = 1)]
    failures: usize,
}

#[derive(Serialize)]
struct Figures {
    seeds: u64,
    failed: Vec<u64>,
    acknowledged: u64,
    in_doubt: u64,
    reads: u64,
    /// The most turns that the tasks of one history took.
    turns_max: u64,
    seconds: f64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.log {
        tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_writer(std::io::stderr)
            .init();
    }
    let result = match (&args.defect, args.defects) {
        (None, false) => many(&args),
        (name, _) => prove(&args, name.as_deref()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Seeds within which each defect must be found.
const HUNT_SEEDS_MAX: u64 = 5_000;

fn prove(args: &Args, name: Option<&str>) -> anyhow::Result<bool> {
    let wanted = |defect: &&cachetier_defects::Defect| name.is_none_or(|n| n == defect.name);
    let defects: Vec<_> = cachetier_defects::ALL.iter().filter(wanted).collect();
    anyhow::ensure!(!defects.is_empty(), "no defect has this name; `--defects` runs them all");
    let mut hunts = Vec::new();
    for defect in defects {
        let hunt = sim::proof::hunt(*defect, args.first, HUNT_SEEDS_MAX);
        let found = match hunt.seed {
            Some(seed) => format!("found after {} seeds (seed {seed})", hunt.seeds),
            None => format!("NOT FOUND in {} seeds", hunt.seeds),
        };
        println!("{:28} {found}, {:.1} s: {}", hunt.defect, hunt.seconds, hunt.violation);
        hunts.push(hunt);
    }
    let found = hunts.iter().filter(|hunt| hunt.seed.is_some()).count();
    println!("{found} of {} defects found", hunts.len());
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_vec_pretty(&hunts)?)?;
    }
    Ok(found == hunts.len())
}

fn many(args: &Args) -> anyhow::Result<bool> {
    let begun = Instant::now();
    let first = match (args.seed, args.first) {
        (Some(seed), _) => seed,
        (None, 0) => std::time::UNIX_EPOCH.elapsed()?.as_micros() as u64,
        (None, first) => first,
    };
    let count = if args.seed.is_some() { 1 } else { args.seeds };
    let mut figures = Figures {
        seeds: 0,
        failed: Vec::new(),
        acknowledged: 0,
        in_doubt: 0,
        reads: 0,
        turns_max: 0,
        seconds: 0.0,
    };
    for seed in first..first.saturating_add(count) {
        let outcome = sim::run(seed);
        figures.seeds += 1;
        figures.acknowledged += outcome.acknowledged;
        figures.in_doubt += outcome.in_doubt;
        figures.reads += outcome.reads;
        figures.turns_max = figures.turns_max.max(outcome.turns);
        if outcome.violation.is_some() || args.seed.is_some() {
            print(&outcome, if args.seed.is_some() { usize::MAX } else { LINES_MAX });
        }
        if outcome.violation.is_some() {
            figures.failed.push(seed);
            if figures.failed.len() >= args.failures {
                break;
            }
        }
    }
    figures.seconds = begun.elapsed().as_secs_f64();
    println!(
        "{} seeds from {first}, {} failed, {} acknowledged, {} in doubt, {} reads, {} turns at most, \
         {:.1} s",
        figures.seeds,
        figures.failed.len(),
        figures.acknowledged,
        figures.in_doubt,
        figures.reads,
        figures.turns_max,
        figures.seconds
    );
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_vec_pretty(&figures)?)?;
    }
    Ok(figures.failed.is_empty())
}

fn print(outcome: &Outcome, lines_max: usize) {
    let skipped = outcome.history.len().saturating_sub(lines_max);
    if skipped > 0 {
        println!("... {skipped} earlier lines; all with --seed {}", outcome.seed);
    }
    outcome.history.iter().skip(skipped).for_each(|line| println!("{line}"));
    if let Some(violation) = &outcome.violation {
        println!("seed {} fails: {violation}\n", outcome.seed);
    }
}
