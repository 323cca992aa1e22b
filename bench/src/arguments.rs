//! The command line.

pub mod staged;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use hlr_bench::population::numbering::Numbering;
use hlr_bench::population::{DEFAULT_SEED, Population};
use hlr_bench::target::connect::CacheOptions;
use staged::{FlushArguments, HlrArguments, PinArguments};
use std::path::PathBuf;
use std::time::Duration;

/// HLR population, traffic and measurement against PostgreSQL and against the cache
#[derive(Parser, Debug)]
#[command(name = "bench", version)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Make the four tables and fill them
    Load(LoadArguments),
    /// Self-check: row means, active share and the seven hit rates of what the backend holds
    Check(CheckArguments),
    /// Run the seven transactions and report latencies
    Run(RunArguments),
    /// Put two reports side by side
    Compare { backend: PathBuf, cache: PathBuf },
    /// Counter writes against the cache, each acknowledgement logged
    Writes(WritesArguments),
    /// Prove that every logged acknowledgement is in the backend
    VerifyWrites(VerifyArguments),
    /// The engine by itself, in this process: bytes per subscriber, reads, the mix on one core
    Engine(EngineArguments),
    /// The journal by itself: commits beside a bare fdatasync, group commit, recovery
    Journal(JournalArguments),
    /// The side-by-side experiment on this host: PostgreSQL directly and the cache in front of it
    Hlr(HlrArguments),
    /// What write-through costs the backend, and how fast it drains, on this host
    Flush(FlushArguments),
    /// Print the DDL of the four tables
    Ddl {
        #[arg(long, default_value = "public")]
        schema: String,
    },
}

#[derive(Args, Debug)]
pub struct PopulationArguments {
    /// Subscribers, with ids 1..=N
    #[arg(long, default_value_t = 100_000, value_name = "N", value_parser = at_least_one::<u64>())]
    pub subscribers: u64,
    /// How sub_nbr follows from s_id
    #[arg(long, value_enum, default_value_t = Numbering::Derived)]
    pub numbering: Numbering,
    #[arg(long, default_value_t = DEFAULT_SEED)]
    pub seed: u64,
}

impl PopulationArguments {
    pub fn population(&self) -> Population {
        let (seed, subscribers, numbering) = (self.seed, self.subscribers, self.numbering);
        Population { seed, subscribers, numbering }
    }
}

#[derive(Args, Debug)]
pub struct BackendArguments {
    /// postgres://user:password@host:port/database
    #[arg(long, env = "BENCH_BACKEND", hide_env_values = true, value_name = "URI")]
    pub backend: String,
    /// Schema of the four tables
    #[arg(long, default_value = "public")]
    pub schema: String,
}

#[derive(Args, Debug)]
pub struct LoadArguments {
    #[command(flatten)]
    pub population: PopulationArguments,
    #[command(flatten)]
    pub backend: BackendArguments,
    /// Parallel COPY connections
    #[arg(long, default_value_t = 2, value_parser = at_least_one::<usize>())]
    pub connections: usize,
    /// Drop the four tables first if they exist
    #[arg(long)]
    pub replace: bool,
}

#[derive(Args, Debug)]
pub struct CheckArguments {
    #[command(flatten)]
    pub population: PopulationArguments,
    #[command(flatten)]
    pub backend: BackendArguments,
    /// Write the result as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Side {
    Backend,
    Cache,
}

#[derive(Args, Debug)]
pub struct RunArguments {
    #[command(flatten)]
    pub population: PopulationArguments,
    #[arg(long, value_enum)]
    pub target: Side,
    /// Also read for the self-check before a run against the cache, when given
    #[arg(long, env = "BENCH_BACKEND", hide_env_values = true, value_name = "URI")]
    pub backend: Option<String>,
    #[arg(long, default_value = "public")]
    pub schema: String,
    #[command(flatten)]
    pub cache: CacheOptions,
    /// Concurrent clients
    #[arg(long, default_value_t = 8, value_parser = at_least_one::<usize>())]
    pub threads: usize,
    /// Measured seconds
    #[arg(long, default_value_t = 10.0, value_parser = seconds_above_zero)]
    pub seconds: f64,
    /// Seconds of traffic before the measurement
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    pub ramp: f64,
    /// Transactions per second of all clients together (open loop); default: as fast as they get
    #[arg(long, value_name = "PER_SECOND")]
    pub rate: Option<f64>,
    /// Draw subscribers uniformly instead of by the skewed distribution
    #[arg(long)]
    pub uniform: bool,
    /// Repeat the inputs of an earlier run, whose report names its seed; default: new ones. A run
    /// that repeats inserts and deletes on the rows they left behind finds little
    #[arg(long, value_name = "SEED")]
    pub traffic_seed: Option<u64>,
    /// Skip the self-check (it was made elsewhere)
    #[arg(long)]
    pub no_check: bool,
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct WritesArguments {
    #[command(flatten)]
    pub cache: CacheOptions,
    /// Subscribers 1..=N that serve as counters; those that do not exist are left out
    #[arg(long, default_value_t = 1_000, value_parser = at_least_one::<u64>())]
    pub keys: u64,
    /// Concurrent writers
    #[arg(long, default_value_t = 8, value_parser = at_least_one::<u64>())]
    pub threads: u64,
    #[arg(long, default_value_t = 10.0, value_parser = seconds_above_zero)]
    pub seconds: f64,
    /// Seconds an unsettled write is retried after the end
    #[arg(long, default_value_t = 60.0, value_parser = seconds)]
    pub grace: f64,
    /// Writes per second of all writers together
    #[arg(long, value_name = "PER_SECOND")]
    pub rate: Option<f64>,
    /// Acknowledged writes, one line each; doubtful ones go to FILE.doubtful
    #[arg(long, value_name = "FILE")]
    pub log: PathBuf,
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct VerifyArguments {
    #[command(flatten)]
    pub backend: BackendArguments,
    #[arg(long, value_name = "FILE")]
    pub log: PathBuf,
    /// Seconds to wait for the write-behind queue
    #[arg(long, default_value_t = 60.0, value_parser = seconds)]
    pub wait: f64,
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct EngineArguments {
    /// Subscribers, with numbers that do not follow from their ids
    #[arg(long, default_value_t = 1_000_000, value_name = "N", value_parser = at_least_one::<u64>())]
    pub subscribers: u64,
    /// Length of each timed part
    #[arg(long, default_value_t = 10.0, value_parser = seconds_above_zero)]
    pub seconds: f64,
    /// Memory budget of the store
    #[arg(long, default_value_t = 22 << 30, value_name = "BYTES")]
    pub capacity_bytes: u64,
    /// Draw keys uniformly instead of with the workload's skew
    #[arg(long)]
    pub uniform: bool,
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct JournalArguments {
    /// A folder on the volume to measure
    #[arg(long, default_value_os_t = std::env::temp_dir(), value_name = "DIR")]
    pub directory: PathBuf,
    /// Length of each timed part
    #[arg(long, default_value_t = 10.0, value_parser = seconds_above_zero)]
    pub seconds: f64,
    /// Bytes of a frame: a write of the workload with the whole instance
    #[arg(long, default_value_t = 400, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub payload_bytes: u32,
    /// What a start finds
    #[arg(long, default_value_t = 512 << 20, value_name = "BYTES", value_parser = at_least_one::<u64>())]
    pub recovery_bytes: u64,
    /// Subscribers of a node whose stop and starts are timed, over a PostgreSQL of its own; 0: none
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    pub subscribers: u64,
    #[command(flatten)]
    pub pin: PinArguments,
    /// The cache-node program; default: the one beside this program
    #[arg(long, value_name = "FILE")]
    pub node_binary: Option<PathBuf>,
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// What is counted from one.
fn at_least_one<T: TryFrom<u64>>() -> RangedU64ValueParser<T> {
    RangedU64ValueParser::new().range(1..)
}

fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "it is no number".to_owned())?;
    let fits = Duration::try_from_secs_f64(value).is_ok();
    fits.then_some(value).ok_or_else(|| "it must be 0 or more".to_owned())
}

fn seconds_above_zero(text: &str) -> Result<f64, String> {
    seconds(text)
        .and_then(|s| (s > 0.0).then_some(s).ok_or_else(|| "it must be above 0".to_owned()))
}

/// Another one at each start.
pub fn fresh_seed() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |s| s.as_nanos() as u64) ^ u64::from(std::process::id()) << 40
}
