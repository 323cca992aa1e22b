//! Configuration of one cache node: what the operator renders into the ConfigMap, and what a node
//! without Kubernetes reads from `--config node.yaml`.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

mod check;

pub use check::{ConfigError, parents_first};

/// The whole file. Unknown fields are refused, so that a typing error is never silently ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeConfig {
    pub group: GroupIdentity,
    pub backend: BackendConfig,
    /// The root table first or anywhere; each child names its parent.
    pub tables: Vec<TableConfig>,
    pub journal: JournalConfig,
    #[serde(default)]
    pub memory: MemoryConfig,
    #[serde(default)]
    pub write_through: WriteThroughConfig,
    #[serde(default)]
    pub idempotency: IdempotencyConfig,
    #[serde(default)]
    pub bypass: BypassConfig,
    #[serde(default)]
    pub preload: PreloadConfig,
    #[serde(default)]
    pub listen: ListenConfig,
    /// Absent: plain text, said loudly.
    #[serde(default)]
    pub tls: Option<TlsConfig>,
    /// `Operator`: wait for a pushed topology. `Standalone`: this node owns every slot.
    #[serde(default)]
    pub topology: TopologySource,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GroupIdentity {
    /// `namespace/name` of the group, for messages, logs and the table claim.
    pub name: String,
    /// Incarnation: the resource's UID, or any fixed string for a standalone node.
    pub uid: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendConfig {
    /// Directory with the connection's parts as files, re-read on every connect so that a rotated
    /// Secret needs no restart: `uri`, or `host`, `port`, `dbname`, `username`, `password`;
    /// optional `ca.crt`.
    pub credentials_dir: PathBuf,
    /// Schema of the cached tables.
    #[serde(default = "default_schema")]
    pub schema: String,
    /// Upper bound of this node's connections: lanes, read-through and bypass together.
    #[serde(default = "default_connections")]
    pub max_connections: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TableConfig {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Root table only: unique keys by which instances are found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lookup_keys: Vec<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JournalConfig {
    pub directory: PathBuf,
    /// Bytes the journal may occupy.
    #[serde(default = "default_journal_bytes")]
    pub capacity_bytes: u64,
    #[serde(default)]
    pub durability: Durability,
    /// `Relaxed` only: the longest time between two syncs.
    #[serde(default = "default_sync_interval_ms")]
    pub sync_interval_ms: u64,
    /// How long flushed frames are kept, so that a backend that lost asynchronous commits can be
    /// sent them again.
    #[serde(default = "default_keep_flushed_seconds")]
    pub keep_flushed_seconds: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Durability {
    #[default]
    Sync,
    Relaxed,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MemoryConfig {
    /// Budget of the store in bytes; loads stop and writes are refused before it is exceeded.
    pub capacity_bytes: u64,
    /// What the store's records and the journal lie in.
    pub medium: Medium,
    pub eviction: Eviction,
    /// Whether a start takes the store back from its images.
    pub images: Images,
}

/// Kind of memory, as far as a node must know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Medium {
    /// Whatever the machine calls memory.
    #[default]
    Memory,
    /// The journal's volume is persistent memory with direct access (DAX): records lie in a file there,
    /// and the journal is written by storing into its mapping.
    AppDirect,
}

/// What may leave memory to make room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Eviction {
    /// Nothing: a full budget refuses what would grow it.
    #[default]
    Never,
    /// Instances that the backend has for sure, those not read lately first. A load pushes nothing
    /// out: it stops at the budget, and what is asked for later takes the place of what is not.
    Clean,
}

/// What a start makes of the images of its slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Images {
    /// They are taken for what the backend has: nobody but this group changes the rows.
    #[default]
    Trust,
    /// Samples of them are compared with the backend before any is served; where one differs, none is.
    Verify,
    /// None are written or taken: memory is filled by loads and misses.
    Reload,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WriteThroughConfig {
    pub lanes: u16,
    pub max_batch_rows: u32,
    pub max_delay_ms: u64,
    /// Bound of the write-behind queue in bytes, in-flight batches included.
    pub max_backlog_bytes: u64,
    pub backend_commit: BackendCommit,
    pub paused: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackendCommit {
    /// `synchronous_commit=on` for flush transactions.
    #[default]
    Sync,
    /// `synchronous_commit=off`; a commit counts once the WAL flush position has passed it (R11).
    Async,
}

/// Answers of transactions with an idempotency key (R26).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct IdempotencyConfig {
    /// How long an answer is kept; 0: such transactions are refused.
    pub window_seconds: u64,
    /// Bound of what is kept in memory; past it the oldest answers go, and are counted.
    pub max_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BypassConfig {
    pub reads: BypassReads,
    pub writes: BypassWrites,
    pub hold_timeout_ms: u64,
    pub max_concurrent: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BypassReads {
    #[default]
    Allow,
    Deny,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BypassWrites {
    #[default]
    Hold,
    Fail,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PreloadConfig {
    pub mode: PreloadMode,
    /// SQL condition on the root table that selects what a preload loads; empty: everything.
    pub r#where: String,
    /// Share of the owned slots that must be covered before the node reports ready, in percent.
    pub ready_at_percent: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PreloadMode {
    /// Not ready before the load is complete.
    BeforeReady,
    /// Ready at once; the load runs beside the traffic.
    Background,
    /// Filled by misses only.
    #[default]
    None,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ListenConfig {
    /// gRPC, `address:port`.
    pub grpc: String,
    /// Metrics and probes over plain HTTP, `address:port`.
    pub admin: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TlsConfig {
    /// Directory with `tls.crt`, `tls.key` and `ca.crt`; clients must present a certificate of
    /// this CA.
    pub directory: PathBuf,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TopologySource {
    #[default]
    Operator,
    Standalone,
}

fn default_schema() -> String {
    "public".to_owned()
}

fn default_connections() -> u32 {
    8
}

fn default_journal_bytes() -> u64 {
    20 << 30
}

fn default_sync_interval_ms() -> u64 {
    100
}

fn default_keep_flushed_seconds() -> u64 {
    600
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            capacity_bytes: 1 << 30,
            medium: Medium::default(),
            eviction: Eviction::default(),
            images: Images::default(),
        }
    }
}

impl Default for WriteThroughConfig {
    fn default() -> Self {
        Self {
            lanes: 4,
            max_batch_rows: 1_024,
            max_delay_ms: 100,
            max_backlog_bytes: 1 << 30,
            backend_commit: BackendCommit::Sync,
            paused: false,
        }
    }
}

impl Default for IdempotencyConfig {
    fn default() -> Self {
        Self { window_seconds: 0, max_bytes: 64 << 20 }
    }
}

impl Default for BypassConfig {
    fn default() -> Self {
        Self {
            reads: BypassReads::Allow,
            writes: BypassWrites::Hold,
            hold_timeout_ms: 2_000,
            max_concurrent: 64,
        }
    }
}

impl Default for PreloadConfig {
    fn default() -> Self {
        Self { mode: PreloadMode::None, r#where: String::new(), ready_at_percent: 100 }
    }
}

impl Default for ListenConfig {
    fn default() -> Self {
        Self { grpc: "0.0.0.0:7070".to_owned(), admin: "0.0.0.0:7071".to_owned() }
    }
}
