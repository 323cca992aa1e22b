//! Scenes: what chance alone brings together too seldom, played beside the disturbances in some
//! histories.
//!
//! Owns what is played. Everything is what the promises cover, with one exception that is told to
//! the oracle: slots of a dead node are given away by hand, and with them what it had not flushed.

use std::sync::Arc;
use std::time::Duration;

use cachetier_model::{RootKey, SlotSet};
use cachetier_write_through::{Backend, Release, TakeoverRequest};
use futures::FutureExt;
use rand::RngExt;
use tokio::time::Instant;

use crate::line::Death;
use crate::settings::Scene;
use crate::world::{GROUP_UID, Process, World, entry};
use crate::{check, nemesis, standby, tables};

/// The longest a scene waits for a node to have its slots.
const SETTLE_MAX: Duration = Duration::from_secs(10);

/// Plays the scene of this history, if it has one.
pub async fn play(world: Arc<World>) {
    match world.settings.scene {
        None => {}
        Some(Scene::SlowMisses) => slow_misses(&world).await,
        Some(Scene::HeldMoves) => held_moves(&world).await,
        Some(Scene::LoadedMoves) => loaded_moves(&world).await,
        Some(Scene::GivenAway) => given_away(&world).await,
        Some(Scene::LostCommits) => lost_commits(&world).await,
    }
}

/// What a read found in the database arrives long after, and meanwhile a load brought the same
/// instance and clients change or delete it (R19).
async fn slow_misses(world: &Arc<World>) {
    world.history.say("what misses find is long under way");
    world.weather.lock().slow_misses = true;
    for _ in 0..3 {
        for process in world.processes() {
            let ids = world.oracle.lock().ids();
            for id in ids {
                let (world, process) = (Arc::clone(world), process.clone());
                tokio::spawn(async move { check::glance_at(&world, &process, id).await });
            }
            world.pause(10).await;
            nemesis::load(world, &process);
        }
        world.pause(1_500).await;
    }
}

/// Slots move while their owner has writes that it cannot bring to the database (R23).
async fn held_moves(world: &Arc<World>) {
    for _ in 0..4 {
        world.pause(300).await;
        let Some(owner) = owner_of_any(world) else { continue };
        nemesis::hold(world, &owner);
        world.pause(400).await;
        nemesis::move_slots(world, Some(other(&owner)));
        world.pause(1_000).await;
    }
}

/// A node that loaded everything loses its slots and gets them back (R20).
async fn loaded_moves(world: &Arc<World>) {
    for _ in 0..3 {
        let Some(owner) = owner_of_any(world) else { continue };
        let number = world.draw(|dice| dice.random_range(0..u32::MAX));
        world.history.say(format!("load {number} into {}", owner.line.name()));
        let loaded = tokio::select! {
            biased;
            () = owner.line.died.cancelled() => continue,
            loaded = nemesis::load_chunks(world, &owner, number) => loaded,
        };
        if loaded.is_err() {
            world.pause(100).await;
            continue;
        }
        check::cover_is_true(world, &owner).await;
        nemesis::move_slots(world, Some(other(&owner)));
        world.pause(800).await;
        nemesis::move_slots(world, Some(&owner.line.node));
        if settled(world, &owner).await {
            check::cover_is_true(world, &owner).await;
        }
    }
}

/// The database crashes, and its log was not on its disk for long (R11): `run` writes it seldom.
async fn lost_commits(world: &Arc<World>) {
    for _ in 0..3 {
        world.pause(1_500).await;
        nemesis::crash_database(world);
    }
}

/// A node dies with writes that only it has, and somebody gives its slots to the other one (R9):
/// when it returns, they are not its own. They do not go back in the same history: that only is
/// safe once the node has dropped what it had of them, which whoever gives them away must wait for.
async fn given_away(world: &Arc<World>) {
    for _ in 0..5 {
        world.pause(400).await;
        let Some(owner) = owner_of_any(world) else { continue };
        nemesis::hold(world, &owner);
        world.pause(300).await;
        owner.line.die(Death::Killed);
        let node = &owner.line.node;
        world.weather.lock().held.remove(node);
        // until those who waited for an answer know that there is none
        tokio::time::sleep(Duration::from_millis(1)).await;
        if world.process(node).is_none() && give_away(world, node, other(&owner)) {
            return;
        }
    }
}

/// True when it was done.
fn give_away(world: &World, from: &str, to: &str) -> bool {
    let holders = world.database.holders(GROUP_UID).now_or_never().and_then(Result::ok);
    let theirs = holders.into_iter().flatten().find(|holder| holder.node == from);
    let slots = theirs.map_or_else(SlotSet::empty, |holder| holder.slots);
    let ids = world.oracle.lock().ids().into_iter();
    let ids: Vec<i64> = ids.filter(|id| slots.contains(slot(*id))).collect();
    let (token, busy) = {
        let oracle = world.oracle.lock();
        (oracle.token(to), ids.iter().any(|id| oracle.is_busy(*id)))
    };
    if slots.is_empty() || busy || token == 0 {
        return false;
    }
    let mut topology = world.topology.lock();
    let Ok(next) = topology.rebalanced(vec![entry(to)]) else { return false };
    let request = TakeoverRequest {
        group_uid: GROUP_UID.to_owned(),
        node: to.to_owned(),
        token,
        epoch: next.epoch.0,
        slots: slots.clone(),
        holding: SlotSet::empty(),
        released: vec![Release { node: from.to_owned(), slots, ..Release::default() }],
    };
    let taken = world.database.take_slots(request).now_or_never().and_then(Result::ok);
    if taken.is_none() {
        return false;
    }
    standby::synchronous(world);
    let words =
        format!("topology {}: the slots of {from}, which is down, are {to}'s", next.epoch.0);
    world.history.say(words);
    *topology = next;
    drop(topology);
    for id in ids {
        let held = check::stored(world, id);
        world.judge(|oracle| oracle.given_up(id, &held));
    }
    true
}

fn slot(id: i64) -> cachetier_model::SlotId {
    RootKey::slot(&tables::root(id))
}

fn owner_of_any(world: &World) -> Option<Process> {
    let ids = world.oracle.lock().ids();
    ids.into_iter().find_map(|id| check::owner(world, id))
}

fn other(process: &Process) -> &'static str {
    if process.line.node == "n-0" { "n-1" } else { "n-0" }
}

/// True when the process serves all that the topology gives it.
async fn settled(world: &World, process: &Process) -> bool {
    let deadline = Instant::now() + SETTLE_MAX;
    while Instant::now() < deadline && !process.line.is_dead() {
        let assigned = world.topology.lock().slots_of(&process.line.node).len() as u32;
        let status = process.group.status().await;
        if assigned > 0 && status.slots_serving == assigned {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    false
}
