//! Slot images of a whole node: how fast a stop in order writes them, and how fast the next start is
//! warm again.
//!
//! A PostgreSQL with the population, a node that loaded all of it. The node is told to end right
//! after the load and a change in each file. Then it is started and ended in turns, with
//! the images in the page cache and without. Times are those of the whole process: from its start
//! until every slot is served. What the next process has must be every subscriber, else there is no
//! figure.

use super::JournalBenchOptions;
use crate::hlr::{BASE, memory_bytes};
use crate::load::{self, LoadOptions};
use crate::population::numbering::Numbering;
use crate::population::{DEFAULT_SEED, Population};
use crate::stage::node::{Node, NodeSettings};
use crate::stage::{Postgres, ServerSettings};
use crate::target::Outcome;
use crate::target::cache::CacheTarget;
use crate::traffic::Input;
use anyhow::{Result, ensure};
use rustix::fs::{Advice, fadvise};
use serde::Serialize;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// Starts of each kind; the median counts.
const STARTS: usize = 3;
/// Subscribers that are changed before the stop, so many that each of the 64 files has some.
const TOUCHED: u64 = 2_048;
const READ_BYTES: usize = 1 << 20;

#[derive(Clone, Debug, Serialize)]
pub struct ImagesReport {
    pub subscribers: u64,
    /// All image files.
    pub image_bytes: u64,
    /// Of the stop in order right after the load, images synced and in their places.
    pub checkpoint_write_mb_per_s: f64,
    /// From the start of the process until every slot is served, images in the page cache.
    pub restart_seconds: f64,
    /// With that, on `restart_processors`.
    pub restart_subscribers_per_s: f64,
    pub restart_processors: usize,
    /// The same with nothing of the images in the page cache.
    pub restart_cold_seconds: f64,
    /// Reading the image files one after the other, and nothing else.
    pub disk_read_mb_per_s: f64,
    /// Image bytes per second of a cold start, divided by that.
    pub restart_cold_ratio: f64,
}

impl ImagesReport {
    pub(super) fn rows(&self) -> [(&'static str, String); 5] {
        let per_subscriber = self.image_bytes as f64 / self.subscribers as f64;
        let warm = self.restart_subscribers_per_s / 1e6;
        [
            (
                "subscribers, image bytes of each",
                format!("{}, {per_subscriber:.0}", self.subscribers),
            ),
            ("stop writes images (MB/s)", format!("{:.0}", self.checkpoint_write_mb_per_s)),
            (
                "warm start (s)",
                format!(
                    "{:.2}: {warm:.2} M subscribers/s on {} processors",
                    self.restart_seconds, self.restart_processors
                ),
            ),
            (
                "cold start (s)",
                format!(
                    "{:.2}: {:.2} of the disk's read rate",
                    self.restart_cold_seconds, self.restart_cold_ratio
                ),
            ),
            ("disk reads (MB/s)", format!("{:.0}", self.disk_read_mb_per_s)),
        ]
    }
}

/// Changes subscribers of every image file: what the node wrote in the background meanwhile is out of
/// date again, and the stop has all of them to write.
async fn touch(node: &Node, population: Population) -> Result<()> {
    let target = CacheTarget::new(node.client().await?);
    for id in 1..=population.subscribers.min(TOUCHED) {
        let sub_nbr = population.subscriber(id).sub_nbr;
        let input = Input::UpdateLocation { sub_nbr, vlr_location: id as i64 };
        let outcome = target.execute(&input).await.outcome;
        ensure!(outcome == Outcome::Hit, "a subscriber could not be changed: {outcome:?}");
    }
    Ok(())
}

pub(super) async fn run(options: &JournalBenchOptions) -> Result<ImagesReport> {
    let subscribers = options.subscribers;
    let numbering = Numbering::Derived;
    let population = Population { seed: DEFAULT_SEED, subscribers, numbering };
    let settings = ServerSettings::of_experiment(&options.pinning.servers, subscribers);
    let postgres = Postgres::start(settings).await?;
    postgres.create_database(BASE).await?;
    let load = LoadOptions {
        uri: postgres.uri(BASE),
        schema: "public".to_owned(),
        population,
        connections: 2,
        replace: false,
    };
    load::load(&load).await?;
    let mut node = Node::start(&options.pinning, &postgres, BASE, of_node(options)).await?;
    let all = |status: cachetier_client::wire::StatusResponse| {
        ensure!(status.instances == subscribers, "{} of {subscribers} are here", status.instances);
        Ok(())
    };
    all(node.status().await?)?;
    touch(&node, population).await?;
    let told = SystemTime::now();
    let stopping = node.end()?;
    let images = node.images();
    let (written, image_bytes) = (sizes(&images, Some(told))?, sizes(&images, None)?);
    ensure!(written > 0, "the stop wrote no image");
    let (mut warm, mut cold, mut reads) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..STARTS {
        read_all(&images)?;
        warm.push(node.start_again().await?);
        all(node.status().await?)?;
        node.end()?;
        forget(&images)?;
        reads.push(read_all(&images)?);
        forget(&images)?;
        cold.push(node.start_again().await?);
        all(node.status().await?)?;
        node.end()?;
    }
    let (warm, cold, reads) = (median(warm), median(cold), median(reads));
    let megabytes = image_bytes as f64 / 1e6;
    Ok(ImagesReport {
        subscribers,
        image_bytes,
        checkpoint_write_mb_per_s: written as f64 / 1e6 / stopping.as_secs_f64(),
        restart_seconds: warm,
        restart_subscribers_per_s: subscribers as f64 / warm,
        restart_processors: options.pinning.servers.count(),
        restart_cold_seconds: cold,
        disk_read_mb_per_s: megabytes / reads,
        restart_cold_ratio: reads / cold,
    })
}

fn of_node(options: &JournalBenchOptions) -> NodeSettings {
    NodeSettings {
        durability: "Sync",
        backend_commit: "Async",
        lanes: 4,
        max_batch_rows: 1_024,
        max_delay_ms: 100,
        memory_bytes: memory_bytes(options.subscribers),
        cached_up_to: options.subscribers,
        tls: true,
        connections: 1,
        binary: options.node_binary.clone(),
        volume: options.directory.clone(),
    }
}

fn files(images: &Path) -> Result<Vec<File>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(images)? {
        files.push(File::open(entry?.path())?);
    }
    Ok(files)
}

/// Bytes of the images, or of those that were written since.
fn sizes(images: &Path, since: Option<SystemTime>) -> Result<u64> {
    let mut bytes = 0;
    for file in files(images)? {
        let found = file.metadata()?;
        if since.is_none_or(|since| found.modified().is_ok_and(|at| at >= since)) {
            bytes += found.len();
        }
    }
    Ok(bytes)
}

/// Reads them one after the other; how long it took.
fn read_all(images: &Path) -> Result<Duration> {
    let (begun, mut buffer) = (Instant::now(), vec![0; READ_BYTES]);
    for mut file in files(images)? {
        while file.read(&mut buffer)? > 0 {}
    }
    Ok(begun.elapsed())
}

/// Takes them out of the page cache.
fn forget(images: &Path) -> Result<()> {
    for file in files(images)? {
        file.sync_all()?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

/// In seconds.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, Duration::as_secs_f64)
}
