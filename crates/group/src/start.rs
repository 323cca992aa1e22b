//! Start: identity, schema, claim, replay, serving; and the same with the backend away.
//!
//! Owns the order of those steps. Each failure becomes a problem with its cure and is tried again;
//! what another writer holds is final. Must never serve before it is known whose journal this is,
//! nor claim before the attempt is noted (R8).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use cachetier_engine::{Engine, EngineOptions};
use cachetier_journal::Watermarks;
use cachetier_model::node_config::TopologySource;
use cachetier_model::{Epoch, GroupSchema, RootKey, SlotSet, Topology};
use cachetier_write_through::{
    BackendError, Claim, ClaimRequest, Disposition, Reason, WriteThrough, WriteThroughOptions,
};
use tokio::sync::watch;
use uuid::Uuid;

use crate::core::Core;
use crate::decisions::Decisions;
use crate::load::Tickets;
use crate::notebook::{BackendHome, ClaimNote, Home};
use crate::ownership::Ownership;
use crate::read_through::ReadThrough;
use crate::rejects::RejectAccount;
use crate::restore::{Annulled, JournalReplay, Restored, Tail};
use crate::shared::Shared;
use crate::status::{Ended, Problem};

const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Why a step of the start did not succeed.
pub(crate) enum Stop {
    /// Try again; the problem says what is wrong.
    Again { problem: Problem, away: bool },
    /// Never again in this process.
    Fenced { reason: String, message: String },
}

impl From<BackendError> for Stop {
    fn from(error: BackendError) -> Self {
        let reason = error.reason.as_str();
        match error.disposition() {
            Disposition::Fenced => {
                Self::Fenced { reason: reason.to_owned(), message: error.to_string() }
            }
            _ => Self::Again {
                problem: Problem::new(reason, error.to_string(), true),
                away: is_away(error.reason),
            },
        }
    }
}

impl From<Problem> for Stop {
    fn from(problem: Problem) -> Self {
        Self::Again { problem, away: false }
    }
}

impl From<crate::error::GroupError> for Stop {
    fn from(error: crate::error::GroupError) -> Self {
        Self::from(Problem::new("Journal", error.to_string(), true))
    }
}

/// The backend cannot be asked: a node goes on with what its journal holds.
fn is_away(reason: Reason) -> bool {
    reason.disposition() == Disposition::Retry
        || matches!(
            reason,
            Reason::CredentialsMissing
                | Reason::AuthenticationFailed
                | Reason::TlsFailed
                | Reason::DatabaseMissing
        )
}

/// Starts the group, then stands by until the end: a start that panicked ends the group.
pub(crate) async fn run(shared: Arc<Shared>, core: Arc<watch::Sender<Option<Arc<Core>>>>) {
    start(Arc::clone(&shared), core).await;
    shared.shutdown.cancelled().await;
}

/// Returns when the group serves and has its claim, or never will.
async fn start(shared: Arc<Shared>, core: Arc<watch::Sender<Option<Arc<Core>>>>) {
    let mut retry = RETRY_MIN;
    let mut resumed: Option<Arc<Core>> = None;
    loop {
        let stop = match step(&shared, resumed.as_ref()).await {
            Ok(started) => {
                shared.problems.heal("start");
                if let Some(started) = started {
                    core.send_replace(Some(started));
                }
                return;
            }
            Err(stop) => stop,
        };
        match stop {
            Stop::Fenced { reason, message } => return shared.fence(&reason, &message),
            Stop::Again { problem, away } => {
                if shared.problems.raise("start", problem.clone()) {
                    tracing::warn!(node = %shared.node.name, reason = %problem.reason,
                        message = %problem.message, "start waits");
                }
                if away && resumed.is_none() {
                    resumed = resume(&shared).await;
                    if let Some(resumed) = &resumed {
                        core.send_replace(Some(Arc::clone(resumed)));
                    }
                }
            }
        }
        tokio::select! {
            () = shared.shutdown.cancelled() => return,
            () = tokio::time::sleep(retry) => {}
        }
        retry = (retry * 2).min(RETRY_MAX);
    }
}

/// One try: schema, claim, and a core, unless one was resumed before.
async fn step(
    shared: &Arc<Shared>,
    resumed: Option<&Arc<Core>>,
) -> Result<Option<Arc<Core>>, Stop> {
    let schema = learn_schema(shared).await?;
    if let Some(core) = resumed {
        if core.schema_version != schema.version() {
            return Err(Problem::new(
                "SchemaDrift",
                "the tables in the backend are not those this node resumed with; put the old \
                 layout back, let the node flush, then change it again",
                true,
            )
            .into());
        }
        let claim = claim(shared, &schema).await?;
        let noted = shared.notebook.lanes()?;
        if went_back(&noted, &claim) {
            // what lies between is in the journal and not in the queue: start() reads it again
            shared.end(Ended::RestartNeeded("the backend lost commits while it was away"));
            return Ok(None);
        }
        attach(core, claim).await;
        return Ok(None);
    }
    let claim = claim(shared, &schema).await?;
    let core = build(shared, schema, Some(claim)).await?;
    Ok(Some(core))
}

/// True if the backend holds an older position than was confirmed before (R11).
fn went_back(noted: &[u64], claim: &Claim) -> bool {
    noted.len() == claim.lanes.len()
        && noted.iter().zip(&claim.lanes).any(|(noted, lane)| lane.position < *noted)
}

/// Serves from the journal alone, under the last token and topology; `None` when there is nothing
/// to go on from.
async fn resume(shared: &Arc<Shared>) -> Option<Arc<Core>> {
    let claimed_before = shared.notebook.claim().ok()?.token.is_some();
    let schema = shared.notebook.schema().ok()??;
    if !claimed_before {
        return None;
    }
    match build(shared, Arc::new(schema), None).await {
        Ok(core) => {
            tracing::warn!(node = %shared.node.name, "the backend is away; resumed from the journal");
            Some(core)
        }
        Err(Stop::Again { problem, .. }) => {
            shared.problems.raise("resume", problem);
            None
        }
        Err(Stop::Fenced { .. }) => None,
    }
}

/// The journal's own word on whose it is (R5).
pub(crate) async fn check_home(shared: &Arc<Shared>) -> Result<(), crate::error::GroupError> {
    let ours = Home {
        group_uid: shared.config.group.uid.clone(),
        group_name: shared.config.group.name.clone(),
        node: shared.node.name.clone(),
    };
    match shared.notebook.home()? {
        None => shared.notebook.set_home(&ours).await?,
        Some(home) if home.group_uid == ours.group_uid && home.node == ours.node => {}
        Some(home) => shared.fence(
            "ForeignJournal",
            &format!(
                "the journal belongs to node {} of group {} (incarnation {}), not to node {} of \
                 group {} (incarnation {}); give this node its own volume, or empty this one if \
                 its content may be lost",
                home.node,
                home.group_name,
                home.group_uid,
                ours.node,
                ours.group_name,
                ours.group_uid
            ),
        ),
    }
    Ok(())
}

/// Topology from the journal, or this node alone.
pub(crate) async fn recall_topology(shared: &Arc<Shared>) -> Result<(), crate::error::GroupError> {
    *shared.topology_change.lock().await = shared.notebook.addresses()?;
    if let Some(topology) = shared.notebook.topology()? {
        shared.adopt_topology(topology);
    } else if shared.config.topology == TopologySource::Standalone {
        let nodes = vec![shared.node.clone()];
        let topology = Topology::initial(&shared.config.group.uid, Epoch(1), nodes)
            .map_err(crate::error::GroupError::internal)?;
        shared.apply_topology(topology).await?;
    }
    Ok(())
}

async fn learn_schema(shared: &Arc<Shared>) -> Result<Arc<GroupSchema>, Stop> {
    let identity = shared.backend.identify().await?;
    let found =
        BackendHome { system_identifier: identity.system_identifier, database: identity.database };
    match shared.notebook.backend()? {
        None => shared.notebook.set_backend(&found).await?,
        Some(known) if known == found => {}
        Some(known) => {
            return Err(Stop::Fenced {
                reason: "ForeignBackend".to_owned(),
                message: format!(
                    "the journal belongs to database {} of system {}, and the backend is database \
                     {} of system {}; point the group back, or start with an empty volume",
                    known.database,
                    known.system_identifier,
                    found.database,
                    found.system_identifier
                ),
            });
        }
    }
    let schema = Arc::new(shared.backend.discover(&shared.config.tables).await?);
    shared.backend.use_schema(Arc::clone(&schema));
    shared.backend.prepare_bookkeeping().await?;
    Ok(schema)
}

async fn claim(shared: &Arc<Shared>, schema: &GroupSchema) -> Result<Claim, Stop> {
    let mut note = shared.notebook.claim()?;
    let attempt = match &note.attempt {
        Some(attempt) => attempt.clone(),
        None => {
            let attempt = Uuid::new_v4().to_string();
            note.attempt = Some(attempt.clone());
            shared.notebook.set_claim(&note).await?;
            attempt
        }
    };
    let request = ClaimRequest {
        group: shared.config.group.clone(),
        node: shared.node.name.clone(),
        journal: shared.journal.id().to_string(),
        held_token: note.token,
        attempt,
        lanes: shared.config.write_through.lanes.max(1),
        epoch: shared.topology.borrow().as_ref().map_or(0, |t| t.epoch.0),
        tables: schema.tables.iter().map(|t| t.name.clone()).collect(),
        accept_lost_journal: false,
    };
    let claim = shared.backend.claim(request).await?;
    let note = ClaimNote { token: Some(claim.token), attempt: None };
    shared.notebook.set_claim(&note).await?;
    tracing::info!(group = %shared.config.group.name, node = %shared.node.name,
        token = claim.token, slots = claim.slots().len(), lanes = claim.lane_count(), "claimed");
    Ok(claim)
}

/// Makes the core, replays the journal's tail into it, and starts what runs beside it.
async fn build(
    shared: &Arc<Shared>,
    schema: Arc<GroupSchema>,
    claim: Option<Claim>,
) -> Result<Arc<Core>, Stop> {
    let schema_version = schema.version();
    let capacity_bytes = shared.config.memory.capacity_bytes;
    let engine = Engine::new(Arc::clone(&schema), EngineOptions { capacity_bytes })
        .map_err(|error| Problem::new("EngineRefused", error.to_string(), true))?;
    let engine = Arc::new(engine);
    shared.backend.use_schema(Arc::clone(&schema));
    let positions: Vec<u64> = match &claim {
        Some(claim) => claim.lanes.iter().map(|lane| lane.position).collect(),
        None => shared.notebook.lanes()?,
    };
    let staged_after = positions.iter().copied().min().unwrap_or(0);
    let annulled = Annulled::default();
    let replay = JournalReplay { journal: shared.journal.clone(), annulled: Arc::clone(&annulled) };
    let (lanes, events) = WriteThrough::start(
        WriteThroughOptions::from_config(&shared.config, &shared.node.name),
        Arc::clone(&shared.backend),
        Arc::clone(&schema),
        follow_synced(shared),
        Some(Arc::new(replay)),
        staged_after,
        shared.shutdown.clone(),
    );
    let restored = restore(shared, &engine, &lanes, &annulled, positions, schema_version).await?;
    let reads = shared.config.backend.max_connections;
    let workers = reads.saturating_sub(u32::from(shared.config.write_through.lanes)).max(1);
    let core = Arc::new(Core {
        shared: Arc::clone(shared),
        schema: Arc::clone(&schema),
        schema_version,
        misses: ReadThrough::start(shared, &engine, workers as usize),
        engine,
        lanes,
        decisions: Decisions::new(),
        tickets: Tickets::default(),
        annulled,
        token: std::sync::OnceLock::new(),
        rejects: RejectAccount::default(),
        suspected: parking_lot::Mutex::default(),
        bypass: tokio::sync::Semaphore::new(shared.config.bypass.max_concurrent.max(1) as usize),
    });
    shared.spawn("flush-events", Arc::clone(&core).follow_lanes(events));
    let held = claim.as_ref().map_or_else(|| shared.notebook.slots(), Claim::slots);
    begin_serving(shared, held);
    match claim {
        Some(claim) => attach(&core, claim).await,
        None => {
            restored.quarantined.iter().for_each(|key| core.engine.quarantine(key));
            *core.suspected.lock() = restored.quarantined;
        }
    }
    if shared.notebook.schema()?.map(|s| s.version()) != Some(schema_version) {
        shared.notebook.set_schema(&schema).await?;
    }
    shared.spawn("slot-moves", Arc::clone(&core).move_slots());
    shared.spawn("trim", Arc::clone(&core).trim_journal());
    shared.spawn("rejects", Arc::clone(&core).watch_rejects());
    Ok(core)
}

async fn restore(
    shared: &Arc<Shared>,
    engine: &Arc<Engine>,
    lanes: &WriteThrough,
    annulled: &Annulled,
    positions: Vec<u64>,
    schema_version: u64,
) -> Result<Restored, Stop> {
    let (journal, engine) = (shared.journal.clone(), Arc::clone(engine));
    let (lanes, annulled) = (lanes.clone(), Arc::clone(annulled));
    let restored = tokio::task::spawn_blocking(move || {
        let tail = Tail { journal: &journal, positions: &positions, schema_version };
        tail.restore(&engine, &lanes, &annulled)
    })
    .await
    .map_err(|error| Problem::new("JournalUnreadable", error.to_string(), true))??;
    if restored.transactions > 0 {
        tracing::info!(node = %shared.node.name, transactions = restored.transactions,
            bytes = restored.bytes, "unflushed transactions are back from the journal");
    }
    Ok(restored)
}

fn begin_serving(shared: &Shared, held: SlotSet) {
    shared.slots.apply(|machine| {
        let assigned = machine.assigned().clone();
        *machine = Ownership::started(assigned, held);
    });
}

/// The backend gave its claim: the lanes may run.
async fn attach(core: &Arc<Core>, claim: Claim) {
    let lost = core.shared.slots.apply(|machine| machine.claimed(claim.slots()));
    core.shared.coverage.lock().gone(&lost);
    lost.iter().for_each(|slot| core.engine.clear_slot(slot));
    let quarantined: HashSet<RootKey> = claim.quarantined.iter().cloned().collect();
    quarantined.iter().for_each(|key| core.engine.quarantine(key));
    core.lanes.quarantine(&claim.quarantined);
    for key in core.suspected.lock().drain().filter(|key| !quarantined.contains(key)) {
        // resolved since the journal noted it
        core.engine.forget(&key);
    }
    let _first = core.token.set(claim.token);
    core.lanes.claimed(claim);
    core.note_slots().await;
    core.rejects.changed();
    // wakes the slot mover, which had no token before
    core.shared.slots.apply(|_| ());
}

/// The synced position as the lanes want it (R1), and the journal's end.
fn follow_synced(shared: &Arc<Shared>) -> watch::Receiver<u64> {
    let mut marks = shared.journal.watch();
    let (sender, receiver) = watch::channel(marks.borrow().synced.get());
    let shutdown = shared.shutdown.clone();
    shared.spawn("synced", async move {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                changed = marks.changed() => if changed.is_err() { return },
            }
            let Watermarks { synced, .. } = &*marks.borrow_and_update();
            let synced = synced.get();
            sender.send_if_modified(|old| std::mem::replace(old, synced) != synced);
        }
    });
    receiver
}
