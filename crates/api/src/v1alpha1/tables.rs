//! The declared tables.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A cached table.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Table {
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Table that this one's foreign key refers to; the root table has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub parent: Option<String>,
    /// Root table only: further unique keys by which instances are found, each a list of columns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(min = 1, max = 8), inner(length(min = 1, max = 63))))]
    pub lookup_keys: Vec<Vec<String>>,
}
