//! The finalizer: put on once, taken off when nothing waits for the backend any more.

use super::dereference::{addresses, stored_authority};
use super::{Context, ReconcileError};
use crate::observed::Observed;
use crate::topology::Member;
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
/// False when a node has something to flush again, or does not answer any more: look once more.
pub async fn release(
    context: &Context,
    observed: &Observed,
    clean: bool,
) -> Result<bool, ReconcileError> {
    let group = &observed.group;
    if !end_group(context, observed).await {
        return Ok(false);
    }
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
    Ok(true)
}

/// Has every node that answers take its part of the bookkeeping out of the backend, so that the
/// tables can be cached again. A node that was restarted since it was asked takes writes again: it
/// refuses, and then so does this. A node that only fails to tell the backend holds nothing up: the
/// rest costs a clean-up by hand and no data.
async fn end_group(context: &Context, observed: &Observed) -> bool {
    let authority = stored_authority(&observed.names, &observed.certificates);
    let Ok(Some(identity)) = context.identity(&observed.uid, authority, observed.now) else {
        return true;
    };
    let discard = observed.group.spec.deletion.policy == DeletionPolicy::Discard;
    let members = observed.members();
    let mut still_drained = true;
    for (ordinal, node) in addresses(&observed.names, &observed.uid, &observed.pods, &identity) {
        let Some(member) = members.get(&ordinal).filter(|member| member.view.is_some()) else {
            continue;
        };
        match context.nodes.end_group(&node, discard).await {
            Ok(()) if discard => return true,
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(node = node.pod, %error, "node did not remove its bookkeeping");
                let view = context.nodes.status(&node).await.ok();
                still_drained &= Member { view, ..member.clone() }.is_drained();
            }
        }
    }
    still_drained || discard
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
