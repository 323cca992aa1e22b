//! `cargo xtask lint`: formatting, clippy without warnings, house rules, generated files, and the
//! dependency rules where cargo-deny is installed.

use anyhow::{Context, Result};

use crate::{generate, process, tidy, workspace};

pub fn run() -> Result<()> {
    let cargo = |args: &[&str]| process::run(workspace::cargo().args(args));
    cargo(&["fmt", "--all", "--check"]).context("`cargo fmt --all` mends it")?;
    tidy::run()?;
    cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"])?;
    generate::run(true)?;
    if deny_installed() {
        deny()?;
    } else {
        println!("lint: cargo-deny is not installed, so licences and advisories were not checked");
    }
    Ok(())
}

/// Licences, bans, sources; and advisories where their database can be fetched.
pub fn deny() -> Result<()> {
    process::run(workspace::cargo().args(["deny", "check", "licenses", "bans", "sources"]))
}

pub fn deny_installed() -> bool {
    process::attempt(workspace::cargo().args(["deny", "--version"]))
}
