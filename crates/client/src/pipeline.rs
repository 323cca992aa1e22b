//! Many calls in flight on one stream to one node: the throughput path.
//!
//! Owns the table of calls that wait for their answer. Nothing is repeated here: when the stream
//! breaks, every open call ends as interrupted and the caller decides.

use crate::channel::NodeChannel;
use crate::convert::{
    read_answer_from_wire, read_to_wire, transact_answer_from_wire, transact_to_wire,
};
use crate::error::{ClientError, Reason, Refusal};
use crate::request::{Read, ReadAnswer, Transact, TransactAnswer};
use cachetier_model::GroupSchema;
use cachetier_proto::v1;
use cachetier_proto::v1::pipeline_request::Call;
use cachetier_proto::v1::pipeline_response::Result as Outcome;
use dashmap::DashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Code, Streaming};

/// Calls in flight on one stream; further ones wait.
const IN_FLIGHT_MAX: usize = 512;

/// A stream to one node; clones share it. Ends with the last clone.
#[derive(Clone)]
pub struct Pipeline {
    shared: Arc<Shared>,
}

struct Shared {
    schema: Arc<GroupSchema>,
    node: String,
    outgoing: mpsc::Sender<v1::PipelineRequest>,
    room: Semaphore,
    next: AtomicU64,
    waiting: Arc<Waiting>,
    _reader: DropGuard,
}

#[derive(Default)]
struct Waiting {
    calls: DashMap<u64, oneshot::Sender<Outcome>>,
    /// Set before the last sweep of `calls`, checked after an insertion.
    closed: AtomicBool,
}

impl Pipeline {
    /// Opens the stream.
    pub async fn open(node: &NodeChannel, schema: Arc<GroupSchema>) -> Result<Self, ClientError> {
        let address = node.endpoint().address.clone();
        let (outgoing, requests) = mpsc::channel(IN_FLIGHT_MAX);
        let answers = node.cache().pipeline(ReceiverStream::new(requests)).await;
        let answers = answers.map_err(|s| ClientError::from_status(&address, s))?.into_inner();
        let waiting = Arc::new(Waiting::default());
        let token = CancellationToken::new();
        tokio::spawn(receive(answers, waiting.clone(), token.clone()));
        let shared = Shared {
            schema,
            node: address,
            outgoing,
            room: Semaphore::new(IN_FLIGHT_MAX),
            next: AtomicU64::new(1),
            waiting,
            _reader: token.drop_guard(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub async fn read(&self, read: &Read) -> Result<ReadAnswer, ClientError> {
        match self.call(Call::Read(read_to_wire(read))).await? {
            Outcome::Read(answer) => {
                Ok(read_answer_from_wire(&self.shared.schema, &read.tables, answer)?)
            }
            other => Err(self.unexpected(other)),
        }
    }

    pub async fn transact(&self, transact: &Transact) -> Result<TransactAnswer, ClientError> {
        match self.call(Call::Transact(transact_to_wire(transact))).await? {
            Outcome::Transact(answer) => Ok(transact_answer_from_wire(answer)),
            other => Err(self.unexpected(other)),
        }
    }

    async fn call(&self, call: Call) -> Result<Outcome, ClientError> {
        let shared = &self.shared;
        let _room = shared.room.acquire().await.map_err(|_| self.interrupted())?;
        let id = shared.next.fetch_add(1, Ordering::Relaxed);
        let (answered, answer) = oneshot::channel();
        shared.waiting.calls.insert(id, answered);
        // forgets the call when this future is dropped
        let _forget = Forget { waiting: &shared.waiting, id };
        let request = v1::PipelineRequest { id, call: Some(call) };
        let sent = shared.outgoing.send(request).await;
        if sent.is_err() || shared.waiting.closed.load(Ordering::SeqCst) {
            return Err(self.interrupted());
        }
        answer.await.map_err(|_| self.interrupted())
    }

    fn unexpected(&self, outcome: Outcome) -> ClientError {
        let node = self.shared.node.clone();
        let Outcome::Error(error) = outcome else {
            let message = "the answer is of another kind than the call".to_owned();
            return ClientError::Protocol { node, message };
        };
        let detail = error.detail.unwrap_or_default();
        ClientError::Refused(Box::new(Refusal {
            node,
            code: Code::from_i32(error.code.try_into().unwrap_or(Code::Unknown as i32)),
            reason: Reason::parse(&detail.reason),
            message: error.message,
            detail,
        }))
    }

    fn interrupted(&self) -> ClientError {
        let message = "the stream ended".to_owned();
        ClientError::Interrupted { node: self.shared.node.clone(), message }
    }
}

struct Forget<'a> {
    waiting: &'a Waiting,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.waiting.calls.remove(&self.id);
    }
}

/// Hands answers to their callers; at the end of the stream every open call is let go.
async fn receive(
    mut answers: Streaming<v1::PipelineResponse>,
    waiting: Arc<Waiting>,
    stop: CancellationToken,
) {
    loop {
        let message = tokio::select! {
            () = stop.cancelled() => break,
            message = answers.message() => message,
        };
        let Ok(Some(v1::PipelineResponse { id, result: Some(outcome) })) = message else { break };
        if let Some((_, answered)) = waiting.calls.remove(&id) {
            // The caller may have gone.
            let _ = answered.send(outcome);
        }
    }
    waiting.closed.store(true, Ordering::SeqCst);
    waiting.calls.clear();
}
