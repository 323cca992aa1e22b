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

/// Version of cargo-deny that the pinned compiler builds and that reads `deny.toml`.
const DENY_VERSION: &str = "0.20.2";
/// What cargo-deny says when it is offline.
const NO_DATABASE: &str = "failed to fetch advisory database";

/// Licences, bans and sources: what the tree alone decides.
pub fn deny() -> Result<()> {
    process::run(workspace::cargo().args(["deny", "check", "licenses", "bans", "sources"]))
}

/// Known faults of dependencies, from a database on the net; offline it is said and no failure.
pub fn advisories() -> Result<()> {
    match process::capture(workspace::cargo().args(["deny", "check", "advisories"])) {
        Err(error) if error.to_string().contains(NO_DATABASE) => {
            println!("lint: advisories were not checked: their database cannot be fetched");
            Ok(())
        }
        checked => checked.map(drop),
    }
}

pub fn install_deny() -> Result<()> {
    if deny_installed() {
        return Ok(());
    }
    let install = ["install", "--locked", "--quiet", "cargo-deny", "--version", DENY_VERSION];
    process::run(workspace::cargo().args(install)).context("installing cargo-deny")
}

fn deny_installed() -> bool {
    process::attempt(workspace::cargo().args(["deny", "--version"]))
}
