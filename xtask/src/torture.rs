//! `cargo xtask torture`: builds node and torture optimised, and runs the one against the other.

use anyhow::Result;
use clap::Args;

use crate::{process, workspace};

#[derive(Args)]
pub struct TortureArgs {
    /// Cargo profile of the node and of the torture
    #[arg(long, default_value = "image")]
    profile: String,
    /// Passed on as they are: --minutes M, --json FILE, --seed N …; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

pub fn run(args: &TortureArgs) -> Result<()> {
    let TortureArgs { profile, args } = args;
    let mut build = workspace::cargo();
    build.args(["build", "--quiet", "--profile", profile, "--package", "cache-node"]);
    process::run(build.args([
        "--package",
        "system-tests",
        "--bin",
        "torture",
        "--bin",
        "cache-node",
    ]))?;
    let folder =
        workspace::target_dir().join(if profile == "dev" { "debug" } else { profile.as_str() });
    // told to end rather than killed, so that it removes what it made; what it mounts is its own and
    // goes with it in any case
    let mut command = process::tied("unshare", "TERM");
    command.args(["--mount", "--"]).arg(folder.join("torture"));
    process::run(command.env("CACHETIER_BIN_DIR", &folder).args(args))
}
