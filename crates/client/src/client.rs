//! The client: reads and transactions by key, wherever the instance lives.
//!
//! Owns the schema of the group, the router and a background task that follows the topology. The
//! task ends with the last clone of the client.

mod describe;
mod watch;

use crate::admin::AdminClient;
use crate::channel::{Channels, NodeChannel};
use crate::convert::{
    ConvertError, position_to_wire, read_answer_from_wire, read_to_wire, topology_from_wire,
    transact_answer_from_wire, transact_to_wire,
};
use crate::error::{ClientError, Reason};
use crate::options::{Endpoint, Options};
use crate::peer::PeerClient;
use crate::request::{Key, Position, Read, ReadAnswer, Transact, TransactAnswer};
use crate::retry::{Doubt, Kind, pause};
use crate::routing::Router;
use crate::transport::{TcpTransport, Transport};
use bytes::Bytes;
use cachetier_model::{GroupSchema, IdempotencyKey, SlotId, Topology};
use cachetier_proto::v1;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::DropGuard;

/// A transaction whose idempotency key no node would take.
fn check_keyed(transact: &Transact, key: &Bytes) -> Result<(), ClientError> {
    IdempotencyKey::new(key.clone()).map_err(|e| ConvertError::IdempotencyKey(e.to_string()))?;
    match transact.key {
        Key::Root(_) => Ok(()),
        Key::Lookup { .. } => {
            let why = "it needs the root key; a lookup key may be another instance's by then";
            Err(ConvertError::IdempotencyKey(why.to_owned()).into())
        }
    }
}

/// Given to a node to answer that the time has run out.
const ANSWER_MARGIN: Duration = Duration::from_secs(5);

/// A connected client; clones share everything.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    channels: Channels,
    router: Arc<Router>,
    schema: Arc<GroupSchema>,
    group: String,
    _watcher: DropGuard,
}

impl Client {
    /// Asks the first reachable node for the group's tables and follows the topology from then on.
    pub async fn connect(
        seeds: impl IntoIterator<Item = Endpoint>,
        options: Options,
    ) -> Result<Self, ClientError> {
        Self::connect_with(seeds, options, Arc::new(TcpTransport)).await
    }

    /// The same over another transport, such as a port-forward.
    pub async fn connect_with(
        seeds: impl IntoIterator<Item = Endpoint>,
        options: Options,
        transport: Arc<dyn Transport>,
    ) -> Result<Self, ClientError> {
        let seeds: Vec<Endpoint> = seeds.into_iter().collect();
        let routing = options.routing;
        let channels = Channels::with_transport(options, transport);
        let described = describe::first_answer(&channels, &seeds).await?;
        let router = Arc::new(Router::new(seeds, routing));
        let watcher = watch::spawn(channels.clone(), router.clone());
        let (schema, group) = (Arc::new(described.schema), described.group);
        Ok(Self { inner: Arc::new(Inner { channels, router, schema, group, _watcher: watcher }) })
    }

    /// The tables of the group.
    pub fn schema(&self) -> &Arc<GroupSchema> {
        &self.inner.schema
    }

    /// `namespace/name` of the group.
    pub fn group(&self) -> &str {
        &self.inner.group
    }

    /// The newest topology seen.
    pub fn topology(&self) -> Option<Arc<Topology>> {
        self.inner.router.topology()
    }

    pub fn channels(&self) -> &Channels {
        &self.inner.channels
    }

    /// Admin calls to one node.
    pub fn admin(&self, endpoint: &Endpoint) -> AdminClient {
        AdminClient::new(self.inner.channels.node(endpoint))
    }

    /// Node-to-node calls.
    pub fn peer(&self, endpoint: &Endpoint) -> PeerClient {
        PeerClient::new(self.inner.channels.node(endpoint))
    }

    /// The nodes of the topology, or the addresses given at connect while none is known.
    pub fn nodes(&self) -> Vec<Endpoint> {
        self.inner.router.all()
    }

    pub async fn read(&self, read: &Read) -> Result<ReadAnswer, ClientError> {
        let wire = read_to_wire(read);
        let timeout = self.inner.channels.options().read_timeout;
        let call = |node: NodeChannel| {
            let wire = wire.clone();
            async move { node.read(wire, timeout).await }
        };
        let answer = self.retried(Kind::Read, self.slot_of(&read.key), call).await?;
        Ok(read_answer_from_wire(self.schema(), &read.tables, answer)?)
    }

    pub async fn transact(&self, transact: &Transact) -> Result<TransactAnswer, ClientError> {
        let wire = transact_to_wire(transact);
        let timeout = self.inner.channels.options().write_timeout;
        let call = |node: NodeChannel| {
            let wire = wire.clone();
            async move { node.transact(wire, timeout).await }
        };
        let kind = match &transact.idempotency_key {
            None => Kind::Write,
            Some(key) => {
                check_keyed(transact, key)?;
                Kind::KeyedWrite
            }
        };
        let answer = self.retried(kind, self.slot_of(&transact.key), call).await?;
        Ok(transact_answer_from_wire(answer))
    }

    /// True once the backend has the position, false when the time ran out. A transaction that the
    /// backend refused, and that was set aside, is refused here too: `BACKEND_REFUSED`. The
    /// position's journal belongs to one node; any node finds it.
    pub async fn wait_flushed(
        &self,
        position: &Position,
        timeout: Duration,
    ) -> Result<bool, ClientError> {
        let wire = v1::WaitFlushedRequest {
            position: Some(position_to_wire(position)),
            timeout_ms: timeout.as_millis().try_into().unwrap_or(u64::MAX),
            forwarded: false,
        };
        let mut last = ClientError::NoNodes;
        for endpoint in self.inner.router.all() {
            let node = self.inner.channels.node(&endpoint);
            match node.wait_flushed(wire.clone(), timeout + ANSWER_MARGIN).await {
                Ok(answer) => return Ok(answer.flushed),
                Err(error) => last = error,
            }
            if last.reason() == Some(Reason::BackendRefused) {
                // the journal's owner was found, and this is its answer
                break;
            }
        }
        Err(last)
    }

    /// The slot of a root key; a lookup key's instance is found by the nodes.
    fn slot_of(&self, key: &Key) -> Option<SlotId> {
        match key {
            Key::Root(values) => self.inner.schema.encode_root_key(values).ok().map(|k| k.slot()),
            Key::Lookup { .. } => None,
        }
    }

    async fn retried<T, F, C>(
        &self,
        kind: Kind,
        slot: Option<SlotId>,
        call: C,
    ) -> Result<T, ClientError>
    where
        C: Fn(NodeChannel) -> F,
        F: Future<Output = Result<T, ClientError>>,
    {
        let deadline = Instant::now() + self.inner.channels.options().retry_for;
        let mut failed: Option<Endpoint> = None;
        let mut doubt = Doubt::default();
        for attempt in 0.. {
            let node = self.choose(slot, failed.as_ref()).ok_or(ClientError::NoNodes)?;
            let error = match call(self.inner.channels.node(&node)).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let learned = self.learn(&error);
            let Some(pause) = pause(kind, attempt, &error) else {
                return Err(doubt.last_word(error));
            };
            if Instant::now() + pause >= deadline {
                return Err(doubt.last_word(error));
            }
            if kind == Kind::KeyedWrite {
                doubt.note(error);
            }
            tokio::time::sleep(pause).await;
            // Ask the owner again once a newer topology names it; somebody else otherwise.
            failed = (!learned).then_some(node);
        }
        Err(ClientError::NoNodes)
    }

    fn choose(&self, slot: Option<SlotId>, failed: Option<&Endpoint>) -> Option<Endpoint> {
        let owner = slot.and_then(|s| self.inner.router.owner(s));
        match owner {
            Some(owner) if failed != Some(&owner) => Some(owner),
            _ => self.inner.router.any(failed),
        }
    }

    /// Takes over the topology a refusal carries; true when it did.
    fn learn(&self, error: &ClientError) -> bool {
        let offered = error.refusal().and_then(|r| r.detail.topology.as_ref());
        match offered.map(topology_from_wire) {
            Some(Ok(topology)) => {
                self.inner.router.learn(topology);
                true
            }
            _ => false,
        }
    }
}
