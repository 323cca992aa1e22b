//! What exists from the first moment of a group: configuration, journal, topology, slots, problems.
//!
//! Owns the state that is there before the backend told the tables, and the one-way ends of a
//! group (latched, fenced, closed). Must never hold row data.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cachetier_journal::{Journal, Sequence, Stopped};
use cachetier_model::node_config::NodeConfig;
use cachetier_model::{NodeEntry, SlotSet, Topology};
use cachetier_write_through::Backend;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::calls::BacklogFigures;
use crate::coverage::Coverage;
use crate::ends::Ends;
use crate::error::GroupError;
use crate::host::Labour;
use crate::images::Images;
use crate::notebook::Notebook;
use crate::peers::Peers;
use crate::slots::Slots;
use crate::status::{Ended, Problem};
use crate::tenure::Tenures;

pub(crate) struct Shared {
    pub config: NodeConfig,
    pub node: NodeEntry,
    pub peers: Arc<dyn Peers>,
    pub backend: Arc<dyn Backend>,
    pub journal: Journal,
    pub labour: Labour,
    /// Where the group's own tasks run; calls may come from other runtimes.
    pub runtime: tokio::runtime::Handle,
    pub generation: u32,
    pub notebook: Notebook,
    pub slots: Slots,
    pub images: Images,
    /// Changed by notes of the slots, after they are durable; read by whoever writes images.
    pub tenures: Mutex<Tenures>,
    /// Where the frames of earlier processes end.
    pub ends: Mutex<Ends>,
    /// Written by loads and by whoever loses slots; read by the status.
    pub coverage: Mutex<Coverage>,
    /// Written by `topology` under its own lock; read by everyone.
    pub topology: watch::Sender<Option<Arc<Topology>>>,
    /// Serialises notes of the slots: the last one written is the last one looked up.
    pub slots_noting: tokio::sync::Mutex<()>,
    /// Serialises changes of the topology.
    pub topology_change: tokio::sync::Mutex<BTreeMap<String, String>>,
    pub problems: Board,
    pub writes_stopped: AtomicBool,
    /// The journal is written by storing into persistent memory.
    pub journal_direct: AtomicBool,
    /// When a write was refused last because the budget is used up.
    pub memory_refused: Mutex<Option<tokio::time::Instant>>,
    /// Somebody is about to write what the journal has queued.
    pub write_due: AtomicBool,
    /// What the journal alone says of the backlog; set once by a start that waits.
    pub tail: OnceLock<BacklogFigures>,
    /// Why this node is fenced; set once.
    pub fenced: Mutex<Option<Arc<str>>>,
    pub ended: watch::Sender<Option<Ended>>,
    pub shutdown: CancellationToken,
    /// The journal is closed: what has no answer by now gets none.
    pub closed: CancellationToken,
    pub tally: Tally,
}

/// The promise to write what the journal has queued; left to its writer if nobody keeps it.
struct WriteDue {
    shared: Arc<Shared>,
    left: bool,
}

impl WriteDue {
    fn write(mut self) {
        self.left = false;
        // first the flag: what is queued after the look into the queue needs a promise of its own
        self.shared.write_due.store(false, Ordering::Release);
        self.shared.journal.write_here();
    }
}

impl Drop for WriteDue {
    fn drop(&mut self) {
        if self.left {
            self.shared.write_due.store(false, Ordering::Release);
            self.shared.journal.leave_to_writer();
        }
    }
}

/// Event counts since the start, for metrics.
#[derive(Default)]
pub(crate) struct Tally {
    pub reads_cache: AtomicU64,
    pub reads_through: AtomicU64,
    pub reads_bypass: AtomicU64,
    pub writes: AtomicU64,
    pub writes_refused: AtomicU64,
    /// Held back before a queue that was nearly full, and for how long.
    pub writes_slowed: AtomicU64,
    pub write_slowdown_micros: AtomicU64,
    pub read_throughs_failed: AtomicU64,
    pub instances_forgotten: AtomicU64,
    pub slots_taken: AtomicU64,
    pub slots_released: AtomicU64,
    pub rejects: AtomicU64,
}

impl Tally {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// The current problems, one per topic. A topic is healed by whoever raised it.
#[derive(Default)]
pub(crate) struct Board {
    problems: Mutex<BTreeMap<&'static str, Problem>>,
}

impl Board {
    /// Raises or replaces the problem of a topic; true when it is new or of another reason.
    pub(crate) fn raise(&self, topic: &'static str, problem: Problem) -> bool {
        let mut problems = self.problems.lock();
        let fresh = problems.get(topic).is_none_or(|old| old.reason != problem.reason);
        problems.insert(topic, problem);
        fresh
    }

    /// True when there was one.
    pub(crate) fn heal(&self, topic: &'static str) -> bool {
        self.problems.lock().remove(topic).is_some()
    }

    pub(crate) fn has(&self, topic: &'static str) -> bool {
        self.problems.lock().contains_key(topic)
    }

    /// One per reason: what two parts found is said once.
    pub(crate) fn all(&self) -> Vec<Problem> {
        let problems = self.problems.lock();
        let mut said = BTreeSet::new();
        problems.values().filter(|p| said.insert(p.reason.as_str())).cloned().collect()
    }
}

impl Shared {
    /// Final: another writer has what this node believed to own.
    pub(crate) fn fence(&self, reason: &str, message: &str) {
        let mut fenced = self.fenced.lock();
        if fenced.is_none() {
            *fenced = Some(message.into());
            tracing::error!(group = %self.config.group.name, node = %self.node.name, reason, message,
                "this node is fenced; a human must decide");
        }
        drop(fenced);
        self.problems.raise("fence", Problem::new(reason, message, true));
    }

    /// Ends service on request, quietly.
    pub(crate) fn retire(&self, reason: &str, message: &str) {
        self.fenced.lock().get_or_insert_with(|| message.into());
        tracing::info!(group = %self.config.group.name, node = %self.node.name, reason, "retired");
        self.problems.raise("fence", Problem::new(reason, message, true));
    }

    /// Remembers the slots that a start with the backend away may serve; those that were not among
    /// them before begin a new stay.
    pub(crate) async fn note_slots_held(&self, coming: &SlotSet) -> Result<(), GroupError> {
        let _in_order = self.slots_noting.lock().await;
        let mut slots = self.slots.look(|m| m.kept());
        slots.union_with(coming);
        let mut fresh = slots.clone();
        fresh.subtract(&self.notebook.slots());
        self.note_stays(&slots, &fresh).await
    }

    /// A new stay begins for these slots, wherever they are now.
    pub(crate) async fn renew_tenures(&self, fresh: &SlotSet) -> Result<(), GroupError> {
        let _in_order = self.slots_noting.lock().await;
        self.note_stays(&self.notebook.slots(), fresh).await
    }

    /// Under the lock of notes.
    async fn note_stays(&self, slots: &SlotSet, fresh: &SlotSet) -> Result<(), GroupError> {
        let mut tenures = self.tenures.lock().clone();
        tenures.renew(fresh);
        self.notebook.set_slots(slots, &tenures.note(self.generation)).await?;
        *self.tenures.lock() = tenures;
        Ok(())
    }

    /// Has the frames that were queued without waking the journal's writer written on this thread,
    /// after the tasks that are ready now: what those append is written with them.
    pub(crate) fn write_soon(self: &Arc<Self>) {
        if self.write_due.swap(true, Ordering::AcqRel) {
            return;
        }
        let due = WriteDue { shared: self.clone(), left: true };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(async move { due.write() })),
            Err(_) => due.write(),
        }
    }

    /// The last frame there is. Before the first of this process, that is the last one found: the
    /// journal's own mark is the beginning of the generation then, which nobody can wait for.
    pub(crate) fn last_appended(&self) -> Sequence {
        let stats = self.journal.stats();
        if stats.appended.counter() == 0 { stats.synced } else { stats.appended }
    }

    pub(crate) fn fenced(&self) -> Option<Arc<str>> {
        self.fenced.lock().clone()
    }

    /// Errs when this process must not answer any more.
    pub(crate) fn check_alive(&self) -> Result<(), GroupError> {
        if let Some(reason) = self.fenced() {
            return Err(GroupError::Fenced { reason });
        }
        Ok(())
    }

    pub(crate) fn latched(&self) -> Option<Arc<str>> {
        match &self.journal.watch().borrow().stopped {
            Some(Stopped::Latched(reason)) => Some(reason.clone()),
            _ => None,
        }
    }

    pub(crate) fn end(&self, ended: Ended) {
        self.ended.send_if_modified(|now| {
            let first = now.is_none();
            if first {
                *now = Some(ended);
            }
            first
        });
    }

    /// Runs a task this group cannot live without: when it ends before the shutdown, so does the
    /// group, visibly.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let shared = Arc::clone(self);
        let running = self.runtime.spawn(task);
        self.runtime.spawn(async move {
            let ended = running.await;
            if shared.shutdown.is_cancelled() {
                return;
            }
            let reason = ended.err().map_or_else(|| "it returned".to_owned(), |e| e.to_string());
            tracing::error!(node = %shared.node.name, task = name, reason, "background task ended");
            shared.end(Ended::TaskEnded(name));
        });
    }
}
