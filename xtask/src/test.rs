//! `cargo xtask test`: runs the workspace's tests, starts what they need and counts what came out.
//! The last line is always `N passed, N failed, N skipped`, from the test runner's own results.

mod runner;
mod servers;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
pub use runner::{Outcome, Summary};

use crate::{e2e, process, workspace};

/// Operator tests at a time; each has a namespace of its own.
const OPERATOR_THREADS: usize = 6;

/// What a test needs to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// Tests inside the crates; some use a PostgreSQL
    Unit,
    /// Cache node processes with a PostgreSQL
    Node,
    /// The operator with an API server
    Operator,
    /// The whole product on a cluster with pods
    E2e,
}

#[derive(Args)]
pub struct TestArgs {
    /// Only tests whose name contains this
    filter: Option<String>,
    /// Only tests of one level; without it, all that need no cluster
    #[arg(long)]
    level: Option<Level>,
}

pub fn run(args: &TestArgs) -> Result<()> {
    let filters: Vec<String> = args.filter.iter().cloned().collect();
    let summary = match args.level {
        Some(Level::E2e) => e2e::summary(&e2e::E2eArgs::with_filters(filters))?,
        Some(level) => of_levels(&[level], &filters)?,
        None => of_levels(&[Level::Unit, Level::Node, Level::Operator], &filters)?,
    };
    conclude(&summary)
}

/// Runs one `cargo test`, made from the arguments for the test programs, and reads its results.
pub fn run_tests(
    make: impl Fn(&[String]) -> std::process::Command,
    arguments: &[String],
) -> Result<Summary> {
    runner::run(make, arguments)
}

/// Prints the final line and fails when a test failed.
pub fn conclude(summary: &Summary) -> Result<()> {
    for name in summary.failures() {
        println!("failed: {name}");
    }
    for name in &summary.unsteady {
        println!("unsteady (failed among the others, passed alone): {name}");
    }
    println!("{summary}");
    if summary.failed > 0 {
        bail!("{} tests failed", summary.failed);
    }
    Ok(())
}

/// Runs all tests of these levels that need no cluster.
pub fn of_levels(levels: &[Level], filters: &[String]) -> Result<Summary> {
    process::run(workspace::cargo().args(["build", "--workspace", "--bins"]))?;
    let servers = servers::Servers::start(levels)?;
    let mut summary = Summary::default();
    for selection in selections(levels) {
        let make = |arguments: &[String]| {
            let mut command = workspace::cargo_for_tests();
            command.args(["test", "--workspace", "--no-fail-fast"]).args(&selection.targets);
            command.envs(servers.environment()).arg("--").args(arguments);
            let alone = arguments.iter().any(|a| a.starts_with("--test-threads"));
            if let Some(threads) = selection.threads.filter(|_| !alone) {
                command.arg(format!("--test-threads={threads}"));
            }
            command
        };
        summary.add(runner::run(make, filters)?);
    }
    servers.stop()?;
    Ok(summary)
}

/// Which test programs one `cargo test` runs.
struct Selection {
    targets: Vec<&'static str>,
    /// Tests at a time, where the number of processors is the wrong answer.
    threads: Option<usize>,
}

/// The test programs of these levels. All of them name the whole workspace, so that its
/// dependencies are built once, with one set of features.
fn selections(levels: &[Level]) -> Vec<Selection> {
    let mut selections = Vec::new();
    if levels.contains(&Level::Unit) {
        let targets = vec!["--exclude", "system-tests"];
        selections.push(Selection { targets, threads: None });
    }
    if levels.contains(&Level::Node) && has_system_test("node_*") {
        selections.push(Selection { targets: vec!["--test", "node_*"], threads: None });
    }
    if levels.contains(&Level::Operator) && has_system_test("operator_*") {
        // these mostly wait, to see that nothing happens
        let targets = vec!["--test", "operator_*"];
        selections.push(Selection { targets, threads: Some(OPERATOR_THREADS) });
    }
    selections
}

/// Cargo refuses a pattern that matches no test program.
fn has_system_test(pattern: &str) -> bool {
    let prefix = pattern.trim_end_matches('*');
    std::fs::read_dir(workspace::root().join("tests/tests")).is_ok_and(|mut entries| {
        entries.any(|entry| {
            entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        })
    })
}
