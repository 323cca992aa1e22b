//! `cargo xtask gen`: files that are generated from the code and checked in: resource definitions
//! and reference pages. With `--check` nothing is written and a difference is an error.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{process, workspace};

/// The program that prints a file, and everywhere the file is kept.
struct Generated {
    package: &'static str,
    args: &'static [&'static str],
    places: &'static [&'static str],
}

const FILES: [Generated; 1] = [Generated {
    package: "operator",
    args: &["crd"],
    places: &[
        "crds/cachegroups.cachetier.dev.yaml",
        "charts/cachetier/files/crds/cachegroups.cachetier.dev.yaml",
    ],
}];

pub fn run(check: bool) -> Result<()> {
    let mut stale = Vec::new();
    for file in &FILES {
        let text = print(file)?;
        for place in file.places {
            let path = workspace::root().join(place);
            if fs::read_to_string(&path).is_ok_and(|known| known == text) {
                continue;
            }
            if check {
                stale.push(*place);
            } else {
                write(&path, &text)?;
                println!("gen: wrote {place}");
            }
        }
    }
    if !stale.is_empty() {
        bail!("generated files differ from the code: {}; run `cargo xtask gen`", stale.join(", "));
    }
    Ok(())
}

fn print(file: &Generated) -> Result<String> {
    let mut command = workspace::cargo();
    command.args(["run", "--quiet", "--package", file.package, "--"]).args(file.args);
    process::capture(&mut command)
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}
