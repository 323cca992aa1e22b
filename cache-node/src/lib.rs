//! The cache node: one process around one node's share of a group.
//!
//! Owns configuration, gRPC, TLS, roles, metrics and the order of start and stop. Must never hold
//! cached data or decide about it: that is `cachetier_group`. Only [`rpc`] names gRPC types.

pub mod args;
mod metrics;
mod peers;
mod preload;
mod rpc;
mod serve;
mod snapshot;

pub use args::Args;

use anyhow::Context;
use args::Command;

/// Runs what the command line asks for; returns when it is over.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let Args { config, node_name, advertise, drain_seconds, log_format, log_filter, command } =
        args;
    cachetier_runtime::install_crypto_provider();
    cachetier_runtime::telemetry::init(log_format, &log_filter)?;
    let config = args::load_config(&config).with_context(|| format!("reading {config:?}"))?;
    let shutdown = cachetier_runtime::shutdown::on_signals()?;
    match command {
        None => {
            let name = node_name.map_or_else(args::hostname, Ok)?;
            let process = serve::Process { config, name, advertise, drain_seconds };
            serve::run(process, shutdown).await
        }
        Some(Command::Preload(preload)) => preload::run(config, preload, shutdown).await,
    }
}
