//! The side-by-side experiment: the same driver against PostgreSQL directly and against the cache
//! in front of it, at the direct side's own rate.
//!
//! Both sides work on copies of one population in one server, so that the direct side writes
//! nothing behind the cache's back. Blocks alternate (direct, cached, cached, direct); the cached
//! ones are limited to the rate the direct one reached, and every latency counts from when its
//! request was due. A failed check or one row that differs voids the run: then no ratio exists.

mod baseline;
mod block;
pub(crate) mod level;
mod result;
mod rows;
pub(crate) mod verify;
mod waits;

pub(crate) use block::drained;
pub use block::{Block, Cost};
pub use result::{CachedAndDirect, HlrReport, LevelReport, NamedRatios};

use crate::backend::{connect, settings};
use crate::load::{self, LoadOptions};
use crate::population::Population;
use crate::report::Machine;
use crate::self_check::{self, SelfCheck};
use crate::shape;
use crate::stage::node::NodeSettings;
use crate::stage::{Pinning, Postgres, ServerSettings};
use crate::target::planted::Fault;
use crate::traffic::Keys;
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The database that both sides are copied from.
pub(crate) const BASE: &str = "population";
/// Share of the subscribers that is cached, in percent.
const CACHED_PERCENT: u64 = 72;
/// More than any layout of ours needs.
const MEMORY_BYTES_PER_SUBSCRIBER: u64 = 2_000;
const MEMORY_BYTES_MIN: u64 = 512 << 20;

/// More than a node with so many needs.
pub(crate) fn memory_bytes(subscribers: u64) -> u64 {
    MEMORY_BYTES_MIN.max(subscribers * MEMORY_BYTES_PER_SUBSCRIBER)
}

/// The journal's durability level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Relaxed,
    Sync,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Self::Relaxed => "relaxed",
            Self::Sync => "sync",
        }
    }

    fn in_config(self) -> &'static str {
        match self {
            Self::Relaxed => "Relaxed",
            Self::Sync => "Sync",
        }
    }
}

/// Tells a person how far the experiment is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub tell: fn(&str),
}

impl Progress {
    fn block(self, level: Level, threads: usize, direct: &Block, cached: &Block) {
        (self.tell)(&format!(
            "{} {threads} threads: direct {:.0}/s, cached {:.0}/s",
            level.name(),
            direct.per_second(),
            cached.per_second()
        ));
    }
}

#[derive(Clone, Debug)]
pub struct HlrOptions {
    pub population: Population,
    pub uniform: bool,
    /// Of a hundred transactions, those that ask for a subscriber that is not loaded.
    pub outside_percent: u32,
    pub threads: Vec<usize>,
    pub levels: Vec<Level>,
    /// Measured length of one block.
    pub block: Duration,
    pub ramp: Duration,
    pub repetitions: usize,
    /// `Sync` or `Async`, of the flush transactions.
    pub backend_commit: &'static str,
    pub lanes: u16,
    pub max_batch_rows: u32,
    pub max_delay_ms: u64,
    pub connections: usize,
    pub tls: bool,
    pub node_binary: PathBuf,
    pub pinning: Pinning,
    pub traffic_seed: u64,
    /// Faults that prove the checks.
    pub plant: Option<Fault>,
    pub drop_index: bool,
    pub progress: Progress,
}

impl HlrOptions {
    pub(crate) fn cached_up_to(&self) -> u64 {
        (self.population.subscribers * CACHED_PERCENT / 100).max(1)
    }

    /// Traffic stays inside the cached set, but for the share that is to miss.
    pub(crate) fn keys(&self) -> Keys {
        let inside = match self.uniform {
            true => Keys::uniform(self.cached_up_to()),
            false => Keys::skewed(self.cached_up_to()),
        };
        inside.with_outside(self.outside_percent, self.population.subscribers)
    }

    pub(crate) fn node_settings(&self, level: Level) -> NodeSettings {
        NodeSettings {
            durability: level.in_config(),
            backend_commit: self.backend_commit,
            lanes: self.lanes,
            max_batch_rows: self.max_batch_rows,
            max_delay_ms: self.max_delay_ms,
            memory_bytes: memory_bytes(self.population.subscribers),
            cached_up_to: self.cached_up_to(),
            tls: self.tls,
            connections: self.connections,
            binary: self.node_binary.clone(),
            volume: std::env::temp_dir(),
        }
    }

    fn settings(&self) -> BTreeMap<String, String> {
        let HlrOptions { population, repetitions, block, connections, .. } = self;
        let HlrOptions { lanes, max_batch_rows, max_delay_ms, backend_commit, .. } = self;
        let tls = if self.tls { "mutual TLS" } else { "plain text" };
        let keys = if self.uniform { "uniform" } else { "skewed" };
        let pairs = [
            (
                "population",
                format!(
                    "{} subscribers, {CACHED_PERCENT} % cached, {} % of the traffic inside, {keys} \
                     keys",
                    population.subscribers,
                    100 - self.outside_percent
                ),
            ),
            (
                "blocks",
                format!(
                    "{repetitions} × (direct cached cached direct) of {:.1} s",
                    block.as_secs_f64()
                ),
            ),
            (
                "cache",
                format!(
                    "{lanes} lanes, at most {max_batch_rows} rows and {max_delay_ms} ms per batch, \
                     backend commit {backend_commit}, gRPC over {tls}, {connections} connections"
                ),
            ),
            (
                "direct",
                "TCP without TLS, prepared statements, one connection per thread".to_owned(),
            ),
            (
                "processors",
                format!(
                    "servers on {}, driver on {}; the driver polls without sleeping on both sides",
                    self.pinning.servers, self.pinning.driver
                ),
            ),
        ];
        pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// What all levels share.
pub(crate) struct Stage {
    pub postgres: Postgres,
}

/// The whole experiment.
pub async fn run(options: &HlrOptions) -> Result<HlrReport> {
    let load_average_before = Machine::here().load_average;
    let (stage, settings, mut void) = prepare(options).await?;
    let mut levels = BTreeMap::new();
    for level in &options.levels {
        if !void.is_empty() {
            break;
        }
        let (report, faults) = level::run(options, &stage, *level).await?;
        void.extend(faults);
        levels.insert(level.name().to_owned(), report);
    }
    Ok(HlrReport::new(levels, void, settings, load_average_before))
}

/// A server with the population, the settings to report, and what the self-check found wrong.
pub(crate) async fn prepare(
    options: &HlrOptions,
) -> Result<(Stage, BTreeMap<String, String>, Vec<String>)> {
    let (servers, subscribers) = (&options.pinning.servers, options.population.subscribers);
    let postgres = Postgres::start(ServerSettings::of_experiment(servers, subscribers)).await?;
    postgres.create_database(BASE).await?;
    let load = LoadOptions {
        uri: postgres.uri(BASE),
        schema: "public".to_owned(),
        population: options.population,
        connections: 2,
        replace: false,
    };
    load::load(&load).await?;
    let client = connect(&postgres.uri(BASE)).await?;
    client.batch_execute("VACUUM ANALYZE").await?;
    let shown = settings(&client).await?;
    let shown: Vec<String> = shown.into_iter().map(|(n, v)| format!("{n}={v}")).collect();
    let mut reported = options.settings();
    reported.insert("postgresql".to_owned(), shown.join(" "));
    let checked = self_check(options, &client).await?;
    let failure = checked.failure().map(|reason| format!("the self-check failed: {reason}"));
    Ok((Stage { postgres }, reported, failure.into_iter().collect()))
}

async fn self_check(options: &HlrOptions, client: &tokio_postgres::Client) -> Result<SelfCheck> {
    let shapes = shape::read(client, "public", options.population.subscribers).await?;
    let keys = Keys::uniform(options.cached_up_to());
    Ok(self_check::check(&shapes, options.population, keys))
}
