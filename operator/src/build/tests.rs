//! Golden files of every child of the example groups, and what must hold for any of them.

use super::*;
use kube::Resource;
use serde_json::Value;

fn installation() -> Installation {
    Installation {
        image: "cachetier.dev/cachetier:dev".to_owned(),
        image_pull_policy: "IfNotPresent".to_owned(),
        cluster_domain: "cluster.local".to_owned(),
    }
}

fn example(name: &str) -> CacheGroup {
    let path = format!("{}/../examples/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let document = text
        .split("\n---\n")
        .find(|document| document.contains("kind: CacheGroup"))
        .expect("the example has a CacheGroup");
    let mut group: CacheGroup = serde_saphyr::from_str(document).unwrap();
    group.metadata.namespace.get_or_insert("default".to_owned());
    group.metadata.uid = Some("5ff2cd92-0000-4000-8000-000000000001".to_owned());
    group
}

fn children(group: &CacheGroup) -> Children {
    let namespace = group.metadata.namespace.clone().unwrap();
    let names = GroupNames::new(&namespace, group.metadata.name.as_deref().unwrap());
    let installation = installation();
    let blueprint = Blueprint {
        group,
        uid: group.metadata.uid.as_deref().unwrap(),
        names: &names,
        owner: group.controller_owner_ref(&()).unwrap(),
        installation: &installation,
        replicas: u32::try_from(group.spec.replicas).unwrap(),
        with_pods: true,
        claims_in_force: None,
        preload: Some(names.preload_job("0123456789")),
        owners: u32::try_from(group.spec.replicas).unwrap(),
    };
    build(&blueprint, Vec::new()).unwrap()
}

fn all(children: Children) -> Vec<Value> {
    let Children {
        service_account,
        config_map,
        headless_service,
        client_service,
        disruption_budget,
        secrets,
        stateful_set,
        preload_job,
    } = children;
    assert!(secrets.is_empty(), "keys differ from run to run");
    vec![
        serde_json::to_value(service_account).unwrap(),
        serde_json::to_value(config_map).unwrap(),
        serde_json::to_value(headless_service).unwrap(),
        serde_json::to_value(client_service).unwrap(),
        serde_json::to_value(disruption_budget).unwrap(),
        serde_json::to_value(stateful_set.unwrap()).unwrap(),
        serde_json::to_value(preload_job.unwrap()).unwrap(),
    ]
}

#[test]
fn children_of_the_examples_are_as_recorded() {
    for name in ["hlr", "minimal", "orders", "customers"] {
        insta::assert_json_snapshot!(name, all(children(&example(name))));
    }
}

#[test]
fn building_twice_gives_the_same_objects() {
    let group = example("hlr");
    assert_eq!(all(children(&group)), all(children(&group)));
}

#[test]
fn o28_every_child_is_owned_labelled_and_in_the_group_s_namespace() {
    let group = example("hlr");
    for child in all(children(&group)) {
        let metadata = &child["metadata"];
        assert_eq!(metadata["namespace"], "telecom", "{child}");
        assert_eq!(metadata["ownerReferences"][0]["kind"], "CacheGroup");
        assert_eq!(metadata["labels"]["cachetier.dev/group"], "hlr");
    }
}

#[test]
fn o59_every_pod_satisfies_the_restricted_profile() {
    for child in all(children(&example("hlr"))) {
        let Some(pod) = child.pointer("/spec/template/spec") else { continue };
        let security = &pod["securityContext"];
        assert_eq!(security["runAsNonRoot"], true);
        assert_eq!(security["seccompProfile"]["type"], "RuntimeDefault");
        for container in pod["containers"].as_array().unwrap() {
            let security = &container["securityContext"];
            assert_eq!(security["allowPrivilegeEscalation"], false);
            assert_eq!(security["capabilities"]["drop"][0], "ALL");
            assert_eq!(security["readOnlyRootFilesystem"], true);
        }
        assert_eq!(pod["automountServiceAccountToken"], false);
    }
}

#[test]
fn the_node_configuration_is_what_a_node_reads() {
    use cachetier_model::node_config::NodeConfig;
    let children = children(&example("hlr"));
    let text = &children.config_map.data.unwrap()[config::FILE];
    let config: NodeConfig = serde_saphyr::from_str(text).unwrap();
    assert_eq!(config.group.name, "telecom/hlr");
    assert_eq!(config.tables.len(), 4);
    assert_eq!(config.tables[0].lookup_keys, [["sub_nbr"]]);
}

#[test]
fn o01_a_size_written_differently_builds_the_same_pods() {
    let mut group = example("minimal");
    group.spec.memory.capacity = cachetier_api::ByteSize::parse("2Gi").unwrap();
    let first = all(children(&group));
    group.spec.memory.capacity = cachetier_api::ByteSize::parse("2048Mi").unwrap();
    assert_eq!(first, all(children(&group)));
}

#[test]
fn memory_mode_requires_labelled_hosts_and_auto_prefers_them() {
    use cachetier_api::v1alpha1::Medium;
    let mut group = example("minimal");
    let affinity = |group: &CacheGroup| {
        let stateful_set = serde_json::to_value(children(group).stateful_set.unwrap()).unwrap();
        stateful_set.pointer("/spec/template/spec/affinity/nodeAffinity").cloned()
    };
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    group.spec.memory.medium = Medium::MemoryMode;
    assert!(affinity(&group).unwrap()[required].is_object());
    group.spec.memory.medium = Medium::Auto;
    let auto = affinity(&group).unwrap();
    assert!(auto[required].is_null() && auto[preferred].is_array());
    group.spec.memory.medium = Medium::Dram;
    assert_eq!(affinity(&group), None);
}

#[test]
fn o60_the_disruption_budget_selects_exactly_the_pods() {
    let children = children(&example("hlr"));
    let selector = children.disruption_budget.spec.unwrap().selector.unwrap().match_labels.unwrap();
    let labels = children.stateful_set.unwrap().spec.template.metadata.unwrap().labels.unwrap();
    assert!(selector.iter().all(|(key, value)| labels.get(key) == Some(value)));
    let job = children.preload_job.unwrap().spec.unwrap().template;
    let loaders = job.metadata.unwrap().labels.unwrap();
    assert!(selector.iter().any(|(key, value)| loaders.get(key) != Some(value)));
}

#[test]
fn o87_an_evicted_preload_pod_is_not_a_failure() {
    let spec = children(&example("hlr")).preload_job.unwrap().spec.unwrap();
    let rule = spec.pod_failure_policy.unwrap().rules.remove(0);
    assert_eq!(rule.action, "Ignore");
    assert_eq!(rule.on_pod_conditions.unwrap()[0].type_, "DisruptionTarget");
    assert_eq!(spec.template.spec.unwrap().restart_policy.as_deref(), Some("Never"));
}

#[test]
fn o13_selectors_are_frozen_for_ever() {
    // a change here would need every StatefulSet and its pods to be made again
    let stateful_set = children(&example("hlr")).stateful_set.unwrap();
    let selector = serde_json::to_value(stateful_set.spec.selector).unwrap();
    let frozen = serde_json::json!({"matchLabels": {
        "app.kubernetes.io/component": "cache-node",
        "app.kubernetes.io/instance": "hlr",
        "app.kubernetes.io/name": "cachetier",
    }});
    assert_eq!(selector, frozen);
}

#[test]
fn o51_a_rollout_needs_no_room_for_an_extra_pod() {
    let mut group = example("hlr");
    group.spec.placement.spread = cachetier_api::v1alpha1::Spread::Require;
    let spec = children(&group).stateful_set.unwrap().spec;
    // pods are deleted first and made again by name, where their host has just become free
    assert_eq!(spec.update_strategy.unwrap().type_.as_deref(), Some("OnDelete"));
    let spread = spec.template.spec.unwrap().topology_spread_constraints.unwrap();
    assert_eq!(spread[0].when_unsatisfiable, "DoNotSchedule");
}

#[test]
fn o53_mapped_persistent_memory_needs_hosts_where_it_is_set_up() {
    use cachetier_api::v1alpha1::Medium;
    let required = |medium| {
        let mut group = example("hlr");
        group.spec.memory.medium = medium;
        let pod = children(&group).stateful_set.unwrap().spec.template.spec.unwrap();
        let nodes = pod.affinity?.node_affinity?;
        let term = nodes.required_during_scheduling_ignored_during_execution?;
        Some(term.node_selector_terms[0].match_expressions.as_ref()?[0].key.clone())
    };
    let label = |name: &str| Some(format!("feature.node.kubernetes.io/memory-nv.{name}"));
    // modules that are present and have no region are no place for a mapping
    assert_eq!(required(Medium::AppDirect), label("dax"));
    assert_eq!(required(Medium::MemoryMode), label("present"));
    assert_eq!(required(Medium::Auto), None);
}

#[test]
fn o53_a_store_in_persistent_memory_is_taken_from_the_volume_and_not_from_the_pod() {
    use cachetier_api::v1alpha1::Medium;
    use cachetier_model::node_config::{self, NodeConfig};
    let figures = |medium| {
        let mut group = example("hlr");
        group.spec.memory.medium = medium;
        let children = children(&group);
        let config = &children.config_map.data.unwrap()["node.yaml"];
        let config: NodeConfig = serde_saphyr::from_str(config).unwrap();
        let pod = children.stateful_set.unwrap().spec.template.spec.unwrap();
        let memory =
            pod.containers[0].resources.clone().unwrap().limits.unwrap()["memory"].0.clone();
        let memory: u64 = memory.trim_end_matches("Mi").parse().unwrap();
        (config.memory.medium, config.journal.capacity_bytes, memory << 20)
    };
    let (ordinary, journal, memory) = figures(Medium::Dram);
    let (mapped, journal_mapped, memory_mapped) = figures(Medium::AppDirect);
    assert_eq!((ordinary, mapped), (node_config::Medium::Memory, node_config::Medium::AppDirect));
    let capacity = example("hlr").spec.memory.capacity.bytes();
    let store_share = capacity / 100 * 90;
    assert!(journal.abs_diff(journal_mapped + store_share) < 200, "{journal} {journal_mapped}");
    assert!((memory - memory_mapped).abs_diff(capacity / 2 + capacity / 10) < 2 << 20);
}

#[test]
fn o57_no_pod_maps_huge_pages_that_its_host_may_not_give() {
    use cachetier_api::v1alpha1::HugePages;
    for (huge_pages, transparent) in [(HugePages::Prefer, "1"), (HugePages::Never, "0")] {
        let mut group = example("hlr");
        group.spec.memory.huge_pages = huge_pages;
        let children = children(&group);
        let nodes = children.stateful_set.unwrap().spec.template.spec.unwrap();
        let loads = children.preload_job.unwrap().spec.unwrap().template.spec.unwrap();
        for container in nodes.containers.iter().chain(&loads.containers) {
            let resources = serde_json::to_string(&container.resources).unwrap();
            // only those of the kernel's own choice: a fault finds a page or takes small ones
            assert!(!resources.contains("hugepages"), "{resources}");
        }
        let switch = nodes.containers[0].env.iter().flatten();
        let switch = switch.clone().find(|variable| variable.name == "MIMALLOC_ALLOW_THP");
        assert_eq!(switch.unwrap().value.as_deref(), Some(transparent));
    }
}
