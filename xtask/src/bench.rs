//! `cargo xtask bench`: builds the benchmark optimised and hands everything else to it.

use anyhow::Result;
use clap::Args;

use crate::{process, workspace};

#[derive(Args)]
pub struct BenchArgs {
    /// Name of the benchmark; `help` lists them
    name: String,
    /// Passed on as they are
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

pub fn run(args: &BenchArgs) -> Result<()> {
    let mut command = workspace::cargo();
    command.args(["run", "--release", "--quiet", "--package", "bench", "--", &args.name]);
    process::run(command.args(&args.args))
}
