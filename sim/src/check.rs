//! Looks at the world from outside: the database after a commit, a disk as a power cut would
//! leave it, and everything at the end.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cachetier_group::{KeySelector, Phase, ReadCall, Source, Status};
use cachetier_journal::file_system::PowerCut;
use cachetier_journal::{Journal, JournalOptions};
use cachetier_model::ReadPlan;
use tokio::time::Instant;

use crate::account::{Content, show};
use crate::settings::SEGMENT_BYTES;
use crate::tables;
use crate::wire::place;
use crate::world::{JOURNAL_DIR, Process, World};

/// The longest a healed world may take until everything is in the database.
const HEAL_MAX: Duration = Duration::from_secs(900);

/// Longer than a lane without work goes without a look at its row, a broken connection included.
const IDLE_LOOK: Duration = Duration::from_secs(25);

/// What the database holds for an account.
pub fn stored(world: &World, id: i64) -> Content {
    let store = world.database.store();
    let mine = |table: usize| -> Vec<_> {
        let rows = store.tables.get(table).into_iter().flat_map(|rows| rows.values());
        rows.filter(|row| tables::int(row, 0) == id).cloned().collect()
    };
    tables::account_of(&[mine(tables::ACCOUNT), mine(tables::ITEM)])
}

/// Every account in the database must be one that stood, and none may go back.
pub fn all_stored(world: &World) {
    let store = world.database.store();
    let rows = store.tables.iter().flat_map(|rows| rows.values());
    let mut ids: BTreeSet<i64> = rows.map(|row| tables::int(row, 0)).collect();
    ids.extend(world.oracle.lock().ids());
    for id in ids {
        let content = stored(world, id);
        world.judge(|oracle| oracle.stored(id, &content));
    }
}

/// What left for the database must survive a power cut of the node (R1).
pub fn position_is_synced(world: &World, node: &str, position: u64) {
    let disk = world.disk(node).copy();
    disk.cut_power(PowerCut::LoseAll);
    let options = JournalOptions {
        segment_bytes: SEGMENT_BYTES,
        capacity_bytes: 64 * SEGMENT_BYTES,
        queue_bytes: SEGMENT_BYTES as usize / 2,
        group_commit_bytes: SEGMENT_BYTES as usize / 2,
        ..JournalOptions::default()
    };
    match Journal::open_driven(Arc::new(disk), Path::new(JOURNAL_DIR), options) {
        Ok((_, recovery, _)) if recovery.last.max(recovery.trimmed).get() < position => {
            let last = recovery.last;
            world.violate(format!(
                "{node}: position {} is in the database, and a power cut leaves the journal at {last}",
                place(position)
            ));
        }
        Ok(_) => {}
        Err(error) => {
            world.violate(format!("{node}: a power cut now leaves a broken journal: {error}"));
        }
    }
}

/// What keeps a process from being done, in words; `None` when nothing does.
fn unfinished(world: &World, status: &Status) -> Option<String> {
    let assigned = world.topology.lock().slots_of(&status.node).len() as u32;
    let problems: Vec<&str> = status.problems.iter().map(|p| p.reason.as_str()).collect();
    let done = status.backlog.transactions == 0
        && status.slots_serving == assigned
        && status.slots_leaving == 0
        && status.topology_version == world.topology.lock().epoch.0
        && matches!(status.phase, Phase::Serving | Phase::TakingSlots | Phase::AwaitingTopology)
        && (status.phase == Phase::Serving || assigned == 0);
    (!done).then(|| {
        format!(
            "{}: {:?}, {} of {assigned} slots, {} leaving, {} transactions wait, problems {problems:?}",
            status.node,
            status.phase,
            status.slots_serving,
            status.slots_leaving,
            status.backlog.transactions
        )
    })
}

/// All disturbances are over: waits until every node serves and everything is in the database.
/// `look_again`: a database that went back is noticed by idle lanes only when they look.
pub async fn heal(world: &World, mut look_again: bool) {
    let deadline = Instant::now() + HEAL_MAX;
    loop {
        if world.violated.is_cancelled() {
            return;
        }
        let mut waiting = Vec::new();
        for node in world.nodes() {
            match world.process(&node) {
                None => {
                    world.start(&node).await;
                    waiting.push(format!("{node} is down"));
                }
                Some(process) => {
                    let topology = world.topology.lock().clone();
                    let _ = process.group.apply_topology(topology).await;
                    let status = process.group.status().await;
                    if status.phase == Phase::Fenced {
                        let why = status.problems.iter().map(|p| p.message.clone());
                        let why: Vec<String> = why.collect();
                        return world.violate(format!("{node} is fenced: {}", why.join("; ")));
                    }
                    waiting.extend(unfinished(world, &status));
                }
            }
        }
        if waiting.is_empty() && replay_rejects(world).await {
            if !look_again {
                return;
            }
            look_again = false;
            tokio::time::sleep(IDLE_LOOK).await;
            continue;
        }
        if Instant::now() >= deadline {
            return world.violate(format!("never came to rest: {}", waiting.join("; ")));
        }
        world.database.flush_log();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Replays what the database refused while it was poisoned; true when there is nothing (left).
async fn replay_rejects(world: &World) -> bool {
    let mut none = true;
    for process in world.processes() {
        let Ok(rejects) = process.group.rejects(100).await else { return false };
        for reject in rejects {
            none = false;
            match process.group.resolve_reject(reject.id, false).await {
                Ok(count) => world.history.say(format!("{count} set aside are replayed")),
                Err(error) => world.history.say(format!("a replay is refused: {error}")),
            }
        }
    }
    none
}

/// Everything at rest: nodes, database and model must agree.
pub async fn compare(world: &World) {
    let ids = world.oracle.lock().ids();
    for id in ids {
        let Some(process) = owner(world, id) else { continue };
        read(world, &process, id).await;
        let held = stored(world, id);
        let possible = world.oracle.lock().possible(id);
        if !possible.contains(&held) {
            let expected = world.oracle.lock().show(id);
            let words = format!(
                "account {id}: the database ends with {}, expected {expected}",
                show(&held)
            );
            world.violate(words);
        }
        world.judge(|oracle| {
            let glance = oracle.glance(id);
            oracle.shown(id, &held, &glance);
        });
        if world.violated.is_cancelled() {
            return;
        }
    }
    all_stored(world);
}

/// The process that the topology gives an account to.
pub fn owner(world: &World, id: i64) -> Option<Process> {
    let slot = tables::root(id).slot();
    let name = world.topology.lock().owner(slot).map(|node| node.name.clone());
    name.and_then(|name| world.process(&name))
}

/// A read at any time, which may fail.
pub async fn glance_at(world: &World, process: &Process, id: i64) {
    let glance = world.oracle.lock().glance(id);
    let call =
        ReadCall::new(KeySelector::Root(tables::root(id)), ReadPlan::default()).without_bypass();
    let answer = tokio::select! {
        biased;
        () = process.line.died.cancelled() => return,
        answer = process.group.read(call) => answer,
    };
    if let Ok(outcome) = answer.as_ref()
        && !process.line.is_dead()
    {
        let content = tables::account_of(&outcome.tables);
        world.history.say(format!(
            "{} shows account {id}: {}",
            process.line.name(),
            show(&content)
        ));
        world.judge(|oracle| oracle.shown(id, &content, &glance));
    }
}

/// Where all slots of a process count as loaded, everything is in its memory (R20).
pub async fn cover_is_true(world: &World, process: &Process) {
    let epoch = || world.topology.lock().epoch;
    let before = epoch();
    let status = process.group.status().await;
    // all that it is to have: nothing comes while this looks
    let assigned = world.topology.lock().slots_of(&process.line.node).len() as u32;
    let settled = assigned > 0 && status.slots_serving == assigned;
    if !settled || status.slots_covered != assigned {
        return;
    }
    let ids = world.oracle.lock().ids();
    for id in ids {
        let call = ReadCall::new(KeySelector::Root(tables::root(id)), ReadPlan::default())
            .without_bypass();
        let read = tokio::time::timeout(Duration::from_secs(5), process.group.read(call)).await;
        let Ok(Ok(outcome)) = read else { continue };
        let present = tables::account_of(&outcome.tables).is_some();
        if process.line.is_dead() || epoch() != before {
            return;
        }
        let forgotten = forgets(world, process);
        let loaded = !forgotten && world.oracle.lock().stays_loaded(id);
        if present && loaded && outcome.source != Source::Cache {
            // as many slots as are to come may have been others, on their way out
            let after = process.group.status().await;
            if after.slots_serving != assigned || after.slots_covered != assigned {
                return;
            }
            let words = format!("account {id} is not loaded, and its slot counts as covered");
            return world.violate(words);
        }
    }
}

/// What was sent again is forgotten, covered or not, and an image says no more of it.
fn forgets(world: &World, process: &Process) -> bool {
    world.settings.failover || process.group.counters().instances_forgotten > 0
}

/// One read of everything, which must succeed.
async fn read(world: &World, process: &Process, id: i64) {
    let status = process.group.status().await;
    let serving = status.slots_serving;
    // an instance whose reject was resolved, or that was sent again, is forgotten, covered or not
    let covered = world.oracle.lock().stays_loaded(id)
        && status.slots_covered > 0
        && status.slots_covered == serving
        && !world.settings.poison
        && !forgets(world, process);
    let key = KeySelector::Root(tables::root(id));
    let call = ReadCall::new(key, ReadPlan::default()).without_bypass();
    let glance = world.oracle.lock().glance(id);
    match process.group.read(call).await {
        Ok(outcome) => {
            let content = tables::account_of(&outcome.tables);
            world.judge(|oracle| oracle.shown(id, &content, &glance));
            let missed = covered && content.is_some() && outcome.source != Source::Cache;
            // slots that came while this looked are not the ones that count as covered
            if missed && process.group.status().await.slots_serving == serving {
                world
                    .violate(format!("account {id} is not loaded, and its slot counts as covered"));
            }
        }
        Err(error) => world.violate(format!("account {id} cannot be read at the end: {error}")),
    }
}
