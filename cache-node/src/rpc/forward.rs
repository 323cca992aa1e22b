//! Sends a call on to the owner of its slot, once.
//!
//! Owns the memory of which peers did not answer lately, so that not every read pays for finding
//! out again. Must never forward a forwarded call, and never repeat a write that may have happened.

use crate::peers::NodePeers;
use cachetier_client::{ClientError, Endpoint, NodeChannel, Reason};
use cachetier_model::NodeEntry;
use cachetier_proto::v1;
use dashmap::DashMap;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

/// How long a peer that could not be reached is taken to be away.
const AWAY: Duration = Duration::from_secs(1);
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Operations on unique keys wait for the backend at the owner.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
const WAIT_MARGIN: Duration = Duration::from_secs(2);

pub struct Forwarder {
    peers: Arc<NodePeers>,
    away: DashMap<String, Instant>,
}

impl Forwarder {
    pub fn new(peers: Arc<NodePeers>) -> Self {
        Self { peers, away: DashMap::new() }
    }

    /// True while the last try to reach this node failed a moment ago.
    pub fn is_away(&self, node: &NodeEntry) -> bool {
        self.away.get(&node.name).is_some_and(|until| Instant::now() < *until)
    }

    pub async fn read(
        &self,
        owner: &NodeEntry,
        mut request: v1::ReadRequest,
    ) -> Result<v1::ReadResponse, ClientError> {
        request.forwarded = true;
        let call = |node: NodeChannel| async move { node.cache().read(request).await };
        self.call(owner, READ_TIMEOUT, call).await
    }

    pub async fn transact(
        &self,
        owner: &NodeEntry,
        mut request: v1::TransactRequest,
    ) -> Result<v1::TransactResponse, ClientError> {
        request.forwarded = true;
        let call = |node: NodeChannel| async move {
            let mut request = Request::new(request);
            request.set_timeout(WRITE_TIMEOUT);
            node.cache().transact(request).await
        };
        self.call(owner, WRITE_TIMEOUT + Duration::from_secs(1), call).await
    }

    /// Asks these nodes at once; the one whose journal it is answers. The error is the last one.
    pub async fn wait_flushed(
        &self,
        nodes: &[NodeEntry],
        mut request: v1::WaitFlushedRequest,
    ) -> Option<Result<bool, ClientError>> {
        request.forwarded = true;
        let timeout = Duration::from_millis(request.timeout_ms) + WAIT_MARGIN;
        let ask = |owner| {
            let request = request.clone();
            let call = |node: NodeChannel| async move { node.cache().wait_flushed(request).await };
            self.call(owner, timeout, call)
        };
        let mut asked: FuturesUnordered<_> = nodes.iter().map(ask).collect();
        let mut last = None;
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(answer) => return Some(Ok(answer.flushed)),
                // the owner's own word: it was set aside
                Err(error) if error.reason() == Some(Reason::BackendRefused) => {
                    return Some(Err(error));
                }
                Err(error) => last = Some(Err(error)),
            }
        }
        last
    }

    async fn call<T, F>(
        &self,
        owner: &NodeEntry,
        timeout: Duration,
        call: impl FnOnce(NodeChannel) -> F,
    ) -> Result<T, ClientError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let channel = self.peers.channels().node(&Endpoint::new(owner.address.as_str()));
        let answer = match tokio::time::timeout(timeout, call(channel)).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(ClientError::from_status(&owner.name, status)),
            Err(_) => Err(ClientError::Interrupted {
                node: owner.name.clone(),
                message: format!("no answer within {timeout:?}"),
            }),
        };
        // only a failed connect tells that nobody is there; a late answer may come from an owner
        // that goes on acknowledging writes, which must not be read past
        match &answer {
            Err(ClientError::Unreachable { .. }) => {
                self.away.insert(owner.name.clone(), Instant::now() + AWAY);
            }
            _ => drop(self.away.remove(&owner.name)),
        }
        answer
    }
}
