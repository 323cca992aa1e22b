//! `cargo xtask e2e`: the whole product as a user would run it: cluster, image, chart, then the
//! system tests named `e2e_*`, one at a time, since they share the cluster and break it on purpose.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use crate::test::{self, Summary};
use crate::{cluster, image, process, workspace};

const RELEASE: &str = "cachetier";
const NAMESPACE: &str = "cachetier-system";
const INSTALL_LIMIT: &str = "180s";

#[derive(Args)]
pub struct E2eArgs {
    /// Only tests whose name contains one of these
    filters: Vec<String>,
    /// Use the running cluster that KUBECONFIG names
    #[arg(long)]
    existing: bool,
    /// Cargo profile of the programs under test: the tests' own takes no second build, `release` is
    /// what users run
    #[arg(long, default_value = image::TESTS_PROFILE)]
    profile: String,
    /// Take the programs and the image as they are
    #[arg(long)]
    no_build: bool,
    /// Stop the cluster afterwards
    #[arg(long)]
    down: bool,
}

impl E2eArgs {
    pub fn with_filters(filters: Vec<String>) -> E2eArgs {
        let profile = image::TESTS_PROFILE.to_owned();
        E2eArgs { filters, existing: false, profile, no_build: false, down: false }
    }

    pub fn for_cluster(existing: bool, profile: Option<&str>) -> E2eArgs {
        let mut args = E2eArgs { existing, ..E2eArgs::with_filters(Vec::new()) };
        if let Some(profile) = profile {
            args.profile = profile.to_owned();
        }
        args
    }
}

pub fn run(args: &E2eArgs) -> Result<()> {
    let summary = summary(args)?;
    if args.down {
        cluster::take_down()?;
    }
    test::conclude(&summary)
}

/// Prepares the cluster and runs the tests.
pub fn summary(args: &E2eArgs) -> Result<Summary> {
    let environment = prepare(args)?;
    let make = |arguments: &[String]| {
        let mut command = workspace::cargo_for_tests();
        // the same selection of packages as all other tests, so that nothing is built twice
        command.args(["test", "--workspace", "--no-fail-fast", "--test", "e2e_*", "--"]);
        command.arg("--include-ignored").args(arguments).envs(&environment);
        if !arguments.iter().any(|a| a.starts_with("--test-threads")) {
            command.arg("--test-threads=1");
        }
        command
    };
    test::run_tests(make, &args.filters)
}

/// Everything that the tests expect to find, and how they find it.
pub fn prepare(args: &E2eArgs) -> Result<BTreeMap<&'static str, String>> {
    cluster::ensure_up(args.existing)?;
    if !args.no_build {
        image::run(&image::ImageArgs::load(&args.profile))?;
    } else {
        image::load_built(&args.profile, args.existing)?;
    }
    let mut environment = cluster::variables()?;
    let text = |path: std::path::PathBuf| path.to_string_lossy().into_owned();
    let program = workspace::this_program().context("finding this program")?;
    environment.insert("CACHETIER_XTASK", text(program));
    environment.insert("CACHETIER_BIN_DIR", text(image::programs_dir(&args.profile)));
    environment.insert("CACHETIER_CHART", text(workspace::root().join("charts/cachetier")));
    environment.insert("CACHETIER_RESOLV_CONF", text(cluster::resolver_file()));
    install(&environment)?;
    Ok(environment)
}

/// Installs or upgrades the operator, and restarts it so that it runs the image just loaded.
fn install(environment: &BTreeMap<&'static str, String>) -> Result<()> {
    let tool = |name: &str| -> Result<Command> {
        let mut command =
            Command::new(environment.get(name).with_context(|| format!("{name} is not known"))?);
        command.envs(environment);
        Ok(command)
    };
    let chart = environment.get("CACHETIER_CHART").context("no chart")?;
    println!("installing the operator");
    let mut helm = tool("CACHETIER_HELM")?;
    helm.args(["upgrade", "--install", RELEASE, chart, "--namespace", NAMESPACE]);
    process::capture(helm.args(["--create-namespace", "--timeout", INSTALL_LIMIT]))?;
    for verb in ["restart", "status"] {
        let mut kubectl = tool("CACHETIER_KUBECTL")?;
        kubectl.args(["--namespace", NAMESPACE, "rollout", verb, "deployment"]);
        kubectl.args(["--selector", "app.kubernetes.io/name=cachetier"]);
        if verb == "status" {
            kubectl.arg(format!("--timeout={INSTALL_LIMIT}"));
        }
        process::capture(&mut kubectl).with_context(|| {
            format!("the operator did not start: kubectl --namespace {NAMESPACE} describe pods")
        })?;
    }
    Ok(())
}
