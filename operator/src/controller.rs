//! Watches groups and their children, and starts passes.
//!
//! Owns the watches and the growing pause after errors. Groups are watched in a form in which one
//! that does not parse is an item like any other.

use crate::reconcile::{Context, Disposition, ReconcileError, StoredGroup, reconcile};
use cachetier_api::names::{FIELD_MANAGER, LABEL_GROUP, LABEL_MANAGED_BY};
use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Resource, ResourceExt};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Groups handled at the same time.
const CONCURRENCY: u16 = 16;
/// Changes that come together make one pass.
const DEBOUNCE: Duration = Duration::from_millis(100);
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_LAST: Duration = Duration::from_secs(60);

/// Where groups are looked for.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// Absent: the whole cluster.
    pub namespace: Option<String>,
}

impl Scope {
    fn api<K>(&self, client: &kube::Client) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        match &self.namespace {
            Some(namespace) => Api::namespaced(client.clone(), namespace),
            None => Api::all(client.clone()),
        }
    }
}

/// Runs until `shutdown` is cancelled; passes under way are finished.
pub async fn run(context: Arc<Context>, scope: Scope, shutdown: CancellationToken) {
    let client = context.client.clone();
    let groups = scope.api::<StoredGroup>(&client);
    let mut controller = Controller::new(groups, watcher::Config::default())
        .with_config(Config::default().debounce(DEBOUNCE).concurrency(CONCURRENCY));
    controller = child::<StatefulSet>(controller, &client, &scope);
    controller = child::<Service>(controller, &client, &scope);
    controller = child::<ConfigMap>(controller, &client, &scope);
    controller = child::<Secret>(controller, &client, &scope);
    controller = child::<ServiceAccount>(controller, &client, &scope);
    controller = child::<PodDisruptionBudget>(controller, &client, &scope);
    controller = child::<Job>(controller, &client, &scope);
    controller = child::<Pod>(controller, &client, &scope);
    controller
        .graceful_shutdown_on(async move { shutdown.cancelled().await })
        .run(reconcile_logged, on_error, context)
        .for_each(|_| std::future::ready(()))
        .await;
}

/// Watches the metadata of one kind of child, ours only: never a copy of foreign Secrets.
fn child<K>(
    controller: Controller<StoredGroup>,
    client: &kube::Client,
    scope: &Scope,
) -> Controller<StoredGroup>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let ours = watcher::Config::default().labels(&format!("{LABEL_MANAGED_BY}={FIELD_MANAGER}"));
    let metadata = scope.api::<PartialObjectMeta<K>>(client);
    controller.watches(metadata, ours, |object: PartialObjectMeta<K>| {
        let namespace = object.namespace()?;
        let group = object.labels().get(LABEL_GROUP)?.clone();
        Some(ObjectRef::<StoredGroup>::new(&group).within(&namespace))
    })
}

fn key(stored: &StoredGroup) -> String {
    format!("{}/{}", stored.namespace().unwrap_or_default(), stored.name_any())
}

async fn reconcile_logged(
    stored: Arc<StoredGroup>,
    context: Arc<Context>,
) -> Result<Action, ReconcileError> {
    let key = key(&stored);
    let result = reconcile(stored, context.clone()).await;
    if result.is_ok() {
        context.succeeded(&key);
    }
    result
}

/// The pause after a failed pass, and its one log line.
fn on_error(stored: Arc<StoredGroup>, error: &ReconcileError, context: Arc<Context>) -> Action {
    let key = key(&stored);
    match error.disposition() {
        Disposition::Again => return Action::requeue(PAUSE_FIRST),
        Disposition::Reject => {
            tracing::warn!(group = key, %error, "group left alone until it changes");
            return Action::await_change();
        }
        Disposition::Retry => {}
    }
    context.metrics.failed_passes.inc();
    let attempt = context.failed(&key);
    let source = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    tracing::warn!(group = key, %error, source, attempt, "pass failed");
    Action::requeue(pause(attempt))
}

/// Doubles with each failure in a row, up to a minute.
fn pause(attempt: u32) -> Duration {
    let factor = 1_u32.checked_shl(attempt.saturating_sub(1).min(16)).unwrap_or(1);
    PAUSE_FIRST.saturating_mul(factor).min(PAUSE_LAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_and_is_bounded() {
        assert_eq!(pause(1), PAUSE_FIRST);
        assert_eq!(pause(3), PAUSE_FIRST * 4);
        assert_eq!(pause(u32::MAX), PAUSE_LAST);
    }
}
