//! The StatefulSet of cache nodes.

use super::{Blueprint, config, labels, pod};
use crate::certificates::role;
use cachetier_api::CpuAmount;
use cachetier_api::names::{
    ADMIN_PORT, ANNOTATION_CONFIG, COMPONENT_NODE, GRPC_PORT, LABEL_INCARNATION, NODE_LABEL_DAX,
    NODE_LABEL_PMEM,
};
use cachetier_api::v1alpha1::{HugePages, Medium, Spread, VolumeRetention};
use k8s_openapi::api::apps::v1::{
    StatefulSet, StatefulSetPersistentVolumeClaimRetentionPolicy, StatefulSetSpec,
    StatefulSetUpdateStrategy,
};
use k8s_openapi::api::core::v1::{
    Affinity, Container, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction, Lifecycle,
    LifecycleHandler, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    ObjectFieldSelector, PersistentVolumeClaim, PersistentVolumeClaimSpec, PodSpec,
    PodTemplateSpec, PreferredSchedulingTerm, Probe, ResourceRequirements, SleepAction,
    TopologySpreadConstraint, VolumeMount, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

pub const CONTAINER: &str = "cache-node";
/// Name of the claim template; claims are `journal-<pod>`.
pub const CLAIM: &str = "journal";
/// Longest time a stopping node flushes, seconds. The rest is replayed from its journal.
const DRAIN_SECONDS: i64 = 30;
/// Time for endpoints to forget the pod before it stops, seconds.
const LEAVE_SECONDS: i64 = 2;
/// Above the two of them, so that the journal is always closed in peace.
const GRACE_SECONDS: i64 = 60;
/// What a node needs around the store: code, connections, buffers of reads and loads.
const OVERHEAD_BYTES: u64 = 192 << 20;
/// A store below this is taken from the process memory, whatever medium it asks for.
const SMALL_STORE_BYTES: u64 = 256 << 20;

pub fn stateful_set(blueprint: &Blueprint<'_>, config_digest: &str) -> StatefulSet {
    let group = blueprint.names.stateful_set();
    let retention = match blueprint.group.spec.journal.volume.retention {
        VolumeRetention::Retain => "Retain",
        VolumeRetention::Delete => "Delete",
    };
    StatefulSet {
        metadata: labels::metadata(blueprint, group.clone()),
        spec: StatefulSetSpec {
            replicas: i32::try_from(blueprint.replicas).ok(),
            selector: labels::node_label_selector(&group),
            service_name: Some(blueprint.names.headless_service()),
            pod_management_policy: Some("Parallel".to_owned()),
            // the operator replaces pods itself, one at a time, when it is safe
            update_strategy: Some(StatefulSetUpdateStrategy {
                type_: Some("OnDelete".to_owned()),
                rolling_update: None,
            }),
            persistent_volume_claim_retention_policy: Some(
                StatefulSetPersistentVolumeClaimRetentionPolicy {
                    when_deleted: Some(retention.to_owned()),
                    when_scaled: Some(retention.to_owned()),
                },
            ),
            template: template(blueprint, config_digest),
            volume_claim_templates: Some(claims(blueprint)),
            ..StatefulSetSpec::default()
        },
        status: None,
    }
}

fn template(blueprint: &Blueprint<'_>, config_digest: &str) -> PodTemplateSpec {
    let group = blueprint.names.stateful_set();
    let placement = &blueprint.group.spec.placement;
    let digest = (ANNOTATION_CONFIG.to_owned(), config_digest.to_owned());
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels::of_component(&group, COMPONENT_NODE)),
            annotations: Some([digest].into()),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            service_account_name: Some(blueprint.names.service_account()),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            security_context: Some(pod::pod_security()),
            termination_grace_period_seconds: Some(GRACE_SECONDS),
            node_selector: Some(placement.node_selector.clone()).filter(|s| !s.is_empty()),
            tolerations: Some(placement.tolerations.clone()).filter(|t| !t.is_empty()),
            affinity: affinity(blueprint.group.spec.memory.medium),
            topology_spread_constraints: spread(placement.spread, &group),
            volumes: Some(pod::volumes(blueprint, role::NODE)),
            containers: vec![container(blueprint)],
            ..PodSpec::default()
        }),
    }
}

fn container(blueprint: &Blueprint<'_>) -> Container {
    let mut mounts = pod::mounts();
    mounts.push(VolumeMount {
        name: CLAIM.to_owned(),
        mount_path: config::DATA_DIRECTORY.to_owned(),
        ..VolumeMount::default()
    });
    Container {
        name: CONTAINER.to_owned(),
        image: Some(blueprint.installation.image.clone()),
        image_pull_policy: Some(blueprint.installation.image_pull_policy.clone()),
        command: Some(vec!["/usr/local/bin/cache-node".to_owned()]),
        args: Some(vec!["--config".to_owned(), pod::config_path()]),
        env: Some(environment(blueprint.group.spec.memory.huge_pages)),
        ports: Some(vec![port("grpc", GRPC_PORT), port("admin", ADMIN_PORT)]),
        volume_mounts: Some(mounts),
        resources: Some(resources(blueprint)),
        security_context: Some(pod::container_security()),
        startup_probe: Some(probe("/livez", 2, 150)),
        liveness_probe: Some(probe("/livez", 10, 6)),
        readiness_probe: Some(probe("/readyz", 2, 2)),
        lifecycle: Some(Lifecycle {
            pre_stop: Some(LifecycleHandler {
                sleep: Some(SleepAction { seconds: LEAVE_SECONDS }),
                ..LifecycleHandler::default()
            }),
            ..Lifecycle::default()
        }),
        ..Container::default()
    }
}

fn environment(huge_pages: HugePages) -> Vec<EnvVar> {
    let text = |name: &str, value: String| EnvVar {
        name: name.to_owned(),
        value: Some(value),
        value_from: None,
    };
    // the allocator's own switch for transparent huge pages
    let huge = if huge_pages == HugePages::Never { "0" } else { "1" };
    vec![
        EnvVar {
            name: "CACHETIER_NODE_NAME".to_owned(),
            value: None,
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    field_path: "metadata.name".to_owned(),
                    api_version: Some("v1".to_owned()),
                }),
                ..EnvVarSource::default()
            }),
        },
        text("CACHETIER_DRAIN_SECONDS", DRAIN_SECONDS.to_string()),
        text("MIMALLOC_ALLOW_THP", huge.to_owned()),
    ]
}

/// Memory is asked for and bounded at the same value: the store's budget, a fifth for what the
/// allocator cannot use, the queue, and the rest of the process. Of a store on the volume (AppDirect)
/// only the indexes are in memory, which take half of the budget at most; a small store is in memory
/// whole. Processors as the spec says.
fn resources(blueprint: &Blueprint<'_>) -> ResourceRequirements {
    let spec = &blueprint.group.spec;
    let capacity = match spec.memory.medium {
        Medium::AppDirect => {
            let whole = spec.memory.capacity.bytes();
            (whole / 2).max(whole.min(SMALL_STORE_BYTES))
        }
        _ => spec.memory.capacity.bytes(),
    };
    let bytes = capacity + capacity / 5 + spec.write_through.max_backlog.bytes() + OVERHEAD_BYTES;
    let memory = Quantity(format!("{}Mi", bytes.div_ceil(1 << 20)));
    let cpu = |amount: &CpuAmount| ("cpu".to_owned(), Quantity(format!("{}m", amount.milli())));
    let requests = [cpu(&spec.cpu.request), ("memory".to_owned(), memory.clone())];
    let limits = spec.cpu.limit.as_ref().map(cpu).into_iter();
    ResourceRequirements {
        requests: Some(requests.into()),
        limits: Some(limits.chain([("memory".to_owned(), memory)]).collect()),
        claims: None,
    }
}

fn port(name: &str, number: u16) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: i32::from(number),
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

fn probe(path: &str, period_seconds: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String("admin".to_owned()),
            scheme: Some("HTTP".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period_seconds),
        failure_threshold: Some(failures),
        timeout_seconds: Some(2),
        success_threshold: Some(1),
        ..Probe::default()
    }
}

/// Hosts with persistent memory: required by MemoryMode and AppDirect, preferred by Auto.
fn affinity(medium: Medium) -> Option<Affinity> {
    // modules that are present need not be set up so that a file system can be mapped on them
    let label = if medium == Medium::AppDirect { NODE_LABEL_DAX } else { NODE_LABEL_PMEM };
    let term = NodeSelectorTerm {
        match_expressions: Some(vec![NodeSelectorRequirement {
            key: label.to_owned(),
            operator: "In".to_owned(),
            values: Some(vec!["true".to_owned()]),
        }]),
        match_fields: None,
    };
    let node_affinity = match medium {
        Medium::MemoryMode | Medium::AppDirect => NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                node_selector_terms: vec![term],
            }),
            ..NodeAffinity::default()
        },
        Medium::Auto => NodeAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![
                PreferredSchedulingTerm { weight: 100, preference: term },
            ]),
            ..NodeAffinity::default()
        },
        Medium::Dram | Medium::Cxl => return None,
    };
    Some(Affinity { node_affinity: Some(node_affinity), ..Affinity::default() })
}

fn spread(spread: Spread, group: &str) -> Option<Vec<TopologySpreadConstraint>> {
    let when_unsatisfiable = match spread {
        Spread::Prefer => "ScheduleAnyway",
        Spread::Require => "DoNotSchedule",
        Spread::None => return None,
    };
    Some(vec![TopologySpreadConstraint {
        max_skew: 1,
        topology_key: "kubernetes.io/hostname".to_owned(),
        when_unsatisfiable: when_unsatisfiable.to_owned(),
        label_selector: Some(labels::node_label_selector(group)),
        ..TopologySpreadConstraint::default()
    }])
}

/// Frozen when the StatefulSet exists: the API server refuses any change.
fn claims(blueprint: &Blueprint<'_>) -> Vec<PersistentVolumeClaim> {
    if let Some(claims) = &blueprint.claims_in_force {
        return claims.clone();
    }
    let volume = &blueprint.group.spec.journal.volume;
    let size = Quantity(volume.size.to_string());
    let mut claim_labels = labels::of_component(&blueprint.names.stateful_set(), COMPONENT_NODE);
    claim_labels.insert(LABEL_INCARNATION.to_owned(), blueprint.uid.to_owned());
    vec![PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(CLAIM.to_owned()),
            labels: Some(claim_labels),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            storage_class_name: volume.storage_class_name.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some([("storage".to_owned(), size)].into()),
                limits: None,
            }),
            volume_mode: Some("Filesystem".to_owned()),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }]
}
