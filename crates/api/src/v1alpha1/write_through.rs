//! How committed changes travel to the backend.

use crate::{ByteSize, TimeSpan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The write-behind queue and its lanes.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
        {"rule": "quantity(string(self.maxBacklog)).compareTo(quantity('1Mi')) >= 0", "message": "spec.writeThrough.maxBacklog must be at least 1Mi"}
    ]))]
pub struct WriteThrough {
    #[schemars(extend("x-kubernetes-validations" = [
        {"rule": "self == 'Async'", "message": "spec.writeThrough.mode: only Async is supported by this version; a single transaction can ask to be answered after the backend has it"}
    ]))]
    pub mode: WriteMode,
    /// Ordered streams to the backend per node, each with its own connection.
    #[schemars(range(min = 1, max = 64))]
    #[schemars(extend("x-kubernetes-validations" = [
        {"rule": "self == oldSelf", "message": "spec.writeThrough.lanes cannot be changed on a live group yet"}
    ]))]
    pub lanes: i32,
    /// Bound of the rows in one backend transaction.
    #[schemars(range(min = 1, max = 65536))]
    pub max_batch_rows: i32,
    /// How long a write may wait for others to share its backend transaction.
    pub max_delay: TimeSpan,
    /// Bound of the queue per node. When it is full, writes are refused with a retry hint.
    pub max_backlog: ByteSize,
    /// Sync: the backend's own durable commit. Async: its asynchronous commit, counted only once it
    /// is known to be durable there.
    pub backend_commit: BackendCommit,
    /// Backend: changes of unique keys are answered after the backend accepted them.
    #[schemars(extend("x-kubernetes-validations" = [
        {"rule": "self == 'Backend'", "message": "spec.writeThrough.uniqueness: only Backend is supported by this version"}
    ]))]
    pub uniqueness: Uniqueness,
    /// Writes are taken and kept, and nothing is sent to the backend.
    pub paused: bool,
}

/// When the backend gets a change.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteMode {
    #[default]
    Async,
    Sync,
}

/// Durability of commits at the backend.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendCommit {
    #[default]
    Sync,
    Async,
}

/// Who decides about unique keys.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Uniqueness {
    #[default]
    Backend,
    Late,
}

impl Default for WriteThrough {
    fn default() -> Self {
        Self {
            mode: WriteMode::default(),
            lanes: 4,
            max_batch_rows: 1_024,
            max_delay: crate::time_span::millis(100),
            max_backlog: crate::quantity::mebibytes(256),
            backend_commit: BackendCommit::default(),
            uniqueness: Uniqueness::default(),
            paused: false,
        }
    }
}
