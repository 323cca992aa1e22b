//! `cargo xtask bench`: builds the benchmark optimised and hands everything else to it. What runs
//! against processes of this host finds the node's program beside it.

use anyhow::Result;
use clap::Args;

use crate::{process, workspace};

#[derive(Args)]
pub struct BenchArgs {
    /// Name of the benchmark; `help` lists them
    name: String,
    /// Cargo profile: `release` is what users run; `image` builds in half the time and is a little slower
    #[arg(long, default_value = "release")]
    profile: String,
    /// Passed on as they are
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

pub fn run(args: &BenchArgs) -> Result<()> {
    let BenchArgs { name, profile, args } = args;
    // both at every time: another selection would mean other features and a second build
    let mut build = workspace::cargo();
    build.args(["build", "--profile", profile, "--package", "bench", "--package", "cache-node"]);
    process::run(&mut build)?;
    let folder = if profile == "dev" { "debug" } else { profile.as_str() };
    let program = workspace::target_dir().join(folder).join("bench");
    // told to end rather than killed, so that it removes what it made
    process::run(process::tied(program, "TERM").arg(name).args(args))
}
