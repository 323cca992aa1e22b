//! `cargo xtask cluster`: a real three-node Kubernetes and a real PostgreSQL on this machine, made
//! of processes, network namespaces and folders. Files in the order things start: packages, build,
//! certificates, control plane, network, nodes, storage, name server, database; then teardown.
//!
//! Only one full cluster can run on a machine (its addresses are fixed); any number of control
//! planes alone can, each with its own run folder and ports.

mod build;
mod certificates;
mod cgroup;
mod control_plane;
mod daemon;
mod dns;
mod environment;
mod images;
mod kubectl;
mod layout;
mod network;
mod node;
mod packages;
mod postgres;
mod record;
mod start;
mod storage;
mod teardown;
pub use packages::ensure_pooler;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use layout::{Node, RunDir};
use record::Kind;

use crate::image::archive::names;

/// Where a cluster keeps its state unless told otherwise: on a disk, since volumes and the
/// database live there too and must pay for their synced writes.
const DEFAULT_RUN_DIR: &str = "/var/lib/cachetier-cluster";

#[derive(Args)]
#[command(about = "A real Kubernetes and PostgreSQL on this machine")]
pub struct ClusterArgs {
    #[command(subcommand)]
    command: ClusterCommand,
    /// Folder for all state of the cluster
    #[arg(long, global = true, env = "CACHETIER_RUN", default_value = DEFAULT_RUN_DIR)]
    run_dir: PathBuf,
    /// Name of a second run folder beside the default one, for a control plane or database alone
    #[arg(long, global = true, value_parser = run_name)]
    name: Option<String>,
}

#[derive(Subcommand)]
enum ClusterCommand {
    /// Build what is missing and start what is not running; harmless when all runs
    Up(UpArgs),
    /// Stop everything and leave nothing behind, also after a crash
    Down,
    /// What runs, with process ids
    Status,
    /// Print the environment that tests and people use (`eval "$(cargo xtask cluster env)"`)
    Env {
        /// As JSON, with the process ids of all parts
        #[arg(long)]
        json: bool,
    },
    /// Empty local volumes whose claim is gone and offer them again
    Recycle {
        /// Go on doing so; `up` starts one of these
        #[arg(long)]
        watch: bool,
    },
    /// Stop or start the backend database
    Backend {
        #[command(subcommand)]
        action: BackendAction,
    },
    /// Break or mend one node
    Node {
        #[command(subcommand)]
        action: NodeAction,
    },
    /// Import an image archive into the nodes
    Load { archive: PathBuf },
}

#[derive(Args, Default)]
pub struct UpArgs {
    /// API server, etcd and controller manager only
    #[arg(long)]
    control_plane_only: bool,
    /// With --control-plane-only: API server and etcd, so that tests play the controllers
    #[arg(long, requires = "control_plane_only")]
    without_controller_manager: bool,
    /// PostgreSQL only
    #[arg(long, conflicts_with_all = ["control_plane_only", "existing"])]
    backend_only: bool,
    /// Use the running cluster that KUBECONFIG names; only PostgreSQL is started
    #[arg(long, conflicts_with = "control_plane_only")]
    existing: bool,
    /// With --existing: an address of this machine that the cluster's pods reach
    #[arg(long)]
    backend_address: Option<String>,
    /// First of eight consecutive ports
    #[arg(long)]
    port_base: Option<u16>,
}

#[derive(Subcommand)]
enum BackendAction {
    /// Cut all sessions and end the server
    Stop,
    /// Start the server on the same data
    Start,
}

#[derive(Subcommand)]
enum NodeAction {
    /// End every process on the node at once, pods included
    Kill { node: String },
    /// Start the node again
    Start { node: String },
    /// Take the node off the network
    Isolate { node: String },
    /// Put the node back on the network
    Join { node: String },
}

impl ClusterArgs {
    fn run_dir(&self) -> RunDir {
        match &self.name {
            Some(name) => {
                let mut path = self.run_dir.clone().into_os_string();
                path.push(format!("-{name}"));
                RunDir::at(path)
            }
            None => RunDir::at(&self.run_dir),
        }
    }
}

/// Part of a folder's name.
fn run_name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let good = !text.is_empty() && text.chars().all(fits);
    good.then(|| text.to_owned()).ok_or_else(|| "only letters, digits, - _ and .".to_owned())
}

/// The run folder that commands outside `cluster` use.
pub fn default_run_dir() -> RunDir {
    RunDir::at(std::env::var("CACHETIER_RUN").unwrap_or_else(|_| DEFAULT_RUN_DIR.to_owned()))
}

pub fn run(args: ClusterArgs) -> Result<()> {
    let run = args.run_dir();
    match &args.command {
        ClusterCommand::Status => return environment::print_status(&run),
        ClusterCommand::Env { json } => return environment::print(&run, *json),
        ClusterCommand::Recycle { watch: true } => return storage::watch(&run),
        ClusterCommand::Load { archive } => {
            println!("{} holds {}", archive.display(), names(archive)?.join(", "));
        }
        _ => {}
    }
    need_root()?;
    let _lock = daemon::lock(&run)?;
    match args.command {
        ClusterCommand::Up(up) => start::up(&run, &up),
        ClusterCommand::Down => down(&run),
        ClusterCommand::Recycle { .. } => {
            let recycled = storage::recycle(&run, &build::located()?)?;
            println!("recycled {} volumes", recycled.len());
            Ok(())
        }
        ClusterCommand::Backend { action } => {
            let record = record::read(&run)?.context(NOT_UP)?;
            match action {
                BackendAction::Stop => record.server(&run).stop(),
                BackendAction::Start => record.server(&run).start(),
            }
        }
        ClusterCommand::Node { action } => on_node(&run, action),
        ClusterCommand::Load { archive } => images::load(&run, &archive),
        ClusterCommand::Status | ClusterCommand::Env { .. } => Ok(()),
    }
}

const NOT_UP: &str = "no cluster in this run folder: `cargo xtask cluster up` first";

/// Starts the full cluster in the default place, unless it runs.
pub fn ensure_up(existing: bool) -> Result<()> {
    let run = default_run_dir();
    need_root()?;
    let _lock = daemon::lock(&run)?;
    start::up(&run, &UpArgs { existing, ..UpArgs::default() })
}

/// Stops the cluster in the default place.
pub fn take_down() -> Result<()> {
    let run = default_run_dir();
    let _lock = daemon::lock(&run)?;
    down(&run)
}

/// Sees to it that a cluster that is not ours can start pods of the image, or says that it may not.
pub fn offer_image(image: &str, archive: &std::path::Path) -> Result<()> {
    images::offer(&default_run_dir(), image, archive)
}

/// Imports an image archive into the cluster in the default place.
pub fn load_image(archive: &std::path::Path) -> Result<()> {
    images::load(&default_run_dir(), archive)
}

/// Variables of the cluster in the default place.
pub fn variables() -> Result<BTreeMap<&'static str, String>> {
    environment::variables(&default_run_dir())
}

/// A file for `/etc/resolv.conf` with which names of the cluster resolve outside of pods.
pub fn resolver_file() -> PathBuf {
    let file = default_run_dir().join("resolv.conf");
    if file.exists() { file } else { PathBuf::from("/etc/resolv.conf") }
}

/// A part that tests use on its own, beside any cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alone {
    Backend,
    /// API server and etcd; the tests themselves play the controllers.
    ControlPlane,
}

impl Alone {
    fn run_dir(self) -> RunDir {
        let name = match self {
            Alone::Backend => "tests-backend",
            Alone::ControlPlane => "tests-control-plane",
        };
        RunDir::at(format!("{DEFAULT_RUN_DIR}-{name}")).tied()
    }
}

/// A part that runs for tests, for as long as nobody stops it.
pub struct Running {
    pub part: Alone,
    pub variables: BTreeMap<&'static str, String>,
    /// Other test runs on this machine wait.
    _lock: std::fs::File,
}

/// Starts one part in its own run folder, after what an earlier run that was killed left there.
pub fn start_alone(part: Alone) -> Result<Running> {
    need_root()?;
    let run = part.run_dir();
    let tests = daemon::lock_for_tests(&run)?;
    let _lock = daemon::lock(&run)?;
    teardown::run(&run, false)?;
    let alone = part == Alone::ControlPlane;
    let port_base = Some(if alone { layout::TEST_PORT_BASE } else { layout::TEST_PORT_BASE + 10 });
    let args = UpArgs {
        control_plane_only: alone,
        without_controller_manager: alone,
        backend_only: !alone,
        port_base,
        ..UpArgs::default()
    };
    start::up(&run, &args)?;
    Ok(Running { part, variables: environment::variables(&run)?, _lock: tests })
}

/// Stops what [`start_alone`] started.
pub fn stop_alone(part: Alone) -> Result<()> {
    let run = part.run_dir();
    let _lock = daemon::lock(&run)?;
    teardown::run(&run, false)
}

fn need_root() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("the cluster needs root: network namespaces, mounts and control groups");
    }
    Ok(())
}

fn down(run: &RunDir) -> Result<()> {
    // without a record (it never finished starting) everything is looked for
    let kind = record::read(run)?.map(|record| record.kind);
    let full = match kind {
        Some(Kind::Full) => true,
        Some(_) => false,
        None => run.root() == std::path::Path::new(DEFAULT_RUN_DIR) || run.join("node-1").exists(),
    };
    if kind == Some(Kind::Existing) {
        start::leave_existing(run)?;
    }
    teardown::run(run, full)?;
    println!("the cluster in {} is gone", run.root().display());
    Ok(())
}

fn on_node(run: &RunDir, action: NodeAction) -> Result<()> {
    let known = |name: &str| -> Result<Node> {
        Node::find(name)
            .with_context(|| format!("no node named {name}; there are node-1 to node-3"))
    };
    match action {
        NodeAction::Kill { node } => node::kill(run, known(&node)?),
        NodeAction::Start { node } => node::start(run, &build::located()?, known(&node)?),
        NodeAction::Isolate { node } => network::connect(known(&node)?, false),
        NodeAction::Join { node } => network::connect(known(&node)?, true),
    }
}
