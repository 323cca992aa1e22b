//! Command line of the HLR workload. Exit codes: 0 good, 1 failed, 2 wrong usage, 3 void (a check
//! says the figures or the data prove nothing).

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

mod arguments;
mod commands;

use clap::Parser;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = arguments::Arguments::parse();
    match commands::run(arguments).await {
        Ok(verdict) => verdict.into(),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
