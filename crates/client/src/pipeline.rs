//! Many calls in flight on one stream to one node: how reads and transactions travel.
//!
//! Owns the table of calls that wait for their answer. Nothing is repeated here: when the stream
//! ends, every open call ends with what its end proves, and the caller decides.

use crate::error::ClientError;
use cachetier_proto::v1;
use cachetier_proto::v1::cache_client::CacheClient;
use cachetier_proto::v1::pipeline_request::Call;
use cachetier_proto::v1::pipeline_response::Result as Outcome;
use dashmap::DashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Streaming;
use tonic::transport::Channel;

/// Calls in flight on one stream: what a node reads ahead of its answers.
const IN_FLIGHT_MAX: usize = 512;

/// A stream to one node; ends with the value.
pub(crate) struct Pipeline {
    node: String,
    outgoing: mpsc::Sender<v1::PipelineRequest>,
    room: Arc<Semaphore>,
    next: AtomicU64,
    waiting: Arc<Waiting>,
    _reader: DropGuard,
}

#[derive(Default)]
struct Waiting {
    calls: DashMap<u64, Waiter>,
    /// Set before the last sweep of `calls`, checked after an insertion.
    end: OnceLock<End>,
}

/// A call under way. It keeps its room until the node has answered, also when its caller has given
/// up: the node works on it until then.
struct Waiter {
    answered: oneshot::Sender<Outcome>,
    _room: OwnedSemaphorePermit,
}

/// How a stream ended.
enum End {
    /// The node answered all that it had read, and said so.
    Closed,
    Broken(String),
}

impl Pipeline {
    /// Opens the stream.
    pub async fn open(node: &str, cache: &mut CacheClient<Channel>) -> Result<Self, ClientError> {
        let (outgoing, requests) = mpsc::channel(IN_FLIGHT_MAX);
        let answers = cache.pipeline(Gathered { requests, gathering: true }).await;
        let answers = answers.map_err(|s| ClientError::from_status(node, s))?.into_inner();
        let waiting = Arc::new(Waiting::default());
        let token = CancellationToken::new();
        tokio::spawn(receive(answers, waiting.clone(), token.clone()));
        Ok(Self {
            node: node.to_owned(),
            outgoing,
            room: Arc::new(Semaphore::new(IN_FLIGHT_MAX)),
            next: AtomicU64::new(1),
            waiting,
            _reader: token.drop_guard(),
        })
    }

    /// Calls that wait for their answer.
    pub fn under_way(&self) -> usize {
        IN_FLIGHT_MAX - self.room.available_permits()
    }

    /// False once it has ended.
    pub fn is_open(&self) -> bool {
        self.waiting.end.get().is_none()
    }

    /// Room for one call, unless as many as there may be are under way.
    pub fn room(&self) -> Option<OwnedSemaphorePermit> {
        self.room.clone().try_acquire_owned().ok()
    }

    /// One call, answered within `timeout`; a refusal is an error.
    pub async fn call(
        &self,
        room: OwnedSemaphorePermit,
        call: Call,
        timeout: Duration,
    ) -> Result<Outcome, ClientError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answered, answer) = oneshot::channel();
        self.waiting.calls.insert(id, Waiter { answered, _room: room });
        if !self.is_open() {
            self.waiting.calls.remove(&id);
            return Err(self.unsent());
        }
        let timeout_ms = timeout.as_millis().try_into().unwrap_or(u32::MAX);
        let request = v1::PipelineRequest { id, call: Some(call), timeout_ms };
        // its bound is that of the calls under way, so that there is room
        if self.outgoing.try_send(request).is_err() {
            self.waiting.calls.remove(&id);
            return Err(self.unsent());
        }
        match tokio::time::timeout(timeout, answer).await {
            Ok(Ok(Outcome::Error(error))) => Err(ClientError::from_pipeline(&self.node, error)),
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(_)) => Err(self.unanswered()),
            Err(_) => Err(self.interrupted(format!("no answer within {timeout:?}"))),
        }
    }

    /// What the end of the stream proves about a call that was sent and has no answer.
    fn unanswered(&self) -> ClientError {
        match self.waiting.end.get() {
            Some(End::Closed) => self.unsent(),
            Some(End::Broken(why)) => self.interrupted(why.clone()),
            None => self.interrupted("the stream ended".to_owned()),
        }
    }

    fn unsent(&self) -> ClientError {
        let message = "it closed the stream".to_owned();
        ClientError::Unsent { node: self.node.clone(), message }
    }

    fn interrupted(&self, message: String) -> ClientError {
        ClientError::Interrupted { node: self.node.clone(), message }
    }
}

/// The requests of callers that run one after the other leave together: the first one waits until the
/// tasks that are ready now had their turn.
struct Gathered {
    requests: mpsc::Receiver<v1::PipelineRequest>,
    /// The next request is the first one since there was none.
    gathering: bool,
}

impl Stream for Gathered {
    type Item = v1::PipelineRequest;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.gathering && !self.requests.is_empty() {
            self.gathering = false;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let next = self.requests.poll_recv(context);
        self.gathering = next.is_pending();
        next
    }
}

/// Hands answers to their callers; at the end of the stream every open call is let go.
async fn receive(
    mut answers: Streaming<v1::PipelineResponse>,
    waiting: Arc<Waiting>,
    stop: CancellationToken,
) {
    let end = loop {
        let message = tokio::select! {
            () = stop.cancelled() => break End::Broken("the client was dropped".to_owned()),
            message = answers.message() => message,
        };
        let v1::PipelineResponse { id, result } = match message {
            Ok(Some(response)) => response,
            Ok(None) => break End::Broken("the stream ended".to_owned()),
            Err(status) => break End::Broken(crate::error::deepest(&status)),
        };
        match result {
            Some(Outcome::Closing(_)) => break End::Closed,
            Some(outcome) => {
                if let Some((_, waiter)) = waiting.calls.remove(&id) {
                    // The caller may have gone.
                    let _ = waiter.answered.send(outcome);
                }
            }
            // an answer of a later version: its caller is told at the end
            None => break End::Broken("an answer of an unknown kind".to_owned()),
        }
    };
    // nobody else sets it
    let _ = waiting.end.set(end);
    waiting.calls.clear();
}
