//! The whole load of one process: ledger, workers, end.

use crate::chunk::{self, ChunkFigures};
use crate::error::PreloadError;
use crate::lease::under_lease;
use crate::options::{CHUNK_INSTANCES, CHUNKS_MAX, CHUNKS_MIN, PreloadOptions};
use crate::progress::Progress;
use crate::targets::wait_for_serving;
use backon::{BackoffBuilder, ExponentialBuilder};
use cachetier_client::Client;
use cachetier_client::wire::TableLoad;
use cachetier_model::GroupSchema;
use cachetier_write_through::{Backend, Chunk, LoadInfo, LoadSpec};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How often a process without a chunk looks whether the others are done.
const POLL: Duration = Duration::from_secs(1);

/// A load, ready to run.
pub struct Preload {
    pub backend: Arc<dyn Backend>,
    /// Connected; it brings the schema and follows the topology.
    pub client: Client,
    pub options: PreloadOptions,
}

/// What a complete load was, as far as this process worked on it.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    pub chunks_total: u32,
    pub chunks_here: u64,
    pub read: u64,
    pub inserted: u64,
    /// Already present, or newer in the cache.
    pub skipped: u64,
}

/// What all workers share.
pub(crate) struct Job {
    pub backend: Arc<dyn Backend>,
    pub client: Client,
    pub options: PreloadOptions,
    pub schema: Arc<GroupSchema>,
    pub chunks_total: u32,
    pub expected: Vec<TableLoad>,
    progress: Progress,
}

impl Preload {
    /// Returns when every chunk of the load is done, by this process or by others. Dropping the
    /// future leaves the chunks in hand to the end of their leases.
    pub async fn run(self) -> Result<Summary, PreloadError> {
        let Self { backend, client, options } = self;
        let schema = client.schema().clone();
        backend.use_schema(schema.clone());
        wait_for_serving(&client, options.serving_wait).await?;
        backend.check_filter(&options.filter).await?;
        let estimates = backend.expected_rows().await?;
        let info = ledger(backend.as_ref(), &options, &estimates).await?;
        let expected = schema
            .tables
            .iter()
            .zip(estimates.iter().copied().chain(std::iter::repeat(0)))
            .map(|(t, expected_rows)| TableLoad { table: t.name.clone(), rows: 0, expected_rows })
            .collect();
        let (chunks_total, progress) = (info.chunks_total, Progress::new());
        tracing::info!(chunks_total, chunks_done = info.chunks_done, "load begins");
        let job = Job { backend, client, options, schema, chunks_total, expected, progress };
        let job = Arc::new(job);
        let mut workers = JoinSet::new();
        for _ in 0..job.options.parallelism.max(1) {
            workers.spawn(work(job.clone()));
        }
        while let Some(ended) = workers.join_next().await {
            ended.map_err(|e| PreloadError::Worker(e.to_string()))??;
        }
        let (chunks_here, sums) = job.progress.sums();
        let ChunkFigures { read, inserted, skipped } = sums;
        tracing::info!(chunks_total, chunks_here, read, inserted, skipped, "load complete");
        Ok(Summary { chunks_total, chunks_here, read, inserted, skipped })
    }
}

/// Finds the load in the ledger, or plans its chunks. The first pod's plan counts for all.
async fn ledger(
    backend: &dyn Backend,
    options: &PreloadOptions,
    estimates: &[u64],
) -> Result<LoadInfo, PreloadError> {
    let known = backend.load_info(&options.group_uid, &options.load_id).await?;
    let info = match known {
        Some(info) => info,
        None => {
            let roots = estimates.first().copied().unwrap_or(0);
            let wanted = (roots / CHUNK_INSTANCES).clamp(CHUNKS_MIN, CHUNKS_MAX);
            let chunks = backend.plan_chunks(wanted as u32, &options.filter).await?;
            let spec = LoadSpec {
                group_uid: options.group_uid.clone(),
                load_id: options.load_id.clone(),
                filter: options.filter.clone(),
                chunks,
            };
            backend.create_load(spec).await?
        }
    };
    if info.filter != options.filter {
        return Err(PreloadError::FilterDiffers { load_id: options.load_id.clone() });
    }
    Ok(info)
}

/// Takes chunks until all of the load are done.
async fn work(job: Arc<Job>) -> Result<(), PreloadError> {
    let PreloadOptions { group_uid, load_id, worker, lease, .. } = &job.options;
    loop {
        if let Some(chunk) = job.backend.take_chunk(group_uid, load_id, worker, *lease).await? {
            let worked = under_lease(job.backend.as_ref(), &chunk, *lease, persist(&job, &chunk));
            match worked.await? {
                Some(Ok(figures)) => {
                    job.backend.finish_chunk(&chunk, figures.read).await?;
                    job.progress.add(chunk.number, job.chunks_total, figures);
                }
                Some(Err(error)) => {
                    // Not waiting out the lease is a courtesy; the error itself matters more.
                    let _ = job.backend.give_back_chunk(&chunk).await;
                    return Err(error);
                }
                None => tracing::info!(chunk = chunk.number, "chunk went to another worker"),
            }
            continue;
        }
        let info = job.backend.load_info(group_uid, load_id).await?;
        if info.is_none_or(|i| i.chunks_done >= i.chunks_total) {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Tries a chunk until it is whole, with growing pauses, for as long as patience lasts.
async fn persist(job: &Job, chunk: &Chunk) -> Result<ChunkFigures, PreloadError> {
    let until = Instant::now() + job.options.patience;
    let mut pauses = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(Duration::from_secs(5))
        .with_jitter()
        .without_max_times()
        .build();
    let mut attempt = 0_u32;
    loop {
        attempt += 1;
        let error = match chunk::load(job, chunk).await {
            Ok(figures) => return Ok(figures),
            Err(error) => error,
        };
        let pause = pauses.next().unwrap_or(POLL);
        if error.is_permanent() || Instant::now() + pause >= until {
            return Err(error);
        }
        tracing::warn!(chunk = chunk.number, attempt, reason = %error, "chunk tried again");
        tokio::time::sleep(pause).await;
    }
}
