//! Builds every child object of a group.
//!
//! Pure: the resource and the decisions of this pass go in, objects come out; the same input gives
//! the same bytes, so that applying them again changes nothing. One file per kind of child.

pub mod access;
pub mod config;
pub mod labels;
pub mod pod;
pub mod preload_job;
pub mod secrets;
pub mod services;
pub mod stateful_set;
pub mod topology_record;

use cachetier_api::names::GroupNames;
use cachetier_api::v1alpha1::CacheGroup;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolumeClaim, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

/// What the operator's installation decides for all groups.
#[derive(Clone, Debug)]
pub struct Installation {
    pub image: String,
    pub image_pull_policy: String,
    pub cluster_domain: String,
}

/// What children are built from.
#[derive(Clone, Debug)]
pub struct Blueprint<'a> {
    pub group: &'a CacheGroup,
    pub uid: &'a str,
    pub names: &'a GroupNames,
    pub owner: OwnerReference,
    pub installation: &'a Installation,
    pub replicas: u32,
    /// Absent: pods cannot start yet, and a StatefulSet that exists is left as it is.
    pub with_pods: bool,
    /// Volume claim templates of the StatefulSet that exists: they cannot be changed.
    pub claims_in_force: Option<Vec<PersistentVolumeClaim>>,
    /// Name of the preload Job to create.
    pub preload: Option<String>,
    /// Names of the owners, for the preload Job.
    pub owners: u32,
}

/// All children. Built whole and taken apart whole by `apply`, so that none is forgotten.
#[derive(Clone, Debug)]
pub struct Children {
    pub service_account: ServiceAccount,
    pub config_map: ConfigMap,
    pub headless_service: Service,
    pub client_service: Service,
    pub disruption_budget: PodDisruptionBudget,
    pub secrets: Vec<Secret>,
    pub stateful_set: Option<StatefulSet>,
    pub preload_job: Option<Job>,
}

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("rendering the node configuration")]
    Config(#[source] serde_saphyr::SerializeError),
}

pub fn build(blueprint: &Blueprint<'_>, secrets: Vec<Secret>) -> Result<Children, BuildError> {
    let config_map = config::config_map(blueprint)?;
    let digest = config::digest(&config_map);
    Ok(Children {
        service_account: access::service_account(blueprint),
        headless_service: services::headless(blueprint),
        client_service: services::client(blueprint),
        disruption_budget: access::disruption_budget(blueprint),
        secrets,
        stateful_set: blueprint.with_pods.then(|| stateful_set::stateful_set(blueprint, &digest)),
        preload_job: blueprint.preload.as_deref().map(|name| preload_job::job(blueprint, name)),
        config_map,
    })
}

#[cfg(test)]
mod tests;
