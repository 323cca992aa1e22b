//! Connections to nodes, kept and shared by address.
//!
//! Owns one [`NodeChannel`] per endpoint, and the stream on each of its connections. A channel
//! connects at its first use and again after a failure, with the TLS material of that moment.

use crate::error::ClientError;
use crate::options::{Calls, Endpoint, Options};
use crate::pipeline::Pipeline;
use crate::transport::{Dialer, TcpTransport, Transport};
use arc_swap::ArcSwapOption;
use cachetier_proto::v1;
use cachetier_proto::v1::admin_client::AdminClient;
use cachetier_proto::v1::cache_client::CacheClient;
use cachetier_proto::v1::peer_client::PeerClient;
use cachetier_proto::v1::pipeline_request::Call;
use cachetier_proto::v1::pipeline_response::Result as Outcome;
use dashmap::DashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, OwnedSemaphorePermit};
use tonic::transport::{Channel, Endpoint as Target};
use tonic::{Request, Response, Status};

/// Largest message accepted, bytes: a whole instance with its rows, or a slice of a load.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// Calls under way on one connection before the next one is used.
const COMPANY: usize = 8;
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;

/// The connections of one client.
#[derive(Clone)]
pub struct Channels {
    inner: Arc<Inner>,
}

struct Inner {
    options: Options,
    transport: Arc<dyn Transport>,
    nodes: DashMap<Endpoint, NodeChannel>,
}

/// Connections to one node; clones share them.
#[derive(Clone)]
pub struct NodeChannel {
    shared: Arc<Shared>,
}

struct Shared {
    endpoint: Endpoint,
    calls: Calls,
    connections: Vec<Connection>,
    next: AtomicUsize,
}

/// One HTTP/2 connection and the stream on it.
struct Connection {
    channel: Channel,
    /// Absent before the first call.
    pipeline: ArcSwapOption<Pipeline>,
    /// One caller opens a stream, the others wait for it.
    opening: Mutex<()>,
}

impl Connection {
    /// Calls under way on its stream; `None`: it has none that is open.
    fn under_way(&self) -> Option<usize> {
        let pipeline = self.pipeline.load();
        pipeline.as_ref().filter(|open| open.is_open()).map(|open| open.under_way())
    }
}

/// A stream, and room for one call on it.
struct Way {
    pipeline: Arc<Pipeline>,
    room: OwnedSemaphorePermit,
}

impl Channels {
    pub fn new(options: Options) -> Self {
        Self::with_transport(options, Arc::new(TcpTransport))
    }

    pub fn with_transport(options: Options, transport: Arc<dyn Transport>) -> Self {
        Self { inner: Arc::new(Inner { options, transport, nodes: DashMap::new() }) }
    }

    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// The channel to `endpoint`; connects at the first call made on it. Must be called inside a
    /// tokio runtime.
    pub fn node(&self, endpoint: &Endpoint) -> NodeChannel {
        if let Some(known) = self.inner.nodes.get(endpoint) {
            return known.clone();
        }
        self.inner.nodes.entry(endpoint.clone()).or_insert_with(|| self.open(endpoint)).clone()
    }

    /// Drops the connections to nodes that are not in `kept`.
    pub fn retain(&self, kept: &[Endpoint]) {
        self.inner.nodes.retain(|endpoint, _| kept.contains(endpoint));
    }

    fn open(&self, endpoint: &Endpoint) -> NodeChannel {
        let options = &self.inner.options;
        let dialer = Dialer {
            endpoint: endpoint.clone(),
            transport: self.inner.transport.clone(),
            tls: options.tls.clone(),
            timeout: options.connect_timeout,
        };
        let connection = || Connection {
            channel: channel(&dialer),
            pipeline: ArcSwapOption::empty(),
            opening: Mutex::new(()),
        };
        let connections = (0..options.connections_per_node.max(1)).map(|_| connection()).collect();
        let (endpoint, calls) = (endpoint.clone(), options.calls);
        let shared = Shared { endpoint, calls, connections, next: AtomicUsize::new(0) };
        NodeChannel { shared: Arc::new(shared) }
    }
}

/// The target's URI only fills the `:authority` header; the dialer knows the real address.
fn channel(dialer: &Dialer) -> Channel {
    let target = Target::from_static("http://cache-node")
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(Duration::from_secs(5))
        .keep_alive_timeout(Duration::from_secs(5))
        .keep_alive_while_idle(true);
    let dialer = dialer.clone();
    target.connect_with_connector_lazy(tower::service_fn(move |_: http::Uri| {
        let dialer = dialer.clone();
        async move { dialer.dial().await }
    }))
}

impl NodeChannel {
    pub fn endpoint(&self) -> &Endpoint {
        &self.shared.endpoint
    }

    fn next(&self) -> Option<&Connection> {
        let turn = self.shared.next.fetch_add(1, Ordering::Relaxed);
        self.shared.connections.get(turn % self.shared.connections.len().max(1))
    }

    /// The connection for one more call on a stream: the first open one that has few, so that calls
    /// travel together; else one to open, in turns, since those that wait for one to open must not
    /// wait for each other; else the one that has the fewest.
    fn in_company(&self) -> Option<&Connection> {
        let connections = || self.shared.connections.iter();
        let few = |connection: &&Connection| connection.under_way().is_some_and(|n| n < COMPANY);
        if let Some(few) = connections().find(few) {
            return Some(few);
        }
        let closed = || connections().filter(|connection| connection.under_way().is_none());
        let turn = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let to_open = closed().nth(turn % closed().count().max(1));
        to_open.or_else(|| connections().min_by_key(|connection| connection.under_way()))
    }

    fn channel(&self) -> Channel {
        // there is one at least; a fresh lazy channel is harmless if there ever were none
        let unused = || Target::from_static("http://cache-node").connect_lazy();
        self.next().map_or_else(unused, |connection| connection.channel.clone())
    }

    /// One read, answered within `timeout`.
    pub async fn read(
        &self,
        request: v1::ReadRequest,
        timeout: Duration,
    ) -> Result<v1::ReadResponse, ClientError> {
        let Some(way) = self.pipeline(timeout).await? else {
            let mut cache = self.cache();
            return self.unary(cache.read(timed(request, timeout)), timeout).await;
        };
        match way.pipeline.call(way.room, Call::Read(request), timeout).await? {
            Outcome::Read(answer) => Ok(answer),
            _ => Err(self.another_kind()),
        }
    }

    /// One transaction, answered within `timeout`.
    pub async fn transact(
        &self,
        request: v1::TransactRequest,
        timeout: Duration,
    ) -> Result<v1::TransactResponse, ClientError> {
        let Some(way) = self.pipeline(timeout).await? else {
            let mut cache = self.cache();
            return self.unary(cache.transact(timed(request, timeout)), timeout).await;
        };
        match way.pipeline.call(way.room, Call::Transact(request), timeout).await? {
            Outcome::Transact(answer) => Ok(answer),
            _ => Err(self.another_kind()),
        }
    }

    /// Waits at the node until a position has reached the backend, no longer than `timeout`.
    pub async fn wait_flushed(
        &self,
        request: v1::WaitFlushedRequest,
        timeout: Duration,
    ) -> Result<v1::WaitFlushedResponse, ClientError> {
        let mut cache = self.cache();
        self.unary(cache.wait_flushed(timed(request, timeout)), timeout).await
    }

    async fn unary<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
        timeout: Duration,
    ) -> Result<T, ClientError> {
        let status = match tokio::time::timeout(timeout, call).await {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) => status,
            Err(_) => Status::deadline_exceeded(format!("no answer within {timeout:?}")),
        };
        Err(ClientError::from_status(&self.endpoint().address, status))
    }

    /// The stream of one connection with room for a call. None where calls go by themselves: when
    /// so many wait for something slow that the stream has no room, the others must not wait too.
    async fn pipeline(&self, timeout: Duration) -> Result<Option<Way>, ClientError> {
        if self.shared.calls == Calls::Unary {
            return Ok(None);
        }
        let Some(connection) = self.in_company() else { return Ok(None) };
        let open = connection.pipeline.load_full().filter(|open| open.is_open());
        let pipeline = match open {
            Some(open) => open,
            None => match tokio::time::timeout(timeout, self.open_pipeline(connection)).await {
                Ok(opened) => opened?,
                Err(_) => {
                    let node = self.endpoint().address.clone();
                    let message = format!("no stream within {timeout:?}");
                    return Err(ClientError::Unsent { node, message });
                }
            },
        };
        let room = pipeline.room();
        Ok(room.map(|room| Way { pipeline, room }))
    }

    async fn open_pipeline(&self, connection: &Connection) -> Result<Arc<Pipeline>, ClientError> {
        let _turn = connection.opening.lock().await;
        if let Some(open) = connection.pipeline.load_full().filter(|open| open.is_open()) {
            return Ok(open);
        }
        let mut cache = self.cache_on(connection.channel.clone());
        let opened = Arc::new(Pipeline::open(&self.endpoint().address, &mut cache).await?);
        connection.pipeline.store(Some(opened.clone()));
        Ok(opened)
    }

    fn another_kind(&self) -> ClientError {
        let message = "the answer is of another kind than the call".to_owned();
        ClientError::Protocol { node: self.endpoint().address.clone(), message }
    }

    /// The raw `Cache` service, one connection of the node's.
    pub fn cache(&self) -> CacheClient<Channel> {
        self.cache_on(self.channel())
    }

    fn cache_on(&self, channel: Channel) -> CacheClient<Channel> {
        CacheClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// The raw `Admin` service.
    pub fn admin(&self) -> AdminClient<Channel> {
        AdminClient::new(self.channel())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// The raw `Peer` service.
    pub fn peer(&self) -> PeerClient<Channel> {
        PeerClient::new(self.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }
}

/// A request that tells the server how long this side waits.
pub(crate) fn timed<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}
