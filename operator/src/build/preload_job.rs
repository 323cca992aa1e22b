//! The Job of one load. Its pods share the work by the load's ledger in the backend, so a pod that
//! is killed costs one chunk.

use super::{Blueprint, labels, pod};
use crate::certificates::role;
use cachetier_api::names::COMPONENT_PRELOAD;
use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnPodConditionsPattern, PodFailurePolicyRule,
};
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Chunks that one pod loads at a time.
const CHUNKS_AT_A_TIME: u32 = 2;
const BACKOFF_LIMIT: i32 = 6;
/// How long a finished Job can be looked at, seconds.
const KEEP_SECONDS: i32 = 3_600;

pub fn job(blueprint: &Blueprint<'_>, name: &str) -> Job {
    let group = blueprint.names.stateful_set();
    let component = labels::of_component(&group, COMPONENT_PRELOAD);
    let mut metadata = labels::metadata(blueprint, name.to_owned());
    metadata.labels = Some(component.clone());
    let pods = blueprint.group.spec.preload.parallelism;
    Job {
        metadata,
        spec: Some(JobSpec {
            completion_mode: Some("Indexed".to_owned()),
            completions: Some(pods),
            parallelism: Some(pods),
            backoff_limit: Some(BACKOFF_LIMIT),
            ttl_seconds_after_finished: Some(KEEP_SECONDS),
            // an evicted pod is not a failure of the load
            pod_failure_policy: Some(PodFailurePolicy {
                rules: vec![PodFailurePolicyRule {
                    action: "Ignore".to_owned(),
                    on_pod_conditions: Some(vec![PodFailurePolicyOnPodConditionsPattern {
                        type_: "DisruptionTarget".to_owned(),
                        status: Some("True".to_owned()),
                    }]),
                    on_exit_codes: None,
                }],
            }),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(component), ..ObjectMeta::default() }),
                spec: Some(pod_spec(blueprint, name)),
            },
            ..JobSpec::default()
        }),
        status: None,
    }
}

fn pod_spec(blueprint: &Blueprint<'_>, load: &str) -> PodSpec {
    let nodes: Vec<String> = (0..blueprint.owners)
        .map(|ordinal| blueprint.names.node_address(&blueprint.names.pod(ordinal)))
        .collect();
    let args = [
        "--config",
        &pod::config_path(),
        "preload",
        "--nodes",
        &nodes.join(","),
        "--load-id",
        load,
        "--parallelism",
        &CHUNKS_AT_A_TIME.to_string(),
    ]
    .map(str::to_owned);
    let tolerations = blueprint.group.spec.placement.tolerations.clone();
    PodSpec {
        restart_policy: Some("Never".to_owned()),
        service_account_name: Some(blueprint.names.service_account()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        security_context: Some(pod::pod_security()),
        tolerations: Some(tolerations).filter(|t| !t.is_empty()),
        volumes: Some(pod::volumes(blueprint, role::LOADER)),
        containers: vec![Container {
            name: COMPONENT_PRELOAD.to_owned(),
            image: Some(blueprint.installation.image.clone()),
            image_pull_policy: Some(blueprint.installation.image_pull_policy.clone()),
            command: Some(vec!["/usr/local/bin/cache-node".to_owned()]),
            args: Some(args.to_vec()),
            volume_mounts: Some(pod::mounts()),
            resources: Some(resources()),
            security_context: Some(pod::container_security()),
            // the reason of a failure, in the last lines of the log, is shown with the pod
            termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
            ..Container::default()
        }],
        ..PodSpec::default()
    }
}

fn resources() -> ResourceRequirements {
    let pairs = |pairs: &[(&str, &str)]| {
        Some(pairs.iter().map(|(k, v)| ((*k).to_owned(), Quantity((*v).to_owned()))).collect())
    };
    ResourceRequirements {
        requests: pairs(&[("cpu", "100m"), ("memory", "128Mi")]),
        limits: pairs(&[("memory", "1Gi")]),
        claims: None,
    }
}
