//! Version v1alpha1 of the resource: the root type and its cross-field rules. One file per block of
//! the spec below this one; `status` holds what the operator reports.
//!
//! Every optional field has a default, so the shortest valid group is `backend` and `tables`. A field
//! whose behaviour does not exist yet is refused by a rule that names it; none is silently ignored.

pub mod backend;
pub mod journal;
pub mod lifecycle;
pub mod memory;
pub mod preload;
pub mod processors;
pub mod status;
pub mod tables;
pub mod write_through;

pub use backend::{Backend, Postgres, SecretReference};
pub use journal::{Durability, Journal, JournalVolume, VolumeRetention};
pub use lifecycle::{
    Bypass, BypassReads, BypassWrites, Deletion, DeletionPolicy, NodeLoss, Placement, Spread, Tls,
    TlsMode,
};
pub use memory::{Eviction, HugePages, Images, Medium, Memory};
pub use preload::{Preload, PreloadMode};
pub use processors::Cpu;
pub use status::{
    BacklogStatus, CacheGroupStatus, MediumStatus, NodeStatus, Phase, PreloadStatus, TableStatus,
};
pub use tables::Table;
pub use write_through::{BackendCommit, Uniqueness, WriteMode, WriteThrough};

use crate::TimeSpan;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// An application-tier cache of some tables of a relational database: answers reads and writes in
/// memory, and writes committed changes to the database asynchronously, in order, exactly once.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "cachetier.dev",
    version = "v1alpha1",
    kind = "CacheGroup",
    plural = "cachegroups",
    shortname = "cg",
    category = "all",
    namespaced,
    doc = "A group of tables kept in memory next to the applications and written through to their database.",
    status = "CacheGroupStatus",
    derive = "PartialEq",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.ready", description = "Ready nodes of wanted nodes"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Backlog", type_ = "string", json_path = ".status.backlog.age", description = "Age of the oldest write that the backend does not have yet"),
    printcolumn(name = "Loaded", type_ = "string", json_path = ".status.preload.loaded"),
    printcolumn(name = "Rejects", type_ = "integer", json_path = ".status.rejects", description = "Transactions the backend refused, set aside"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason", description = "Why it is not Ready"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1),
    validation = Rule::new("self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name must be at most 40 characters, begin with a letter and have only lower case letters, digits and dashes: names of Services and pods are derived from it")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.backend.postgres.maxConnections > self.writeThrough.lanes")
        .message("spec.backend.postgres.maxConnections must be above spec.writeThrough.lanes: each lane holds one connection and reads need at least one more"),
    validation = Rule::new("quantity(string(self.writeThrough.maxBacklog)).compareTo(quantity(string(self.journal.volume.size))) <= 0")
        .message("spec.writeThrough.maxBacklog must not exceed spec.journal.volume.size: every waiting write is in the journal"),
    validation = Rule::new("!has(self.memory) || self.memory.medium != 'AppDirect' || quantity(string(self.memory.capacity)).add(quantity(string(self.writeThrough.maxBacklog))).compareTo(quantity(string(self.journal.volume.size))) <= 0")
        .message("spec.memory.medium AppDirect keeps the store on the journal's volume: spec.journal.volume.size must hold spec.memory.capacity and spec.writeThrough.maxBacklog, and the journal takes what is left")
)]
pub struct CacheGroupSpec {
    /// Number of cache nodes. Editing it moves data between nodes while they serve; 0 writes
    /// everything to the backend and stops them.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 0, max = 200))]
    pub replicas: i32,
    pub backend: Backend,
    /// The cached tables: one root and its descendants, joined by foreign keys. Columns, types and
    /// keys are discovered in the backend.
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(
        merge_strategy = ListMerge::Map(vec!["name".into()]),
        validation = Rule::new("self.filter(t, !has(t.parent)).size() == 1")
            .message("spec.tables must have exactly one root table, which is the one without a parent"),
        validation = Rule::new("self.all(t, !has(t.parent) || self.exists(p, p.name == t.parent && p.name != t.name))")
            .message("spec.tables: each parent must be the name of another table of the list"),
        validation = Rule::new("self.all(t, !has(t.parent) || !has(t.lookupKeys))")
            .message("spec.tables: lookupKeys belong to the root table"),
        validation = Rule::new("self == oldSelf")
            .message("spec.tables cannot be changed on a live group yet; delete the group and create it again")
    )]
    pub tables: Vec<Table>,
    #[serde(default)]
    pub memory: Memory,
    #[serde(default)]
    pub cpu: Cpu,
    #[serde(default)]
    pub journal: Journal,
    #[serde(default)]
    pub write_through: WriteThrough,
    /// Copies of each write before it is acknowledged.
    #[serde(default = "default_copies")]
    #[x_kube(validation = Rule::new("self == 1")
        .message("spec.copies: only 1 is supported by this version; a second synchronous copy does not exist yet"))]
    pub copies: i32,
    /// How long answers of transactions with an idempotency key are remembered, so that a repeated
    /// one is answered as the first was and not applied again; left out: such transactions are
    /// refused. Nodes keep at most 64 MiB of answers; past that the oldest go, and are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1s')")
        .message("spec.idempotencyWindow must be at least 1s; leave it out to remember no answers"))]
    pub idempotency_window: Option<TimeSpan>,
    #[serde(default)]
    pub preload: Preload,
    #[serde(default)]
    pub bypass: Bypass,
    #[serde(default)]
    pub node_loss: NodeLoss,
    #[serde(default)]
    pub placement: Placement,
    #[serde(default)]
    pub tls: Tls,
    #[serde(default)]
    pub deletion: Deletion,
    /// The operator leaves the group alone; the nodes go on serving.
    #[serde(default)]
    pub paused: bool,
}

fn default_replicas() -> i32 {
    1
}

fn default_copies() -> i32 {
    1
}
