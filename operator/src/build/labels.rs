//! Labels, owner references and metadata of children.

use super::Blueprint;
use cachetier_api::names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use std::collections::BTreeMap;

/// Labels of every child of a group.
pub fn of_group(group: &str) -> BTreeMap<String, String> {
    [
        (names::LABEL_NAME, names::APP_NAME),
        (names::LABEL_INSTANCE, group),
        (names::LABEL_MANAGED_BY, names::FIELD_MANAGER),
        (names::LABEL_GROUP, group),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

/// Labels of pods of a component.
pub fn of_component(group: &str, component: &str) -> BTreeMap<String, String> {
    let mut labels = of_group(group);
    labels.insert(names::LABEL_COMPONENT.to_owned(), component.to_owned());
    labels
}

/// What selects the cache nodes' pods. Frozen for ever: selectors cannot be changed.
pub fn node_selector(group: &str) -> BTreeMap<String, String> {
    [
        (names::LABEL_NAME, names::APP_NAME),
        (names::LABEL_INSTANCE, group),
        (names::LABEL_COMPONENT, names::COMPONENT_NODE),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

pub fn node_label_selector(group: &str) -> LabelSelector {
    LabelSelector { match_labels: Some(node_selector(group)), match_expressions: None }
}

/// The same as text, for the scale subresource.
pub fn node_selector_text(group: &str) -> String {
    let pairs: Vec<String> =
        node_selector(group).into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(",")
}

/// Metadata of a child that goes when the group goes.
pub fn metadata(blueprint: &Blueprint<'_>, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(blueprint.names.namespace().to_owned()),
        labels: Some(of_group(&blueprint.names.stateful_set())),
        owner_references: Some(vec![blueprint.owner.clone()]),
        ..ObjectMeta::default()
    }
}
