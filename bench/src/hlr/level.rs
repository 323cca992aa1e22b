//! One durability level: both sides on copies of the same population, all thread counts, and the
//! proof at the end.

use super::block::{self, Block, Cost, Side, drained};
use super::result::{Cell, LevelReport, Summary};
use super::waits::Observer;
use super::{HlrOptions, Level, Stage, baseline, verify};
use crate::drive::{Pace, RunOptions, Watchers, hit_rate_failure, mix_failure};
use crate::flush_lag::{FlushLag, Offer};
use crate::ledger::{Ledger, Tally};
use crate::stage::node::Node;
use crate::target::Target;
use crate::target::backend::BackendTarget;
use crate::target::cache::CacheTarget;
use crate::target::planted::Planted;
use anyhow::{Context, Result, ensure};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// What is wrong with a level, in the order found.
pub type Faults = Vec<String>;

struct Running<'a> {
    options: &'a HlrOptions,
    level: Level,
    direct: Side<'a>,
    cached: Side<'a>,
    direct_ledger: Arc<Ledger>,
    cached_ledger: Arc<Ledger>,
    client: cachetier_client::Client,
    /// Of the traffic; another one for every block.
    seed: u64,
    faults: Faults,
    /// Counted by a planted fault.
    writes: Arc<AtomicU64>,
}

/// Runs a level; its faults void the whole experiment.
pub async fn run(
    options: &HlrOptions,
    stage: &Stage,
    level: Level,
) -> Result<(LevelReport, Faults)> {
    let (direct, cached) = (format!("direct_{}", level.name()), format!("cached_{}", level.name()));
    for database in [&direct, &cached] {
        stage.postgres.copy_database(super::BASE, database).await?;
    }
    if options.drop_index {
        let client = stage.postgres.connect(&direct).await?;
        let drop = "ALTER TABLE subscriber DROP CONSTRAINT subscriber_sub_nbr_key";
        client.batch_execute(drop).await?;
    }
    let settings = options.node_settings(level);
    let node = Node::start(&options.pinning, &stage.postgres, &cached, settings).await?;
    let report = on_stage(options, stage, level, &node, [direct.clone(), cached.clone()]).await;
    drop(node);
    for database in [direct, cached] {
        stage.postgres.drop_database(&database).await?;
    }
    report
}

async fn on_stage(
    options: &HlrOptions,
    stage: &Stage,
    level: Level,
    node: &Node,
    [direct, cached]: [String; 2],
) -> Result<(LevelReport, Faults)> {
    let client = node.client().await?;
    let (offer, lag) = FlushLag::start(client.clone());
    let (population, cached_up_to) = (options.population, options.cached_up_to());
    let ledger = || Arc::new(Ledger::new(population, population.subscribers));
    let (direct_ledger, cached_ledger) = (ledger(), ledger());
    let started_at = node.status().await?;
    let instances = started_at.instances;
    ensure!(instances == cached_up_to, "{instances} of {cached_up_to} subscribers are cached");
    let mut running = Running {
        options,
        level,
        direct: side(stage, direct, None, &direct_ledger, None).await?,
        cached: side(stage, cached, Some(node), &cached_ledger, Some(offer)).await?,
        direct_ledger,
        cached_ledger,
        client,
        seed: options.traffic_seed,
        faults: Faults::new(),
        writes: Planted::counter(options.plant),
    };
    running.check_baseline().await?;
    let mut cells = Vec::new();
    // An unfair opponent is not even measured.
    let threads = if running.faults.is_empty() { options.threads.as_slice() } else { &[] };
    for threads in threads {
        cells.push(running.cell(*threads).await?);
    }
    let (report, faults) = running.prove(cells, started_at.appended).await?;
    // The last offer went with the run.
    let lags = lag.finish().await?;
    Ok((LevelReport { flush_lag_ms: Summary::of_lags(&lags), ..report }, faults))
}

async fn side<'a>(
    stage: &'a Stage,
    database: String,
    node: Option<&'a Node>,
    ledger: &Arc<Ledger>,
    positions: Option<Offer>,
) -> Result<Side<'a>> {
    let uri = stage.postgres.uri(&database);
    let observers = [Arc::new(Observer::open(&uri).await?), Arc::new(Observer::open(&uri).await?)];
    let watchers = Watchers { ledger: Some(ledger.clone()), positions };
    let clients = Vec::new();
    Ok(Side { database, postgres: &stage.postgres, node, clients, watchers, observers })
}

impl Running<'_> {
    async fn check_baseline(&mut self) -> Result<()> {
        let uri = self.direct.postgres.uri(&self.direct.database);
        for finding in baseline::unfair(&uri).await? {
            self.faults.push(format!("the direct side is unfair: {finding}"));
        }
        Ok(())
    }

    /// One thread count: warm-up, then `direct cached cached direct` as often as asked for, then
    /// the cache's own peak.
    async fn cell(&mut self, threads: usize) -> Result<Cell> {
        self.open_clients(threads).await?;
        let (ramp, block) = (self.options.ramp, self.options.block);
        let warm = self.block(false, ramp + block, Duration::ZERO, None).await?;
        drop(warm);
        let mut repetitions = Vec::new();
        // Of all direct blocks so far at this count: one alone is a matter of luck.
        let mut rates = Vec::new();
        for _ in 0..self.options.repetitions {
            let mut direct = self.block(false, block, ramp, None).await?;
            rates.push(direct.per_second());
            let rate = rates.iter().sum::<f64>() / rates.len() as f64;
            let mut cached = self.block(true, block, ramp, Some(rate)).await?;
            let again = self.block(true, block, ramp, Some(rate)).await?;
            merge(&mut cached, &again)?;
            let again = self.block(false, block, ramp, None).await?;
            rates.push(again.per_second());
            merge(&mut direct, &again)?;
            self.check(threads, "direct", &direct);
            self.check(threads, "cached", &cached);
            self.options.progress.block(self.level, threads, &direct, &cached);
            repetitions.push((direct, cached));
        }
        let peak = self.block(true, block, ramp, None).await?;
        self.check(threads, "cached", &peak);
        Cell::new(threads, &repetitions, &peak)
    }

    async fn open_clients(&mut self, threads: usize) -> Result<()> {
        let uri = self.direct.postgres.uri(&self.direct.database);
        self.direct.clients.clear();
        for _ in 0..threads {
            let target = BackendTarget::open(&uri, "public").await?;
            self.direct.clients.push(Arc::new(Target::Backend(Box::new(target))));
        }
        let writes = self.writes.clone();
        let cached = (0..threads).map(|_| {
            let target = Target::Cache(CacheTarget::new(self.client.clone()));
            Arc::new(match self.options.plant {
                Some(fault) => {
                    Target::Planted(Box::new(Planted::new(target, fault, writes.clone())))
                }
                None => target,
            })
        });
        self.cached.clients = cached.collect();
        Ok(())
    }

    async fn block(
        &mut self,
        cached: bool,
        duration: Duration,
        ramp: Duration,
        rate: Option<f64>,
    ) -> Result<Block> {
        self.seed = self.seed.wrapping_add(1);
        let options = RunOptions {
            population: self.options.population,
            keys: self.options.keys(),
            uniform: self.options.uniform,
            seed: self.seed,
            duration,
            ramp,
            rate,
            pace: Pace::WhenDue,
            writes_only: false,
            never_sleep: true,
        };
        let side = if cached { &self.cached } else { &self.direct };
        block::run(side, &options).await
    }

    fn check(&mut self, threads: usize, side: &str, block: &Block) {
        let transactions = block.measured.transactions();
        let mut faults: Faults = [hit_rate_failure(&transactions), mix_failure(&transactions)]
            .into_iter()
            .flatten()
            .collect();
        faults.extend(block.measured.failures.iter().map(|(class, n)| format!("{n} × {class}")));
        if side == "direct" && block.cost.sequential_scans > 0 {
            let scans = block.cost.sequential_scans;
            faults.push(format!("{scans} scans of whole tables: an index is missing or unused"));
        }
        let at = format!("{} {side} at {threads} threads", self.level.name());
        self.faults.extend(faults.into_iter().map(|fault| format!("{at}: {fault}")));
    }

    async fn prove(mut self, cells: Vec<Cell>, appended: u64) -> Result<(LevelReport, Faults)> {
        let node = self.cached.node.context("the cached side has a node")?;
        drained(node).await?;
        let (direct, cached) = (self.direct_ledger.tally(), self.cached_ledger.tally());
        let status = node.status().await?;
        self.check_tally("direct", &direct);
        self.check_tally("cached", &cached);
        let (sent, applied) = (cached.positions, status.appended - appended);
        if applied < sent || applied > sent + cached.in_doubt {
            let doubt = cached.in_doubt;
            self.faults.push(format!(
                "{sent} writes were acknowledged with a position ({doubt} in doubt), the journal \
                 has {applied}"
            ));
        }
        if cached.positions + WITHOUT_POSITION_PER_MILLION * cached.acknowledged / 1_000_000
            < cached.acknowledged
        {
            self.faults.push(format!(
                "{} of {} acknowledged writes have no position",
                cached.acknowledged - cached.positions,
                cached.acknowledged
            ));
        }
        if status.rejects > 0 {
            self.faults.push(format!("the backend rejected {} transactions", status.rejects));
        }
        let options = self.options;
        let prove = async |side: &Side<'_>, cache, ledger: &Ledger| {
            let backend = side.postgres.connect(&side.database).await?;
            let (population, up_to) = (options.population, options.cached_up_to());
            verify::verify(&backend, cache, population, ledger, up_to).await
        };
        let direct_rows = prove(&self.direct, None, &self.direct_ledger).await?;
        let cached_rows = prove(&self.cached, Some(&self.client), &self.cached_ledger).await?;
        let differences = direct_rows.differences() + cached_rows.differences();
        if differences > 0 {
            self.faults.push(format!("{differences} rows differ: {direct_rows:?} {cached_rows:?}"));
        }
        if cached_rows.not_cached > 0 {
            let n = cached_rows.not_cached;
            self.faults.push(format!("{n} loaded subscribers were not served from the cache"));
        }
        let mut cost = (Cost::default(), Cost::default());
        for cell in &cells {
            cost.0.add(&cell.direct.cost);
            cost.1.add(&cell.cached.cost);
        }
        let report = LevelReport {
            cells,
            direct_cost: cost.0,
            cached_cost: cost.1,
            direct_tally: direct,
            cached_tally: cached,
            direct_rows,
            cached_rows,
            flush_lag_ms: Summary::default(),
        };
        Ok((report, self.faults))
    }

    fn check_tally(&mut self, side: &str, tally: &Tally) {
        let Tally { doubled_positions, wrong_values, wrong_finds, .. } = tally;
        let wrong = [
            (*doubled_positions, "writes have the position of another"),
            (*wrong_values, "reads showed a value that was overwritten or never written"),
            (*wrong_finds, "attempts found what is not there or missed what is"),
        ];
        for (count, what) in wrong.into_iter().filter(|(count, _)| *count > 0) {
            self.faults.push(format!("{} {side}: {count} {what}", self.level.name()));
        }
    }
}

/// Only an update that changes nothing has no position: one in 512 of a tenth of the writes.
const WITHOUT_POSITION_PER_MILLION: u64 = 2_000;

fn merge(block: &mut Block, other: &Block) -> Result<()> {
    block.measured.merge(&other.measured)?;
    block.cost.add(&other.cost);
    block.seconds += other.seconds;
    Ok(())
}
