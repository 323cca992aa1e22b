//! The finalizer: put on once, taken off when nothing waits for the backend any more.

use super::{Context, ReconcileError};
use crate::observed::Observed;
use cachetier_api::names::FINALIZER;
use cachetier_api::v1alpha1::CacheGroup;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

/// Our finalizer is on it.
pub fn holds(group: &CacheGroup) -> bool {
    group.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
}

/// Adds the finalizer. Guarded by the resource version, so that others' additions are never lost; a
/// conflict means that somebody was faster, and the next pass looks again.
pub async fn hold(context: &Context, group: &CacheGroup) -> Result<(), ReconcileError> {
    let mut finalizers = group.metadata.finalizers.clone().unwrap_or_default();
    finalizers.push(FINALIZER.to_owned());
    replace(context, group, &finalizers).await
}

/// Takes the finalizer off; the children go with the group.
pub async fn release(context: &Context, observed: &Observed) -> Result<(), ReconcileError> {
    let group = &observed.group;
    let finalizers: Vec<String> = group
        .metadata
        .finalizers
        .iter()
        .flatten()
        .filter(|finalizer| *finalizer != FINALIZER)
        .cloned()
        .collect();
    replace(context, group, &finalizers).await?;
    context.forget(&observed.uid);
    tracing::info!(
        namespace = observed.names.namespace(),
        group = observed.names.stateful_set(),
        "group released"
    );
    Ok(())
}

async fn replace(
    context: &Context,
    group: &CacheGroup,
    finalizers: &[String],
) -> Result<(), ReconcileError> {
    let namespace = group.metadata.namespace.as_deref().unwrap_or_default();
    let name = group.metadata.name.as_deref().unwrap_or_default();
    let api: Api<CacheGroup> = Api::namespaced(context.client.clone(), namespace);
    let patch = json!({"metadata": {
        "resourceVersion": group.metadata.resource_version,
        "finalizers": finalizers,
    }});
    match api.patch_metadata(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error.into()),
    }
}
