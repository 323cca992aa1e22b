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
        let call = |node: NodeChannel| async move { node.read(request, READ_TIMEOUT).await };
        self.call(owner, call).await
    }

    pub async fn transact(
        &self,
        owner: &NodeEntry,
        mut request: v1::TransactRequest,
    ) -> Result<v1::TransactResponse, ClientError> {
        request.forwarded = true;
        let call = |node: NodeChannel| async move { node.transact(request, WRITE_TIMEOUT).await };
        self.call(owner, call).await
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
            self.call(owner, move |node| async move { node.wait_flushed(request, timeout).await })
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
        call: impl FnOnce(NodeChannel) -> F,
    ) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let channel = self.peers.channels().node(&Endpoint::new(owner.address.as_str()));
        let answer = call(channel).await;
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
