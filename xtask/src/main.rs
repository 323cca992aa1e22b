//! Developer commands: everything that CI runs, a real Kubernetes on this machine, the image, and
//! the demo. Owns no product code and depends on none: it builds and runs the other crates through
//! cargo, so that it stays quick to build itself.

// a command-line tool talks to its user on the standard streams
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bench;
mod ci;
mod cluster;
mod dax;
mod demo;
mod e2e;
mod generate;
mod image;
mod instructions;
mod lint;
mod process;
mod scenarios;
mod sim;
mod test;
mod tidy;
mod torture;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "xtask",
    bin_name = "cargo xtask",
    about = "Developer commands of cachetier",
    version
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The whole product on this machine, from nothing to a table of what happened
    Demo(demo::DemoArgs),
    /// Run the tests; without options, all that need no cluster
    Test(test::TestArgs),
    /// Run the end-to-end tests on the local cluster (or --existing)
    E2e(e2e::E2eArgs),
    /// Run the tests of the catalogue of failures and print passed of total by id
    Scenarios(scenarios::ScenariosArgs),
    /// Everything that decides whether a change is good, in stages with time budgets
    Ci(ci::CiArgs),
    /// What is too long for every change, and everything of `ci`
    Nightly,
    /// Formatting, clippy, house rules, generated files, dependency rules
    Lint,
    /// The house rules alone: import edges, names, sizes
    Tidy,
    /// Write the generated files
    Gen {
        /// Write nothing; fail when a file differs
        #[arg(long)]
        check: bool,
    },
    /// Build the container image without a container engine
    Image(image::ImageArgs),
    /// Start, stop and inspect the local Kubernetes and its PostgreSQL
    Cluster(cluster::ClusterArgs),
    /// Simulate whole nodes from seeds and try to lose a write
    Sim(sim::SimArgs),
    /// Run a benchmark, optimised
    Bench(bench::BenchArgs),
    /// Kill, freeze and cut off real processes under load; nothing acknowledged may be lost
    Torture(torture::TortureArgs),
    /// Kill a machine with emulated persistent memory in the middle of commits, and count
    Dax(dax::DaxArgs),
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::Test(args) => test::run(&args),
        Command::E2e(args) => e2e::run(&args),
        Command::Scenarios(args) => scenarios::run(&args),
        Command::Ci(args) => ci::run(&args),
        Command::Nightly => ci::nightly(),
        Command::Lint => lint::run(),
        Command::Tidy => tidy::run(),
        Command::Gen { check } => generate::run(check),
        Command::Image(args) => image::run(&args),
        Command::Cluster(args) => cluster::run(args),
        Command::Sim(args) => sim::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Torture(args) => torture::run(&args),
        Command::Dax(args) => dax::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
