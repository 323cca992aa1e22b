//! `cargo xtask sim`: builds the simulator and hands everything to it. Built from its own folder,
//! whose cargo configuration gives it a scheduler that can be seeded, and into its own target
//! folder, so that nothing else is built again because of it.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::{process, workspace};

#[derive(Args)]
pub struct SimArgs {
    /// Passed on as they are; `--help` after `--` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

pub fn run(args: &SimArgs) -> Result<()> {
    let mut command = workspace::cargo();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || workspace::root().join("target"),
        |dir| workspace::root().join(PathBuf::from(dir)),
    );
    command.current_dir(workspace::root().join("sim"));
    command.env("CARGO_TARGET_DIR", target.join("sim"));
    command.args(["run", "--quiet", "--package", "sim"]);
    if args.args.iter().any(|arg| arg.starts_with("--defect")) {
        command.args(["--features", "defects"]);
    }
    process::run(command.arg("--").args(&args.args))
}
