//! Snapshot scans and the ledger of loads.

use crate::backend::BackendFuture;
use crate::backend::flush::AsOf;
use cachetier_model::{Instance, RootKey};

/// Root keys from `from` (inclusive) to `to` (exclusive); `None` is unbounded. Ordered as the
/// backend orders the key, text by bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRange {
    pub from: Option<RootKey>,
    pub to: Option<RootKey>,
}

#[derive(Clone, Debug, Default)]
pub struct ScanRequest {
    pub range: KeyRange,
    /// SQL condition over columns of the root table; empty: every row.
    pub filter: String,
    /// Instances per page at most.
    pub page: u32,
    /// What the snapshot must hold; else the scan is refused with `BackendNotReady`.
    pub as_of: Vec<AsOf>,
}

/// An open snapshot. Pages come in root key order; `None` is the end.
pub trait Scan: Send {
    fn next(&mut self) -> BackendFuture<'_, Option<Vec<(RootKey, Instance)>>>;
}

/// What a load is made of.
#[derive(Clone, Debug)]
pub struct LoadSpec {
    pub group_uid: String,
    pub load_id: String,
    pub filter: String,
    pub chunks: Vec<KeyRange>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadInfo {
    pub load_id: String,
    pub filter: String,
    pub chunks_total: u32,
    pub chunks_done: u32,
    pub instances: u64,
}

/// A chunk under a lease.
#[derive(Clone, Debug)]
pub struct Chunk {
    pub group_uid: String,
    pub load_id: String,
    pub number: u32,
    pub range: KeyRange,
    pub worker: String,
    /// How often it was taken, this time included.
    pub attempt: u32,
}
