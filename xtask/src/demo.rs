//! The demo: the whole product on this machine, from nothing to a table one likes to read.
//!
//! Owns the order of the steps and their record. Each step uses what a user would use (helm, kubectl,
//! cachectl and the bench driver); nothing here knows the inside of the product.

// indexing a JSON value by a name gives null when it is absent, never a panic
#![allow(clippy::indexing_slicing)]

mod cluster;
mod people;
mod report;
mod steps;
mod traffic;

use anyhow::Result;
use clap::Args;
use report::Report;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Leave everything running at the end and print what to try next
    #[arg(long)]
    keep: bool,
    /// Write what happened as JSON to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Number of subscribers in the backend
    #[arg(long, default_value_t = 100_000)]
    subscribers: u64,
    /// Length of each timed run, in seconds
    #[arg(long, default_value_t = 6)]
    seconds: u64,
    /// Use the running cluster that KUBECONFIG names, instead of starting one
    #[arg(long)]
    existing: bool,
}

/// Runs the demo; the report is written also when a step fails.
pub fn run(args: &DemoArgs) -> Result<()> {
    let mut report = Report::new(args.subscribers);
    let outcome = steps::all(args, &mut report);
    report.finish(outcome.is_ok());
    if let Some(file) = &args.report {
        report.write(file)?;
    }
    people::print_summary(&report);
    if args.keep && outcome.is_err() {
        people::print_what_is_left();
    } else if args.keep {
        people::print_what_next();
    } else if !args.existing {
        steps::take_down()?;
    }
    outcome
}
