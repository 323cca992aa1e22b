//! `cargo xtask dax`: the journal in persistent memory, on a real kernel that is killed.
//!
//! A small machine under QEMU's software emulation has a module of persistent memory with an ext4 on it.
//! It commits frames and says how far they are safe, is killed in the middle, boots again and reads. The
//! other rounds show that the test can fail, and that flushing is chosen by what the machine has. The
//! emulator has no caches to lose: a line that was not flushed shows elsewhere (the journal's own tests).

mod machine;
mod module;
mod parts;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use comfy_table::Table;
use serde::Serialize;

use crate::{process, workspace};
use machine::{Boot, Machine};

#[derive(Args, Default)]
pub struct DaxArgs {
    /// Write what happened as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One machine, killed once.
struct Plan {
    name: &'static str,
    act: &'static str,
    /// How the volume is mounted.
    mount: &'static str,
    processor: &'static str,
    persistence: Option<&'static str>,
    expected: Expected,
}

enum Expected {
    /// Everything acknowledged is there; lines are flushed in this way.
    Kept { flush: &'static str },
    /// Something acknowledged is gone: nothing was synced.
    Lost,
    /// The volume cannot be mapped.
    Refused,
}

const PLANS: [Plan; 7] = [
    Plan {
        name: "direct access",
        act: "write",
        mount: "dax=always",
        processor: "max",
        persistence: None,
        expected: Expected::Kept { flush: "clwb" },
    },
    Plan {
        name: "an older processor",
        act: "write",
        mount: "dax=always",
        // random numbers, which the kernel waits for, are all that it has of newer ones
        processor: "qemu64,+rdrand",
        persistence: None,
        expected: Expected::Kept { flush: "clflush" },
    },
    Plan {
        name: "a platform that keeps its caches",
        act: "write",
        mount: "dax=always",
        processor: "max",
        persistence: Some("cpu"),
        expected: Expected::Kept { flush: "none" },
    },
    Plan {
        name: "one file, mapped with MAP_SYNC, never synced",
        act: "mapped",
        mount: "dax=always",
        processor: "max",
        persistence: None,
        expected: Expected::Kept { flush: "clwb" },
    },
    Plan {
        name: "the same without MAP_SYNC",
        act: "plain",
        mount: "dax=always",
        processor: "max",
        persistence: None,
        expected: Expected::Lost,
    },
    Plan {
        name: "no direct access",
        act: "write",
        mount: "dax=never",
        processor: "max",
        persistence: None,
        expected: Expected::Refused,
    },
    Plan {
        name: "no direct access and no sync",
        act: "relaxed",
        mount: "dax=never",
        processor: "max",
        persistence: None,
        expected: Expected::Lost,
    },
];

/// Frames acknowledged before a machine is killed: some segments full.
const FRAMES_MIN: u64 = 8_000;

/// What a round showed.
#[derive(Serialize)]
struct Round {
    name: &'static str,
    mount: &'static str,
    flush: Option<String>,
    acknowledged: u64,
    found: Option<u64>,
    seconds: f64,
    as_expected: bool,
    verdict: String,
}

#[derive(Serialize)]
struct Report<'a> {
    ok: bool,
    rounds: &'a [Round],
}

pub fn run(args: &DaxArgs) -> Result<()> {
    let parts = parts::ensure()?;
    let guest = build_guest()?;
    let folder = tempfile::tempdir().context("making a temporary folder")?;
    let initrd = parts.initrd(folder.path(), &guest)?;
    let mut rounds = Vec::new();
    for plan in &PLANS {
        let image = folder.path().join("module.img");
        module::make(&image)?;
        let machine = Machine { parts: &parts, initrd: &initrd, module: &image };
        // a machine that does not come so far is a round, too: the others say whether it is alone
        let round = plan.run(&machine, folder.path()).unwrap_or_else(|error| plan.failed(&error));
        println!("{}: {}", round.name, round.verdict);
        rounds.push(round);
    }
    println!("{}", table(&rounds));
    let ok = rounds.iter().all(|round| round.as_expected);
    if let Some(path) = &args.json {
        let report = serde_json::to_string_pretty(&Report { ok, rounds: &rounds })?;
        std::fs::write(path, report).with_context(|| format!("writing {}", path.display()))?;
    }
    ensure!(ok, "a round did not end as expected; see the table");
    Ok(())
}

/// The journal's guest program without any library beside it.
fn build_guest() -> Result<PathBuf> {
    let target = "x86_64-unknown-linux-gnu";
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        bail!("the guest is an x86-64 Linux machine, and its program is built on one");
    }
    let folder = workspace::target_dir().join("dax");
    let mut build = workspace::cargo();
    // with a target of its own, so that the flags are not those of build scripts
    build.env("RUSTFLAGS", "-C target-feature=+crt-static").env("CARGO_TARGET_DIR", &folder);
    build.args(["build", "--quiet", "--release", "--target", target]);
    process::run(build.args(["--package", "cachetier-journal", "--example", "dax_guest"]))?;
    Ok(folder.join(target).join("release/examples/dax_guest"))
}

impl Plan {
    fn run(&self, machine: &Machine<'_>, folder: &Path) -> Result<Round> {
        let begun = Instant::now();
        let boot = |act: &'static str, log: &str| Boot {
            act,
            mount: self.mount,
            processor: self.processor,
            persistence: self.persistence,
            log: folder.join(log),
        };
        let first = machine.boot(&boot(self.act, "first.log"))?;
        let written = first.until_acknowledged(FRAMES_MIN)?;
        let found = match written.refused {
            Some(_) => None,
            None => Some(machine.boot(&boot("check", "second.log"))?.until_ended()?),
        };
        let last = found.as_ref().and_then(|found| found.last);
        let (as_expected, verdict) = self.judge(&written, found.as_ref());
        let (acknowledged, flush) = (written.acknowledged, written.flush);
        let seconds = begun.elapsed().as_secs_f64();
        let (name, mount) = (self.name, self.mount);
        Ok(Round { name, mount, flush, acknowledged, found: last, seconds, as_expected, verdict })
    }

    fn failed(&self, error: &anyhow::Error) -> Round {
        Round {
            name: self.name,
            mount: self.mount,
            flush: None,
            acknowledged: 0,
            found: None,
            seconds: 0.0,
            as_expected: false,
            verdict: format!("{error:#}"),
        }
    }

    fn judge(&self, written: &machine::Said, found: Option<&machine::Said>) -> (bool, String) {
        let acknowledged = written.acknowledged;
        if let Some(why) = &written.refused {
            // EOPNOTSUPP: for other reasons a volume with direct access could be refused, too
            let unsupported = why.contains("os error 95");
            let as_expected = unsupported && matches!(self.expected, Expected::Refused);
            return (as_expected, format!("refused: {why}"));
        }
        if let Some(damage) = found.and_then(|found| found.damaged.as_ref()) {
            return (false, format!("damaged: {damage}"));
        }
        let Some(last) = found.and_then(|found| found.last) else {
            return (false, "the second boot said nothing; look at its log".to_owned());
        };
        let kept = last >= acknowledged;
        let verdict = match kept {
            true => "nothing acknowledged is gone".to_owned(),
            false => format!("{} acknowledged frames are gone", acknowledged - last),
        };
        let as_expected = match self.expected {
            Expected::Kept { flush } => {
                let said = written.flush.as_deref().unwrap_or_default();
                kept && said.split(',').next() == Some(flush)
            }
            Expected::Lost => !kept,
            Expected::Refused => false,
        };
        (as_expected, verdict)
    }
}

fn table(rounds: &[Round]) -> Table {
    let mut table = Table::new();
    table.set_header(["machine", "volume", "flushed by", "acknowledged", "found", "s", "outcome"]);
    for round in rounds {
        let found = round.found.map_or_else(|| "-".to_owned(), |found| found.to_string());
        let outcome =
            format!("{} ({})", round.verdict, if round.as_expected { "good" } else { "BAD" });
        table.add_row([
            round.name.to_owned(),
            round.mount.to_owned(),
            round.flush.clone().unwrap_or_else(|| "-".to_owned()),
            round.acknowledged.to_string(),
            found,
            format!("{:.0}", round.seconds),
            outcome,
        ]);
    }
    table
}
