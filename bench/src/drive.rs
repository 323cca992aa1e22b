//! The driver: clients that send the mix to a target and measure every attempt.
//!
//! Closed loop by default. With a rate, each client has its own schedule and latency counts from
//! the intended send time, so that a stall is not hidden by the requests it kept from being sent;
//! [`Pace`] says whether a request that is due waits for the one before.

use crate::flush_lag::Offer;
use crate::ledger::Ledger;
use crate::pace;
use crate::population::Population;
use crate::report::{Machine, Report, TransactionReport};
use crate::self_check::HIT_RATE_TOLERANCE_POINTS;
use crate::target::{Answer, Outcome, Target};
use crate::traffic::{Input, Keys, Kind, Traffic};
use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Longest latency recorded; a longer one counts as this.
const LATENCY_MAX_NS: u64 = 120_000_000_000;

/// Transactions of one client under way at most; more are sent late, which their latency shows.
const OUTSTANDING_MAX: usize = 1_024;

/// Pause of a client after a failed attempt, so that a dead target is not hammered.
const FAILURE_PAUSE: Duration = Duration::from_millis(20);

/// Running the mix itself replaces loaded forwardings by inserted ones, which lets the share of
/// facilities with a late forwarding grow by up to one point on the hottest subscribers.
const DRIFT_POINTS: f64 = 1.0;

/// What a client with a rate does when a transaction is due and the last is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Waits for the answer, as a connection does that takes one at a time.
    InTurn,
    /// Sends it: an open loop.
    WhenDue,
}

#[derive(Clone, Debug)]
pub struct RunOptions {
    pub population: Population,
    pub keys: Keys,
    pub uniform: bool,
    /// Of the traffic, not of the population.
    pub seed: u64,
    pub duration: Duration,
    /// Sent and not measured.
    pub ramp: Duration,
    /// All clients together, transactions per second; as fast as they go when absent.
    pub rate: Option<f64>,
    /// What a rate means.
    pub pace: Pace,
    /// Leaves the reads out, for what has to do with writes alone.
    pub writes_only: bool,
    /// The driver never sleeps, so that no answer waits for it to wake up: for a driver that has
    /// its processor to itself.
    pub never_sleep: bool,
}

/// Who looks at the answers beside the histograms.
#[derive(Clone, Default)]
pub struct Watchers {
    pub ledger: Option<Arc<Ledger>>,
    /// Positions of acknowledged writes.
    pub positions: Option<Offer>,
}

/// What one client, or several blocks of a run together, measured.
#[derive(Clone, Debug)]
pub struct Measured {
    pub latencies_ns: Vec<Histogram<u64>>,
    pub hits: [u64; 7],
    pub failures: BTreeMap<String, u64>,
    /// Attempts, those of the ramp included.
    pub sent: u64,
}

impl Measured {
    pub fn new() -> Result<Self> {
        let histogram = || Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3);
        let latencies_ns = (0..7).map(|_| histogram()).collect::<Result<_, _>>()?;
        Ok(Self { latencies_ns, hits: [0; 7], failures: BTreeMap::new(), sent: 0 })
    }

    fn record(&mut self, kind: Kind, outcome: Outcome, latency: Duration) {
        match outcome {
            Outcome::Failed(class) => *self.failures.entry(class).or_default() += 1,
            Outcome::Hit | Outcome::Miss => {
                if let Some(histogram) = self.latencies_ns.get_mut(kind.index()) {
                    histogram.saturating_record(latency.as_nanos() as u64);
                }
                if let Some(hits) = self.hits.get_mut(kind.index()) {
                    *hits += u64::from(outcome == Outcome::Hit);
                }
            }
        }
    }

    /// Attempts that ended with an answer.
    pub fn count(&self) -> u64 {
        self.latencies_ns.iter().map(Histogram::len).sum()
    }

    /// By name of the transaction.
    pub fn transactions(&self) -> BTreeMap<String, TransactionReport> {
        Kind::ALL
            .into_iter()
            .zip(&self.latencies_ns)
            .zip(self.hits)
            .map(|((kind, latencies), hits)| {
                (kind.name().to_owned(), TransactionReport::new(kind, latencies, hits))
            })
            .collect()
    }

    pub fn merge(&mut self, other: &Measured) -> Result<()> {
        for (mine, theirs) in self.latencies_ns.iter_mut().zip(&other.latencies_ns) {
            mine.add(theirs).context("histograms of one run must have the same bounds")?;
        }
        self.hits.iter_mut().zip(other.hits).for_each(|(mine, theirs)| *mine += theirs);
        self.sent += other.sent;
        for (class, count) in &other.failures {
            *self.failures.entry(class.clone()).or_default() += count;
        }
        Ok(())
    }
}

/// Runs one client per target and reports.
pub async fn run(options: &RunOptions, name: &str, targets: Vec<Target>) -> Result<Report> {
    let threads = targets.len();
    let total = measure(
        options,
        &targets.into_iter().map(Arc::new).collect::<Vec<_>>(),
        &Watchers::default(),
    )
    .await?;
    Ok(report(options, name, threads, &total))
}

/// Runs one client per target and gives what they measured.
pub async fn measure(
    options: &RunOptions,
    targets: &[Arc<Target>],
    watchers: &Watchers,
) -> Result<Measured> {
    let threads = targets.len();
    let measured_from = Instant::now() + options.ramp;
    let until = measured_from + options.duration;
    let interval = options.rate.map(|rate| Duration::from_secs_f64(threads as f64 / rate));
    let mut clients = Vec::with_capacity(threads);
    for (number, target) in targets.iter().enumerate() {
        let measured = Measured::new()?;
        let traffic = Traffic::new(options.population, options.keys, options.seed, number as u64);
        let offset = interval.map(|i| i.mul_f64(number as f64 / threads as f64));
        let attempts = Attempts {
            target: target.clone(),
            watchers: watchers.clone(),
            measured_from,
            measured: Mutex::new(measured),
        };
        let (writes_only, pace) = (options.writes_only, options.pace);
        let attempts = Arc::new(attempts);
        let client = Client { attempts, traffic, writes_only, pace, interval, until };
        clients.push(tokio::spawn(client.run(offset.unwrap_or_default())));
    }
    let _awake = options.never_sleep.then(Awake::new);
    let mut total = Measured::new()?;
    for client in clients {
        total.merge(&client.await??)?;
    }
    Ok(total)
}

/// A task that always has something to do, until it is dropped.
struct Awake(tokio::task::JoinHandle<()>);

impl Awake {
    fn new() -> Self {
        Self(tokio::spawn(async {
            loop {
                tokio::task::yield_now().await;
            }
        }))
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What the attempts of one client have in common.
struct Attempts {
    target: Arc<Target>,
    watchers: Watchers,
    measured_from: Instant,
    measured: Mutex<Measured>,
}

impl Attempts {
    /// Sends one transaction that was due at `intended`; true when it failed.
    async fn attempt(&self, id: u64, input: Input, intended: Instant) -> bool {
        let begun = self.watchers.ledger.as_ref().map(|l| l.begin(id, &input));
        let Answer { outcome, seen, position } = self.target.execute(&input).await;
        let latency = intended.elapsed();
        if let (Some(ledger), Some(begun)) = (&self.watchers.ledger, begun) {
            ledger.end(begun, id, &input, &outcome, seen, position.as_ref());
        }
        if let (Some(positions), Some(position)) = (&self.watchers.positions, position) {
            positions.offer(position);
        }
        let failed = matches!(outcome, Outcome::Failed(_));
        let mut measured = self.measured.lock();
        measured.sent += 1;
        if intended >= self.measured_from {
            measured.record(input.kind(), outcome, latency);
        }
        failed
    }
}

struct Client {
    attempts: Arc<Attempts>,
    traffic: Traffic,
    writes_only: bool,
    pace: Pace,
    /// Between two transactions of this client; `None` as fast as it goes.
    interval: Option<Duration>,
    until: Instant,
}

impl Client {
    async fn run(mut self, offset: Duration) -> Result<Measured> {
        let mut intended = Instant::now() + offset;
        let outstanding = Arc::new(Semaphore::new(OUTSTANDING_MAX));
        loop {
            match self.interval {
                Some(_) => pace::until(intended).await,
                None => intended = Instant::now(),
            }
            if intended >= self.until {
                break;
            }
            let (id, input) = self.next_input();
            if self.pace == Pace::WhenDue && self.interval.is_some() {
                let permit = outstanding.clone().acquire_owned().await?;
                let attempts = self.attempts.clone();
                tokio::spawn(async move {
                    attempts.attempt(id, input, intended).await;
                    drop(permit);
                });
            } else if self.attempts.attempt(id, input, intended).await {
                tokio::time::sleep(FAILURE_PAUSE).await;
            }
            intended += self.interval.unwrap_or_default();
        }
        // all of them: every answer is in
        let _all = outstanding.acquire_many(OUTSTANDING_MAX as u32).await?;
        let empty = Measured::new()?;
        Ok(std::mem::replace(&mut *self.attempts.measured.lock(), empty))
    }

    fn next_input(&mut self) -> (u64, Input) {
        let mut kind = self.traffic.next_kind();
        while self.writes_only && kind.reads_only() {
            kind = self.traffic.next_kind();
        }
        self.traffic.next_input(kind)
    }
}

fn report(options: &RunOptions, name: &str, threads: usize, total: &Measured) -> Report {
    let transactions = total.transactions();
    let seconds = options.duration.as_secs_f64();
    let count: u64 = transactions.values().map(|t| t.count).sum();
    let sum_ms: f64 = transactions.values().map(|t| t.mean_ms * t.count as f64).sum();
    let void = hit_rate_failure(&transactions);
    Report {
        target: name.to_owned(),
        threads,
        seconds,
        rate: options.rate,
        subscribers: options.keys.subscribers,
        uniform: options.uniform,
        seed: options.seed,
        per_second: count as f64 / seconds,
        mean_of_seven_ms: transactions.values().map(|t| t.mean_ms).sum::<f64>() / 7.0,
        mix_weighted_mean_ms: sum_ms / count.max(1) as f64,
        transactions,
        failures: total.failures.clone(),
        void,
        self_check: None,
        machine: Machine::here(),
        backend_settings: BTreeMap::new(),
    }
}

/// A run whose hit rates are not the workload's did not run the workload. The allowance is the
/// self-check's, the drift, and four standard errors of the sample.
pub fn hit_rate_failure(transactions: &BTreeMap<String, TransactionReport>) -> Option<String> {
    let wrong: Vec<String> = transactions
        .iter()
        .filter(|(_, t)| {
            let p = t.expected_hit_rate_percent / 100.0;
            let noise = 400.0 * (p * (1.0 - p) / t.count.max(1) as f64).sqrt();
            let allowed = HIT_RATE_TOLERANCE_POINTS + DRIFT_POINTS + noise;
            t.count == 0 || (t.hit_rate_percent - t.expected_hit_rate_percent).abs() > allowed
        })
        .map(|(name, t)| match t.count {
            0 => format!("{name} never succeeded"),
            _ => format!(
                "{name} found {:.1} % instead of {:.1} %",
                t.hit_rate_percent, t.expected_hit_rate_percent
            ),
        })
        .collect();
    (!wrong.is_empty()).then(|| wrong.join("; "))
}

/// A run whose transactions are not mixed as the workload says left some of them out. Allowed are
/// a fifth of a point and four standard errors of the sample.
pub fn mix_failure(transactions: &BTreeMap<String, TransactionReport>) -> Option<String> {
    let total = transactions.values().map(|t| t.count).sum::<u64>().max(1) as f64;
    let wrong: Vec<String> = Kind::ALL
        .into_iter()
        .filter_map(|kind| {
            let count = transactions.get(kind.name()).map_or(0, |t| t.count);
            let p = f64::from(kind.mix_percent()) / 100.0;
            let share = count as f64 / total;
            let allowed = 0.002 + 4.0 * (p * (1.0 - p) / total).sqrt();
            let name = kind.name();
            ((share - p).abs() > allowed).then(|| {
                format!("{name} is {:.2} % of the mix instead of {:.0} %", 100.0 * share, 100.0 * p)
            })
        })
        .collect();
    (!wrong.is_empty()).then(|| wrong.join("; "))
}
