//! Developer commands: everything that CI runs, a real Kubernetes on this machine, the image, and
//! the demo. Owns no product code and depends on none: it builds and runs the other crates through
//! cargo, so that it stays quick to build itself.

// a command-line tool talks to its user on the standard streams
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod cluster;
mod image;
mod process;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of cachetier", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start, stop and inspect the local Kubernetes and its PostgreSQL
    Cluster(cluster::ClusterArgs),
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Cluster(args) => cluster::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
