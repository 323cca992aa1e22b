//! The pods' identity and the budget for voluntary disruptions.

use super::{Blueprint, labels};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Pods talk to no API server: the account has no rights and no token.
pub fn service_account(blueprint: &Blueprint<'_>) -> ServiceAccount {
    ServiceAccount {
        metadata: labels::metadata(blueprint, blueprint.names.service_account()),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

/// One at a time, also with a single replica: a drained host must not wait for ever.
pub fn disruption_budget(blueprint: &Blueprint<'_>) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: labels::metadata(blueprint, blueprint.names.disruption_budget()),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(labels::node_label_selector(&blueprint.names.stateful_set())),
            // a pod that is not ready serves nobody and may always be evicted
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}
