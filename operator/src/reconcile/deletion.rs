//! The finalizer: put on once, taken off when nothing waits for the backend any more.

use super::dereference::{addresses, stored_authority};
use super::{Context, ReconcileError};
use crate::observed::Observed;
use cachetier_api::names::{ANNOTATION_DRAINED, FINALIZER};
use cachetier_api::v1alpha1::{CacheGroup, DeletionPolicy};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
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

/// Takes the finalizer off; the children go with the group. `clean`: no journal holds anything that
/// waits, which is noted on the claims, so that a later group of this name can use the volumes.
pub async fn release(
    context: &Context,
    observed: &Observed,
    clean: bool,
) -> Result<(), ReconcileError> {
    let group = &observed.group;
    end_group(context, observed).await;
    if clean {
        note_drained(context, observed).await?;
    }
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

/// Has any node that answers remove the group's bookkeeping from the backend, so that the tables
/// can be cached again. Nothing waits any more: a failure costs a clean-up by hand and no data, so
/// it does not hold the deletion up.
async fn end_group(context: &Context, observed: &Observed) {
    let authority = stored_authority(&observed.names, &observed.certificates);
    let Ok(Some(identity)) = context.identity(&observed.uid, authority, observed.now) else {
        return;
    };
    let discard = observed.group.spec.deletion.policy == DeletionPolicy::Discard;
    let nodes = addresses(&observed.names, &observed.uid, &observed.pods, &identity);
    for (_, node) in nodes {
        match context.nodes.end_group(&node, discard).await {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!(node = node.pod, %error, "node did not remove the bookkeeping");
            }
        }
    }
}

async fn note_drained(context: &Context, observed: &Observed) -> Result<(), ReconcileError> {
    let api: Api<PersistentVolumeClaim> =
        Api::namespaced(context.client.clone(), observed.names.namespace());
    let note = json!({"metadata": {"annotations": {ANNOTATION_DRAINED: "true"}}});
    for claim in observed.claims.values().filter(|claim| !observed.is_foreign(claim)) {
        let patched =
            api.patch_metadata(&claim.name, &PatchParams::default(), &Patch::Merge(&note)).await;
        match patched {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            other => drop(other?),
        }
    }
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
