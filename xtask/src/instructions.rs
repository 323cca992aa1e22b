//! The instruction-count gate of the store: how many instructions a read, an update and an insert
//! execute, against stated limits. Counts, not times: the same on a busy machine as on an idle one.
//!
//! Callgrind runs the store's `operations` example twice per kind; the difference between a short
//! and a long run, divided, is what one operation executes, whatever the start costs.

use anyhow::{Context, Result, bail, ensure};
use comfy_table::Table;

use crate::{process, workspace};

/// A kind of operation and the most instructions one may take. Limits stand about a tenth above what
/// was measured when they were set; lower them when the store gets faster.
const LIMITS: [(&str, u64); 4] =
    [("read", 3_000), ("read_rows", 4_100), ("update", 8_000), ("insert", 46_000)];
const SHORT: u64 = 2_000;
const LONG: u64 = 6_000;

pub fn run() -> Result<()> {
    process::capture(&mut process::command("valgrind", &["--version"]))
        .context("the instruction counts need valgrind (apt-get install valgrind)")?;
    let mut build = workspace::cargo();
    build.args(["build", "--release", "--quiet", "--package", "cachetier-engine"]);
    process::run(build.args(["--example", "operations"]))?;
    let mut table = Table::new();
    table.load_style(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["operation", "instructions", "limit"]);
    let mut over = Vec::new();
    for (kind, limit) in LIMITS {
        let (short, long) = (executed(kind, SHORT)?, executed(kind, LONG)?);
        ensure!(long > short, "{kind}: a longer run executed fewer instructions");
        let each = (long - short) / (LONG - SHORT);
        table.add_row([kind, &each.to_string(), &limit.to_string()]);
        if each > limit {
            over.push(kind);
        }
    }
    println!("{table}");
    addresses_are_good()?;
    if over.is_empty() {
        return Ok(());
    }
    bail!("more instructions than the limit: {}", over.join(", "))
}

/// The modules that are unsafe (the reserved range, unchecked text, prefetching) under memcheck.
fn addresses_are_good() -> Result<()> {
    let example = workspace::target_dir().join("release/examples/operations");
    for kind in ["read_rows", "update", "insert", "damaged"] {
        let mut command = process::command("valgrind", &["--quiet", "--error-exitcode=9"]);
        process::capture(command.arg(&example).args([kind, "500"]))
            .with_context(|| format!("{kind} under memcheck"))?;
    }
    Ok(())
}

/// Instructions of a whole run of so many operations.
fn executed(kind: &str, count: u64) -> Result<u64> {
    let example = workspace::target_dir().join("release/examples/operations");
    let mut command = process::command(
        "valgrind",
        &["--tool=callgrind", "--callgrind-out-file=/dev/null", "--log-fd=1"],
    );
    let said = process::capture(command.arg(example).args([kind, &count.to_string()]))?;
    let collected = said.lines().find_map(|line| line.split_once("Collected : "));
    let (_, number) = collected.context("callgrind's output has no count")?;
    number.trim().parse().context("callgrind's count is not a number")
}
