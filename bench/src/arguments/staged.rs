//! The command line of the experiments on a stage of this host.

use anyhow::Result;
use clap::{Args, ValueEnum};
use hlr_bench::flush::FlushOptions;
use hlr_bench::hlr::{HlrOptions, Level, Progress};
use hlr_bench::stage::{Pinning, Processors, node};
use hlr_bench::target::planted::Fault;
use hlr_bench::traffic::Kind;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::{PopulationArguments, at_least_one, fresh_seed, seconds, seconds_above_zero};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LevelArgument {
    Relaxed,
    Sync,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CommitArgument {
    Sync,
    Async,
}

impl CommitArgument {
    fn in_config(self) -> &'static str {
        match self {
            Self::Sync => "Sync",
            Self::Async => "Async",
        }
    }
}

/// Lanes of the side-by-side part: what a node has by default.
const LANES: u16 = 4;
/// Each takes a connection of the server's two hundred.
const LANE_RANGE: RangeInclusive<i64> = 1..=64;
const MAX_BATCH_ROWS: u32 = 1_024;
const MAX_DELAY_MS: u64 = 100;
const CONNECTIONS: usize = 4;
const RAMP: Duration = Duration::from_millis(500);

/// A fault planted on purpose; the run must come out void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlantArgument {
    /// The cache loses one write in 100,000
    LoseWrites,
    /// One kind of transaction is never really made
    SkipKind,
    /// The direct side lacks the index on sub_nbr
    DropIndex,
}

const LOSE_ONE_IN: u64 = 100_000;

#[derive(Args, Debug)]
pub struct PinArguments {
    /// Processors of PostgreSQL and the node, as `taskset -c` takes them; default: the lower half
    #[arg(long, value_name = "LIST", value_parser = Processors::here)]
    pub server_cpus: Option<Processors>,
    /// Processors of the driver; default: the upper half
    #[arg(long, value_name = "LIST", value_parser = Processors::here)]
    pub driver_cpus: Option<Processors>,
}

impl PinArguments {
    pub fn pinning(&self) -> Pinning {
        let halves = Pinning::halves();
        Pinning {
            servers: self.server_cpus.clone().unwrap_or(halves.servers),
            driver: self.driver_cpus.clone().unwrap_or(halves.driver),
        }
    }
}

#[derive(Args, Debug)]
pub struct HlrArguments {
    #[command(flatten)]
    pub population: PopulationArguments,
    /// Numbers of concurrent clients
    #[arg(long, value_delimiter = ',', default_value = "2,16,64", value_name = "LIST",
          value_parser = at_least_one::<usize>())]
    pub threads: Vec<usize>,
    /// Durability levels of the journal
    #[arg(long, value_enum, value_delimiter = ',', default_value = "relaxed,sync")]
    pub levels: Vec<LevelArgument>,
    /// Measured seconds of one block
    #[arg(long, default_value_t = 3.0, value_parser = seconds_above_zero)]
    pub seconds: f64,
    /// Seconds of traffic before each measurement
    #[arg(long, default_value_t = 0.5, value_parser = seconds)]
    pub ramp: f64,
    /// How often `direct cached cached direct` is run at each thread count
    #[arg(long, default_value_t = 3, value_parser = at_least_one::<usize>())]
    pub repetitions: usize,
    /// Commit mode of the flush transactions
    #[arg(long, value_enum, default_value = "async")]
    pub backend_commit: CommitArgument,
    #[arg(long, default_value_t = LANES, value_parser = clap::value_parser!(u16).range(LANE_RANGE))]
    pub lanes: u16,
    #[arg(long, default_value_t = MAX_BATCH_ROWS, value_parser = at_least_one::<u32>())]
    pub max_batch_rows: u32,
    #[arg(long, default_value_t = MAX_DELAY_MS)]
    pub max_delay_ms: u64,
    /// HTTP/2 connections of the driver to the node
    #[arg(long, default_value_t = CONNECTIONS, value_parser = at_least_one::<usize>())]
    pub connections: usize,
    /// gRPC without TLS; production has mutual TLS
    #[arg(long)]
    pub plaintext: bool,
    /// Draw subscribers uniformly instead of by the skewed distribution
    #[arg(long)]
    pub uniform: bool,
    /// Percent of the traffic that asks for subscribers that are not loaded, to price misses
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=50))]
    pub outside: u32,
    #[command(flatten)]
    pub pin: PinArguments,
    /// The cache-node program; default: the one beside this program
    #[arg(long, value_name = "FILE")]
    pub node_binary: Option<PathBuf>,
    /// Prove the checks: the run must come out void
    #[arg(long, value_enum, value_name = "FAULT")]
    pub plant: Option<PlantArgument>,
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// The lanes wait ten seconds for a lock, and no longer.
fn pile_up_seconds(text: &str) -> Result<f64, String> {
    let value = seconds_above_zero(text)?;
    (value < 9.0).then_some(value).ok_or_else(|| "it must stay below 9".to_owned())
}

impl HlrArguments {
    pub fn options(&self, progress: Progress) -> Result<HlrOptions> {
        let level = |level: &LevelArgument| match level {
            LevelArgument::Relaxed => Level::Relaxed,
            LevelArgument::Sync => Level::Sync,
        };
        let plant = match self.plant {
            Some(PlantArgument::LoseWrites) => Some(Fault::LoseWrites { one_in: LOSE_ONE_IN }),
            Some(PlantArgument::SkipKind) => Some(Fault::SkipKind(Kind::DeleteCallForwarding)),
            Some(PlantArgument::DropIndex) | None => None,
        };
        Ok(HlrOptions {
            population: self.population.population(),
            uniform: self.uniform,
            outside_percent: self.outside,
            threads: self.threads.clone(),
            levels: self.levels.iter().map(level).collect(),
            block: Duration::from_secs_f64(self.seconds),
            ramp: Duration::from_secs_f64(self.ramp),
            repetitions: self.repetitions,
            backend_commit: self.backend_commit.in_config(),
            lanes: self.lanes,
            max_batch_rows: self.max_batch_rows,
            max_delay_ms: self.max_delay_ms,
            connections: self.connections,
            tls: !self.plaintext,
            node_binary: node::program(self.node_binary.as_deref())?,
            pinning: self.pin.pinning(),
            traffic_seed: fresh_seed(),
            plant,
            drop_index: self.plant == Some(PlantArgument::DropIndex),
            progress,
        })
    }
}

#[derive(Args, Debug)]
pub struct FlushArguments {
    #[command(flatten)]
    pub population: PopulationArguments,
    /// Numbers of lanes to drain with
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8", value_name = "LIST",
          value_parser = clap::value_parser!(u16).range(LANE_RANGE))]
    pub lanes: Vec<u16>,
    /// Commit modes of the flush transactions; the first one's figures are the headline
    #[arg(long, value_enum, value_delimiter = ',', default_value = "async,sync")]
    pub modes: Vec<CommitArgument>,
    /// Concurrent clients of the side-by-side part
    #[arg(long, default_value_t = 16, value_parser = at_least_one::<usize>())]
    pub threads: usize,
    /// Measured seconds of one of its blocks
    #[arg(long, default_value_t = 3.0, value_parser = seconds_above_zero)]
    pub seconds: f64,
    /// How often `direct cached cached direct` is run
    #[arg(long, default_value_t = 2, value_parser = at_least_one::<usize>())]
    pub repetitions: usize,
    /// Largest batch of a drain
    #[arg(long, default_value_t = 3_000, value_name = "ROWS", value_parser = at_least_one::<u32>())]
    pub drain_batch_rows: u32,
    /// Seconds during which writes pile up before a drain, below ten
    #[arg(long, default_value_t = 6.0, value_parser = pile_up_seconds)]
    pub pile_up: f64,
    /// gRPC without TLS; production has mutual TLS
    #[arg(long)]
    pub plaintext: bool,
    #[command(flatten)]
    pub pin: PinArguments,
    /// The cache-node program; default: the one beside this program
    #[arg(long, value_name = "FILE")]
    pub node_binary: Option<PathBuf>,
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl FlushArguments {
    pub fn options(&self, progress: Progress) -> Result<FlushOptions> {
        let beside = HlrOptions {
            population: self.population.population(),
            uniform: false,
            outside_percent: 0,
            threads: vec![self.threads],
            levels: vec![Level::Sync],
            block: Duration::from_secs_f64(self.seconds),
            ramp: RAMP,
            repetitions: self.repetitions,
            backend_commit: CommitArgument::Async.in_config(),
            lanes: LANES,
            max_batch_rows: MAX_BATCH_ROWS,
            max_delay_ms: MAX_DELAY_MS,
            connections: CONNECTIONS,
            tls: !self.plaintext,
            node_binary: node::program(self.node_binary.as_deref())?,
            pinning: self.pin.pinning(),
            traffic_seed: fresh_seed(),
            plant: None,
            drop_index: false,
            progress,
        };
        Ok(FlushOptions {
            beside,
            lanes: self.lanes.clone(),
            modes: self.modes.iter().map(|mode| mode.in_config()).collect(),
            drain_batch_rows: self.drain_batch_rows,
            pile_up: Duration::from_secs_f64(self.pile_up),
        })
    }
}
