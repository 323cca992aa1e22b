//! The journal by itself: what a commit costs beside a bare `fdatasync`, how many commits share
//! one, and how fast a start reads what was left; and, in `images`, what a whole node's slot images
//! cost at its stop and save at its start.
//!
//! One journal at a time in a folder of its own, without node or backend but for the images. Writers are tasks that
//! append a frame, wait until it is durable and append the next. Both sides of a comparison write
//! as many bytes to files on the same volume. Must never be pointed at a node's journal.

mod images;

use crate::stage::Pinning;
use anyhow::{Context, Result, ensure};
use cachetier_journal::file_system::RealFileSystem;
use cachetier_journal::{AppendError, Durability, Journal, JournalError, JournalOptions, Sequence};
use comfy_table::{Table, presets};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What `bench journal` measures.
#[derive(Clone, Debug)]
pub struct JournalBenchOptions {
    /// On the volume that is measured; a folder is made in it, and removed.
    pub directory: PathBuf,
    /// Length of each timed part.
    pub seconds: f64,
    pub payload_bytes: usize,
    /// How much a start finds.
    pub recovery_bytes: u64,
    /// A node with so many is stopped and started; 0: none.
    pub subscribers: u64,
    /// The node's program.
    pub node_binary: PathBuf,
    pub pinning: Pinning,
}

#[derive(Clone, Debug, Serialize)]
pub struct JournalReport {
    pub payload_bytes: usize,
    /// Median of a write of as many bytes into reserved space and one `fdatasync`.
    pub fdatasync_us: f64,
    pub commit_p50_us_1: f64,
    pub commit_p99_us_1: f64,
    pub commit_p50_us_16: f64,
    pub commit_p99_us_16: f64,
    pub commit_p50_us_64: f64,
    pub commit_p99_us_64: f64,
    /// With 64 writers.
    pub commits_per_sync: f64,
    /// Opening a journal and reading all its frames, with the page cache warm.
    pub recovery_mb_per_s: f64,
    /// Of the node's slot images; absent where there was to be no node.
    #[serde(flatten)]
    pub images: Option<images::ImagesReport>,
}

impl JournalReport {
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header(["journal", ""]);
        let mut row = |what: &str, figure: String| {
            table.add_row([what.to_owned(), figure]);
        };
        let commit = |p50: f64, p99: f64| {
            format!("{p50:.0} / {p99:.0}, {:.2} of a bare fdatasync", p50 / self.fdatasync_us)
        };
        row("bytes per frame", self.payload_bytes.to_string());
        row("bare fdatasync (µs)", format!("{:.0}", self.fdatasync_us));
        let one = commit(self.commit_p50_us_1, self.commit_p99_us_1);
        row("commit p50 / p99 (µs), 1 writer", one);
        let some = commit(self.commit_p50_us_16, self.commit_p99_us_16);
        row("commit p50 / p99 (µs), 16 writers", some);
        let many = commit(self.commit_p50_us_64, self.commit_p99_us_64);
        row("commit p50 / p99 (µs), 64 writers", many);
        row("commits per sync, 64 writers", format!("{:.1}", self.commits_per_sync));
        row("recovery (MB/s)", format!("{:.0}", self.recovery_mb_per_s));
        for (what, figure) in self.images.iter().flat_map(images::ImagesReport::rows) {
            row(what, figure);
        }
        table.to_string()
    }
}

/// Of a frame's own bytes beside the payload; for the bare write, which should be as long.
const FRAME_BYTES: usize = 32;
/// Reserved for the bare writes; they begin anew at its end.
const BARE_BYTES: u64 = 16 << 20;
const MICROSECOND: f64 = 1_000.0;

pub async fn run(options: &JournalBenchOptions) -> Result<JournalReport> {
    let folder = tempfile::Builder::new().prefix("bench-journal-").tempdir_in(&options.directory);
    let folder = folder.with_context(|| format!("in {}", options.directory.display()))?;
    let fdatasync_us = bare(folder.path(), options)?;
    let one = commits(&folder.path().join("1"), options, 1).await?;
    let some = commits(&folder.path().join("16"), options, 16).await?;
    let many = commits(&folder.path().join("64"), options, 64).await?;
    let recovery_mb_per_s = recovery(&folder.path().join("recovery"), options).await?;
    let images = match options.subscribers {
        0 => None,
        _ => Some(images::run(options).await?),
    };
    Ok(JournalReport {
        payload_bytes: options.payload_bytes,
        fdatasync_us,
        commit_p50_us_1: one.us(0.5),
        commit_p99_us_1: one.us(0.99),
        commit_p50_us_16: some.us(0.5),
        commit_p99_us_16: some.us(0.99),
        commit_p50_us_64: many.us(0.5),
        commit_p99_us_64: many.us(0.99),
        commits_per_sync: many.per_sync,
        recovery_mb_per_s,
        images,
    })
}

/// Median, in microseconds.
fn bare(folder: &Path, options: &JournalBenchOptions) -> Result<f64> {
    let file = std::fs::File::create_new(folder.join("bare"))?;
    let bytes = vec![0x5a; options.payload_bytes + FRAME_BYTES];
    for offset in (0..BARE_BYTES).step_by(1 << 20) {
        file.write_all_at(&vec![0; 1 << 20], offset)?;
    }
    file.sync_all()?;
    let mut histogram = Histogram::<u64>::new(3)?;
    let (begun, mut offset) = (Instant::now(), 0);
    while begun.elapsed().as_secs_f64() < options.seconds {
        if offset + bytes.len() as u64 > BARE_BYTES {
            offset = 0;
        }
        let start = Instant::now();
        file.write_all_at(&bytes, offset)?;
        file.sync_data()?;
        histogram.record(start.elapsed().as_nanos() as u64)?;
        offset += bytes.len() as u64;
    }
    Ok(histogram.value_at_quantile(0.5) as f64 / MICROSECOND)
}

struct Commits {
    latencies_ns: Histogram<u64>,
    per_sync: f64,
}

impl Commits {
    fn us(&self, quantile: f64) -> f64 {
        self.latencies_ns.value_at_quantile(quantile) as f64 / MICROSECOND
    }
}

async fn commits(folder: &Path, options: &JournalBenchOptions, writers: usize) -> Result<Commits> {
    let journal = open(folder, JournalOptions::default())?;
    let before = journal.stats();
    let until = Instant::now() + Duration::from_secs_f64(options.seconds);
    let tasks: Vec<_> = (0..writers)
        .map(|_| tokio::spawn(write_until(journal.clone(), options.payload_bytes, until)))
        .collect();
    let mut latencies_ns = Histogram::<u64>::new(3)?;
    for task in tasks {
        latencies_ns.add(task.await??)?;
    }
    let after = journal.stats();
    journal.close().await?;
    let syncs = after.syncs - before.syncs;
    ensure!(syncs > 0, "nothing was synced in {} s", options.seconds);
    Ok(Commits { per_sync: latencies_ns.len() as f64 / syncs as f64, latencies_ns })
}

async fn write_until(journal: Journal, bytes: usize, until: Instant) -> Result<Histogram<u64>> {
    let mut histogram = Histogram::<u64>::new(3)?;
    let payload = vec![0x5a; bytes];
    while Instant::now() < until {
        let start = Instant::now();
        let sequence = append(&journal, &payload).await?;
        journal.wait_durable(sequence).await?;
        histogram.record(start.elapsed().as_nanos() as u64)?;
        // nothing is replayed here: whole segments go
        journal.trim(sequence);
    }
    Ok(histogram)
}

/// Waits for room where the queue is full.
async fn append(journal: &Journal, payload: &[u8]) -> Result<Sequence> {
    loop {
        let written = journal.stats().written;
        match journal.append(1, payload) {
            Ok(sequence) => return Ok(sequence),
            Err(AppendError::Busy { .. }) => {
                let mut marks = journal.watch();
                marks.wait_for(|marks| marks.written > written || marks.stopped.is_some()).await?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

async fn recovery(folder: &Path, options: &JournalBenchOptions) -> Result<f64> {
    let defaults = JournalOptions::default();
    let settings = JournalOptions {
        durability: Durability::Relaxed { interval: Duration::from_millis(100) },
        capacity_bytes: defaults.capacity_bytes.max(options.recovery_bytes * 2),
        ..defaults
    };
    let journal = open(folder, settings.clone())?;
    let payload = vec![0x5a; options.payload_bytes];
    let frames = options.recovery_bytes.div_ceil((options.payload_bytes + FRAME_BYTES) as u64);
    let mut last = Sequence::ZERO;
    for _ in 0..frames {
        last = append(&journal, &payload).await?;
    }
    journal.wait_synced(last).await?;
    let bytes_written = journal.stats().bytes_written;
    journal.close().await?;
    let begun = Instant::now();
    let journal = open(folder, settings)?;
    let mut found = 0;
    journal.read_from(Sequence::ZERO)?.for_each(|_, _, payload| {
        std::hint::black_box(payload);
        found += 1;
        Ok::<(), JournalError>(())
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    ensure!(found == frames, "{frames} frames were written and {found} are read");
    journal.close().await?;
    Ok(bytes_written as f64 / 1e6 / seconds)
}

fn open(folder: &Path, options: JournalOptions) -> Result<Journal> {
    let (journal, _) = Journal::open(Arc::new(RealFileSystem), folder, options)?;
    Ok(journal)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::stage::node;

    #[tokio::test(flavor = "multi_thread")]
    async fn every_figure_of_the_journal_is_taken() {
        let options = JournalBenchOptions {
            directory: std::env::temp_dir(),
            seconds: 0.05,
            payload_bytes: 200,
            recovery_bytes: 1 << 20,
            subscribers: 2_000,
            node_binary: node::built_for_tests().unwrap().to_owned(),
            pinning: Pinning::halves(),
        };
        let json = serde_json::to_value(run(&options).await.unwrap()).unwrap();
        for key in [
            "fdatasync_us",
            "commit_p50_us_1",
            "commit_p99_us_64",
            "recovery_mb_per_s",
            "checkpoint_write_mb_per_s",
            "restart_subscribers_per_s",
            "restart_cold_ratio",
        ] {
            assert!(json.get(key).and_then(serde_json::Value::as_f64).unwrap() > 0.0, "{key}");
        }
        assert!(json.get("commits_per_sync").unwrap().as_f64().unwrap() >= 1.0);
    }
}
