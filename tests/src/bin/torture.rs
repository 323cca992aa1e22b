//! Command line of the torture. Exit codes: 0 nothing lost, 1 failed, 3 something was lost,
//! doubled or reordered.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

use anyhow::Context;
use clap::Parser;
use hlr_bench::stage::signals::unless_told_to_end;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use system_tests::torture::{self, TortureOptions};

/// Real processes, killed and cut off at random under load; nothing acknowledged may be lost
#[derive(Parser, Debug)]
#[command(name = "torture")]
struct Args {
    #[arg(long, default_value_t = 5.0, value_parser = above_zero)]
    minutes: f64,
    /// Decides which faults come when; default: another one at each start
    #[arg(long)]
    seed: Option<u64>,
    /// Concurrent writers; a reader runs beside every fourth
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    writers: u16,
    /// Counters, each written by one writer
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(i64).range(1..))]
    counters: i64,
    /// Sync or Async, of the flush transactions
    #[arg(long, default_value = "Async", value_parser = ["Async", "Sync"])]
    backend_commit: String,
    /// Seconds of faults in one round
    #[arg(long, default_value_t = 12.0, value_parser = above_zero)]
    round: f64,
    /// Where the node's log is kept when something is wrong
    #[arg(long, default_value = "out/torture")]
    keep: PathBuf,
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Seconds or minutes.
fn above_zero(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "it is no number".to_owned())?;
    let fits = value > 0.0 && Duration::try_from_secs_f64(value * 60.0).is_ok();
    fits.then_some(value).ok_or_else(|| "it must be above 0".to_owned())
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let options = TortureOptions {
        duration: Duration::try_from_secs_f64(args.minutes * 60.0)?,
        seed: args.seed.unwrap_or(since.as_nanos() as u64),
        writers: args.writers.into(),
        counters: args.counters,
        backend_commit: args.backend_commit,
        round: Duration::try_from_secs_f64(args.round)?,
        keep: args.keep,
    };
    println!("seed {}", options.seed);
    let work = torture::run(&options, |line| println!("{line}"));
    let report = unless_told_to_end(work).await?;
    let text = serde_json::to_string_pretty(&report)?;
    println!("{text}");
    for violation in &report.violations {
        eprintln!("\n{violation}");
    }
    if let Some(path) = &args.json {
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(match (report.clean(), &report.error) {
        (true, _) => ExitCode::SUCCESS,
        (false, Some(_)) => ExitCode::FAILURE,
        (false, None) => ExitCode::from(3),
    })
}
