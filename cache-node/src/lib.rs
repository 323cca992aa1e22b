//! The cache node: one process around one node's share of a group.
//!
//! Owns configuration, gRPC, TLS, roles, metrics and the order of start and stop. Must never hold
//! cached data or decide about it: that is `cachetier_group`. Only [`rpc`] names gRPC types.

pub mod args;
mod config;
mod metrics;
mod peers;
mod preload;
mod rpc;
mod serve;
mod snapshot;

pub use args::Args;

use anyhow::Context;
use args::Command;
use std::process::ExitCode;

/// Runs what the command line asks for; returns when it is over. A failure is logged here; the
/// error returned is one that came before there were logs.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { config, node_name, advertise, drain_seconds, log_format, log_filter, command } =
        args;
    cachetier_runtime::install_crypto_provider();
    cachetier_runtime::telemetry::init(log_format, &log_filter)?;
    let work = async {
        // first of all: the first process of a container gets no signal that it has not asked for
        let shutdown = cachetier_runtime::shutdown::on_signals()?;
        let config = config::load(&config).with_context(|| format!("reading {config:?}"))?;
        match command {
            None => {
                let name = node_name.map_or_else(args::hostname, Ok)?;
                let process = serve::Process { config, name, advertise, drain_seconds };
                serve::run(process, shutdown).await
            }
            Some(Command::Preload(preload)) => preload::run(config, preload, shutdown).await,
        }
    };
    match work.await {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            tracing::error!(reason = cachetier_client::causes(error.as_ref()), "process ends");
            Ok(ExitCode::FAILURE)
        }
    }
}
