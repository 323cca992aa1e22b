//! The commands: library calls, text and JSON out.

use crate::arguments::staged::{FlushArguments, HlrArguments};
use crate::arguments::{
    Arguments, BackendArguments, CheckArguments, Command, EngineArguments, JournalArguments,
    LoadArguments, RunArguments, Side, VerifyArguments, WritesArguments, fresh_seed,
};
use anyhow::{Context, Result};
use hlr_bench::drive::{self, Pace, RunOptions};
use hlr_bench::engine::{self, EngineBenchOptions};
use hlr_bench::flush;
use hlr_bench::hlr::{self, Progress};
use hlr_bench::journal::{self, JournalBenchOptions};
use hlr_bench::load::{self, LoadOptions};
use hlr_bench::population::{Population, tables};
use hlr_bench::report::Report;
use hlr_bench::self_check::SelfCheck;
use hlr_bench::stage::node;
use hlr_bench::stage::signals::unless_told_to_end;
use hlr_bench::target::Target;
use hlr_bench::target::backend::BackendTarget;
use hlr_bench::target::cache::CacheTarget;
use hlr_bench::traffic::Keys;
use hlr_bench::writes::verify;
use hlr_bench::writes::{self, WriteOptions};
use hlr_bench::{backend, self_check, shape, side_by_side};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// How a command that ran to its end came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Good,
    Void,
}

impl Verdict {
    fn of(good: bool) -> Self {
        if good { Self::Good } else { Self::Void }
    }
}

impl From<Verdict> for ExitCode {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Good => ExitCode::SUCCESS,
            Verdict::Void => ExitCode::from(3),
        }
    }
}

pub async fn run(arguments: Arguments) -> Result<Verdict> {
    match arguments.command {
        Command::Load(arguments) => load_population(arguments).await,
        Command::Check(arguments) => check(arguments).await,
        Command::Run(arguments) => measure(arguments).await,
        Command::Compare { backend, cache } => compare(&backend, &cache),
        Command::Writes(arguments) => write(arguments).await,
        Command::VerifyWrites(arguments) => verify_writes(arguments).await,
        Command::Engine(arguments) => measure_engine(&arguments),
        Command::Journal(arguments) => measure_journal(&arguments).await,
        Command::Hlr(arguments) => side_by_side_experiment(&arguments).await,
        Command::Flush(arguments) => flush_experiment(&arguments).await,
        Command::Ddl { schema } => {
            let constraints = tables::constrain(&schema).into_iter().map(|(_, s)| s);
            for statement in tables::create(&schema).into_iter().chain(constraints) {
                println!("{statement};");
            }
            Ok(Verdict::Good)
        }
    }
}

fn measure_engine(arguments: &EngineArguments) -> Result<Verdict> {
    let report = engine::run(EngineBenchOptions {
        subscribers: arguments.subscribers,
        seconds: arguments.seconds,
        capacity_bytes: arguments.capacity_bytes,
        uniform: arguments.uniform,
    })?;
    println!("{}", report.table());
    write_json(arguments.json.as_deref(), &report)?;
    Ok(Verdict::Good)
}

async fn measure_journal(arguments: &JournalArguments) -> Result<Verdict> {
    let options = JournalBenchOptions {
        directory: arguments.directory.clone(),
        seconds: arguments.seconds,
        payload_bytes: arguments.payload_bytes as usize,
        recovery_bytes: arguments.recovery_bytes,
        subscribers: arguments.subscribers,
        node_binary: match arguments.subscribers {
            0 => PathBuf::new(),
            _ => node::program(arguments.node_binary.as_deref())?,
        },
        pinning: arguments.pin.pinning(),
    };
    let report = unless_told_to_end(journal::run(&options)).await?;
    println!("{}", report.table());
    write_json(arguments.json.as_deref(), &report)?;
    Ok(Verdict::Good)
}

async fn side_by_side_experiment(arguments: &HlrArguments) -> Result<Verdict> {
    let progress = Progress { tell: |line| eprintln!("{line}") };
    let options = arguments.options(progress)?;
    let report = unless_told_to_end(hlr::run(&options)).await?;
    println!("{}", report.table());
    write_json(arguments.json.as_deref(), &report)?;
    Ok(Verdict::of(report.good()))
}

async fn flush_experiment(arguments: &FlushArguments) -> Result<Verdict> {
    let progress = Progress { tell: |line| eprintln!("{line}") };
    let options = arguments.options(progress)?;
    let report = unless_told_to_end(flush::run(&options)).await?;
    println!("{}", report.table());
    write_json(arguments.json.as_deref(), &report)?;
    Ok(Verdict::of(report.good()))
}

async fn load_population(arguments: LoadArguments) -> Result<Verdict> {
    let options = LoadOptions {
        uri: arguments.backend.backend,
        schema: arguments.backend.schema,
        population: arguments.population.population(),
        connections: arguments.connections,
        replace: arguments.replace,
    };
    let loaded = load::load(&options).await?;
    for (table, rows) in tables::TABLES.iter().zip(loaded.rows) {
        println!("{table:<18} {rows:>12} rows");
    }
    println!("loaded in {:.1} s", loaded.elapsed.as_secs_f64());
    Ok(Verdict::Good)
}

async fn self_check(
    uri: &str,
    schema: &str,
    population: Population,
    keys: Keys,
) -> Result<SelfCheck> {
    let client = backend::connect(uri).await?;
    let shapes = shape::read(&client, schema, population.subscribers)
        .await
        .context("cannot read the population; was it loaded (bench load)?")?;
    Ok(tokio::task::spawn_blocking(move || self_check::check(&shapes, population, keys)).await?)
}

async fn check(arguments: CheckArguments) -> Result<Verdict> {
    let population = arguments.population.population();
    let keys = Keys::uniform(population.subscribers);
    let uniform =
        self_check(&arguments.backend.backend, &arguments.backend.schema, population, keys);
    let result = uniform.await?;
    for finding in &result.findings {
        println!(
            "{} {:<40} {:>8.2}  expected {:.2} ± {:.2}",
            if finding.ok { "ok   " } else { "WRONG" },
            finding.what,
            finding.found,
            finding.expected,
            finding.tolerance
        );
    }
    write_json(arguments.json.as_deref(), &result)?;
    Ok(Verdict::of(result.ok))
}

async fn measure(arguments: RunArguments) -> Result<Verdict> {
    let population = arguments.population.population();
    let keys = match arguments.uniform {
        true => Keys::uniform(population.subscribers),
        false => Keys::skewed(population.subscribers),
    };
    let checked = match (&arguments.backend, arguments.no_check) {
        (Some(uri), false) => Some(
            self_check(uri, &arguments.schema, population, Keys::uniform(keys.subscribers)).await?,
        ),
        _ => None,
    };
    if let Some(reason) = checked.as_ref().and_then(SelfCheck::failure) {
        eprintln!("VOID, not run: the self-check failed: {reason}");
        return Ok(Verdict::Void);
    }
    let options = RunOptions {
        population,
        keys,
        uniform: arguments.uniform,
        seed: arguments.traffic_seed.unwrap_or_else(fresh_seed),
        duration: Duration::from_secs_f64(arguments.seconds),
        ramp: Duration::from_secs_f64(arguments.ramp),
        rate: arguments.rate,
        pace: Pace::InTurn,
        writes_only: false,
        never_sleep: false,
    };
    let targets = targets(&arguments).await?;
    let name = if arguments.target == Side::Backend { "backend" } else { "cache" };
    let mut report = drive::run(&options, name, targets).await?;
    report.self_check = checked;
    if let Some(uri) = &arguments.backend {
        let client = backend::connect(uri).await?;
        report.backend_settings = backend::settings(&client).await?.into_iter().collect();
    }
    println!("{}", report.table());
    write_json(arguments.json.as_deref(), &report)?;
    Ok(Verdict::of(report.void.is_none()))
}

async fn targets(arguments: &RunArguments) -> Result<Vec<Target>> {
    let threads = arguments.threads.max(1);
    match arguments.target {
        Side::Backend => {
            let uri =
                arguments.backend.as_deref().context("--target backend needs --backend URI")?;
            let mut targets = Vec::with_capacity(threads);
            for _ in 0..threads {
                let target = BackendTarget::open(uri, &arguments.schema).await?;
                targets.push(Target::Backend(Box::new(target)));
            }
            Ok(targets)
        }
        Side::Cache => {
            let client = arguments.cache.connect().await?;
            Ok((0..threads).map(|_| Target::Cache(CacheTarget::new(client.clone()))).collect())
        }
    }
}

fn compare(backend: &Path, cache: &Path) -> Result<Verdict> {
    let read = |path: &Path| -> Result<Report> {
        let text =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text)
            .with_context(|| format!("{} is not a report of `bench run --json`", path.display()))
    };
    match side_by_side::table(&read(backend)?, &read(cache)?) {
        Ok(table) => {
            println!("{table}");
            Ok(Verdict::Good)
        }
        Err(reason) => {
            eprintln!("VOID: {reason}");
            Ok(Verdict::Void)
        }
    }
}

async fn write(arguments: WritesArguments) -> Result<Verdict> {
    let log = writes::open_log(&arguments.log)?;
    let client = arguments.cache.connect().await?;
    let options = WriteOptions {
        keys: arguments.keys,
        threads: arguments.threads,
        duration: Duration::from_secs_f64(arguments.seconds),
        grace: Duration::from_secs_f64(arguments.grace),
        rate: arguments.rate,
    };
    let report = writes::run(client, &options, log).await?;
    println!(
        "{} writes of {} keys acknowledged in {:.1} s, mean {:.3} ms, longest {:.0} ms; \
         {} settled by retry, {} in doubt, {} violations",
        report.acknowledged,
        report.keys,
        report.seconds,
        report.mean_ms,
        report.longest_ms,
        report.settled,
        report.in_doubt,
        report.violations
    );
    for (class, count) in &report.retries {
        println!("tried again: {count} × {class}");
    }
    write_json(arguments.json.as_deref(), &report)?;
    Ok(Verdict::of(report.violations == 0 && report.acknowledged > 0))
}

async fn verify_writes(arguments: VerifyArguments) -> Result<Verdict> {
    let wait = Duration::from_secs_f64(arguments.wait);
    let BackendArguments { backend, schema } = &arguments.backend;
    let result = verify::verify(&arguments.log, backend, schema, wait).await?;
    println!(
        "{}: {} acknowledged writes of {} keys; {} keys wrong, {} torn, {} missing, {} violations",
        if result.ok { "all there" } else { "NOT ALL THERE" },
        result.acknowledged_writes,
        result.keys,
        result.wrong_keys,
        result.torn_keys,
        result.missing_keys,
        result.violations
    );
    write_json(arguments.json.as_deref(), &result)?;
    Ok(Verdict::of(result.ok))
}

fn write_json<T: Serialize>(path: Option<&Path>, value: &T) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_vec_pretty(value)?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
