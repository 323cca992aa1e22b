//! The handle of a group: every call a process or an application can make.
#![allow(unused_variables)] // signatures first; bodies follow

use std::sync::Arc;
use std::time::Duration;

use cachetier_model::node_config::NodeConfig;
use cachetier_model::{
    Epoch, GroupSchema, Instance, LookupId, LookupKey, NodeEntry, RootKey, SlotSet, Topology,
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::calls::{
    BeginLoad, ChunkOutcome, CompareProgress, Drained, KeySelector, LoadBegun, Located, Position,
    ReadCall, ReadOutcome, RejectFigure, Released, TransactCall, Transacted,
};
use crate::error::GroupError;
use crate::peers::Peers;
use crate::status::{Counters, Ended, Status};

/// What a group is started with.
pub struct GroupOptions {
    pub config: NodeConfig,
    /// This node's name and the address others reach it by.
    pub node: NodeEntry,
    /// Said in the status.
    pub peers: Arc<dyn Peers>,
}

/// A running group. Cheap to clone; [`Group::close`] ends it in order.
#[derive(Clone)]
pub struct Group {}

fn later<T>() -> Result<T, GroupError> {
    Err(GroupError::Starting { reason: "not there yet".into() })
}

impl Group {
    /// Opens the journal and starts; the rest of the start (backend, claim, replay) goes on in the
    /// background and is seen in [`Group::status`], so that a wrong password or a missing table is
    /// a problem that can be read and healed, not a crash loop. Errs only when the journal itself
    /// cannot be opened.
    pub async fn start(
        options: GroupOptions,
        shutdown: CancellationToken,
    ) -> Result<Self, GroupError> {
        later()
    }

    /// Returns once the group has ended or must be ended: the process should stop then.
    pub async fn ended(&self) -> Ended {
        Ended::Closed
    }

    /// Ends in order: writes refused, what the backend takes within `grace` flushed, the journal
    /// closed. What is left is replayed at the next start.
    pub async fn close(&self, grace: Duration) {}

    /// The tables; `Starting` until the backend or the journal told them.
    pub fn schema(&self) -> Result<Arc<GroupSchema>, GroupError> {
        later()
    }

    /// This node's name and address.
    pub fn node(&self) -> &NodeEntry {
        std::process::abort()
    }

    pub fn topology(&self) -> Option<Arc<Topology>> {
        None
    }

    /// The topology held, and every later one.
    pub fn watch_topology(&self) -> watch::Receiver<Option<Arc<Topology>>> {
        watch::channel(None).1
    }

    /// Accepts a newer topology (an older or equal one changes nothing); answers the version held.
    pub async fn apply_topology(&self, topology: Topology) -> Result<Epoch, GroupError> {
        later()
    }

    /// Finds where an instance is: here, or at another node. Asks this engine, then the peers,
    /// then the backend for the root key behind a lookup key.
    pub async fn locate(&self, key: &KeySelector) -> Result<Located, GroupError> {
        later()
    }

    /// Reads one instance of this node's slots. A lookup key that does not name the instance (any
    /// more) answers `found: false`.
    pub async fn read(&self, call: ReadCall) -> Result<ReadOutcome, GroupError> {
        later()
    }

    /// Reads past the store, for slots whose owner is away; refused by policy with the reason.
    pub async fn bypass_read(&self, call: ReadCall) -> Result<ReadOutcome, GroupError> {
        later()
    }

    /// Guards and changes on one instance of this node's slots, all or nothing.
    pub async fn transact(&self, call: TransactCall) -> Result<Transacted, GroupError> {
        later()
    }

    /// True once the position has reached the backend; false after `timeout`.
    pub async fn wait_flushed(
        &self,
        position: Position,
        timeout: Duration,
    ) -> Result<bool, GroupError> {
        later()
    }

    /// The root key behind a lookup key, among the instances loaded here (what peers ask).
    pub async fn resolve(
        &self,
        lookup: LookupId,
        key: &LookupKey,
    ) -> Result<Option<RootKey>, GroupError> {
        later()
    }

    /// Stops serving these slots, flushes them and lets them go (what the new owner asks).
    pub async fn release_slots(
        &self,
        topology: Topology,
        taker: &str,
        slots: &SlotSet,
    ) -> Result<Released, GroupError> {
        later()
    }

    /// Registers a load and hands out a ticket: take it before the snapshot is opened.
    pub async fn begin_load(&self, call: BeginLoad) -> Result<LoadBegun, GroupError> {
        later()
    }

    /// Starts one chunk of a registered load.
    pub fn load_chunk(
        &self,
        load_id: &str,
        chunk: u32,
        ticket: u64,
    ) -> Result<ChunkLoad, GroupError> {
        later()
    }

    /// Refuses writes from now on (`true`) and reports what is left to flush; or takes them again.
    pub async fn drain(&self, stop_writes: bool) -> Result<Drained, GroupError> {
        later()
    }

    /// Compares the loaded instances with the backend: everything (0) or about one in `sample`.
    /// Progress comes on the channel; the last message has `done`.
    pub async fn compare(
        &self,
        sample: u32,
    ) -> Result<mpsc::Receiver<Result<CompareProgress, GroupError>>, GroupError> {
        later()
    }

    pub async fn rejects(&self, limit: u32) -> Result<Vec<RejectFigure>, GroupError> {
        later()
    }

    /// Decides about a reject and what follows it; answers the number of transactions.
    pub async fn resolve_reject(&self, id: u64, discard: bool) -> Result<u32, GroupError> {
        later()
    }

    pub async fn status(&self) -> Status {
        std::process::abort()
    }

    pub fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// One chunk of a load, being installed.
pub struct ChunkLoad {}

impl ChunkLoad {
    /// Installs instances, all rows each. Synchronous; call it with a few hundred at a time.
    pub fn install(&mut self, instances: Vec<Instance>) -> Result<(), GroupError> {
        later()
    }

    /// The chunk was sent whole: counts it. Dropping without this counts nothing.
    pub fn finish(self) -> ChunkOutcome {
        ChunkOutcome::default()
    }
}
