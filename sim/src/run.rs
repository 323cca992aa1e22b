//! One history: a world from a seed, disturbed, healed, judged; in one thread.
//!
//! Owns the order of those phases and the runtime they run on.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use tokio::runtime::Builder;

use crate::bounds::Bounds;
use crate::settings::{Scene, Settings};
use crate::watch::Pulse;
use crate::world::World;
use crate::{check, clients, nemesis, scene};

/// How a history ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub seed: u64,
    /// `None`: every promise was kept.
    pub violation: Option<String>,
    pub history: Vec<String>,
    pub acknowledged: u64,
    pub in_doubt: u64,
    pub reads: u64,
    /// Turns that tasks took; 0 where they cannot be counted.
    pub turns: u64,
}

impl Outcome {
    /// There is no history to tell.
    fn cut_short(seed: u64, violation: String) -> Self {
        Self {
            seed,
            violation: Some(violation),
            history: Vec::new(),
            acknowledged: 0,
            in_doubt: 0,
            reads: 0,
            turns: 0,
        }
    }
}

/// Runs the history of a seed. The same seed gives the same history wherever the runtime can be
/// seeded (see the crate's build script), and the same settings everywhere.
pub fn run(seed: u64) -> Outcome {
    run_watched(seed, &Pulse::default())
}

/// The same, with a sign of life for whoever watches from another thread.
pub fn run_watched(seed: u64, pulse: &Pulse) -> Outcome {
    pulse.begin(seed);
    let mut builder = Builder::new_current_thread();
    builder.enable_time().start_paused(true);
    let bounds = Bounds::new(pulse);
    bounds.count(&mut builder);
    #[cfg(tokio_unstable)]
    builder.rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_le_bytes()));
    let runtime = match builder.build() {
        Ok(runtime) => runtime,
        Err(error) => return Outcome::cut_short(seed, format!("no runtime: {error}")),
    };
    let whole = AssertUnwindSafe(|| runtime.block_on(history(seed, &bounds)));
    std::panic::catch_unwind(whole)
        .unwrap_or_else(|_| Outcome::cut_short(seed, "a process panicked".to_owned()))
}

async fn history(seed: u64, bounds: &Bounds) -> Outcome {
    let (settings, dice) = Settings::of(seed);
    let line = settings.line();
    let world = World::new(settings, dice);
    world.history.say(line);
    let violated = world.violated.clone();
    tokio::select! {
        biased;
        () = violated.cancelled() => {}
        why = bounds.exceeded() => world.violate(why),
        () = live(&world) => {}
    }
    let oracle = world.oracle.lock();
    Outcome {
        seed,
        violation: oracle.violation().map(str::to_owned),
        history: world.history.take(),
        acknowledged: oracle.acknowledged,
        in_doubt: oracle.in_doubt,
        reads: oracle.reads,
        turns: bounds.turns(),
    }
}

async fn live(world: &Arc<World>) {
    for node in 0..world.settings.nodes {
        world.start(&format!("n-{node}")).await;
    }
    let operator = tokio::spawn(operate(Arc::clone(world)));
    let writer = tokio::spawn(write_log(Arc::clone(world)));
    let clients: Vec<_> = (0..world.settings.clients)
        .map(|number| tokio::spawn(clients::work(Arc::clone(world), number)))
        .collect();
    let scene = tokio::spawn(scene::play(Arc::clone(world)));
    nemesis::disturb(Arc::clone(world)).await;
    for client in clients {
        if client.await.is_err() {
            world.violate("a client of the simulator panicked");
        }
    }
    if scene.await.is_err() {
        world.violate("a scene of the simulator panicked");
    }
    calm(world);
    check::heal(world, world.settings.failover).await;
    check::compare(world).await;
    world.history.say("everything is at rest; all nodes stop and start again");
    for process in world.processes() {
        process
            .line
            .die(crate::line::Death::PowerCut(cachetier_journal::file_system::PowerCut::LoseAll));
    }
    check::heal(world, false).await;
    check::compare(world).await;
    operator.abort();
    writer.abort();
}

/// The operator tells every node the topology, again and again.
async fn operate(world: Arc<World>) {
    loop {
        for process in world.processes() {
            let topology = world.topology.lock().clone();
            tokio::select! {
                biased;
                () = process.line.died.cancelled() => {}
                _told = process.group.apply_topology(topology) => {}
            }
        }
        world.pause(150).await;
    }
}

/// The database's log reaches its disk now and then.
async fn write_log(world: Arc<World>) {
    let seldom = world.settings.scene == Some(Scene::LostCommits);
    loop {
        world.pause(if seldom { 5_000 } else { 150 }).await;
        world.database.flush_log();
    }
}

/// No disturbance is left.
fn calm(world: &World) {
    world.history.say("the disturbances end");
    *world.weather.lock() = Default::default();
    *world.standby.lock() = None;
    nemesis::set_poison(world, false);
    for node in world.nodes() {
        world.disk(&node).set_capacity(None);
        if let Some(process) = world.process(&node) {
            process.line.disarm();
            process.line.failing_syncs.store(0, std::sync::atomic::Ordering::Release);
            process.line.failing_writes.store(0, std::sync::atomic::Ordering::Release);
        }
    }
}
