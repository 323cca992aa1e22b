//! Putting a core together: engine, lanes, the journal's tail, and the tasks beside them.

use std::collections::HashSet;
use std::sync::Arc;

use cachetier_engine::{Engine, EngineOptions};
use cachetier_journal::Watermarks;
use cachetier_model::node_config::Eviction;
use cachetier_model::{GroupSchema, RootKey, SlotSet};
use cachetier_write_through::{Claim, FlushEvent, WriteThrough, WriteThroughOptions};
use tokio::sync::{mpsc, watch};

use super::Stop;
use crate::answers::Answers;
use crate::aside::Aside;
use crate::core::Core;
use crate::decisions::Decisions;
use crate::images::{Fates, Found, Kept, Replayed, Terms, Warm, judge, replay};
use crate::load::Tickets;
use crate::medium;
use crate::ownership::Ownership;
use crate::read_through::{OpenTicket, ReadThrough};
use crate::rejects::RejectAccount;
use crate::repeats::recall;
use crate::restore::{Annulled, JournalReplay, Restored, Tail};
use crate::shared::Shared;
use crate::status::Problem;
use crate::undecided::Undecided;

/// Calls that may wait for each place of `bypass.maxConcurrent`.
const BYPASS_WAITING_PER_PLACE: usize = 16;
/// Callers that may wait at once for what the lanes told.
const QUESTIONS_MAX: usize = 16;

/// Makes the core, replays the journal's tail into it, and starts what runs beside it.
pub(super) async fn build(
    shared: &Arc<Shared>,
    schema: Arc<GroupSchema>,
    claim: Option<Claim>,
) -> Result<Arc<Core>, Stop> {
    let schema_version = schema.version();
    let engine = store(shared, &schema)?;
    shared.backend.use_schema(Arc::clone(&schema));
    let positions: Vec<u64> = match &claim {
        Some(claim) => claim.lanes.iter().map(|lane| lane.position).collect(),
        None => shared.notebook.lanes()?,
    };
    let staged_after = positions.iter().copied().min().unwrap_or(0);
    let annulled = Annulled::default();
    let (lanes, events) = start_lanes(shared, &schema, &annulled, staged_after);
    if claim.is_none() {
        lanes.believe(&positions, &shared.notebook.versions()?);
    }
    let answers = Answers::new(&shared.config.idempotency);
    remember(shared, &answers, positions.clone()).await?;
    let held = claim.as_ref().map_or_else(|| shared.notebook.slots(), Claim::slots);
    let warm = find_images(shared, &engine, &positions, schema_version, (&held, claim.is_some()));
    let warm = warm.await?;
    let mut restored =
        restore(shared, &engine, &lanes, &annulled, positions, schema_version).await?;
    // before the lanes run: a start that fails here must leave nothing that writes
    if shared.notebook.schema()?.map(|s| s.version()) != Some(schema_version) {
        // frames of two layouts never follow one image
        shared.renew_tenures(&SlotSet::full()).await?;
        shared.notebook.set_schema(&schema).await?;
    }
    let reads = shared.config.backend.max_connections;
    let workers = reads.saturating_sub(u32::from(shared.config.write_through.lanes)).max(1);
    let (questions, asked) = mpsc::channel(QUESTIONS_MAX);
    let bypass_max = shared.config.bypass.max_concurrent.max(1) as usize;
    let core = Arc::new(Core {
        shared: Arc::clone(shared),
        schema: Arc::clone(&schema),
        schema_version,
        misses: ReadThrough::start(shared, &engine, &lanes, workers as usize),
        engine,
        lanes,
        forgotten_slots: parking_lot::Mutex::default(),
        restored_slots: parking_lot::Mutex::default(),
        decisions: Decisions::new(),
        tickets: Tickets::default(),
        annulled,
        token: std::sync::OnceLock::new(),
        rejects: RejectAccount::default(),
        undecided: Undecided::new(std::mem::take(&mut restored.undecided)),
        suspected: parking_lot::Mutex::default(),
        bypass: tokio::sync::Semaphore::new(bypass_max),
        bypass_waiting: tokio::sync::Semaphore::new(bypass_max * BYPASS_WAITING_PER_PLACE),
        aside: Aside::new(std::mem::take(&mut restored.aside), questions),
        answers,
    });
    shared.spawn("flush-events", Arc::clone(&core).follow_lanes(events, asked));
    begin_serving(shared, held, &warm);
    match claim {
        Some(claim) => attach(&core, claim).await,
        None => {
            restored.quarantined.iter().for_each(|key| core.engine.quarantine(key));
            *core.suspected.lock() = restored.quarantined;
        }
    }
    start_beside(&core, warm);
    Ok(core)
}

fn store(shared: &Shared, schema: &Arc<GroupSchema>) -> Result<Arc<Engine>, Problem> {
    let memory = &shared.config.memory;
    let options = EngineOptions { capacity_bytes: memory.capacity_bytes };
    let provider = medium::provider(&shared.config);
    let engine = Engine::with_provider(Arc::clone(schema), options, &provider)
        .map_err(|error| Problem::new("EngineRefused", error.to_string(), true))?;
    match medium::judge(&shared.config, engine.arena())? {
        Some(problem) => {
            shared.problems.raise("store-medium", problem);
        }
        None => {
            shared.problems.heal("store-medium");
        }
    }
    engine.set_eviction(memory.eviction == Eviction::Clean);
    Ok(Arc::new(engine))
}

/// They do nothing before the claim.
fn start_lanes(
    shared: &Arc<Shared>,
    schema: &Arc<GroupSchema>,
    annulled: &Annulled,
    staged_after: u64,
) -> (WriteThrough, mpsc::Receiver<FlushEvent>) {
    let replay = JournalReplay {
        journal: shared.journal.clone(),
        annulled: Arc::clone(annulled),
        labour: shared.labour,
    };
    WriteThrough::start(
        WriteThroughOptions::from_config(&shared.config, &shared.node.name),
        Arc::clone(&shared.backend),
        Arc::clone(schema),
        follow_synced(shared),
        Some(Arc::new(replay)),
        staged_after,
        shared.shutdown.clone(),
    )
}

/// What runs beside the calls for as long as the node lives.
fn start_beside(core: &Arc<Core>, warm: Option<Warm>) {
    let shared = &core.shared;
    shared.spawn("slot-moves", Arc::clone(core).move_slots());
    shared.spawn("probe", Arc::clone(core).probe_backend());
    shared.spawn("trim", Arc::clone(core).trim_journal());
    shared.spawn("rejects", Arc::clone(core).watch_rejects());
    if let Some(warm) = warm {
        let core = Arc::clone(core);
        shared.spawn("images", async move {
            core.warm_up(warm).await;
            core.keep_images().await;
        });
    }
}

/// The idempotency answers that the journal still holds.
async fn remember(
    shared: &Arc<Shared>,
    answers: &Arc<Answers>,
    positions: Vec<u64>,
) -> Result<(), Stop> {
    let (journal, answers) = (shared.journal.clone(), Arc::clone(answers));
    let recalled = shared.labour.run(move || {
        let tail = Tail { journal: &journal, positions: &positions, schema_version: 0 };
        recall(&journal, &tail, &answers)
    });
    let recalled = recalled.await;
    Ok(recalled.map_err(|error| Problem::new("JournalUnreadable", error.to_string(), true))??)
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
    let settled = shared.notebook.settled()?;
    let restored = shared.labour.run(move || {
        let tail = |positions| Tail { journal: &journal, positions, schema_version };
        tail(&positions).restore(&tail(&settled), &engine, &lanes, &annulled)
    });
    let restored = restored
        .await
        .map_err(|error| Problem::new("JournalUnreadable", error.to_string(), true))??;
    if restored.transactions > 0 {
        tracing::info!(node = %shared.node.name, transactions = restored.transactions,
            bytes = restored.bytes, "unflushed transactions are back from the journal");
    }
    Ok(restored)
}

fn begin_serving(shared: &Shared, held: SlotSet, warm: &Option<Warm>) {
    shared.slots.apply(|machine| {
        let assigned = machine.assigned().clone();
        *machine = Ownership::started(assigned, held);
        if let Some(warm) = warm {
            machine.warm(&warm.slots());
        }
    });
}

/// The images that may be used, and what the journal holds beyond them in the store already. `None`
/// where there are to be none.
async fn find_images(
    shared: &Arc<Shared>,
    engine: &Arc<Engine>,
    positions: &[u64],
    schema_version: u64,
    (held, claimed): (&SlotSet, bool),
) -> Result<Option<Warm>, Stop> {
    let files = shared.images.files.clone();
    if !shared.images.on() {
        forget_images(shared).await;
        return Ok(None);
    }
    let ticket = OpenTicket::open(engine)?;
    let mut slots = held.clone();
    slots.intersect_with(&shared.notebook.slots());
    slots.intersect_with(&shared.slots.look(|machine| machine.assigned().clone()));
    let stats = shared.journal.stats();
    let known = shared.notebook.schema()?.is_some_and(|s| s.version() == schema_version);
    let terms = Terms {
        journal: shared.journal.id(),
        // tables that changed since this journal last knew them: none is of use
        schema: if known { schema_version } else { 0 },
        token: shared.notebook.claim()?.token.unwrap_or(0),
        trimmed: stats.trimmed.get(),
        last: stats.synced.get(),
        condition: crc32c::crc32c(shared.config.preload.r#where.as_bytes()),
        slots,
        tenures: shared.tenures.lock().clone(),
    };
    let settled = shared.notebook.settled()?;
    let (journal, engine, positions) =
        (shared.journal.clone(), Arc::clone(engine), positions.to_vec());
    let found = shared.labour.run(move || {
        if let Err(error) = files.prepare() {
            tracing::warn!(reason = %error, "the folder of images cannot be used");
            return Ok((Found::default(), Replayed::default()));
        }
        let found = judge(&files, &terms);
        let tail = |positions| Tail { journal: &journal, positions, schema_version };
        let (flushed, settled) = (&tail(&positions), &tail(&settled));
        let fates = Fates { flushed, settled, claimed };
        let replayed = replay(&fates, &found, terms.trimmed, &engine)?;
        Ok::<_, Problem>((found, replayed))
    });
    let found = found.await.map_err(|e| Problem::new("JournalUnreadable", e.to_string(), true))?;
    let (found, Replayed { frames, skip, incomplete }) = found?;
    for file in &found.files {
        let entries: Vec<_> = file.entries.iter().map(|(entry, _)| entry.clone()).collect();
        let bytes = entries.iter().map(|entry| entry.bytes).sum();
        let since = tokio::time::Instant::now().into_std();
        shared.images.keep(file.bundle, Some(Kept { entries, bytes, since }));
    }
    Ok(Some(Warm { found, skip, incomplete, ticket, replayed: frames }))
}

/// None are wanted: those of an earlier time go.
async fn forget_images(shared: &Shared) {
    let files = shared.images.files.clone();
    let removed = shared.labour.run(move || files.remove_all()).await;
    if let Ok(Err(error)) = removed {
        tracing::warn!(node = %shared.node.name, reason = %error, "old images stay on the volume");
    }
}

/// The backend gave its claim: the lanes may run.
pub(super) async fn attach(core: &Arc<Core>, claim: Claim) {
    let awaited = awaited_slots(core, &claim);
    let lost = core.shared.slots.apply(|machine| machine.claimed(claim.slots()));
    core.shared.coverage.lock().gone(&lost);
    let gone = lost.iter().filter(|slot| !awaited.contains(*slot));
    gone.for_each(|slot| core.engine.clear_slot(slot));
    let quarantined: HashSet<RootKey> = claim.quarantined.iter().cloned().collect();
    quarantined.iter().for_each(|key| core.engine.quarantine(key));
    core.lanes.quarantine(&claim.quarantined);
    core.suspected.lock().retain(|key| !quarantined.contains(key));
    let _first = core.token.set(claim.token);
    core.lanes.claimed(claim);
    if let Err(error) = core.note_slots(&SlotSet::empty()).await {
        tracing::warn!(node = %core.shared.node.name, reason = %error, "slots held not noted");
    }
    clear_suspects(core);
    core.rejects.changed();
    // wakes the slot mover, which had no token before
    core.shared.slots.apply(|_| ());
}

/// Slots that this journal's node had for sure when it ended, and that the backend does not know of: it
/// is of a time before they were taken. What is let go is noted before anybody hears of it, so nobody
/// else can have them.
fn awaited_slots(core: &Core, claim: &Claim) -> SlotSet {
    let mut slots = core.shared.notebook.slots();
    slots.subtract(&claim.slots());
    slots.intersect_with(&core.shared.slots.look(|machine| machine.assigned().clone()));
    if !slots.is_empty() {
        tracing::warn!(node = %core.shared.node.name, slots = slots.len(),
            "the backend lost a takeover; the slots are taken again before they are served");
        core.lanes.await_slots(&slots);
        *core.restored_slots.lock() = slots.clone();
    }
    slots
}

/// Instances that the journal calls quarantined and the backend does not: their rejects were
/// resolved since. Each is forgotten, and read again, once nothing of it is queued any more.
fn clear_suspects(core: &Arc<Core>) {
    if core.suspected.lock().is_empty() {
        return;
    }
    let core = Arc::clone(core);
    tokio::spawn(async move {
        let mut marks = core.lanes.watch();
        loop {
            marks.mark_unchanged();
            let queued =
                |key: &RootKey| core.lanes.backlog_of(&std::iter::once(key.slot()).collect()) > 0;
            let settled: Vec<RootKey> =
                core.suspected.lock().extract_if(|key| !queued(key)).collect();
            for key in &settled {
                core.engine.forget(key);
            }
            if core.suspected.lock().is_empty() {
                return;
            }
            tokio::select! {
                () = core.shared.shutdown.cancelled() => return,
                changed = marks.changed() => if changed.is_err() { return },
            }
        }
    });
}

/// The synced position as the lanes want it (R1), and the journal's end.
fn follow_synced(shared: &Arc<Shared>) -> watch::Receiver<u64> {
    let unsynced = cachetier_defects::on("r01-unsynced-leaves");
    let journal = &shared.journal;
    let mut marks = if unsynced { journal.watch() } else { journal.watch_synced() };
    let (sender, receiver) = watch::channel(marks.borrow().synced.get());
    let shutdown = shared.shutdown.clone();
    // ends with the lanes that follow it, also those of a start that was given up
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = sender.closed() => return,
                changed = marks.changed() => if changed.is_err() { return },
            }
            let Watermarks { synced, appended, .. } = &*marks.borrow_and_update();
            let synced = if unsynced { appended.get() } else { synced.get() };
            sender.send_if_modified(|old| std::mem::replace(old, synced) != synced);
        }
    });
    receiver
}
