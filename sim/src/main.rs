//! `cargo xtask sim`: many seeds, one seed, or the proof that the simulator can fail.

// a command-line tool talks to its user on the standard streams
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::Context;
use clap::Parser;
use serde::Serialize;
use sim::Outcome;
use sim::proof::Hunt;
use sim::watch::{self, Pulse};

/// Lines of a failing history that are printed; all of one seed with `--seed`.
const LINES_MAX: usize = 120;

/// Seeds that are run if nothing is said.
const SEEDS: u64 = 1_000;

#[derive(Parser)]
#[command(name = "cargo xtask sim", about = "Simulate whole nodes and try to lose a write")]
struct Args {
    /// How many seeds; without it 1,000, and 5,000 for a defect, which are never more
    #[arg(long)]
    seeds: Option<u64>,
    /// The first of them; 0: drawn from the clock
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Run this one seed, with the defect if there is one, and print its whole history
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
        (Some(name), _) => prove(&args, name),
        (None, true) => prove_all(&args),
        (None, false) => many(&args),
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

/// Hunts one defect in this process. A task that does not give way is a find, too, and the end of
/// the process.
fn prove(args: &Args, name: &str) -> anyhow::Result<bool> {
    let defect = cachetier_defects::ALL.iter().find(|defect| defect.name == name);
    let defect = defect.context("no defect has this name; `--defects` runs them all")?;
    if let Some(seed) = args.seed {
        let outcome = sim::proof::show(defect, seed);
        print(&outcome, usize::MAX);
        return Ok(outcome.violation.is_some());
    }
    let (pulse, begun) = (Pulse::default(), Instant::now());
    let (first, json) = (args.first, args.json.clone());
    watch::watch(&pulse, move |seed, violation| {
        let hunt = Hunt {
            seed: Some(seed),
            seeds: seed - first + 1,
            violation,
            seconds: begun.elapsed().as_secs_f64(),
            ..Hunt::of(defect)
        };
        let written = report(&hunt, json.as_deref());
        std::process::exit(i32::from(written.is_err()));
    });
    let seeds = args.seeds.unwrap_or(HUNT_SEEDS_MAX).min(HUNT_SEEDS_MAX);
    let hunt = sim::proof::hunt(defect, args.first, seeds, &pulse);
    report(&hunt, args.json.as_deref())?;
    Ok(hunt.seed.is_some())
}

fn report(hunt: &Hunt, json: Option<&Path>) -> anyhow::Result<()> {
    println!("{hunt}");
    if let Some(path) = json {
        std::fs::write(path, serde_json::to_vec_pretty(hunt)?)?;
    }
    Ok(())
}

/// Hunts each defect in a process of its own, which can be ended.
fn prove_all(args: &Args) -> anyhow::Result<bool> {
    let mut hunts = Vec::new();
    for defect in &cachetier_defects::ALL {
        let answer = std::env::temp_dir().join(format!("sim-hunt-{}.json", std::process::id()));
        let mut hunter = Command::new(std::env::current_exe()?);
        hunter.args(["--defect", defect.name, "--first", &args.first.to_string(), "--json"]);
        hunter.arg(&answer);
        if let Some(seeds) = args.seeds {
            hunter.args(["--seeds", &seeds.to_string()]);
        }
        let ended = hunter.status()?;
        let hunt = std::fs::read(&answer).map_err(anyhow::Error::from);
        let hunt = hunt.and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
        let _absent = std::fs::remove_file(&answer);
        hunts.push(hunt.unwrap_or_else(|_| {
            let hunt = Hunt { violation: format!("its hunt ended: {ended}"), ..Hunt::of(defect) };
            println!("{hunt}");
            hunt
        }));
    }
    let found = hunts.iter().filter(|hunt: &&Hunt| hunt.seed.is_some()).count();
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
    let count = if args.seed.is_some() { 1 } else { args.seeds.unwrap_or(SEEDS) };
    let mut figures = Figures {
        seeds: 0,
        failed: Vec::new(),
        acknowledged: 0,
        in_doubt: 0,
        reads: 0,
        turns_max: 0,
        seconds: 0.0,
    };
    let pulse = Pulse::default();
    watch::watch(&pulse, |seed, words| {
        println!("seed {seed} fails: {words}");
        std::process::exit(1);
    });
    for seed in first..first.saturating_add(count) {
        let outcome = sim::run_watched(seed, &pulse);
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
