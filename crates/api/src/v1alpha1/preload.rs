//! Filling the cache before, or while, it serves.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Load of the tables by a Job.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Preload {
    /// BeforeReady: nodes are ready when their share is loaded. Background: ready at once, loaded
    /// beside the traffic. None: filled by misses only.
    pub mode: PreloadMode,
    /// SQL condition on the root table that selects what is loaded; empty: everything.
    #[serde(rename = "where")]
    #[schemars(length(max = 4096))]
    pub condition: String,
    /// Pods of the Job.
    #[schemars(range(min = 1, max = 64))]
    pub parallelism: i32,
    /// Share of a node's slots that must be loaded before it is ready, in percent.
    #[schemars(range(min = 1, max = 100))]
    pub ready_at_percent: i32,
    /// Bound of the rows read from the backend per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [
        {"rule": "false", "message": "spec.preload.maxRowsPerSecond is not supported by this version; leave it out"}
    ]))]
    pub max_rows_per_second: Option<i64>,
    /// When to load again, as a cron expression.
    #[schemars(length(max = 100))]
    #[schemars(extend("x-kubernetes-validations" = [
        {"rule": "self == ''", "message": "spec.preload.schedule is not supported by this version; leave it out"}
    ]))]
    pub schedule: String,
}

/// When the load happens.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreloadMode {
    #[default]
    BeforeReady,
    Background,
    None,
}

impl Default for Preload {
    fn default() -> Self {
        Self {
            mode: PreloadMode::default(),
            condition: String::new(),
            parallelism: 2,
            ready_at_percent: 100,
            max_rows_per_second: None,
            schedule: String::new(),
        }
    }
}
