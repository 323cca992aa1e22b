//! How long a commit takes, beside a bare `fdatasync` of the same size in the same directory.
//!
//! `cargo run --release -p cachetier-journal --example commit_latency -- DIR` prints JSON:
//! latencies in microseconds by number of writers, commits per sync, appends and recovery rates.

// a program for people who measure: its output is its purpose
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::indexing_slicing)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cachetier_journal::file_system::{FileSystem, RealFileSystem};
use cachetier_journal::{AppendError, Journal, JournalError, JournalOptions, Sequence};

const FRAME_BYTES: usize = 400;
const COMMITS: usize = 2_000;

fn percentile(sorted: &[Duration], share: f64) -> u128 {
    sorted[((sorted.len() - 1) as f64 * share) as usize].as_micros()
}

fn bare_fdatasync(dir: &Path) -> Vec<Duration> {
    let path = dir.join("bare");
    let file = RealFileSystem.create(&path).unwrap();
    file.allocate(16 << 20).unwrap();
    file.sync_data().unwrap();
    let payload = [7; FRAME_BYTES];
    let mut times: Vec<_> = (0..COMMITS)
        .map(|n| {
            let begun = Instant::now();
            file.write_at(&payload, (n * FRAME_BYTES) as u64).unwrap();
            file.sync_data().unwrap();
            begun.elapsed()
        })
        .collect();
    RealFileSystem.remove(&path).unwrap();
    times.sort();
    times
}

fn open(dir: &Path) -> Journal {
    let options = JournalOptions { capacity_bytes: 4 << 30, ..JournalOptions::default() };
    Journal::open(Arc::new(RealFileSystem), dir, options).unwrap().0
}

async fn append(journal: &Journal, payload: &[u8]) -> Sequence {
    loop {
        match journal.append(1, payload) {
            Ok(sequence) => return sequence,
            Err(AppendError::Busy { .. }) => tokio::task::yield_now().await,
            Err(refused) => {
                println!("{refused}");
                std::process::exit(1);
            }
        }
    }
}

/// Latencies of commits by this many writers, and frames per sync.
async fn commits(dir: &Path, writers: usize) -> (Vec<Duration>, f64) {
    let journal = open(dir);
    let tasks: Vec<_> = (0..writers)
        .map(|_| {
            let journal = journal.clone();
            tokio::spawn(async move {
                let mut times = Vec::with_capacity(COMMITS);
                for _ in 0..COMMITS / writers.min(8) {
                    let begun = Instant::now();
                    let sequence = append(&journal, &[7; FRAME_BYTES]).await;
                    journal.wait_durable(sequence).await.unwrap();
                    times.push(begun.elapsed());
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap());
    }
    let stats = journal.stats();
    journal.close().await.unwrap();
    times.sort();
    (times, stats.frames_written as f64 / stats.syncs.max(1) as f64)
}

/// Nanoseconds of an append when nobody waits for the disk, and megabytes per second written.
async fn throughput(dir: &Path) -> (f64, f64) {
    let journal = open(dir);
    let (frames, begun) = (1_000_000_u32, Instant::now());
    let mut appending = Duration::MAX;
    let mut last = Sequence::ZERO;
    for _ in 0..frames / 1000 {
        let batch = Instant::now();
        for _ in 0..1000 {
            last = append(&journal, &[7; FRAME_BYTES]).await;
        }
        appending = appending.min(batch.elapsed());
    }
    journal.wait_durable(last).await.unwrap();
    let megabytes = f64::from(frames) * FRAME_BYTES as f64 / 1e6;
    let rate = megabytes / begun.elapsed().as_secs_f64();
    journal.close().await.unwrap();
    (appending.as_nanos() as f64 / 1000.0, rate)
}

/// Megabytes per second of a whole start: checking everything, then handing every frame over.
fn recovery(dir: &Path) -> f64 {
    let begun = Instant::now();
    let journal = open(dir);
    let bytes = journal.stats().bytes;
    let mut frames = 0_u64;
    journal
        .read_from(Sequence::ZERO)
        .unwrap()
        .for_each(|_, _, _| {
            frames += 1;
            Ok::<_, JournalError>(())
        })
        .unwrap();
    bytes as f64 / 1e6 / begun.elapsed().as_secs_f64()
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let parent = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(parent).unwrap();
    let bare = bare_fdatasync(dir.path());
    println!("{{\n  \"fdatasync_us\": {},", percentile(&bare, 0.5));
    println!("  \"fdatasync_p99_us\": {},", percentile(&bare, 0.99));
    for writers in [1, 16, 64] {
        let (times, per_sync) = commits(&dir.path().join(format!("w{writers}")), writers).await;
        println!("  \"commit_p50_us_{writers}\": {},", percentile(&times, 0.5));
        println!("  \"commit_p99_us_{writers}\": {},", percentile(&times, 0.99));
        println!("  \"commits_per_sync_{writers}\": {per_sync:.1},");
    }
    let flood = dir.path().join("flood");
    let (append_ns, written) = throughput(&flood).await;
    println!("  \"append_best_ns\": {append_ns:.0},\n  \"write_mb_per_s\": {written:.0},");
    println!("  \"recovery_mb_per_s\": {:.0}\n}}", recovery(&flood));
}
