//! `cargo xtask bench`: builds the benchmark optimised and hands everything else to it. What runs
//! against processes of this host needs the node's program beside it.

use anyhow::Result;
use clap::Args;

use crate::{process, workspace};

/// Benchmarks that start a node.
const STAGED: [&str; 2] = ["hlr", "flush"];

#[derive(Args)]
pub struct BenchArgs {
    /// Name of the benchmark; `help` lists them
    name: String,
    /// Cargo profile: `image` builds in a third of the time, `release` is a little faster
    #[arg(long, default_value = "image")]
    profile: String,
    /// Passed on as they are
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

pub fn run(args: &BenchArgs) -> Result<()> {
    let BenchArgs { name, profile, args } = args;
    let mut build = workspace::cargo();
    build.args(["build", "--quiet", "--profile", profile, "--package", "bench"]);
    if STAGED.contains(&name.as_str()) {
        build.args(["--package", "cache-node"]);
    }
    process::run(&mut build)?;
    let folder = if profile == "dev" { "debug" } else { profile };
    let program = workspace::target_dir().join(folder).join("bench");
    let mut command = std::process::Command::new(program);
    process::run(command.arg(name).args(args))
}
