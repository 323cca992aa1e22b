//! What the operator does when it ends because its own namespace is being deleted: it takes its
//! finalizer off the groups there, which nobody else could do any more, and which would keep the
//! namespace for ever.
//!
//! Nodes flush while they are terminated; what they cannot flush goes with their claims, which the
//! namespace takes along whatever the operator does. Must never touch another namespace.

use cachetier_api::names::FINALIZER;
use cachetier_api::v1alpha1::CacheGroup;
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;

/// Lets the groups of `namespace` go, if that is being deleted; answers how many.
pub async fn leave(client: &kube::Client, namespace: &str) -> Result<usize, kube::Error> {
    let own = Api::<Namespace>::all(client.clone()).get_opt(namespace).await?;
    if own.is_none_or(|own| own.metadata.deletion_timestamp.is_none()) {
        return Ok(0);
    }
    let api: Api<CacheGroup> = Api::namespaced(client.clone(), namespace);
    let mut released = 0;
    for group in api.list_metadata(&ListParams::default()).await? {
        if !group.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
            continue;
        }
        let name = group.name_any();
        let others: Vec<&String> = group.finalizers().iter().filter(|f| *f != FINALIZER).collect();
        let patch = json!({"metadata": {
            "resourceVersion": group.metadata.resource_version,
            "finalizers": others,
        }});
        match api.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(_) => {
                tracing::warn!(namespace, group = name, "group released with its namespace");
                released += 1;
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => tracing::error!(namespace, group = name, %error, "group not released"),
        }
    }
    Ok(released)
}
