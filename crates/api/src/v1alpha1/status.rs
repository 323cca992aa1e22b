//! What the operator reports. Everything here is recomputed from the cluster and the nodes; nothing
//! is read back as a memory, except transition times and the topology version as a lower bound.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most nodes listed one by one.
pub const NODES_LISTED_MAX: usize = 50;

#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct CacheGroupStatus {
    /// Generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Pods that exist.
    pub replicas: i32,
    pub ready_replicas: i32,
    /// Label selector of the pods, for the scale subresource.
    pub selector: String,
    /// Ready of wanted nodes, e.g. `2/3`.
    pub ready: String,
    pub phase: Phase,
    /// Why it is not Ready; empty when it is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What is wrong and what to do; empty when nothing is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backlog: Option<BacklogStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preload: Option<PreloadStatus>,
    /// Transactions that the backend refused for good, set aside.
    pub rejects: i64,
    /// Version of the slot map; only grows.
    pub topology_version: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub medium: Option<MediumStatus>,
    /// The first 50 nodes by ordinal.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[schemars(length(max = 50))]
    pub nodes: Vec<NodeStatus>,
}

/// One word for the state of the group.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    #[default]
    Pending,
    Starting,
    Loading,
    Ready,
    Scaling,
    Rolling,
    Degraded,
    Draining,
    Stopped,
    Paused,
    Deleting,
}

/// Writes that the backend does not have yet.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct BacklogStatus {
    pub transactions: i64,
    pub bytes: i64,
    /// Age of the oldest, rounded.
    pub age: String,
    /// At the present rate, when nothing new comes; left out when it cannot be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drained_in: Option<String>,
}

/// Progress of the load.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct PreloadStatus {
    /// Name of the load, which is the name of its Job.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub load: String,
    /// Share of the work done, e.g. `85%`.
    pub loaded: String,
    pub percent: i32,
    pub rows: i64,
    pub rows_per_second: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[schemars(length(max = 32))]
    pub tables: Vec<TableStatus>,
}

#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TableStatus {
    pub name: String,
    #[serde(default)]
    pub rows: i64,
    /// The backend's own estimate; 0 when unknown.
    #[serde(default)]
    pub expected_rows: i64,
    #[serde(default)]
    pub percent: i32,
}

/// The memory that was asked for and the memory that was got.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct MediumStatus {
    pub requested: String,
    pub in_use: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// One line per node.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    pub name: String,
    #[serde(default)]
    pub ready: bool,
    /// As the node says it, or `Unreachable`, `Pending`.
    #[serde(default)]
    pub phase: String,
    #[serde(default)]
    pub slots_serving: i32,
    #[serde(default)]
    pub slots_assigned: i32,
    #[serde(default)]
    pub instances: i64,
    #[serde(default)]
    pub backlog_transactions: i64,
    #[serde(default)]
    pub topology_version: i64,
    /// Host it runs on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}
