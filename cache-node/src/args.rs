//! The command line.

use anyhow::Context;
use cachetier_runtime::LogFormat;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// A node of an application-tier cache group.
#[derive(Debug, Parser)]
#[command(name = "cache-node", version)]
pub struct Args {
    /// Configuration of the group and of this node.
    #[arg(long, global = true, env = "CACHETIER_CONFIG", default_value = "node.yaml")]
    pub config: PathBuf,
    /// Name of this node in the topology; the host name when absent.
    #[arg(long, env = "CACHETIER_NODE_NAME")]
    pub node_name: Option<String>,
    /// host:port by which others reach this node; needed only without an operator.
    #[arg(long, env = "CACHETIER_ADVERTISE")]
    pub advertise: Option<String>,
    /// At SIGTERM: longest time to flush before exiting; what is left is replayed at the next start.
    #[arg(long, env = "CACHETIER_DRAIN_SECONDS", default_value_t = 20)]
    pub drain_seconds: u64,
    /// json or pretty.
    #[arg(long, global = true, env = "CACHETIER_LOG_FORMAT", default_value = "json")]
    pub log_format: LogFormat,
    /// Log filter, e.g. `info,cachetier_group=debug`.
    #[arg(long, global = true, env = "CACHETIER_LOG", default_value = "info")]
    pub log_filter: String,
    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Load the group's instances from the backend into its nodes.
    Preload(PreloadArgs),
}

#[derive(Debug, Parser)]
pub struct PreloadArgs {
    /// Addresses of nodes, host:port, separated by commas; the others are found by the topology.
    #[arg(long, value_delimiter = ',', required = true)]
    pub nodes: Vec<String>,
    /// Name of the load; pods of one Job share it and share the work.
    #[arg(long)]
    pub load_id: String,
    /// Chunks loaded at a time by this process.
    #[arg(long, default_value_t = 2)]
    pub parallelism: usize,
}

/// The host's name, which in Kubernetes is the pod's.
pub fn hostname() -> anyhow::Result<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .context("reading the host name; give --node-name")?;
    Ok(name.trim().to_owned())
}
