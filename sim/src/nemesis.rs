//! What goes wrong: one disturbance after another, each drawn, each told to the history.
//!
//! Owns the choice. Everything it does must be something the promises cover; what they do not
//! cover (a lost volume, a copy that was started before the original) is not done here.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cachetier_group::{BeginLoad, KeySelector, ReadCall};
use cachetier_journal::file_system::{FaultyFileSystem, PowerCut};
use cachetier_model::ChangeKind;
use cachetier_write_through::plan::Statement;
use cachetier_write_through::{Backend, KeyRange, ScanRequest};
use rand::RngExt;
use rand::seq::IndexedRandom;
use tokio::time::Instant;

use crate::line::{Death, Fuse, Impostor, Step};
use crate::settings::Scene;
use crate::standby;
use crate::tables;
use crate::wire::Wire;
use crate::world::{Process, World, entry};

/// One disturbance after another, as many as the seed says.
pub async fn disturb(world: Arc<World>) {
    for _ in 0..world.settings.disturbances {
        world.pause(world.settings.pace * 4).await;
        if world.violated.is_cancelled() {
            return;
        }
        revive(&world).await;
        one(&world).await;
    }
    world.pause(200).await;
}

/// Starts what is down, mostly.
async fn revive(world: &World) {
    for node in world.nodes() {
        if world.process(&node).is_none() && world.chance(0.7) {
            world.start(&node).await;
        }
    }
}

fn someone(world: &World) -> Option<Process> {
    let all = world.processes();
    world.draw(|dice| all.choose(dice).cloned())
}

fn death(world: &World) -> Death {
    world.draw(|dice| match dice.random_range(0..6) {
        0..=2 => Death::Killed,
        3 => Death::PowerCut(PowerCut::LoseAll),
        4 => Death::PowerCut(PowerCut::KeepAll),
        _ => Death::PowerCut(PowerCut::Random(dice.random_range(0..u64::MAX))),
    })
}

async fn one(world: &Arc<World>) {
    let Some(process) = someone(world) else { return };
    let several = world.settings.nodes > 1;
    // a node that comes back after its slots were given away must be able to ask
    let asks = world.settings.scene != Some(Scene::GivenAway);
    if world.settings.looks_after_failover() && world.chance(0.4) {
        return crash_database(world);
    }
    match world.draw(|dice| dice.random_range(0..25)) {
        8 | 11 | 15 | 19 | 20 if !asks => process.line.die(Death::Killed),
        0..=2 => process.line.die(death(world)),
        3..=6 => arm(world, &process),
        7 => world.stop(&process).await,
        8 => outage(world),
        9..=10 => crash_database(world),
        11 => bad_connections(world),
        12 => failing_disk(world, &process),
        13 => full_disk(world, &process),
        14 => poison(world),
        15 => hold(world, &process),
        16 => change_lanes(world, &process),
        17 => load(world, &process),
        18 => stale_topology(world, &process),
        19..=20 if several => move_slots(world, None),
        21 if several => cut_peers(world, &process),
        22..=23 => old_copy(world, &process).await,
        24 => foreign_volume(world, &process).await,
        _ => process.line.die(Death::Killed),
    }
}

/// Runs a disturbance's end after a while.
fn later(
    world: &Arc<World>,
    millis: std::ops::Range<u64>,
    end: impl FnOnce(&World) + Send + 'static,
) {
    let millis = world.draw(|dice| dice.random_range(millis));
    let world = Arc::clone(world);
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(millis)).await;
        end(&world);
    });
}

fn arm(world: &World, process: &Process) {
    let step = world.draw(|dice| match dice.random_range(0..10) {
        0..=4 => Step::Disk,
        5..=8 => Step::Database,
        _ => Step::Peer,
    });
    let after = world.draw(|dice| dice.random_range(1..30));
    let fuse = Fuse { step, after, death: death(world) };
    world.history.say(format!("{} will die at its {after}th {step:?} step", process.line.name()));
    process.line.arm(fuse);
}

fn outage(world: &Arc<World>) {
    world.history.say("the database is away");
    world.weather.lock().database_away = true;
    later(world, 100..3_000, |world| {
        world.history.say("the database is back");
        world.weather.lock().database_away = false;
    });
}

pub fn crash_database(world: &World) {
    let often = world.settings.looks_after_failover();
    if world.settings.failover && (often || world.chance(0.5)) {
        let standby = world.standby.lock().take();
        match standby {
            Some(standby) => {
                world.history.say("a standby that lagged takes over");
                world.database.fail_over(standby);
                world.failovers.fetch_add(1, Ordering::Relaxed);
                if world.takeover_missed.lock().take().is_some() {
                    world.takeover_lost.store(true, Ordering::Relaxed);
                }
                world.judge(|oracle| oracle.database_went_back());
            }
            None => {
                world.history.say("the standby hears nothing any more");
                *world.standby.lock() = Some(world.database.standby());
                *world.takeover_missed.lock() = None;
            }
        }
        return;
    }
    world.history.say("the database crashes and is back at once");
    world.database.crash();
    world.judge(|oracle| oracle.database_went_back());
}

fn bad_connections(world: &Arc<World>) {
    let breaks = world.draw(|dice| dice.random_range(0.05..0.5));
    let way_max = Duration::from_millis(world.draw(|dice| dice.random_range(2..400)));
    world.history.say(format!("connections break with {breaks:.2}, ways take up to {way_max:?}"));
    {
        let mut weather = world.weather.lock();
        (weather.breaks, weather.way_max) = (breaks, way_max);
    }
    later(world, 100..2_000, |world| {
        world.history.say("connections are good again");
        let mut weather = world.weather.lock();
        (weather.breaks, weather.way_max) = (0.0, Duration::ZERO);
    });
}

fn failing_disk(world: &World, process: &Process) {
    if world.chance(0.6) {
        world.history.say(format!("the next sync of {} fails", process.line.name()));
        process.line.failing_syncs.fetch_add(1, Ordering::AcqRel);
    } else {
        world.history.say(format!("the next write of {} is torn and fails", process.line.name()));
        process.line.failing_writes.fetch_add(1, Ordering::AcqRel);
    }
}

fn full_disk(world: &Arc<World>, process: &Process) {
    let node = process.line.node.clone();
    let disk = world.disk(&node);
    let room = world.draw(|dice| dice.random_range(0..20_000));
    world.history.say(format!("the volume of {node} has {room} bytes left"));
    disk.set_capacity(Some(disk.used_bytes() + room));
    later(world, 100..3_000, move |world| {
        world.history.say(format!("the volume of {node} has room again"));
        world.disk(&node).set_capacity(None);
    });
}

fn poison(world: &Arc<World>) {
    if !world.settings.poison {
        return;
    }
    world.history.say("the database refuses versions that are multiples of five");
    world.weather.lock().poison = true;
    set_poison(world, true);
    later(world, 100..1_500, |world| {
        world.history.say("the database refuses nothing any more");
        world.weather.lock().poison = false;
        set_poison(world, false);
    });
}

/// A trigger of the database with an opinion of its own.
pub fn set_poison(world: &World, on: bool) {
    world.database.set_faults(|faults| {
        faults.refuse = if on { Some(Box::new(is_poisoned)) } else { None };
    });
}

fn is_poisoned(statement: &Statement<'_>) -> bool {
    statement.kind == ChangeKind::Update
        && statement.table == tables::ACCOUNT
        && statement.rows.iter().any(|row| tables::int(row, tables::VERSION) % 5 == 0)
}

/// A process that is frozen towards the database, with whatever it has in flight.
pub fn hold(world: &World, process: &Process) {
    let millis = world.draw(|dice| dice.random_range(100..4_000));
    world
        .history
        .say(format!("{} does not reach the database for {millis} ms", process.line.name()));
    let until = Instant::now() + Duration::from_millis(millis);
    world.weather.lock().held.insert(process.line.node.clone(), until);
}

fn change_lanes(world: &World, process: &Process) {
    let lanes = world.draw(|dice| dice.random_range(1..=4));
    world.history.say(format!("{lanes} lanes from the next start on"));
    *world.lanes.lock() = lanes;
    process.line.die(Death::Killed);
}

/// The operator decides anew which nodes have slots: this one, or any.
pub fn move_slots(world: &World, to: Option<&str>) {
    let all = ["n-0", "n-1"];
    let any = || {
        world.draw(|dice| match dice.random_range(0..4) {
            0 => vec![all[0]],
            1 => vec![all[1]],
            _ => all.to_vec(),
        })
    };
    let members: Vec<&str> = to.map_or_else(any, |to| vec![to]);
    if world.takeover_lost.load(Ordering::Relaxed) {
        // the slots are taken again first: what two owners in a row lost is told, not repaired
        return;
    }
    if world.takeover_missed.lock().is_some() {
        standby::synchronous(world);
    }
    let mut topology = world.topology.lock();
    let nodes = members.iter().map(|name| entry(name)).collect();
    let Ok(next) = topology.rebalanced(nodes) else { return };
    world.history.say(format!("topology {}: {}", next.epoch.0, members.join(" and ")));
    *topology = next;
    drop(topology);
    for name in members {
        world.disk(name);
    }
}

/// An old topology that was under way for long arrives.
fn stale_topology(world: &Arc<World>, process: &Process) {
    let nodes = vec![entry(&process.line.node)];
    let uid = crate::world::GROUP_UID;
    let Ok(stale) = cachetier_model::Topology::initial(uid, cachetier_model::Epoch(0), nodes)
    else {
        return;
    };
    world.history.say(format!("{} is offered an old topology", process.line.name()));
    let (world, process) = (Arc::clone(world), process.clone());
    tokio::spawn(async move {
        let held = |process: &Process| process.group.topology().map(|t| t.epoch);
        let before = held(&process);
        let _held = process.group.apply_topology(stale).await;
        if !process.line.is_dead() && held(&process) < before {
            world.violate(format!("{} went back to an older topology", process.line.name()));
        }
    });
}

/// A copy of a volume is made, and started later, when its original has claimed again (R8).
async fn old_copy(world: &World, process: &Process) {
    let node = &process.line.node;
    let token = world.oracle.lock().token(node);
    let copy = world.copies.lock().remove(node);
    match copy {
        Some((disk, copied)) if copied < token => {
            world.history.say(format!("an old copy of {node}'s volume is started"));
            impostor(world, node, disk, Impostor::OldCopy).await;
        }
        Some(copy) => {
            world.copies.lock().insert(node.clone(), copy);
        }
        None => {
            world.history.say(format!("the volume of {node} is copied"));
            world.copies.lock().insert(node.clone(), (world.disk(node).copy(), token));
        }
    }
}

/// A group of another incarnation is started on a copy of a volume, out of reach of the database
/// (R5).
async fn foreign_volume(world: &World, process: &Process) {
    let node = &process.line.node;
    world.history.say(format!("another group is started on a copy of {node}'s volume"));
    let disk = world.disk(node).copy();
    impostor(world, node, disk, Impostor::OtherGroup).await;
}

/// Runs a process that must not be allowed to answer anything.
async fn impostor(world: &World, node: &str, disk: FaultyFileSystem, kind: Impostor) {
    let Some(process) = world.start_impostor(node, disk, kind).await else { return };
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        for id in 1..=world.settings.keys {
            let key = KeySelector::Root(tables::root(id));
            let call = ReadCall::new(key, Default::default()).without_bypass();
            let read = tokio::time::timeout(Duration::from_millis(50), process.group.read(call));
            if matches!(read.await, Ok(Ok(_))) {
                world.violate(format!("{} answers reads", process.line.name()));
            }
        }
    }
    process.line.die(Death::Killed);
}

fn cut_peers(world: &Arc<World>, process: &Process) {
    let node = process.line.node.clone();
    world.history.say(format!("{node} cannot be reached by its peers"));
    world.weather.lock().cut.push(node.clone());
    later(world, 100..3_000, move |world| {
        world.history.say(format!("{node} can be reached again"));
        world.weather.lock().cut.retain(|name| *name != node);
    });
}

/// A load of everything into one node, chunk by chunk, as a pod of the preload would do it.
pub fn load(world: &Arc<World>, process: &Process) {
    let (world, process) = (Arc::clone(world), process.clone());
    let number = world.draw(|dice| dice.random_range(0..u32::MAX));
    world.history.say(format!("load {number} into {}", process.line.name()));
    tokio::spawn(async move {
        let name = process.line.name();
        tokio::select! {
            biased;
            () = process.line.died.cancelled() => {}
            done = load_chunks(&world, &process, number) => {
                world.history.say(format!("load {number} into {name}: {}", match done {
                    Ok(()) => "every chunk is sent".to_owned(),
                    Err(error) => format!("{error:#}"),
                }));
            }
        }
    });
}

pub async fn load_chunks(world: &Arc<World>, process: &Process, number: u32) -> anyhow::Result<()> {
    // the pod has connections of its own, and dies with the node it loads into
    let pod = Wire::new(world, &process.line);
    let ranges = pod.plan_chunks(2, "").await?;
    let load_id = format!("load-{number}");
    let chunks_total = ranges.len() as u32;
    for (chunk, range) in (0..).zip(ranges) {
        for _ in 0..20 {
            if load_chunk(world, process, &pod, &load_id, (chunk, chunks_total), &range).await? {
                break;
            }
            world.pause(50).await;
        }
    }
    Ok(())
}

async fn load_chunk(
    world: &World,
    process: &Process,
    pod: &Wire,
    load_id: &str,
    (chunk, chunks_total): (u32, u32),
    range: &KeyRange,
) -> anyhow::Result<bool> {
    let call = BeginLoad { load_id: load_id.to_owned(), chunks_total, expected: Vec::new() };
    let begun = process.group.begin_load(call).await?;
    let as_of = begun.as_of.clone().into_iter().collect();
    let request = ScanRequest { range: range.clone(), filter: String::new(), page: 2, as_of };
    let mut scan = pod.open_scan(request).await?;
    let mut load = process.group.load_chunk(load_id, chunk, begun.ticket)?;
    while let Some(page) = scan.next().await? {
        world.pause(20).await;
        let slots = &begun.slots_needed;
        let page = page.into_iter().filter(|(key, _)| slots.contains(key.slot()));
        load.install(page.map(|(_, instance)| instance).collect())?;
    }
    Ok(load.finish().chunk_done)
}
