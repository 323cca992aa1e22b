//! Where the cached tables live.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The database that is the system of record.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Backend {
    pub postgres: Postgres,
}

#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Postgres {
    /// Secret in the group's namespace with `uri`, or `host`, `port`, `dbname`, `username` and
    /// `password`; optional `ca.crt`. It may be changed in place; the operator never creates it.
    pub secret_ref: SecretReference,
    /// Database schema of the cached tables.
    #[serde(default = "default_schema")]
    #[schemars(length(min = 1, max = 63))]
    #[schemars(extend("x-kubernetes-validations" = [
        {"rule": "self == oldSelf", "message": "spec.backend.postgres.schema cannot be changed on a live group yet"}
    ]))]
    pub schema: String,
    /// Bound of each node's connections: lanes, read-through and bypass together.
    #[serde(default = "default_connections")]
    #[schemars(range(min = 2, max = 500))]
    pub max_connections: i32,
}

#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

fn default_schema() -> String {
    "public".to_owned()
}

fn default_connections() -> i32 {
    8
}
