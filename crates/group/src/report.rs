//! The status: what every part knows, put together at the moment of the question.
//!
//! Only reads. A node that cannot serve says here why, and what to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cachetier_engine::ArenaProvider;
use cachetier_journal::JournalStats;
use cachetier_model::node_config::{Eviction, PreloadMode, TopologySource};
use cachetier_write_through::BackendHealth;

use crate::calls::BacklogFigures;
use crate::core::Core;
use crate::shared::Shared;
use crate::status::{Counters, Phase, Problem, Status};

/// A write that was refused for lack of memory is told in the status for so long.
const MEMORY_REFUSED_TOLD: std::time::Duration = std::time::Duration::from_secs(60);

/// Figures of the slots at one moment.
struct SlotFigures {
    assigned: u32,
    serving: u32,
    covered: u32,
    leaving: u32,
    wanted: bool,
}

fn slot_figures(shared: &Shared) -> SlotFigures {
    let (assigned, mut serving, leaving, wanted) = shared.slots.look(|machine| {
        let assigned = machine.assigned().clone();
        let mut wanted = machine.wanted();
        wanted.union_with(machine.warming());
        (assigned, machine.serving().clone(), machine.given_away().len(), wanted)
    });
    serving.intersect_with(&assigned);
    let mut covered = shared.coverage.lock().covered().clone();
    covered.intersect_with(&serving);
    SlotFigures {
        assigned: assigned.len() as u32,
        serving: serving.len() as u32,
        covered: covered.len() as u32,
        leaving: leaving as u32,
        wanted: !wanted.is_empty(),
    }
}

/// What waits for the backend; until the tables are known, what the journal's tail says.
pub(crate) fn backlog(shared: &Shared, core: Option<&Arc<Core>>) -> BacklogFigures {
    core.map_or_else(|| shared.tail_backlog(), |core| core.backlog())
}

fn reachable(core: Option<&Arc<Core>>, shared: &Shared) -> bool {
    let Some(core) = core else { return false };
    let down = matches!(*core.lanes.health().borrow(), BackendHealth::Down { .. });
    !down && core.token().is_some() && !shared.problems.has("probe")
}

fn phase(shared: &Shared, core: Option<&Core>, wanted: bool) -> Phase {
    if shared.latched().is_some() {
        Phase::Latched
    } else if shared.fenced().is_some() {
        Phase::Fenced
    } else if core.is_none() {
        Phase::Starting
    } else if shared.topology.borrow().is_none() {
        Phase::AwaitingTopology
    } else if shared.writes_stopped.load(Ordering::Acquire) {
        Phase::Draining
    } else if wanted {
        Phase::TakingSlots
    } else {
        Phase::Serving
    }
}

/// Ready once, ready until something final: slots that arrive later are loaded while the others
/// serve.
fn ready(shared: &Shared, once: &AtomicBool, phase: Phase, figures: &SlotFigures) -> bool {
    if matches!(phase, Phase::Latched | Phase::Fenced | Phase::Starting) {
        return false;
    }
    if once.load(Ordering::Acquire) {
        return true;
    }
    let serving = matches!(phase, Phase::Serving | Phase::Draining);
    let percent = u32::from(shared.config.preload.ready_at_percent.min(100));
    let loaded = shared.config.preload.mode != PreloadMode::BeforeReady
        || figures.covered * 100 >= figures.serving * percent;
    let ready = serving && loaded;
    if ready {
        once.store(true, Ordering::Release);
    }
    ready
}

/// What a write that was refused for lack of memory means, and what to do.
fn memory_refused(shared: &Shared) -> String {
    let way = match shared.config.memory.eviction {
        Eviction::Never => "raise it, or set memory.eviction to Clean",
        Eviction::Clean => "too little of it is clean, or it is small for its slots; raise it",
    };
    format!("memory.capacity is used up, and writes that need room are refused: {way}")
}

pub(crate) fn status(shared: &Shared, core: Option<&Arc<Core>>, once: &AtomicBool) -> Status {
    // before the backlog: nothing comes in between that both figures together would deny
    let writes_stopped = shared.writes_stopped.load(Ordering::Acquire);
    let figures = slot_figures(shared);
    let phase = phase(shared, core.map(AsRef::as_ref), figures.wanted);
    let journal = shared.journal.stats();
    let usage = core.map(|c| c.engine.usage()).unwrap_or_default();
    let (rejects, oldest_reject_seconds) = core.map_or((0, 0.0), |c| c.rejects.figures());
    let load = shared.coverage.lock().figures();
    let mut problems = shared.problems.all();
    add_journal_problems(&mut problems, &journal);
    if let Some(core) = core {
        add_queue_problems(&mut problems, shared, core);
    }
    if load.as_ref().is_some_and(|l| l.stopped_by_memory) {
        problems.push(Problem::new(
            "MemoryFull",
            "the load stopped at memory.capacity; raise it, or load less with preload.where",
            false,
        ));
    }
    let refused = *shared.memory_refused.lock();
    if refused.is_some_and(|at| at.elapsed() < MEMORY_REFUSED_TOLD) {
        problems.push(Problem::new("MemoryFull", memory_refused(shared), false));
    }
    let answers = core.map(|c| c.answers.figures()).unwrap_or_default();
    let (images_bytes, images_since) = shared.images.figures();
    let arena = core.map(|c| &c.engine.arena().provider);
    let ready = ready(shared, once, phase, &figures);
    if !ready && phase == Phase::Serving && load.is_none() {
        add_awaited_load(&mut problems, shared, &figures);
    }
    Status {
        node: shared.node.name.clone(),
        group: shared.config.group.name.clone(),
        group_uid: shared.config.group.uid.clone(),
        journal: shared.journal.id(),
        generation: shared.generation,
        phase,
        ready,
        topology_version: shared.topology.borrow().as_ref().map_or(0, |t| t.epoch.0),
        slots_assigned: figures.assigned,
        slots_serving: figures.serving,
        slots_covered: figures.covered,
        slots_leaving: figures.leaving,
        backlog: backlog(shared, core),
        instances: usage.instances,
        memory_bytes: usage.bytes,
        memory_capacity_bytes: shared.config.memory.capacity_bytes,
        store_direct: matches!(arena, Some(ArenaProvider::Dax(_))),
        journal_direct: shared.journal_direct.load(Ordering::Acquire),
        images_bytes,
        images_oldest_seconds: images_since.map_or(0.0, |since| {
            tokio::time::Instant::now().into_std().duration_since(since).as_secs_f64()
        }),
        journal_bytes: journal.bytes,
        journal_capacity_bytes: journal.capacity_bytes,
        rejects,
        oldest_reject_seconds,
        backend_reachable: reachable(core, shared),
        problems,
        load,
        appended: journal.appended.get(),
        durable: journal.durable.get(),
        flushed: core.map_or(0, |c| c.lanes.marks().flushed),
        writes_stopped,
        schema_version: core.map_or(0, |c| c.schema_version),
        flushing_paused: core.is_some_and(|c| c.lanes.is_paused()),
        idempotency_answers: answers.answers,
        idempotency_bytes: answers.bytes,
    }
}

/// Where an operator starts loads, it says how far they are; alone, somebody must start one.
fn add_awaited_load(problems: &mut Vec<Problem>, shared: &Shared, figures: &SlotFigures) {
    if shared.config.topology == TopologySource::Standalone {
        let message = format!(
            "not ready: preload.mode is BeforeReady, {} of {} slots are loaded and no load has \
             begun; run `cache-node preload` with this node's settings, or set preload.mode to \
             Background or None",
            figures.covered, figures.serving
        );
        problems.push(Problem::new("AwaitingLoad", message, false));
    }
}

/// Above this share of its bound the queue is a problem before writes are refused.
const BACKLOG_HIGH_PERCENT: u64 = 80;

fn add_queue_problems(problems: &mut Vec<Problem>, shared: &Shared, core: &Core) {
    let bound = shared.config.write_through.max_backlog_bytes;
    let bytes = core.lanes.backlog().bytes;
    if bytes > bound / 100 * BACKLOG_HIGH_PERCENT {
        let message = format!(
            "{bytes} of {bound} bytes of the write-behind queue are used; writes are slowed, and at the \
             bound refused: look why the backend does not keep up, or raise writeThrough.maxBacklog"
        );
        problems.push(Problem::new("BacklogHigh", message, false));
    }
    if core.lanes.is_paused() {
        let message = match shared.config.write_through.paused {
            true => {
                "write-through is paused by writeThrough.paused: changes stay in the journal until \
                 it is unset"
            }
            false => {
                "write-through is paused by an administrator: changes stay in the journal until \
                 `cachectl resume` or a restart of the node"
            }
        };
        problems.push(Problem::new("WriteThroughPaused", message, false));
    }
}

fn add_journal_problems(problems: &mut Vec<Problem>, journal: &JournalStats) {
    if let Some(reason) = &journal.latched {
        let message = format!(
            "the journal failed ({reason}); the process acknowledges nothing more and ends"
        );
        problems.push(Problem::new("JournalLatched", message, true));
    }
    if let Some(reason) = &journal.blocked {
        let message = format!(
            "writes are refused: {reason}; reads go on, and it heals when there is room again"
        );
        problems.push(Problem::new("JournalFull", message, true));
    }
}

pub(crate) fn counters(shared: &Shared, core: Option<&Arc<Core>>) -> Counters {
    let answers = core.map(|c| c.answers.figures()).unwrap_or_default();
    let journal = shared.journal.stats();
    let tally = &shared.tally;
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Counters {
        reads_cache: get(&tally.reads_cache),
        reads_through: get(&tally.reads_through),
        reads_bypass: get(&tally.reads_bypass),
        writes: get(&tally.writes),
        writes_refused: get(&tally.writes_refused),
        writes_slowed: get(&tally.writes_slowed),
        write_slowdown_seconds: get(&tally.write_slowdown_micros) as f64 / 1e6,
        read_throughs_failed: get(&tally.read_throughs_failed),
        instances_evicted: core.map_or(0, |core| core.engine.evicted()),
        instances_forgotten: get(&tally.instances_forgotten),
        slots_taken: get(&tally.slots_taken),
        slots_released: get(&tally.slots_released),
        rejects: get(&tally.rejects),
        idempotent_repeats: answers.repeated,
        idempotency_forgotten: answers.forgotten,
        journal_syncs: journal.syncs,
        journal_bytes_written: journal.bytes_written,
        journal_sync_seconds: journal.sync_nanos as f64 / 1e9,
        images_written: get(&shared.images.tally.files_written),
        images_bytes_written: get(&shared.images.tally.bytes_written),
        image_instances_restored: get(&shared.images.tally.instances_restored),
        image_slots_dropped: {
            let dropped = shared.images.tally.dropped.lock();
            dropped.iter().map(|(why, slots)| (why.as_str(), *slots)).collect()
        },
    }
}
