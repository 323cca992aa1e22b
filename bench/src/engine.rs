//! The engine by itself: bytes per subscriber, nanoseconds per read, the whole mix on one core.
//!
//! One thread, no network, no journal: the sink counts commits and writes nothing, so the figures
//! are the store's own. Requests are made before the clock runs, and rates are per second of the
//! thread's own processor time, so that neighbours on the machine do not show in them. Memory is
//! the process's resident growth, set against what the engine says it holds.

mod answer;
mod requests;

use crate::population::{DEFAULT_SEED, Population, numbering::Numbering};
use crate::traffic::{Input, Keys, Kind, Traffic};
use answer::Answer;
use anyhow::{Context, Result, ensure};
use cachetier_engine::{
    Commit, CommitRefused, CommitSink, Engine, EngineOptions, Installed, ReadStatus, TransactError,
};
use cachetier_model::RootKey;
use comfy_table::{Table, presets};
use hdrhistogram::Histogram;
use requests::{Request, Whom, complete, instance, request, root_key, schema};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What `bench engine` measures.
#[derive(Clone, Copy, Debug)]
pub struct EngineBenchOptions {
    pub subscribers: u64,
    /// Length of each timed part.
    pub seconds: f64,
    pub capacity_bytes: u64,
    pub uniform: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct EngineReport {
    pub subscribers: u64,
    /// Resident memory per subscriber, indexes and slack included.
    pub bytes_per_subscriber: f64,
    /// The same by the engine's own accounts.
    pub accounted_bytes_per_subscriber: f64,
    /// How far the accounts are from resident memory, in percent of the budget used.
    pub engine_overhead_percent_of_budget: f64,
    /// Installed per second, generating the subscriber not counted.
    pub load_per_s: f64,
    pub read_p50_ns: u64,
    pub read_p99_ns: u64,
    pub mix_per_s_core: f64,
    pub mix_batch16_per_s_core: f64,
    /// Per transaction of the mix: mean nanoseconds, one at a time.
    pub mean_ns: Vec<(&'static str, f64)>,
}

impl EngineReport {
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header(["engine, one thread", ""]);
        let mut row = |what: &str, figure: String| {
            table.add_row([what.to_owned(), figure]);
        };
        row("subscribers", self.subscribers.to_string());
        row("resident bytes per subscriber", format!("{:.1}", self.bytes_per_subscriber));
        row("  by the engine's accounts", format!("{:.1}", self.accounted_bytes_per_subscriber));
        row("installed per second", format!("{:.0}", self.load_per_s));
        row("read p50 / p99 (ns)", format!("{} / {}", self.read_p50_ns, self.read_p99_ns));
        row("mix per second, one at a time", format!("{:.0}", self.mix_per_s_core));
        row("mix per second, batches of 16", format!("{:.0}", self.mix_batch16_per_s_core));
        for (name, mean) in &self.mean_ns {
            row(&format!("{name} mean (ns)"), format!("{mean:.0}"));
        }
        table.to_string()
    }
}

/// Counts commits.
#[derive(Default)]
struct Counter(AtomicU64);

impl CommitSink for Counter {
    fn commit(&self, _: &Commit<'_>) -> Result<u64, CommitRefused> {
        Ok(self.0.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

const BATCH: usize = 16;
/// Requests prepared at a time: so many that the clock is read rarely, so few that they are in the
/// cache when they are executed, as those are that a server just decoded.
const BLOCK: usize = 512;
/// Subscribers generated at a time; few, since their unpacked form counts as resident.
const LOAD_BLOCK: usize = 256;

pub fn run(options: EngineBenchOptions) -> Result<EngineReport> {
    let population = Population {
        seed: DEFAULT_SEED,
        subscribers: options.subscribers,
        numbering: Numbering::Permuted,
    };
    let engine_options = EngineOptions { capacity_bytes: options.capacity_bytes };
    let before = resident_bytes()?;
    let engine = Engine::new(Arc::new(schema()), engine_options)?;
    let load_per_s = load(&engine, population)?;
    let resident = (resident_bytes()? - before) as f64;
    let accounted = engine.usage().bytes as f64;
    let keys = if options.uniform {
        Keys::uniform(options.subscribers)
    } else {
        Keys::skewed(options.subscribers)
    };
    let mut bench = Bench {
        engine,
        sink: Counter::default(),
        traffic: Traffic::new(population, keys, DEFAULT_SEED, 0),
        seconds: Duration::from_secs_f64(options.seconds),
        dirty: Vec::new(),
        answer: Answer::default(),
    };
    let reads = bench.read_latency()?;
    let mean_ns = Kind::ALL
        .iter()
        .map(|kind| Ok((kind.name(), bench.mean_ns(*kind)?)))
        .collect::<Result<_>>()?;
    let each = options.subscribers as f64;
    Ok(EngineReport {
        subscribers: options.subscribers,
        bytes_per_subscriber: resident / each,
        accounted_bytes_per_subscriber: accounted / each,
        engine_overhead_percent_of_budget: (resident - accounted).abs() / accounted * 100.0,
        load_per_s,
        read_p50_ns: reads.value_at_quantile(0.5),
        read_p99_ns: reads.value_at_quantile(0.99),
        mix_per_s_core: bench.mix(1)?,
        mix_batch16_per_s_core: bench.mix(BATCH)?,
        mean_ns,
    })
}

fn load(engine: &Engine, population: Population) -> Result<f64> {
    let ticket = engine.open_ticket()?;
    let mut busy = Duration::ZERO;
    for first in (1..=population.subscribers).step_by(LOAD_BLOCK) {
        let last = (first + LOAD_BLOCK as u64 - 1).min(population.subscribers);
        let block: Vec<_> = (first..=last)
            .map(|id| (root_key(id as i64), instance(&population.subscriber(id))))
            .collect();
        let start = processor_time()?;
        for (key, instance) in block {
            let installed = engine.install(&ticket, &key, Some(instance))?;
            ensure!(installed == Installed::Inserted, "subscriber not installed: {installed:?}");
        }
        busy += processor_time()? - start;
    }
    engine.close_ticket(ticket);
    Ok(population.subscribers as f64 / busy.as_secs_f64())
}

struct Bench {
    engine: Engine,
    sink: Counter,
    traffic: Traffic,
    seconds: Duration,
    /// Committed and not yet reported as flushed.
    dirty: Vec<(RootKey, u64)>,
    /// Where reads are encoded.
    answer: Answer,
}

impl Bench {
    /// Whole root rows by root key, each timed.
    fn read_latency(&mut self) -> Result<Histogram<u64>> {
        let mut histogram = Histogram::<u64>::new(3)?;
        let begin = Instant::now();
        while begin.elapsed() < self.seconds {
            let block = self.block(|traffic| traffic.next_input(Kind::GetSubscriberData).1);
            for (whom, request) in block {
                let start = Instant::now();
                self.one(&whom, request)?;
                histogram.record(start.elapsed().as_nanos() as u64)?;
            }
        }
        Ok(histogram)
    }

    fn mean_ns(&mut self, kind: Kind) -> Result<f64> {
        let (mut busy, mut count) = (Duration::ZERO, 0_u64);
        while busy < self.seconds / 7 {
            let block = self.block(|traffic| traffic.next_input(kind).1);
            count += block.len() as u64;
            busy += self.timed(block, 1)?;
        }
        Ok(busy.as_nanos() as f64 / count as f64)
    }

    /// Transactions of the mix per second, in batches of this many.
    fn mix(&mut self, batch: usize) -> Result<f64> {
        let (mut busy, mut count) = (Duration::ZERO, 0_u64);
        while busy < self.seconds {
            let block = self.block(|traffic| {
                let kind = traffic.next_kind();
                traffic.next_input(kind).1
            });
            count += block.len() as u64;
            busy += self.timed(block, batch)?;
        }
        Ok(count as f64 / busy.as_secs_f64())
    }

    fn block(&mut self, next: impl Fn(&mut Traffic) -> Input) -> Vec<(Whom, Request)> {
        (0..BLOCK).map(|_| request(&next(&mut self.traffic))).collect()
    }

    fn timed(&mut self, block: Vec<(Whom, Request)>, batch: usize) -> Result<Duration> {
        let start = processor_time()?;
        let mut rest = block.into_iter();
        loop {
            let group: Vec<(Whom, Request)> = rest.by_ref().take(batch).collect();
            match group.len() {
                0 => break,
                1 => group.into_iter().try_for_each(|(whom, request)| self.one(&whom, request))?,
                _ => self.batch(group)?,
            }
        }
        let busy = processor_time()? - start;
        // as the write-behind would, so that the number of dirty instances stays bounded
        for (key, sequence) in self.dirty.drain(..) {
            self.engine.flushed(&key, sequence);
        }
        Ok(busy)
    }

    /// Resolves, fetches, then runs the group.
    fn batch(&mut self, group: Vec<(Whom, Request)>) -> Result<()> {
        let numbers: Vec<_> = group
            .iter()
            .filter_map(|(whom, _)| match whom {
                Whom::Number(number) => Some(number),
                Whom::Root(_) => None,
            })
            .collect();
        let mut resolved = self.engine.resolve_batch(0, &numbers).into_iter();
        self.engine.prefetch(group.iter().filter_map(|(whom, _)| match whom {
            Whom::Root(key) => Some(key),
            Whom::Number(_) => None,
        }));
        for (whom, request) in group {
            match whom {
                Whom::Root(key) => self.execute(&key, request)?,
                Whom::Number(_) => {
                    let root = resolved.next().and_then(|r| r.root).context("number not found")?;
                    self.execute(&root, request)?;
                }
            }
        }
        Ok(())
    }

    fn one(&mut self, whom: &Whom, request: Request) -> Result<()> {
        match whom {
            Whom::Root(key) => self.execute(key, request),
            Whom::Number(number) => {
                let root = self.engine.resolve(0, number).root.context("number not found")?;
                self.execute(&root, request)
            }
        }
    }

    fn execute(&mut self, key: &RootKey, mut request: Request) -> Result<()> {
        complete(&mut request, key);
        match request {
            Request::Read(plan) => {
                self.answer.clear();
                let status = self.engine.read_into(key, None, &plan, &mut self.answer)?;
                ensure!(matches!(status, ReadStatus::Found { .. }), "subscriber not found");
                std::hint::black_box(self.answer.bytes());
            }
            Request::Write(transaction) => {
                match self.engine.transact(key, &transaction, &self.sink) {
                    Ok(done) if done.sequence > 0 => self.dirty.push((key.clone(), done.sequence)),
                    Ok(_) => {}
                    // the logical misses of the workload
                    Err(
                        TransactError::RowCount { .. }
                        | TransactError::ForeignKey { .. }
                        | TransactError::PrimaryKey { .. },
                    ) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }
}

/// Processor time of this thread so far.
fn processor_time() -> Result<Duration> {
    let path = "/proc/thread-self/schedstat";
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    let nanos = text.split_whitespace().next().context("schedstat is empty")?.parse()?;
    Ok(Duration::from_nanos(nanos))
}

/// Resident memory of this process.
fn resident_bytes() -> Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").context("reading /proc/self/statm")?;
    let pages: u64 = statm.split_whitespace().nth(1).context("statm has no resident")?.parse()?;
    Ok(pages * 4_096)
}
