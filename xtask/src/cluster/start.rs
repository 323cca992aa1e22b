//! Brings up what a request asks for, in order, skipping what runs already; so it also heals a
//! cluster of which some process has died.

use std::net::UdpSocket;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::control_plane::{self, Shape};
use super::kubectl::{Kubectl, text};
use super::layout::{
    BRIDGE_ADDRESS, CONTROL_PLANE_PORT_BASE, FULL_PORT_BASE, MEMORY_LABEL, NODES, RunDir,
};
use super::record::{self, Kind, Record};
use super::{
    UpArgs, build, certificates, dns, environment, images, network, node, packages, storage,
};

pub fn up(run: &RunDir, args: &UpArgs) -> Result<()> {
    let start = Instant::now();
    let record = plan(run, args)?;
    if record.has_backend() {
        packages::ensure_postgres()?;
    }
    if record.kind == Kind::Full {
        packages::ensure_node()?;
    }
    record::write(run, &record)?;
    match record.kind {
        Kind::Backend => record.server(run).start()?,
        Kind::ControlPlane => control_plane_alone(run, &record)?,
        Kind::Existing => existing(run, &record)?,
        Kind::Full => full(run, &record)?,
    }
    println!("up after {:.1} s; {}", start.elapsed().as_secs_f64(), environment::hint(run));
    Ok(())
}

/// What is to run: what was recorded, or else what the arguments say.
fn plan(run: &RunDir, args: &UpArgs) -> Result<Record> {
    let kind = if args.existing {
        Kind::Existing
    } else if args.control_plane_only {
        Kind::ControlPlane
    } else if args.backend_only {
        Kind::Backend
    } else {
        Kind::Full
    };
    let known = record::read(run)?;
    if let Some(known) = known {
        if known.kind == kind {
            return Ok(known);
        }
        bail!(
            "{} holds another kind of cluster ({:?}): `cargo xtask cluster down` first, or choose \
             another --run-dir",
            run.root().display(),
            known.kind
        );
    }
    let base = match kind {
        Kind::Full | Kind::Existing => FULL_PORT_BASE,
        Kind::ControlPlane => CONTROL_PLANE_PORT_BASE,
        Kind::Backend => CONTROL_PLANE_PORT_BASE + 10,
    };
    let backend_host = match kind {
        Kind::Full => BRIDGE_ADDRESS.to_owned(),
        Kind::Existing => match &args.backend_address {
            Some(address) => address.clone(),
            None => {
                own_address().context("finding an address of this machine: --backend-address")?
            }
        },
        Kind::ControlPlane | Kind::Backend => "127.0.0.1".to_owned(),
    };
    let kubeconfig = match kind {
        Kind::Existing => {
            Some(std::env::var("KUBECONFIG").context("--existing: KUBECONFIG names no cluster")?)
        }
        _ => None,
    };
    Ok(Record {
        kind,
        port_base: args.port_base.unwrap_or(base),
        backend_host,
        controller_manager: !args.without_controller_manager,
        kubeconfig,
    })
}

/// The address that this machine would send from; nothing is sent.
fn own_address() -> Result<String> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect("192.0.2.1:9")?;
    Ok(socket.local_addr()?.ip().to_string())
}

fn control_plane_alone(run: &RunDir, record: &Record) -> Result<()> {
    let tools = build::ensure_control_plane()?;
    let shape = Shape {
        ports: record.ports(),
        nodes: false,
        controller_manager: record.controller_manager,
    };
    certificates::ensure(run, shape.ports, shape.host())?;
    control_plane::start(run, &tools, shape)
}

fn full(run: &RunDir, record: &Record) -> Result<()> {
    let tools = build::ensure()?;
    let shape = Shape { ports: record.ports(), nodes: true, controller_manager: true };
    certificates::ensure(run, shape.ports, shape.host())?;
    network::ensure()?;
    control_plane::start(run, &tools, shape)?;
    dns::ensure(run, &tools, shape.ports)?;
    for node in NODES {
        node::start(run, &tools, node).with_context(|| format!("starting {}", node.name()))?;
    }
    images::ensure_pause(run, &tools)?;
    record.server(run).start()?;
    storage::ensure(run, &tools)?;
    storage::start_recycler(run)?;
    node::await_ready(run, &tools)
}

/// Checks that the cluster answers, labels nodes of it for the tests, and starts the database.
fn existing(run: &RunDir, record: &Record) -> Result<()> {
    let tools = build::ensure()?;
    let kubeconfig = record.kubeconfig.as_deref().unwrap_or_default();
    let kubectl = Kubectl::existing(&tools, kubeconfig);
    let nodes = kubectl.list(&["nodes"]).context("the cluster that KUBECONFIG names")?;
    let workers = nodes.iter().filter(|node| node.pointer("/spec/taints").is_none());
    for name in workers.filter_map(|node| text(node, "/metadata/name")).take(2) {
        kubectl.run(&["label", "--overwrite", "node", name, &format!("{MEMORY_LABEL}=true")])?;
        println!("labelled {name} as memory-rich; `cluster down` takes the label off again");
    }
    record.server(run).start()
}

/// Takes our labels off a cluster that is not ours.
pub fn leave_existing(run: &RunDir) -> Result<()> {
    let tools = build::located()?;
    let record = record::read(run)?.context("no record")?;
    let kubectl = Kubectl::existing(&tools, record.kubeconfig.as_deref().unwrap_or_default());
    kubectl.attempt(&["label", "nodes", "--all", &format!("{MEMORY_LABEL}-")]);
    Ok(())
}
