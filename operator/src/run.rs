//! Puts the process together: client, admin endpoint, controller.

use crate::args::RunArgs;
use crate::build::Installation;
use crate::controller::{self, Scope};
use crate::metrics::Metrics;
use crate::nodes::grpc::GrpcNodes;
use crate::reconcile::Context;
use crate::{farewell, lease};
use anyhow::Context as _;
use cachetier_runtime::{AdminEndpoint, Port, Tasks, shutdown, telemetry};
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Duration;

/// Time that passes under way get when the process stops.
const STOP_GRACE: Duration = Duration::from_secs(20);
/// Time for the last calls before the process ends.
const FAREWELL: Duration = Duration::from_secs(5);

pub async fn run(args: RunArgs) -> anyhow::Result<()> {
    let RunArgs {
        image,
        image_pull_policy,
        namespace,
        cluster_domain,
        admin_listen,
        poll_seconds,
        lease_namespace,
        replica_name,
        log_format,
        log_filter,
    } = args;
    cachetier_runtime::install_crypto_provider();
    telemetry::init(log_format, &log_filter)?;
    let shutdown = shutdown::on_signals()?;
    let port = Port::take(&admin_listen).await.context("the port of the admin endpoint")?;
    let client = kube::Client::try_default().await.context("connecting to the API server")?;
    let metrics = Metrics::default();
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let admin = AdminEndpoint::new(Arc::new(registry));
    let installation = Installation { image, image_pull_policy, cluster_domain };
    let poll = Duration::from_secs(poll_seconds.max(1));
    let context = Arc::new(Context::new(
        client.clone(),
        Arc::new(GrpcNodes::default()),
        installation,
        metrics.clone(),
        poll,
    ));
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "operator started");
    let (own, home) = (client.clone(), lease_namespace.clone());
    let mut tasks = Tasks::new(shutdown.clone());
    tasks.spawn("admin", admin.serve(port, shutdown.clone()));
    tasks.spawn("controller", async move {
        let act = controller::run(context, Scope { namespace }, shutdown.clone());
        match lease_namespace {
            Some(namespace) => {
                let lease = lease::Lease::new(client, &namespace, &replica_name);
                lease.while_held(&metrics, act, shutdown).await
            }
            None => {
                metrics.leader.set(1);
                act.await;
                Ok(())
            }
        }
    });
    let ended = tasks.supervise(STOP_GRACE).await;
    if let Some(home) = home {
        // without an answer in time the group stays, as it does after a crash
        match tokio::time::timeout(FAREWELL, farewell::leave(&own, &home)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(%error, "own namespace not looked at"),
            Err(_) => tracing::debug!("own namespace not looked at in time"),
        }
    }
    Ok(ended?)
}
