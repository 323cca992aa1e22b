//! The handle of a group: every call a process or an application can make.
//!
//! Owns nothing but the way in; each call is answered by the module of its name.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cachetier_engine::RowSink;
use cachetier_journal::file_system::FileSystem;
use cachetier_model::node_config::{ConfigError, NodeConfig};
use cachetier_model::{
    Epoch, GroupSchema, LookupId, LookupKey, NodeEntry, RootKey, SlotSet, Topology,
};
use cachetier_write_through::{Backend, PostgresBackend, PostgresOptions};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::calls::{
    BacklogFigures, BeginLoad, CompareCall, CompareProgress, Drained, KeySelector, LoadBegun,
    Located, Position, ReadCall, ReadFound, ReadOutcome, Refreshed, RejectFigure,
    RejectedTransaction, Released, TransactCall, Transacted,
};
use crate::core::Core;
use crate::error::{GroupError, RefusalReason, in_full};
use crate::host::{Host, Labour};
use crate::load::ChunkLoad;
use crate::medium::{self, Volume};
use crate::peers::Peers;
use crate::shared::Shared;
use crate::status::{Counters, Ended, Status};
use crate::{open, report, start};

/// Far above the sync of what was accepted, after which the journal is closed.
const CLOSE_MAX: Duration = Duration::from_secs(10);

/// Instances read again by one call.
const REFRESH_KEYS_MAX: usize = 1_000;
/// Images are written for this long at a close, also when the flush took the whole grace.
const IMAGES_MIN: Duration = Duration::from_secs(5);

/// What a group is started with.
pub struct GroupOptions {
    pub config: NodeConfig,
    /// This node's name and the address others reach it by.
    pub node: NodeEntry,
    pub peers: Arc<dyn Peers>,
}

/// A running group. Cheap to clone; [`Group::close`] ends it in order.
#[derive(Clone)]
pub struct Group {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    /// Set once, when the tables are known and the journal's tail is back.
    core: Arc<watch::Sender<Option<Arc<Core>>>>,
    /// See `report`.
    ready_once: AtomicBool,
}

impl Group {
    /// Opens the journal and starts; the rest of the start (backend, claim, replay) goes on in the
    /// background and is seen in [`Group::status`], so that a wrong password or a missing table is
    /// a problem that can be read and healed, not a crash loop. Errs only when the configuration
    /// itself cannot work, or the journal cannot be opened.
    pub async fn start(
        options: GroupOptions,
        shutdown: CancellationToken,
    ) -> Result<Self, GroupError> {
        let config = &options.config;
        let backend =
            PostgresBackend::new(PostgresOptions::from_config(config, &options.node.name))
                .map_err(|error| ConfigError::new("backend.maxConnections", error.message))?;
        let probed = options.config.clone();
        let volume = Labour::Threads.run(move || medium::volume(&probed)).await;
        let Volume { files, direct, problem } = volume.map_err(GroupError::internal)?;
        let group = Self::start_with(options, Arc::new(backend), files, shutdown).await?;
        group.inner.shared.journal_direct.store(direct, Ordering::Release);
        if let Some(problem) = problem {
            group.inner.shared.problems.raise("journal-medium", problem);
        }
        Ok(group)
    }

    /// The same over another backend and file system.
    pub async fn start_with(
        options: GroupOptions,
        backend: Arc<dyn Backend>,
        files: Arc<dyn FileSystem>,
        shutdown: CancellationToken,
    ) -> Result<Self, GroupError> {
        let host = Host {
            backend,
            files,
            labour: Labour::Threads,
            segment_bytes: None,
            images_refresh: None,
        };
        Self::start_on(options, host, shutdown).await
    }

    /// The same on any host.
    pub async fn start_on(
        options: GroupOptions,
        host: Host,
        shutdown: CancellationToken,
    ) -> Result<Self, GroupError> {
        let GroupOptions { config, node, peers } = options;
        let shutdown = shutdown.child_token();
        let shared = open::open(config, node, peers, host, shutdown).await?;
        let core = Arc::new(watch::Sender::new(None));
        if shared.fenced().is_none() {
            shared.spawn("start", start::run(Arc::clone(&shared), Arc::clone(&core)));
        } else {
            shared.count_tail().await;
        }
        Ok(Self { inner: Arc::new(Inner { shared, core, ready_once: AtomicBool::new(false) }) })
    }

    fn core(&self) -> Result<Arc<Core>, GroupError> {
        if let Some(core) = self.inner.core.borrow().as_ref() {
            return Ok(Arc::clone(core));
        }
        self.inner.shared.check_alive()?;
        let problem = self.inner.shared.problems.all().into_iter().next();
        let reason = problem.map_or("the backend is being asked for its tables".into(), |p| {
            format!("{}: {}", p.reason, p.message).into()
        });
        Err(GroupError::Starting { reason })
    }

    /// A call whose answer nobody would produce any more ends with the group.
    async fn before_stop<T>(
        &self,
        call: impl Future<Output = Result<T, GroupError>>,
    ) -> Result<T, GroupError> {
        tokio::select! {
            biased;
            outcome = call => outcome,
            () = self.inner.shared.shutdown.cancelled() => {
                Err(GroupError::Starting { reason: "this node stops".into() })
            }
        }
    }

    /// Returns once the group has ended or must be ended: the process should stop then.
    pub async fn ended(&self) -> Ended {
        let mut ended = self.inner.shared.ended.subscribe();
        let ended = ended.wait_for(Option::is_some).await;
        ended.ok().and_then(|ended| ended.clone()).unwrap_or(Ended::Closed)
    }

    /// Ends in order: writes refused, what the backend takes within `grace` flushed, the journal
    /// closed. What is left is replayed at the next start.
    pub async fn close(&self, grace: Duration) {
        let shared = &self.inner.shared;
        let begun = tokio::time::Instant::now();
        shared.writes_stopped.store(true, Ordering::Release);
        let core = self.inner.core.borrow().clone();
        if let Some(core) = &core {
            let mut marks = core.lanes.watch();
            // the marks must not be borrowed while the queue is asked: it publishes them locked
            let flushed = async {
                while !core.lanes.backlog().is_empty() && marks.changed().await.is_ok() {}
            };
            if tokio::time::timeout(grace, flushed).await.is_err() {
                tracing::warn!(node = %shared.node.name,
                    transactions = core.lanes.backlog().transactions,
                    "closed with unflushed transactions; they stay in the journal");
            }
            // so that the next start knows without the backend what waits
            core.note_positions().await;
            let going = shared.shutdown.is_cancelled() || shared.latched().is_some();
            if shared.images.on() && !going {
                core.write_images_until(begun + grace.max(begun.elapsed() + IMAGES_MIN)).await;
            }
        }
        shared.shutdown.cancel();
        if let Err(error) = shared.journal.clone().close().await {
            tracing::error!(node = %shared.node.name, reason = in_full(&error),
                "journal not closed in order");
        }
        shared.closed.cancel();
        shared.end(Ended::Closed);
    }

    /// The tables; `Starting` until the backend or the journal told them.
    pub fn schema(&self) -> Result<Arc<GroupSchema>, GroupError> {
        Ok(Arc::clone(&self.core()?.schema))
    }

    /// Returns once the tables are known and calls can be served.
    pub async fn started(&self) -> Result<(), GroupError> {
        let mut core = self.inner.core.subscribe();
        let started = core.wait_for(Option::is_some).await;
        started.map(|_| ()).map_err(GroupError::internal)
    }

    /// This node's name and address.
    pub fn node(&self) -> &NodeEntry {
        &self.inner.shared.node
    }

    pub fn topology(&self) -> Option<Arc<Topology>> {
        self.inner.shared.topology.borrow().clone()
    }

    /// The topology held, and every later one.
    pub fn watch_topology(&self) -> watch::Receiver<Option<Arc<Topology>>> {
        self.inner.shared.topology.subscribe()
    }

    /// Accepts a newer topology (an older or equal one changes nothing); answers the version held.
    pub async fn apply_topology(&self, topology: Topology) -> Result<Epoch, GroupError> {
        self.inner.shared.check_alive()?;
        self.inner.shared.apply_topology(topology).await
    }

    /// Finds where an instance is: here, or at another node. Asks this engine, then the peers,
    /// then the backend for the root key behind a lookup key.
    pub async fn locate(&self, key: &KeySelector) -> Result<Located, GroupError> {
        self.before_stop(self.core()?.locate(key)).await
    }

    /// Reads one instance of this node's slots. A lookup key that does not name the instance (any
    /// more) answers `found: false`.
    pub async fn read(&self, call: ReadCall) -> Result<ReadOutcome, GroupError> {
        self.before_stop(self.core()?.read(&call)).await
    }

    /// The same, with the rows given to `sink` as they are unpacked, nothing in between. What the
    /// sink got counts only when the answer is `found`.
    pub async fn read_into<S: RowSink + Send + ?Sized>(
        &self,
        call: &ReadCall,
        sink: &mut S,
    ) -> Result<ReadFound, GroupError> {
        self.before_stop(self.core()?.read_into(call, sink)).await
    }

    /// Reads past the store, for slots whose owner is away; refused by policy with the reason.
    pub async fn bypass_read(&self, call: &ReadCall) -> Result<ReadOutcome, GroupError> {
        self.before_stop(self.core()?.bypass_read(call)).await
    }

    /// Guards and changes on one instance of this node's slots, all or nothing.
    pub async fn transact(&self, call: TransactCall) -> Result<Transacted, GroupError> {
        let core = self.core()?;
        tokio::select! {
            biased;
            outcome = core.transact(call) => outcome,
            () = self.stopped() => {
                Err(GroupError::InDoubt { reason: "this node stopped meanwhile".into() })
            }
        }
    }

    /// Returns once the journal is closed and with it every answer that a write waits for from
    /// there; or some time after the shutdown, where nobody closes the group.
    async fn stopped(&self) {
        self.inner.shared.shutdown.cancelled().await;
        let _ = tokio::time::timeout(CLOSE_MAX, self.inner.shared.closed.cancelled()).await;
    }

    /// True once the backend has the position for sure; false after `timeout`. A transaction that
    /// the backend refused, and that was set aside, is an error: it is not there and may never be.
    pub async fn wait_flushed(
        &self,
        position: Position,
        timeout: Duration,
    ) -> Result<bool, GroupError> {
        let core = self.core()?;
        let ours = core.shared.journal.id();
        if position.journal != ours {
            let id = format!("{}; this node's is {ours}", position.journal);
            return Err(GroupError::Unknown { what: "journal", id });
        }
        self.before_stop(core.all_reached(position.sequence, timeout)).await
    }

    /// The root key behind a lookup key, among the instances loaded here (what peers ask).
    pub async fn resolve(
        &self,
        lookup: LookupId,
        key: &LookupKey,
    ) -> Result<Option<RootKey>, GroupError> {
        self.before_stop(self.core()?.resolve(lookup, key)).await
    }

    /// Stops serving these slots, flushes them and lets them go (what the new owner asks).
    pub async fn release_slots(
        &self,
        topology: Topology,
        taker: &str,
        slots: &SlotSet,
    ) -> Result<Released, GroupError> {
        self.before_stop(self.core()?.release_slots(topology, taker, slots)).await
    }

    /// Registers a load and hands out a ticket: take it before the snapshot is opened.
    pub async fn begin_load(&self, call: BeginLoad) -> Result<LoadBegun, GroupError> {
        self.core()?.begin_load(&call)
    }

    /// Starts one chunk of a registered load.
    pub fn load_chunk(
        &self,
        load_id: &str,
        chunk: u32,
        ticket: u64,
    ) -> Result<ChunkLoad, GroupError> {
        self.core()?.load_chunk(load_id, chunk, ticket)
    }

    /// Refuses writes from now on (`true`) and reports what is left to flush; or takes them again.
    /// Also before the start is complete: then the journal tells what is left.
    pub async fn drain(&self, stop_writes: bool) -> Result<Drained, GroupError> {
        let shared = &self.inner.shared;
        let before = shared.writes_stopped.swap(stop_writes, Ordering::AcqRel);
        if before != stop_writes {
            tracing::info!(node = %shared.node.name, stop_writes, "drain");
        }
        let core = self.inner.core.borrow().clone();
        Ok(Drained { backlog: report::backlog(shared, core.as_ref()), writes_stopped: stop_writes })
    }

    /// Holds the flushing back (`true`), until it is let go on or the process ends; or lets it go on.
    /// Acknowledged writes stay in the journal meanwhile, and what only the backend can decide waits.
    /// A pause that the configuration asks for can be ended there only.
    pub async fn pause_flushing(&self, pause: bool) -> Result<BacklogFigures, GroupError> {
        let core = self.core()?;
        if core.shared.config.write_through.paused && !pause {
            return Err(GroupError::refused(
                RefusalReason::Request,
                "writeThrough.paused is set in the configuration; unset it there",
            ));
        }
        if core.lanes.is_paused() != pause {
            core.lanes.set_paused(pause);
            tracing::warn!(node = %self.node().name, paused = pause,
                "flushing paused or resumed by an administrator");
        }
        Ok(core.backlog())
    }

    /// Compares the loaded instances with the backend, and repairs what differs where it is asked
    /// for. Progress comes on the channel; the last message has `done`.
    pub async fn compare(
        &self,
        call: CompareCall,
    ) -> Result<mpsc::Receiver<Result<CompareProgress, GroupError>>, GroupError> {
        Ok(self.core()?.compare(call))
    }

    /// Reads loaded instances again whose rows others changed in the backend: one answer per key.
    /// What waits to be flushed is left as it is.
    pub async fn refresh(&self, keys: &[RootKey]) -> Result<Vec<Refreshed>, GroupError> {
        if keys.len() > REFRESH_KEYS_MAX {
            let why = format!("keys: {} in one request; at most {REFRESH_KEYS_MAX}", keys.len());
            return Err(GroupError::refused(RefusalReason::Request, why));
        }
        let core = self.core()?;
        let mut answers = Vec::with_capacity(keys.len());
        for key in keys {
            answers.push(self.before_stop(core.refresh(key)).await?);
        }
        let done = answers.iter().filter(|a| **a == Refreshed::Done).count();
        tracing::info!(node = %self.node().name, keys = keys.len(), done,
            "instances read again for an administrator");
        Ok(answers)
    }

    /// Rejects of this node's slots, oldest first.
    pub async fn rejects(&self, limit: u32) -> Result<Vec<RejectFigure>, GroupError> {
        self.core()?.list_rejects(limit).await
    }

    /// One of them, with what it and the transactions behind it were to do.
    pub async fn reject(
        &self,
        id: u64,
    ) -> Result<(RejectFigure, Vec<RejectedTransaction>), GroupError> {
        self.core()?.show_reject(id).await
    }

    /// Decides about a reject and what follows it; answers the number of transactions.
    pub async fn resolve_reject(&self, id: u64, discard: bool) -> Result<u32, GroupError> {
        self.core()?.resolve_reject(id, discard).await
    }

    /// An administrator's word that this node's earlier journal is lost for good, with what it had
    /// acknowledged and the backend does not have (R24). Only for a node that was refused because
    /// of it; the node must be started again then ([`Group::ended`] says so), and takes its slots
    /// back. `journal` is the lost one, as the refusal names it: a wrong one changes nothing.
    pub async fn accept_lost_journal(&self, journal: &str) -> Result<(), GroupError> {
        let shared = &self.inner.shared;
        if shared.fenced().is_none() || self.inner.core.borrow().is_some() {
            let why = "this node was not refused for another journal: there is nothing to accept";
            return Err(GroupError::refused(RefusalReason::Schema, why));
        }
        shared.notebook.set_lost_journal(journal).await?;
        tracing::warn!(node = %shared.node.name, lost = journal,
            "the loss of an earlier journal was accepted by an administrator");
        shared.end(Ended::RestartNeeded("the loss of an earlier journal was accepted"));
        Ok(())
    }

    /// For the end of a group: takes this node's part of the bookkeeping out of the backend, so that
    /// nothing of its journal is ever accepted again, and serves nothing afterwards. The last node
    /// that held slots takes the rest, and the tables are free for another group. Only a node with
    /// stopped writes and nothing left to flush does it; with `discard` it removes the bookkeeping
    /// of all nodes, and what waits anywhere is given up.
    pub async fn forget_group(&self, discard: bool) -> Result<(), GroupError> {
        self.core()?.forget_group(discard).await
    }

    pub async fn status(&self) -> Status {
        let core = self.inner.core.borrow().clone();
        report::status(&self.inner.shared, core.as_ref(), &self.inner.ready_once)
    }

    pub fn counters(&self) -> Counters {
        report::counters(&self.inner.shared, self.inner.core.borrow().as_ref())
    }
}
