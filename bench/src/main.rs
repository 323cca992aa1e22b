//! Command line of the HLR workload. Exit codes: 0 good, 1 failed, 2 wrong usage, 3 void (a check
//! says the figures or the data prove nothing).

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

mod arguments;
mod commands;

use anyhow::{Context, Result};
use arguments::{Arguments, Command};
use clap::Parser;
use std::process::ExitCode;
use tokio::runtime::{Builder, Runtime};

/// The allocator of the nodes.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let verdict = runtime(&arguments)
        .and_then(|runtime| runtime.block_on(Box::pin(commands::run(arguments))));
    match verdict {
        Ok(verdict) => verdict.into(),
        Err(error) => {
            eprintln!("error: {}", cachetier_client::causes(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// An experiment on this host drives from its own processors, away from the servers: one thread
/// when that is one processor.
fn runtime(arguments: &Arguments) -> Result<Runtime> {
    let pinning = match &arguments.command {
        Command::Hlr(arguments) => Some(arguments.pin.pinning()),
        Command::Flush(arguments) => Some(arguments.pin.pinning()),
        _ => None,
    };
    if let Some(pinning) = &pinning {
        pinning.pin_driver()?;
    }
    let one = pinning.is_some_and(|pinning| pinning.driver.count() == 1);
    let mut builder = if one { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    builder.enable_all().build().context("starting the runtime")
}
