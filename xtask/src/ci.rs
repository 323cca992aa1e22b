//! `cargo xtask ci` and `nightly`: everything that decides whether a change is good, in stages with
//! a published time budget each. A stage that fails does not keep the later ones from running, so
//! that one run tells everything; the last line sums up all tests.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use comfy_table::Table;

use crate::dax::{self, DaxArgs};
use crate::e2e::E2eArgs;
use crate::test::{Level, Summary};
use crate::{cluster, e2e, instructions, lint, process, test, workspace};

#[derive(Args)]
pub struct CiArgs {
    /// Print the stages and their budgets, and run nothing
    #[arg(long)]
    list: bool,
    /// Run these stages only
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Use the running cluster that KUBECONFIG names
    #[arg(long)]
    existing: bool,
    /// Cargo profile of the programs that the end-to-end tests run
    #[arg(long)]
    profile: Option<String>,
}

/// One part of a run and how long it may take on two cores with nothing built before.
struct Stage {
    name: &'static str,
    budget_minutes: u64,
    about: &'static str,
    run: fn(&CiArgs, &mut Summary) -> Result<()>,
}

const STAGES: [Stage; 5] = [
    Stage {
        name: "lint",
        budget_minutes: 6,
        about: "formatting, clippy, house rules, generated files, chart",
        run: lint_stage,
    },
    Stage {
        name: "test",
        budget_minutes: 25,
        about: "all tests without pods, with a PostgreSQL and an API server",
        run: test_stage,
    },
    Stage {
        name: "instructions",
        budget_minutes: 2,
        about: "instructions per read, update and insert of the store, against limits",
        run: |_, _| instructions::run(),
    },
    Stage {
        name: "cluster",
        budget_minutes: 5,
        about: "build the cluster's programs and start it",
        run: cluster_stage,
    },
    Stage {
        name: "e2e",
        budget_minutes: 31,
        about: "image, chart and the end-to-end tests",
        run: e2e_stage,
    },
];

pub fn run(args: &CiArgs) -> Result<()> {
    let stages = chosen(args)?;
    print_budgets(&stages);
    if args.list {
        return Ok(());
    }
    println!("{}", workspace::room()?);
    let mut summary = Summary::default();
    let mut results = Vec::new();
    for stage in stages {
        println!("\n=== {}: {}", stage.name, stage.about);
        let start = Instant::now();
        let outcome = (stage.run)(args, &mut summary);
        if let Err(error) = &outcome {
            println!("{} failed: {error:#}", stage.name);
            summary.fail(&format!("stage {}", stage.name));
        }
        results.push((stage, start.elapsed(), outcome.is_ok()));
    }
    print_results(&results);
    test::conclude(&summary)
}

fn chosen(args: &CiArgs) -> Result<Vec<&'static Stage>> {
    for name in &args.only {
        if !STAGES.iter().any(|stage| stage.name == name) {
            bail!("no stage named {name}; `cargo xtask ci --list` names them");
        }
    }
    let wanted = |stage: &&Stage| args.only.is_empty() || args.only.iter().any(|n| n == stage.name);
    Ok(STAGES.iter().filter(wanted).collect())
}

fn print_budgets(stages: &[&Stage]) {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["stage", "budget", "what"]);
    for stage in stages {
        let budget = format!("{} min", stage.budget_minutes);
        table.add_row([stage.name, &budget, stage.about]);
    }
    println!("{table}");
}

fn print_results(results: &[(&Stage, Duration, bool)]) {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["stage", "result", "seconds", "budget"]);
    for (stage, taken, good) in results {
        let budget = Duration::from_secs(60 * stage.budget_minutes);
        let result = match (*good, *taken <= budget) {
            (true, true) => "ok",
            (true, false) => "ok, over budget",
            (false, _) => "failed",
        };
        let seconds = format!("{:.0}", taken.as_secs_f64());
        table.add_row([stage.name, result, &seconds, &budget.as_secs().to_string()]);
    }
    println!("\n{table}");
}

fn lint_stage(_: &CiArgs, _: &mut Summary) -> Result<()> {
    lint::run()
}

fn test_stage(_: &CiArgs, summary: &mut Summary) -> Result<()> {
    summary.add(test::of_levels(&[Level::Unit, Level::Node, Level::Operator], &[])?);
    Ok(())
}

fn cluster_stage(args: &CiArgs, _: &mut Summary) -> Result<()> {
    cluster::ensure_up(args.existing)?;
    let variables = cluster::variables()?;
    let helm = variables.get("CACHETIER_HELM").context("helm is not built")?;
    let chart = workspace::root().join("charts/cachetier");
    process::run(
        process::command(helm, &["lint", "--quiet", "--kube-version", "1.30.0"]).arg(chart),
    )
}

fn e2e_stage(args: &CiArgs, summary: &mut Summary) -> Result<()> {
    let tested = e2e::summary(&E2eArgs::for_cluster(args.existing, args.profile.as_deref()));
    // also after a failure, and before its error is passed on
    cluster::take_down()?;
    summary.add(tested?);
    Ok(())
}

/// What is too long for every change: dependency rules with their tool built, ignored tests of the
/// crates, and the whole catalogue of scenarios.
pub fn nightly() -> Result<()> {
    lint::install_deny()?;
    lint::deny()?;
    lint::advisories()?;
    let mut tests = workspace::cargo_for_tests();
    // the store against its model: more than a million random operations
    tests.env("ENGINE_SEEDS", "1000").args([
        "test",
        "--workspace",
        "--exclude",
        "system-tests",
        "--no-fail-fast",
        "--",
        "--include-ignored",
    ]);
    process::run(&mut tests)?;
    dax::run(&DaxArgs::default())?;
    // the programs that users run, where a change is tried with those that its tests build anyway
    let profile = Some("release".to_owned());
    run(&CiArgs { list: false, only: Vec::new(), existing: false, profile })
}
