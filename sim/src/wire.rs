//! A process's way to the database: delays, broken connections, an answer that never comes; and
//! the oracle's eye on every commit.
//!
//! Owns nothing of the database's content: that is the double's. Each act happens at once and as
//! a whole; what can go wrong is before it and after it.

mod lane;

use std::sync::{Arc, Weak};
use std::time::Duration;

use cachetier_journal::Sequence;
use cachetier_model::node_config::TableConfig;
use cachetier_model::{GroupSchema, Instance, LookupId, RootKey, Value};
use cachetier_write_through::{
    AsOf, Backend, BackendError, BackendFuture, BackendIdentity, BypassRead, Chunk, Claim,
    ClaimRequest, Fence, KeyRange, LaneChange, LaneClaim, LaneSession, Leave, LoadInfo, LoadSpec,
    Reason, RejectEntry, Scan, ScanRequest, SlotHolder, Takeover, TakeoverRequest, WriterId,
};
use futures::FutureExt;
use rand::RngExt;

use crate::check;
use crate::line::{Line, Step};
use crate::standby;
use crate::world::World;
use lane::{WireLane, WireScan};

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Wire {
    world: Weak<World>,
    line: Arc<Line>,
}

fn broken() -> BackendError {
    BackendError::new("use the database", Reason::BackendUnreachable, "the connection broke")
}

/// A sequence as people read it.
pub fn place(sequence: u64) -> String {
    Sequence::from_stored(sequence).map_or_else(|| sequence.to_string(), |s| s.to_string())
}

impl Wire {
    pub fn new(world: &Arc<World>, line: &Arc<Line>) -> Self {
        Self { world: Arc::downgrade(world), line: Arc::clone(line) }
    }

    async fn world(&self) -> Arc<World> {
        match self.world.upgrade() {
            Some(world) => world,
            None => std::future::pending().await,
        }
    }

    /// The way there.
    async fn go(&self) -> Result<Arc<World>, BackendError> {
        let world = self.world().await;
        if self.line.dies_at(Step::Database) {
            return std::future::pending().await;
        }
        self.travel(&world).await;
        if world.weather.lock().is_away(&self.line) {
            return Err(broken());
        }
        if world.chance(self.breaks(&world)) {
            world.history.say(format!("{}: a connection breaks before the act", self.line.name()));
            return Err(broken());
        }
        Ok(world)
    }

    /// The way back.
    async fn back<T>(&self, world: &World, answer: T) -> Result<T, BackendError> {
        if self.line.dies_at(Step::Database) {
            return std::future::pending().await;
        }
        self.travel(world).await;
        if world.chance(self.breaks(world)) {
            world.history.say(format!("{}: a connection breaks after the act", self.line.name()));
            return Err(broken());
        }
        Ok(answer)
    }

    fn breaks(&self, world: &World) -> f64 {
        if self.line.impostor.is_some() { 0.0 } else { world.weather.lock().breaks }
    }

    async fn travel(&self, world: &World) {
        let way_max = world.weather.lock().way_max.as_micros() as u64;
        let micros = world.draw(|dice| match dice.random_range(0..10) {
            0..=3 => 0,
            4..=8 => dice.random_range(0..=2_000),
            _ => dice.random_range(0..=way_max.max(2_000)),
        });
        match micros {
            0 => tokio::task::yield_now().await,
            micros => tokio::time::sleep(Duration::from_micros(micros)).await,
        }
        let held = world.weather.lock().held.get(&self.line.node).copied();
        if let Some(until) = held {
            tokio::time::sleep_until(until).await;
        }
        if self.line.is_dead() {
            std::future::pending().await
        }
    }

    /// There, the act, and back.
    fn cross<'a, T: Send + 'a>(
        &'a self,
        act: impl for<'d> FnOnce(&'d World) -> BackendFuture<'d, T> + Send + 'a,
        done: impl FnOnce(&World, &T) + Send + 'a,
    ) -> BackendFuture<'a, T> {
        Box::pin(async move {
            let world = self.go().await?;
            let answer = act(&world).await?;
            done(&world, &answer);
            self.back(&world, answer).await
        })
    }
}

fn nothing<T>(_: &World, _: &T) {}

impl Backend for Wire {
    fn identify(&self) -> BackendFuture<'_, BackendIdentity> {
        self.cross(|w| w.database.identify(), nothing)
    }

    fn discover<'a>(&'a self, tables: &'a [TableConfig]) -> BackendFuture<'a, GroupSchema> {
        let tables = tables.to_vec();
        self.cross(move |w| Box::pin(async move { w.database.discover(&tables).await }), nothing)
    }

    fn use_schema(&self, _schema: Arc<GroupSchema>) {}

    fn prepare_bookkeeping(&self) -> BackendFuture<'_, ()> {
        self.cross(|w| w.database.prepare_bookkeeping(), nothing)
    }

    fn claim(&self, request: ClaimRequest) -> BackendFuture<'_, Claim> {
        let done = |world: &World, claim: &Claim| {
            standby::synchronous(world);
            let lanes: Vec<String> = claim.lanes.iter().map(|l| place(l.position)).collect();
            world.history.say(format!(
                "{} claims with token {}, positions {}",
                self.line.name(),
                claim.token,
                lanes.join(" ")
            ));
            if self.line.impostor.is_some() {
                world.violate(format!("{} is given a claim", self.line.name()));
            }
            world.judge(|oracle| oracle.claimed(&self.line.node, claim.token));
        };
        self.cross(|w| w.database.claim(request), done)
    }

    fn settle_claim<'a>(
        &'a self,
        group_uid: &'a str,
        node: &'a str,
        token: u64,
    ) -> BackendFuture<'a, ()> {
        let (group_uid, node) = (group_uid.to_owned(), node.to_owned());
        self.cross(
            move |w| {
                Box::pin(async move { w.database.settle_claim(&group_uid, &node, token).await })
            },
            |world, ()| standby::synchronous(world),
        )
    }

    fn take_slots(&self, request: TakeoverRequest) -> BackendFuture<'_, Takeover> {
        let epoch = request.epoch;
        let done = move |world: &World, takeover: &Takeover| {
            standby::takeover(world, &self.line, epoch, takeover);
            world.history.say(format!(
                "{} takes {} slots at the database, epoch {epoch}",
                self.line.name(),
                takeover.owned.len()
            ));
        };
        self.cross(|w| w.database.take_slots(request), done)
    }

    fn holders<'a>(&'a self, group_uid: &'a str) -> BackendFuture<'a, Vec<SlotHolder>> {
        let group_uid = group_uid.to_owned();
        self.cross(move |w| Box::pin(async move { w.database.holders(&group_uid).await }), nothing)
    }

    fn change_lanes(&self, change: LaneChange) -> BackendFuture<'_, Option<Vec<LaneClaim>>> {
        let done = |world: &World, changed: &Option<Vec<LaneClaim>>| {
            standby::synchronous(world);
            let lanes = changed.as_ref().map(Vec::len);
            world.history.say(format!("{} changes its lanes: {lanes:?}", self.line.name()));
        };
        self.cross(|w| w.database.change_lanes(change), done)
    }

    fn forget_group<'a>(&'a self, group_uid: &'a str) -> BackendFuture<'a, ()> {
        let group_uid = group_uid.to_owned();
        self.cross(
            move |w| Box::pin(async move { w.database.forget_group(&group_uid).await }),
            nothing,
        )
    }

    fn leave_group(&self, leave: Leave) -> BackendFuture<'_, Vec<String>> {
        self.cross(|w| w.database.leave_group(leave), nothing)
    }

    fn open_lane(&self, writer: WriterId) -> BackendFuture<'_, Box<dyn LaneSession>> {
        let wire = self.clone();
        self.cross(
            move |w| {
                Box::pin(async move {
                    let inner = w.database.open_lane(writer).await?;
                    Ok(Box::new(WireLane { wire, inner, broken: false }) as Box<dyn LaneSession>)
                })
            },
            nothing,
        )
    }

    fn read_instances<'a>(
        &'a self,
        keys: &'a [RootKey],
        as_of: Option<&'a AsOf>,
    ) -> BackendFuture<'a, Vec<Option<Instance>>> {
        Box::pin(async move {
            let world = self.go().await?;
            let found = world.database.read_instances(keys, as_of).await?;
            if world.weather.lock().slow_misses && world.chance(0.5) {
                world.pause(1_000).await;
            }
            self.back(&world, found).await
        })
    }

    fn read_past<'a>(
        &'a self,
        key: &'a RootKey,
        group_uid: &'a str,
    ) -> BackendFuture<'a, BypassRead> {
        let (key, uid) = (key.clone(), group_uid.to_owned());
        self.cross(
            move |w| Box::pin(async move { w.database.read_past(&key, &uid).await }),
            nothing,
        )
    }

    fn resolve_lookup<'a>(
        &'a self,
        lookup: LookupId,
        values: &'a [Value],
        as_of: Option<&'a AsOf>,
    ) -> BackendFuture<'a, Option<RootKey>> {
        let (values, as_of) = (values.to_vec(), as_of.cloned());
        self.cross(
            move |w| {
                Box::pin(
                    async move { w.database.resolve_lookup(lookup, &values, as_of.as_ref()).await },
                )
            },
            nothing,
        )
    }

    fn expected_rows(&self) -> BackendFuture<'_, Vec<u64>> {
        self.cross(|w| w.database.expected_rows(), nothing)
    }

    fn plan_chunks<'a>(
        &'a self,
        chunks: u32,
        _filter: &'a str,
    ) -> BackendFuture<'a, Vec<KeyRange>> {
        self.cross(move |w| w.database.plan_chunks(chunks, ""), nothing)
    }

    fn open_scan(&self, request: ScanRequest) -> BackendFuture<'_, Box<dyn Scan>> {
        let wire = self.clone();
        self.cross(
            move |w| {
                Box::pin(async move {
                    let inner = w.database.open_scan(request).await?;
                    Ok(Box::new(WireScan { wire, inner }) as Box<dyn Scan>)
                })
            },
            nothing,
        )
    }

    fn create_load(&self, spec: LoadSpec) -> BackendFuture<'_, LoadInfo> {
        self.cross(|w| w.database.create_load(spec), nothing)
    }

    fn load_info<'a>(
        &'a self,
        _group_uid: &'a str,
        _load_id: &'a str,
    ) -> BackendFuture<'a, Option<LoadInfo>> {
        unused("load_info")
    }

    fn take_chunk<'a>(
        &'a self,
        _group_uid: &'a str,
        _load_id: &'a str,
        _worker: &'a str,
        _lease: Duration,
    ) -> BackendFuture<'a, Option<Chunk>> {
        unused("take_chunk")
    }

    fn renew_chunk<'a>(&'a self, _chunk: &'a Chunk, _lease: Duration) -> BackendFuture<'a, bool> {
        unused("renew_chunk")
    }

    fn finish_chunk<'a>(&'a self, _chunk: &'a Chunk, _instances: u64) -> BackendFuture<'a, bool> {
        unused("finish_chunk")
    }

    fn give_back_chunk<'a>(&'a self, _chunk: &'a Chunk) -> BackendFuture<'a, ()> {
        unused("give_back_chunk")
    }

    fn list_rejects<'a>(
        &'a self,
        group_uid: &'a str,
        limit: u32,
    ) -> BackendFuture<'a, Vec<RejectEntry>> {
        let group_uid = group_uid.to_owned();
        self.cross(
            move |w| Box::pin(async move { w.database.list_rejects(&group_uid, limit).await }),
            nothing,
        )
    }

    fn reject_tail(&self, id: u64) -> BackendFuture<'_, Vec<RejectEntry>> {
        self.cross(move |w| w.database.reject_tail(id), nothing)
    }

    fn discard_reject<'a>(&'a self, id: u64, by: &'a Fence) -> BackendFuture<'a, u32> {
        let by = by.clone();
        self.cross(
            move |w| Box::pin(async move { w.database.discard_reject(id, &by).await }),
            nothing,
        )
    }

    fn replay_reject<'a>(&'a self, id: u64, by: &'a Fence) -> BackendFuture<'a, u32> {
        let by = by.clone();
        self.cross(
            move |w| Box::pin(async move { w.database.replay_reject(id, &by).await }),
            |world, _| check::all_stored(world),
        )
    }
}

/// Calls of the preload's pods, which no node makes.
fn unused<'a, T: Send + 'a>(what: &'static str) -> BackendFuture<'a, T> {
    let error = BackendError::new(what, Reason::Internal, "the simulator has no preload pods");
    std::future::ready(Err(error)).boxed()
}
