//! Connections to nodes, kept and shared by address.
//!
//! Owns one [`NodeChannel`] per endpoint. A channel connects at its first use and again after a
//! failure, with the TLS material of that moment.

use crate::options::{Endpoint, Options};
use crate::transport::{Dialer, TcpTransport, Transport};
use cachetier_proto::v1::admin_client::AdminClient;
use cachetier_proto::v1::cache_client::CacheClient;
use cachetier_proto::v1::peer_client::PeerClient;
use dashmap::DashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint as Target};

/// Largest message accepted, bytes: a whole instance with its rows, or a slice of a load.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;
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

/// Connections to one node.
#[derive(Clone)]
pub struct NodeChannel {
    endpoint: Endpoint,
    connections: Arc<[Channel]>,
    next: Arc<AtomicUsize>,
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
        let connections =
            (0..options.connections_per_node.max(1)).map(|_| connection(&dialer)).collect();
        NodeChannel { endpoint: endpoint.clone(), connections, next: Arc::default() }
    }
}

/// The target's URI only fills the `:authority` header; the dialer knows the real address.
fn connection(dialer: &Dialer) -> Channel {
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
        &self.endpoint
    }

    fn next(&self) -> Channel {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let chosen = self.connections.get(turn % self.connections.len().max(1));
        // `connections` is never empty; a fresh lazy channel is harmless if it ever were.
        chosen.cloned().unwrap_or_else(|| Target::from_static("http://cache-node").connect_lazy())
    }

    /// The raw `Cache` service, one connection of the node's.
    pub fn cache(&self) -> CacheClient<Channel> {
        CacheClient::new(self.next())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// The raw `Admin` service.
    pub fn admin(&self) -> AdminClient<Channel> {
        AdminClient::new(self.next())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// The raw `Peer` service.
    pub fn peer(&self) -> PeerClient<Channel> {
        PeerClient::new(self.next()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }
}
