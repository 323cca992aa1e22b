//! Faults planted in the experiment void it: no ratio is given.

use anyhow::{Result, ensure};
use hlr_bench::hlr::{self, HlrOptions, HlrReport, Level, Progress};
use hlr_bench::population::numbering::Numbering;
use hlr_bench::population::{DEFAULT_SEED, Population};
use hlr_bench::stage::Pinning;
use hlr_bench::stage::node::built_for_tests;
use hlr_bench::target::planted::Fault;
use hlr_bench::traffic::Kind;
use std::time::Duration;
use tokio::sync::Mutex;

/// Small, but large enough that chance alone does not void a run.
const SUBSCRIBERS: u64 = 20_000;

/// Blocks so short that an unoptimised node, slower than the direct side whose rate it is sent, has
/// answered all that waits soon after each of them.
const BLOCK: Duration = Duration::from_millis(500);
const RAMP: Duration = Duration::from_millis(100);
const THREADS: usize = 4;

/// Each experiment has both processors to itself; two at once would starve each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

async fn run(plant: Option<Fault>, drop_index: bool) -> Result<HlrReport> {
    let _turn = ONE_AT_A_TIME.lock().await;
    hlr::run(&HlrOptions {
        population: Population {
            seed: DEFAULT_SEED,
            subscribers: SUBSCRIBERS,
            numbering: Numbering::Derived,
        },
        uniform: true,
        outside_percent: 0,
        threads: vec![THREADS],
        levels: vec![Level::Relaxed],
        block: BLOCK,
        ramp: RAMP,
        repetitions: 1,
        backend_commit: "Async",
        lanes: 2,
        max_batch_rows: 1_024,
        max_delay_ms: 50,
        connections: 2,
        tls: true,
        node_binary: built_for_tests()?.to_owned(),
        pinning: Pinning::halves(),
        traffic_seed: 7,
        plant,
        drop_index,
        progress: Progress { tell: |_| {} },
    })
    .await
}

fn is_void(report: &HlrReport, because: &str) -> Result<()> {
    ensure!(!report.good() && report.ratios.is_none(), "a ratio was given");
    let found = report.void.iter().any(|reason| reason.contains(because));
    ensure!(found, "{because:?} is not among {:?}", report.void);
    ensure!(!serde_json::to_string(report)?.contains("mean_of_seven"), "the JSON has a ratio");
    Ok(())
}

#[tokio::test]
async fn a_run_without_faults_gives_every_ratio() -> Result<()> {
    let report = run(None, false).await?;
    ensure!(report.good(), "{:?}", report.void);
    let json = serde_json::to_value(&report)?;
    for pointer in ["/mean_of_seven/relaxed/t4", "/backend_cpu_ratio", "/wal_wait_share/cached"] {
        ensure!(json.pointer(pointer).is_some_and(|v| v.is_f64()), "{pointer} is missing");
    }
    ensure!(json["differences"] == 0, "{json}");
    Ok(())
}

/// A later write to the same row hides a lost one, so that a run as short as this needs several.
#[tokio::test]
async fn a_cache_that_loses_one_write_in_a_hundred_voids_the_run() -> Result<()> {
    let report = run(Some(Fault::LoseWrites { one_in: 100 }), false).await?;
    is_void(&report, "rows differ")
}

#[tokio::test]
async fn a_skipped_transaction_type_voids_the_run() -> Result<()> {
    let report = run(Some(Fault::SkipKind(Kind::DeleteCallForwarding)), false).await?;
    is_void(&report, "DELETE_CALL_FORWARDING")
}

#[tokio::test]
async fn a_baseline_without_its_index_voids_the_run() -> Result<()> {
    let report = run(None, true).await?;
    is_void(&report, "no unique index on (sub_nbr)")
}
