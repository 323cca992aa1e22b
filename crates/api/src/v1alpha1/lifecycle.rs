//! What happens around the data: absent owners, lost nodes, placement, TLS, deletion.

use crate::TimeSpan;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Answers while the owner of a key is away.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Bypass {
    /// Allow: other nodes answer reads from the backend, marked as such.
    pub reads: BypassReads,
    /// Hold: writes wait for the owner, at most `holdTimeout`. Fail: they are refused at once.
    pub writes: BypassWrites,
    pub hold_timeout: TimeSpan,
    /// Bound of such reads per node at a time.
    #[schemars(range(min = 1, max = 10000))]
    pub max_concurrent: i32,
}

/// Reads of keys whose owner is away.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BypassReads {
    #[default]
    Allow,
    Deny,
}

/// Writes to keys whose owner is away.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BypassWrites {
    #[default]
    Hold,
    Fail,
}

/// What to do when a node does not come back.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeLoss {
    /// Give a lost node's slots to others after this time; left out: wait for the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [
        {"rule": "false", "message": "spec.nodeLoss.reassignAfter is not supported by this version; leave it out: slots wait for their node"}
    ]))]
    pub reassign_after: Option<TimeSpan>,
}

/// Where pods run, beyond what `memory.medium` asks for.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Placement {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub node_selector: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<k8s_openapi::api::core::v1::Toleration>,
    /// Prefer: nodes on different hosts where possible. Require: never two on one host.
    pub spread: Spread,
}

/// Spreading of cache nodes over hosts.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    #[default]
    Prefer,
    Require,
    None,
}

/// Encryption and authentication of every gRPC connection.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Tls {
    /// Managed: the operator keeps a certificate authority per group and issues all certificates.
    #[schemars(extend("x-kubernetes-validations" = [
        {"rule": "self == 'Managed'", "message": "spec.tls.mode: only Managed is supported by this version"}
    ]))]
    pub mode: TlsMode,
}

/// Source of certificates.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    #[default]
    Managed,
    Secret,
    Disabled,
}

/// What happens when the group is deleted.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Deletion {
    /// Drain: refuse writes, write everything to the backend, then go. Discard: go at once; what the
    /// backend does not have stays only in journals that are retained.
    pub policy: DeletionPolicy,
    /// With Drain: after this time the status says what is still waiting and how to override. The
    /// group goes on waiting; nothing is given up by itself.
    pub deadline: TimeSpan,
}

/// Treatment of writes that wait when the group is deleted.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeletionPolicy {
    #[default]
    Drain,
    Discard,
}

impl Default for Bypass {
    fn default() -> Self {
        Self {
            reads: BypassReads::default(),
            writes: BypassWrites::default(),
            hold_timeout: crate::time_span::millis(2_000),
            max_concurrent: 64,
        }
    }
}

impl Default for Deletion {
    fn default() -> Self {
        Self { policy: DeletionPolicy::default(), deadline: crate::time_span::minutes(10) }
    }
}
