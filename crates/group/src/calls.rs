//! The arguments and answers of a group's calls: plain values, no transport.

use std::time::Duration;

use bytes::Bytes;
use cachetier_model::{
    ChangeKind, IdempotencyKey, LookupId, LookupKey, NodeEntry, ReadPlan, RootKey, Row, SlotSet,
    Transaction,
};
use cachetier_write_through::AsOf;
use uuid::Uuid;

/// How a caller names one cache instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeySelector {
    Root(RootKey),
    Lookup { lookup: LookupId, key: LookupKey },
}

/// Where a selected instance is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// `None`: no instance has this lookup key.
    pub root: Option<RootKey>,
    /// True: this node serves it (or is about to).
    pub here: bool,
    /// The node the topology gives it to.
    pub owner: Option<NodeEntry>,
}

#[derive(Clone, Debug)]
pub struct ReadCall {
    pub key: KeySelector,
    pub plan: ReadPlan,
    /// Refuse an answer that went around the store.
    pub no_bypass: bool,
    /// A write of this instance that the answer must hold, or the read is refused (R25).
    pub min_position: Option<Position>,
}

impl ReadCall {
    /// From wherever the instance is.
    pub fn new(key: KeySelector, plan: ReadPlan) -> Self {
        Self { key, plan, no_bypass: false, min_position: None }
    }

    /// Not from past the store.
    #[must_use]
    pub fn without_bypass(mut self) -> Self {
        self.no_bypass = true;
        self
    }
}

/// Where an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Cache,
    /// From the backend on a miss.
    ReadThrough,
    /// From the backend without the store: acknowledged writes of an absent owner may be missing.
    Bypass,
}

/// A read whose rows went into a sink, if there were any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadFound {
    pub found: bool,
    pub source: Source,
    /// With a bypass: how far the slot's owner was in the backend, if any node has the slot.
    pub confirmed: Option<Position>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ReadOutcome {
    pub found: bool,
    /// One entry per entry of the plan; per table of the schema for an empty plan.
    pub tables: Vec<Vec<Row>>,
    pub source: Source,
    /// See [`ReadFound::confirmed`].
    pub confirmed: Option<Position>,
}

/// When a transaction is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnswerWhen {
    /// Durable here; what only the backend can decide waits for the backend.
    #[default]
    Durable,
    /// Accepted by the backend.
    Flushed,
}

#[derive(Clone, Debug)]
pub struct TransactCall {
    pub key: KeySelector,
    pub transaction: Transaction,
    pub answer: AnswerWhen,
    /// Within the group's window a repeated call is answered as the first was, and not applied
    /// again (R26). Needs the root key.
    pub idempotency_key: Option<IdempotencyKey>,
}

/// A place in one node's journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub journal: Uuid,
    pub sequence: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Transacted {
    pub position: Position,
    /// Rows affected, per operation.
    pub rows: Vec<u32>,
}

/// What waits for the backend.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BacklogFigures {
    pub transactions: u64,
    pub bytes: u64,
    pub oldest: Duration,
    pub flush_rows_per_second: f64,
}

impl BacklogFigures {
    /// Nothing waits.
    pub const NONE: Self =
        Self { transactions: 0, bytes: 0, oldest: Duration::ZERO, flush_rows_per_second: 0.0 };
}

#[derive(Clone, Debug)]
pub struct Released {
    /// Free of backlog here, and refused from now on.
    pub slots: SlotSet,
    /// What is still to be flushed for the others; ask again.
    pub backlog: BacklogFigures,
    /// How far each lane here is in the backend, by number: what the taker must find there. Empty
    /// when it is not said.
    pub positions: Vec<u64>,
    /// The newest version that the row of each lane is known to have had, likewise.
    pub versions: Vec<u64>,
    /// The idempotency answers of `slots`, each as a journal keeps it (R23, R26).
    pub answers: Vec<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drained {
    pub backlog: BacklogFigures,
    pub writes_stopped: bool,
}

/// Rows of one table, for load figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRowsFigure {
    pub table: String,
    pub rows: u64,
    /// The backend's estimate; 0 when unknown.
    pub expected_rows: u64,
}

#[derive(Clone, Debug)]
pub struct BeginLoad {
    pub load_id: String,
    pub chunks_total: u32,
    pub expected: Vec<TableRowsFigure>,
}

#[derive(Clone, Debug)]
pub struct LoadBegun {
    pub ticket: u64,
    pub slots_needed: SlotSet,
    pub topology_version: u64,
    pub chunks_done: Vec<u32>,
    /// What the snapshot that is loaded from must hold, if anything.
    pub as_of: Option<AsOf>,
}

/// What one chunk of a load did here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkOutcome {
    pub inserted: u64,
    /// Present or changed since: the cache has newer content.
    pub skipped: u64,
    /// Touched since the ticket and not present: read again under a new ticket.
    pub broken: u64,
    /// Not of this node's slots (any more).
    pub foreign: u64,
    pub chunk_done: bool,
    pub stopped_by_memory: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableDifference {
    pub table: String,
    pub rows: u64,
    pub only_in_cache: u64,
    pub only_in_backend: u64,
    pub different: u64,
}

/// How differences are repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// The backend is right: the clean instance is forgotten and read again.
    FromBackend,
    /// The cache is right: its rows are written through as an ordinary transaction.
    FromCache,
}

impl Repair {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::FromBackend => "from-backend",
            Self::FromCache => "from-cache",
        }
    }
}

/// What became of an instance that was to be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refreshed {
    Done,
    /// Nothing of it is here that could be old: the next read asks the backend.
    NotLoaded,
    /// It has changes that are not flushed, and was left as it is.
    Pending,
    /// A reject of it waits for an administrator; it was left as it is.
    Quarantined,
    /// Another node has it.
    NotOwner,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompareCall {
    /// Compare about one in so many instances; 0: all.
    pub sample: u32,
    pub repair: Option<Repair>,
    /// Rows read from the backend per second, at most; 0: as fast as it goes.
    pub rows_per_second: u64,
}

/// One instance that differs. No key and no value: a hash of the one, the columns of the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceDifference {
    pub key_hash: String,
    /// Tables that differ.
    pub tables: Vec<InstanceTable>,
    pub repaired: bool,
    /// Why it was not, where it was asked for.
    pub left: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceTable {
    pub table: String,
    pub only_in_cache: u64,
    pub only_in_backend: u64,
    pub different: u64,
    /// Columns whose values differ in rows that both have.
    pub columns: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompareProgress {
    pub instances: u64,
    pub rows: u64,
    /// Instances of the backend in this node's slots that are not loaded here; not a difference.
    pub not_loaded: u64,
    pub differences: u64,
    pub tables: Vec<TableDifference>,
    pub done: bool,
    /// Estimate, 0 when unknown.
    pub expected_instances: u64,
    /// Instances that differ, found since the last message.
    pub found: Vec<InstanceDifference>,
    /// Of all found so far.
    pub repaired: u64,
}

/// A refused transaction that waits for a decision.
#[derive(Clone, Debug, PartialEq)]
pub struct RejectFigure {
    pub id: u64,
    pub node: String,
    pub sequence: u64,
    pub sqlstate: String,
    pub table: String,
    pub constraint: String,
    pub message: String,
    pub age: Duration,
    /// Transactions of the same instance behind it.
    pub following: u32,
    /// See [`cachetier_model::RootKey::fingerprint`].
    pub key_hash: String,
}

/// A transaction that was set aside: what it was to do, without values.
#[derive(Clone, Debug)]
pub struct RejectedTransaction {
    pub sequence: u64,
    pub changes: Vec<RejectedChange>,
}

#[derive(Clone, Debug)]
pub struct RejectedChange {
    pub table: String,
    pub kind: ChangeKind,
    /// Columns that an update changes.
    pub columns: Vec<String>,
}
