//! The seam between the lanes and the database: what a backend must be able to do.
//!
//! Owns the trait and its request and answer types; knows no SQL and no driver. Implemented by
//! [`crate::PostgresBackend`] and, for tests, by the in-memory double.

pub mod bypass;
pub mod claim;
pub mod flush;
pub mod load;
pub(crate) mod ownership;
pub mod reject;

use crate::error::BackendError;
use bypass::BypassRead;
use cachetier_model::node_config::TableConfig;
use cachetier_model::{GroupSchema, Instance, LookupId, RootKey, Value};
use claim::{
    Claim, ClaimRequest, LaneChange, LaneClaim, Leave, SlotHolder, Takeover, TakeoverRequest,
};
use flush::{AsOf, Fence, LaneSession, WriterId};
use futures::future::BoxFuture;
use load::{Chunk, KeyRange, LoadInfo, LoadSpec, Scan, ScanRequest};
use reject::RejectEntry;
use std::sync::Arc;
use std::time::Duration;

pub type BackendFuture<'a, T> = BoxFuture<'a, Result<T, BackendError>>;

/// Which database this is (R5): a journal is pinned to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendIdentity {
    pub system_identifier: String,
    pub database: String,
    pub timeline: u32,
    pub server_version: String,
}

/// Everything that is asked of the database. Object safe; every call takes its own connection
/// from the node's budget, except lanes and scans, which keep one each.
pub trait Backend: Send + Sync + 'static {
    fn identify(&self) -> BackendFuture<'_, BackendIdentity>;

    /// Reads the catalogs. A table that cannot be cached is refused by name, with the fix.
    fn discover<'a>(&'a self, tables: &'a [TableConfig]) -> BackendFuture<'a, GroupSchema>;

    /// The schema that all later calls speak of; call once before any of them.
    fn use_schema(&self, schema: Arc<GroupSchema>);

    /// Creates what is missing of the bookkeeping schema; when the role may not, and something is
    /// missing, the error says to run the printed DDL.
    fn prepare_bookkeeping(&self) -> BackendFuture<'_, ()>;

    /// Claims the group's tables (R14) and the next token of this journal (R8).
    fn claim(&self, request: ClaimRequest) -> BackendFuture<'_, Claim>;

    /// The claim's token is in the journal: from now on only the token tells who claimed, and a copy
    /// of the volume that was made while the claim was under way is refused (R8). Idempotent.
    fn settle_claim<'a>(
        &'a self,
        group_uid: &'a str,
        node: &'a str,
        token: u64,
    ) -> BackendFuture<'a, ()>;

    /// Takes slots that nobody owns or whose owners let them go (R9). Idempotent.
    fn take_slots(&self, request: TakeoverRequest) -> BackendFuture<'_, Takeover>;

    /// Who owns which slots, by the writer rows.
    fn holders<'a>(&'a self, group_uid: &'a str) -> BackendFuture<'a, Vec<SlotHolder>>;

    /// Writes the rows of a new lane map at a barrier (R10). `None`: the rows are not as believed,
    /// the backend lost commits; nothing was changed. Idempotent.
    fn change_lanes(&self, change: LaneChange) -> BackendFuture<'_, Option<Vec<LaneClaim>>>;

    /// Removes all bookkeeping of a group's incarnation, whatever its nodes still hold.
    fn forget_group<'a>(&'a self, group_uid: &'a str) -> BackendFuture<'a, ()>;

    /// The end of a group, one node's part: its writer rows go, so that nothing of its journal is
    /// ever accepted again. The last node that held slots takes the group's bookkeeping with it;
    /// before that, the answer names the nodes that still hold some. Idempotent.
    fn leave_group(&self, leave: Leave) -> BackendFuture<'_, Vec<String>>;

    /// Opens a lane's connection.
    fn open_lane(&self, writer: WriterId) -> BackendFuture<'_, Box<dyn LaneSession>>;

    /// Whole instances, all from one snapshot (R18); `None` where there is no root row. Refused with
    /// `BackendNotReady` where the snapshot does not hold what `as_of` asks for.
    fn read_instances<'a>(
        &'a self,
        keys: &'a [RootKey],
        as_of: Option<&'a AsOf>,
    ) -> BackendFuture<'a, Vec<Option<Instance>>>;

    /// One instance for a reader that goes around its owner, and the group's writers, from one
    /// snapshot (R18, R25).
    fn read_past<'a>(
        &'a self,
        key: &'a RootKey,
        group_uid: &'a str,
    ) -> BackendFuture<'a, BypassRead>;

    /// The root key behind a lookup key. Refused as [`Self::read_instances`] is.
    fn resolve_lookup<'a>(
        &'a self,
        lookup: LookupId,
        values: &'a [Value],
        as_of: Option<&'a AsOf>,
    ) -> BackendFuture<'a, Option<RootKey>>;

    /// Rows per table by the backend's statistics.
    fn expected_rows(&self) -> BackendFuture<'_, Vec<u64>>;

    /// Cuts the root table, as far as `filter` (may be empty) selects it, into about `chunks`
    /// ranges that together cover every possible key.
    fn plan_chunks<'a>(&'a self, chunks: u32, filter: &'a str) -> BackendFuture<'a, Vec<KeyRange>>;

    /// Whether a condition of loads is one over the root table's columns; reads no row.
    fn check_filter<'a>(&'a self, _filter: &'a str) -> BackendFuture<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Opens one snapshot over a range; pages come in root key order.
    fn open_scan(&self, request: ScanRequest) -> BackendFuture<'_, Box<dyn Scan>>;

    /// Creates the ledger of a load, or finds the one another pod created: the answer counts.
    fn create_load(&self, spec: LoadSpec) -> BackendFuture<'_, LoadInfo>;

    fn load_info<'a>(
        &'a self,
        group_uid: &'a str,
        load_id: &'a str,
    ) -> BackendFuture<'a, Option<LoadInfo>>;

    /// The next chunk that nobody has, or whose holder's lease ran out.
    fn take_chunk<'a>(
        &'a self,
        group_uid: &'a str,
        load_id: &'a str,
        worker: &'a str,
        lease: Duration,
    ) -> BackendFuture<'a, Option<Chunk>>;

    /// Prolongs the lease; false when the chunk is no longer this worker's.
    fn renew_chunk<'a>(&'a self, chunk: &'a Chunk, lease: Duration) -> BackendFuture<'a, bool>;

    /// Marks the chunk done, with the number of instances sent.
    fn finish_chunk<'a>(&'a self, chunk: &'a Chunk, instances: u64) -> BackendFuture<'a, bool>;

    /// Puts the chunk back for anyone to take at once.
    fn give_back_chunk<'a>(&'a self, chunk: &'a Chunk) -> BackendFuture<'a, ()>;

    /// Open rejects of a group, oldest first: the heads, each with its number of followers.
    fn list_rejects<'a>(
        &'a self,
        group_uid: &'a str,
        limit: u32,
    ) -> BackendFuture<'a, Vec<RejectEntry>>;

    /// The whole ordered tail behind a head, the head first; empty when there is none.
    fn reject_tail(&self, id: u64) -> BackendFuture<'_, Vec<RejectEntry>>;

    /// Drops a head and its tail; answers how many transactions went.
    fn discard_reject<'a>(&'a self, id: u64, by: &'a Fence) -> BackendFuture<'a, u32>;

    /// Applies a head and its tail in order, in one transaction that also removes them.
    fn replay_reject<'a>(&'a self, id: u64, by: &'a Fence) -> BackendFuture<'a, u32>;
}
