//! `cache-node preload`: the body of the preload Job, put together.
//!
//! Owns nothing but the wiring: the load itself is `cachetier_preload`.

use crate::args::{self, PreloadArgs};
use anyhow::{Context, bail};
use cachetier_client::{Client, Endpoint, Options, TlsIdentity};
use cachetier_model::node_config::NodeConfig;
use cachetier_preload::{Preload, PreloadOptions};
use cachetier_write_through::{PostgresBackend, PostgresOptions};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Nodes may still be starting when the Job's pod does.
const PATIENCE: Duration = Duration::from_secs(120);

/// Loads this process's share of the chunks; `Ok` when the whole load is complete.
pub async fn run(
    config: NodeConfig,
    args: PreloadArgs,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let PreloadArgs { nodes, load_id, parallelism } = args;
    let worker = format!("{}/{}", args::hostname()?, uuid::Uuid::new_v4());
    let mut options = PreloadOptions::new(&config.group.uid, &load_id, &worker);
    options.filter.clone_from(&config.preload.r#where);
    options.parallelism = parallelism.max(1);
    let postgres = PostgresOptions { lanes: 0, ..PostgresOptions::from_config(&config, "preload") };
    let backend = Arc::new(PostgresBackend::new(postgres).context("the backend's settings")?);
    let client_options = Options {
        tls: config.tls.as_ref().map(|t| TlsIdentity::Directory(t.directory.clone())),
        retry_for: PATIENCE,
        ..Options::default()
    };
    let client = Client::connect(nodes.into_iter().map(Endpoint::from), client_options)
        .await
        .context("asking the nodes for the group's tables")?;
    let preload = Preload { backend, client, options };
    tokio::select! {
        loaded = preload.run() => {
            let summary = loaded.context("the load is not complete")?;
            tracing::info!(
                chunks = summary.chunks_total,
                chunks_here = summary.chunks_here,
                inserted = summary.inserted,
                skipped = summary.skipped,
                "load complete"
            );
            if summary.inserted == 0 && summary.skipped == 0 {
                tracing::info!(
                    "nothing was loaded: every slot was covered before, or no row is selected"
                );
            }
            Ok(())
        }
        () = shutdown.cancelled() => bail!("stopped before the load was complete"),
    }
}
