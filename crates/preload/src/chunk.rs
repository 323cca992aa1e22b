//! One chunk: tickets, snapshot, pages, one stream per node.

use crate::error::PreloadError;
use crate::options::{PAGE_INSTANCES, STREAM_INSTANCES};
use crate::run::Job;
use crate::targets::{Targets, admin, take_tickets};
use cachetier_client::admin::ChunkName;
use cachetier_client::wire::LoadResponse;
use cachetier_model::Instance;
use cachetier_write_through::{Chunk, ScanRequest};
use futures::{Stream, stream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

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
        as_of: targets.nodes.iter().filter_map(|target| target.as_of.clone()).collect(),
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
                    break Err(ended_early(&mut streams).await);
                }
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error.into()),
        }
    };
    if let Err(error) = sent {
        streams.shutdown().await;
        return Err(error);
    }
    // The connection goes back before the nodes' answers are awaited.
    drop(scan);
    for sender in &senders {
        // A stream that is gone tells why in its answer.
        let _ = sender.send(Piece::End).await;
    }
    collect(streams, read).await
}

/// What goes down a node's stream.
enum Piece {
    Instance(Instance),
    /// The chunk was read to its end and sent whole.
    End,
}

/// The stream of one node. It ends in order only after [`Piece::End`]: a node counts what ended in
/// order as whole, so a reader that failed or was dropped must leave it hanging until the call
/// itself is dropped.
fn pieces(receiver: mpsc::Receiver<Piece>) -> impl Stream<Item = Instance> + Send {
    stream::unfold(receiver, |mut receiver| async move {
        match receiver.recv().await {
            Some(Piece::Instance(instance)) => Some((instance, receiver)),
            Some(Piece::End) => None,
            None => std::future::pending().await,
        }
    })
}

/// Why a node's stream ended before it was sent whole.
async fn ended_early(streams: &mut JoinSet<Answer>) -> PreloadError {
    let (node, answer) = match streams.join_next().await {
        Some(Ok(ended)) => ended,
        Some(Err(error)) => return PreloadError::Worker(error.to_string()),
        None => return PreloadError::Worker("no stream was open".to_owned()),
    };
    match answer {
        Err(source) => PreloadError::Node { node, source },
        Ok(answer) if answer.stopped_by_memory => PreloadError::MemoryFull { node },
        Ok(_) => PreloadError::NotCounted { node },
    }
}

/// Starts the load call of each target; the senders feed them.
fn open_streams(
    job: &Job,
    chunk: &Chunk,
    targets: &Targets,
    streams: &mut JoinSet<Answer>,
) -> Vec<mpsc::Sender<Piece>> {
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
                let answer = admin.load(schema, name, pieces(receiver)).await;
                (node, answer)
            });
            sender
        })
        .collect()
}

/// Hands a page out by owner; false when a stream ended early, which its answer explains.
async fn send(
    targets: &Targets,
    senders: &[mpsc::Sender<Piece>],
    page: Vec<(cachetier_model::RootKey, Instance)>,
) -> bool {
    for (key, instance) in page {
        let Some(sender) = targets.of_slot(key.slot()).and_then(|n| senders.get(n)) else {
            continue;
        };
        if sender.send(Piece::Instance(instance)).await.is_err() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{StreamExt, poll};
    use std::pin::pin;

    #[tokio::test]
    async fn r20_a_stream_whose_reader_failed_never_ends_in_order() {
        let (sender, receiver) = mpsc::channel(4);
        sender.send(Piece::Instance(Instance::default())).await.unwrap();
        drop(sender);
        let mut failed = pin!(pieces(receiver));
        assert!(failed.next().await.is_some());
        assert!(poll!(failed.next()).is_pending(), "an orderly end would count the chunk as whole");

        let (sender, receiver) = mpsc::channel(4);
        sender.send(Piece::End).await.unwrap();
        assert!(pin!(pieces(receiver)).next().await.is_none());
    }
}
