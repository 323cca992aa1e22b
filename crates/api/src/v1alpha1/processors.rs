//! How much processor time a node asks for.

use crate::CpuAmount;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Processor time of each node.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
        {"rule": "!has(self.limit) || quantity(string(self.limit)).compareTo(quantity(string(self.request))) >= 0", "message": "spec.cpu.limit must not be below spec.cpu.request"}
    ]))]
pub struct Cpu {
    /// What the host keeps free for the node, and its weight among its neighbours when the host is
    /// busy: a node that gets too little answers late.
    pub request: CpuAmount,
    /// More is never given. Unset: what the host has left; a limit makes answers wait at its edge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<CpuAmount>,
}

impl Default for Cpu {
    fn default() -> Self {
        Self { request: CpuAmount::from_milli(500), limit: None }
    }
}
