//! A backend in memory, for tests of whoever sits above: deterministic, with faults on demand.
//!
//! It refuses what PostgreSQL refuses (keys, references, the fence), loses asynchronous commits in
//! a crash, and breaks connections before or after a commit as its script says. It knows no SQL: a
//! filter is a closure, and order of keys is order of their canonical bytes.

mod answers;
mod session;
mod state;
pub mod store;

pub use state::{Break, Faults};

use crate::backend::bypass::{BypassRead, WriterMark};
use crate::backend::claim::{
    Claim, ClaimRequest, LaneChange, LaneClaim, Leave, SlotHolder, Takeover, TakeoverRequest,
};
use crate::backend::flush::{AsOf, Fence, LaneSession, WriterId, commits_missing};
use crate::backend::load::{Chunk, KeyRange, LoadInfo, LoadSpec, Scan, ScanRequest};
use crate::backend::ownership::Writer;
use crate::backend::reject::RejectEntry;
use crate::backend::{Backend, BackendFuture, BackendIdentity};
use crate::error::{BackendError, Reason};
use crate::queue::lane_of;
use cachetier_model::node_config::TableConfig;
use cachetier_model::{GroupSchema, Instance, LookupId, RootKey, Value};
use parking_lot::Mutex;
use state::State;
use std::sync::Arc;
use std::time::Duration;
use store::Store;

/// Everything the database held at some moment.
pub struct Standby(state::Data);

/// Cheap to clone: clones are connections to the same database.
#[derive(Clone)]
pub struct DoubleBackend {
    state: Arc<Mutex<State>>,
}

impl DoubleBackend {
    pub fn new(schema: GroupSchema) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(Arc::new(schema)))) }
    }

    /// Changes the faults that are in force.
    pub fn set_faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.state.lock().faults);
    }

    /// Loses every commit that was not synced, and breaks all connections.
    pub fn crash(&self) {
        self.state.lock().crash();
    }

    /// What a standby has that hears nothing from now on; see [`Self::fail_over`].
    pub fn standby(&self) -> Standby {
        Standby(self.state.lock().data.clone())
    }

    /// Another server takes over, which has only this.
    pub fn fail_over(&self, standby: Standby) {
        self.state.lock().fail_over(standby.0);
    }

    /// The log catches up with asynchronous commits.
    pub fn flush_log(&self) {
        self.state.lock().flush_log();
    }

    /// Commits so far, of whatever kind; a crash takes those back that were not in the log.
    pub fn commits(&self) -> u64 {
        self.state.lock().inserted
    }

    /// A copy of the tables as they are.
    pub fn store(&self) -> Store {
        self.state.lock().data.store.clone()
    }

    /// Changes the tables beside the cache, as another writer would.
    pub fn edit(&self, change: impl FnOnce(&mut Store)) {
        change(&mut self.state.lock().data.store);
    }

    fn with<'a, T: Send + 'a>(
        &'a self,
        act: impl FnOnce(&mut State) -> Result<T, BackendError> + Send + 'a,
    ) -> BackendFuture<'a, T> {
        Box::pin(async move {
            let mut state = self.state.lock();
            state.check_reachable()?;
            act(&mut state)
        })
    }
}

impl Backend for DoubleBackend {
    fn identify(&self) -> BackendFuture<'_, BackendIdentity> {
        self.with(|state| {
            Ok(BackendIdentity {
                system_identifier: "double".to_owned(),
                database: "double".to_owned(),
                timeline: state.timeline,
                server_version: "0".to_owned(),
            })
        })
    }

    fn discover<'a>(&'a self, tables: &'a [TableConfig]) -> BackendFuture<'a, GroupSchema> {
        self.with(|state| {
            let known = |t: &TableConfig| state.schema.table_id(&t.name).is_some();
            match tables.iter().find(|t| !known(t)) {
                Some(missing) => Err(BackendError::new(
                    "discover tables",
                    Reason::TableMissing,
                    format!("table {} does not exist", missing.name),
                )),
                None => Ok(GroupSchema::clone(&state.schema)),
            }
        })
    }

    fn use_schema(&self, _schema: Arc<GroupSchema>) {}

    fn prepare_bookkeeping(&self) -> BackendFuture<'_, ()> {
        self.with(|_| Ok(()))
    }

    fn claim(&self, request: ClaimRequest) -> BackendFuture<'_, Claim> {
        self.with(move |state| state.claim(&request))
    }

    fn settle_claim<'a>(
        &'a self,
        group_uid: &'a str,
        node: &'a str,
        token: u64,
    ) -> BackendFuture<'a, ()> {
        self.with(move |state| state.settle_claim(group_uid, node, token))
    }

    fn take_slots(&self, request: TakeoverRequest) -> BackendFuture<'_, Takeover> {
        self.with(move |state| state.take_slots(&request))
    }

    fn holders<'a>(&'a self, group_uid: &'a str) -> BackendFuture<'a, Vec<SlotHolder>> {
        self.with(|state| Ok(crate::backend::ownership::holders(&state.writers_of(group_uid))))
    }

    fn change_lanes(&self, change: LaneChange) -> BackendFuture<'_, Option<Vec<LaneClaim>>> {
        self.with(move |state| state.change_lanes(&change))
    }

    fn forget_group<'a>(&'a self, group_uid: &'a str) -> BackendFuture<'a, ()> {
        self.with(|state| {
            state.forget(group_uid);
            Ok(())
        })
    }

    fn leave_group(&self, leave: Leave) -> BackendFuture<'_, Vec<String>> {
        self.with(move |state| state.leave(&leave))
    }

    fn open_lane(&self, writer: WriterId) -> BackendFuture<'_, Box<dyn LaneSession>> {
        let shared = Arc::clone(&self.state);
        self.with(move |state| {
            let lane = session::DoubleLane { state: shared, writer, session: state.session };
            Ok(Box::new(lane) as Box<dyn LaneSession>)
        })
    }

    fn read_instances<'a>(
        &'a self,
        keys: &'a [RootKey],
        as_of: Option<&'a AsOf>,
    ) -> BackendFuture<'a, Vec<Option<Instance>>> {
        self.with(move |state| {
            if as_of.is_some_and(|as_of| !state.holds(as_of)) {
                return Err(commits_missing("read instances"));
            }
            Ok(keys.iter().map(|key| state.instance(key)).collect())
        })
    }

    fn read_past<'a>(
        &'a self,
        key: &'a RootKey,
        group_uid: &'a str,
    ) -> BackendFuture<'a, BypassRead> {
        self.with(move |state| {
            let of_lane = |w: &Writer| lane_of(key.slot(), w.lanes) == w.lane;
            let mark = |writer: Writer| WriterMark {
                position: writer.position,
                has_slot: writer.slots.contains(key.slot()),
                journal: writer.journal,
            };
            let writers =
                state.writers_of(group_uid).into_iter().filter(of_lane).map(mark).collect();
            let set_aside = state.has_rejects(group_uid, key);
            Ok(BypassRead { instance: state.instance(key), writers, set_aside })
        })
    }

    fn resolve_lookup<'a>(
        &'a self,
        lookup: LookupId,
        values: &'a [Value],
        as_of: Option<&'a AsOf>,
    ) -> BackendFuture<'a, Option<RootKey>> {
        self.with(move |state| {
            if as_of.is_some_and(|as_of| !state.holds(as_of)) {
                return Err(commits_missing("resolve a lookup key"));
            }
            Ok(state.resolve(lookup, values))
        })
    }

    fn expected_rows(&self) -> BackendFuture<'_, Vec<u64>> {
        self.with(|state| Ok(state.data.store.tables.iter().map(|t| t.len() as u64).collect()))
    }

    fn plan_chunks<'a>(
        &'a self,
        chunks: u32,
        _filter: &'a str,
    ) -> BackendFuture<'a, Vec<KeyRange>> {
        self.with(move |state| Ok(state.chunks(chunks)))
    }

    fn open_scan(&self, request: ScanRequest) -> BackendFuture<'_, Box<dyn Scan>> {
        self.with(move |state| {
            if request.as_of.iter().any(|as_of| !state.holds(as_of)) {
                return Err(commits_missing("scan the backend"));
            }
            let pages = state.pages(&request);
            let shared = Arc::clone(&self.state);
            let session = state.session;
            let scan = session::DoubleScan { state: shared, session, pages };
            Ok(Box::new(scan) as Box<dyn Scan>)
        })
    }

    fn create_load(&self, spec: LoadSpec) -> BackendFuture<'_, LoadInfo> {
        self.with(move |state| Ok(state.create_load(spec)))
    }

    fn load_info<'a>(
        &'a self,
        group_uid: &'a str,
        load_id: &'a str,
    ) -> BackendFuture<'a, Option<LoadInfo>> {
        self.with(move |state| Ok(state.load_info(group_uid, load_id)))
    }

    fn take_chunk<'a>(
        &'a self,
        group_uid: &'a str,
        load_id: &'a str,
        worker: &'a str,
        lease: Duration,
    ) -> BackendFuture<'a, Option<Chunk>> {
        self.with(move |state| Ok(state.take_chunk(group_uid, load_id, worker, lease)))
    }

    fn renew_chunk<'a>(&'a self, chunk: &'a Chunk, lease: Duration) -> BackendFuture<'a, bool> {
        self.with(move |state| Ok(state.with_chunk(chunk, |held| held.renew(lease))))
    }

    fn finish_chunk<'a>(&'a self, chunk: &'a Chunk, instances: u64) -> BackendFuture<'a, bool> {
        self.with(move |state| Ok(state.with_chunk(chunk, |held| held.done = Some(instances))))
    }

    fn give_back_chunk<'a>(&'a self, chunk: &'a Chunk) -> BackendFuture<'a, ()> {
        self.with(move |state| {
            state.with_chunk(chunk, |held| held.give_back());
            Ok(())
        })
    }

    fn list_rejects<'a>(
        &'a self,
        group_uid: &'a str,
        limit: u32,
    ) -> BackendFuture<'a, Vec<RejectEntry>> {
        self.with(move |state| Ok(state.list_rejects(group_uid, limit)))
    }

    fn reject_tail(&self, id: u64) -> BackendFuture<'_, Vec<RejectEntry>> {
        self.with(move |state| Ok(state.reject_tail(id)))
    }

    fn discard_reject<'a>(&'a self, id: u64, by: &'a Fence) -> BackendFuture<'a, u32> {
        self.with(move |state| state.remove_reject(id, by, false))
    }

    fn replay_reject<'a>(&'a self, id: u64, by: &'a Fence) -> BackendFuture<'a, u32> {
        self.with(move |state| state.remove_reject(id, by, true))
    }
}
