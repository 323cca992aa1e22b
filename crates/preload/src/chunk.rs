//! One chunk: tickets, snapshot, pages, one stream per node.

use crate::error::PreloadError;
use crate::options::{PAGE_INSTANCES, STREAM_INSTANCES};
use crate::run::Job;
use crate::targets::{Targets, admin, take_tickets};
use cachetier_client::admin::ChunkName;
use cachetier_client::wire::LoadResponse;
use cachetier_model::Instance;
use cachetier_write_through::{Chunk, ScanRequest};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

/// What one attempt brought.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChunkFigures {
    /// Instances read from the backend.
    pub read: u64,
    pub inserted: u64,
    pub skipped: u64,
}

type Answer = (String, Result<LoadResponse, cachetier_client::ClientError>);

/// One attempt at a chunk. Tickets come before the snapshot (R19), the snapshot is one for all
/// tables (R18). An error counts the chunk at no node that had not finished it.
pub(crate) async fn load(job: &Job, chunk: &Chunk) -> Result<ChunkFigures, PreloadError> {
    let targets = take_tickets(job, chunk.number).await?;
    let request = ScanRequest {
        range: chunk.range.clone(),
        filter: job.options.filter.clone(),
        page: PAGE_INSTANCES,
    };
    let mut scan = job.backend.open_scan(request).await?;
    let mut streams = JoinSet::new();
    let senders = open_streams(job, chunk, &targets, &mut streams);
    let mut read = 0;
    let sent = loop {
        match scan.next().await {
            Ok(Some(page)) => {
                read += page.len() as u64;
                if !send(&targets, &senders, page).await {
                    break Ok(());
                }
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    if let Err(error) = sent {
        // The streams must be gone before their senders: an orderly end would count the chunk.
        streams.shutdown().await;
        return Err(error.into());
    }
    drop(senders);
    collect(streams, read).await
}

/// Starts the load call of each target; the senders feed them.
fn open_streams(
    job: &Job,
    chunk: &Chunk,
    targets: &Targets,
    streams: &mut JoinSet<Answer>,
) -> Vec<mpsc::Sender<Instance>> {
    targets
        .nodes
        .iter()
        .map(|target| {
            let (sender, receiver) = mpsc::channel(STREAM_INSTANCES);
            let name = ChunkName {
                load_id: job.options.load_id.clone(),
                chunk: chunk.number,
                ticket: target.ticket,
            };
            let (node, schema) = (target.node.clone(), job.schema.clone());
            let admin = admin(&job.client, &target.address);
            streams.spawn(async move {
                let answer = admin.load(schema, name, ReceiverStream::new(receiver)).await;
                (node, answer)
            });
            sender
        })
        .collect()
}

/// Hands a page out by owner; false when a stream ended early, which its answer explains.
async fn send(
    targets: &Targets,
    senders: &[mpsc::Sender<Instance>],
    page: Vec<(cachetier_model::RootKey, Instance)>,
) -> bool {
    for (key, instance) in page {
        let Some(sender) = targets.of_slot(key.slot()).and_then(|n| senders.get(n)) else {
            continue;
        };
        if sender.send(instance).await.is_err() {
            return false;
        }
    }
    true
}

async fn collect(mut streams: JoinSet<Answer>, read: u64) -> Result<ChunkFigures, PreloadError> {
    let mut figures = ChunkFigures { read, ..ChunkFigures::default() };
    let mut failure = None;
    while let Some(joined) = streams.join_next().await {
        let (node, answer) = joined.map_err(|e| PreloadError::Worker(e.to_string()))?;
        match answer.map_err(|source| PreloadError::Node { node: node.clone(), source }) {
            Ok(answer) => {
                figures.inserted += answer.inserted;
                figures.skipped += answer.skipped;
                if let Some(reason) = incomplete(node, &answer) {
                    failure = worse(failure, reason);
                }
            }
            Err(error) => failure = worse(failure, error),
        }
    }
    failure.map_or(Ok(figures), Err)
}

/// Why a node has not counted the chunk; `None` when it has.
fn incomplete(node: String, answer: &LoadResponse) -> Option<PreloadError> {
    match answer {
        _ if answer.stopped_by_memory => Some(PreloadError::MemoryFull { node }),
        _ if answer.chunk_done => None,
        _ if answer.broken > 0 => Some(PreloadError::Touched { node, count: answer.broken }),
        _ => Some(PreloadError::NotCounted { node }),
    }
}

/// Of two failures the one that a person must know.
fn worse(known: Option<PreloadError>, new: PreloadError) -> Option<PreloadError> {
    match known {
        Some(known) if known.is_permanent() || !new.is_permanent() => Some(known),
        _ => Some(new),
    }
}
