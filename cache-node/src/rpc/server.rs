//! Puts the services together and runs them on accepted connections.

use super::admin::AdminService;
use super::cache::CacheService;
use super::forward::Forwarder;
use super::health;
use super::listener::{ListenError, NodeStream};
use super::peer::PeerService;
use super::route::Route;
use crate::metrics::RpcMetrics;
use crate::peers::NodePeers;
use crate::snapshot::Snapshot;
use cachetier_client::channel::MAX_MESSAGE_BYTES;
use cachetier_group::Group;
use cachetier_model::node_config::BypassConfig;
use cachetier_proto::v1::DESCRIPTORS;
use cachetier_proto::v1::admin_server::AdminServer;
use cachetier_proto::v1::cache_server::CacheServer;
use cachetier_proto::v1::peer_server::PeerServer;
use std::sync::Arc;
use std::time::Duration;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
const STREAMS_PER_CONNECTION_MAX: u32 = 4_096;
/// How long open calls may go on once the server is to stop.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// What the services work on.
pub struct Services {
    pub group: Group,
    /// `namespace/name`, for `Describe`.
    pub group_name: String,
    pub peers: Arc<NodePeers>,
    pub bypass: BypassConfig,
    pub snapshot: Snapshot,
    pub metrics: RpcMetrics,
}

/// The services put together; clones share them.
#[derive(Clone)]
pub struct Server {
    routes: Routes,
}

impl Server {
    /// The server, and the task that keeps the health service up to date until `stop`.
    pub fn new(
        services: Services,
        stop: CancellationToken,
    ) -> Result<(Self, impl Future<Output = ()>), ListenError> {
        let Services { group, group_name, peers, bypass, snapshot, metrics } = services;
        let forwarder = Forwarder::new(peers);
        let route = Route { group: group.clone(), forwarder, bypass, metrics: metrics.clone() };
        let cache = CacheService {
            route: Arc::new(route),
            metrics,
            group_name: group_name.into(),
            stop: stop.clone(),
        };
        let (reporter, health) = tonic_health::server::health_reporter();
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()
            .map_err(ListenError::Reflection)?;
        let mut routes = Routes::builder();
        routes
            .add_service(CacheServer::new(cache).max_decoding_message_size(MAX_MESSAGE_BYTES))
            .add_service(
                AdminServer::new(AdminService { group: group.clone() })
                    .max_decoding_message_size(MAX_MESSAGE_BYTES),
            )
            .add_service(PeerServer::new(PeerService { group }))
            .add_service(health)
            .add_service(reflection);
        let server = Self { routes: routes.routes().prepare() };
        Ok((server, health::follow(reporter, snapshot, stop)))
    }

    /// Answers on the connections that come in until `stop`.
    pub async fn serve(
        self,
        incoming: ReceiverStream<std::io::Result<NodeStream>>,
        stop: CancellationToken,
    ) -> Result<(), ListenError> {
        let serving = tonic::transport::Server::builder()
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
            .http2_keepalive_interval(Some(Duration::from_secs(10)))
            .http2_keepalive_timeout(Some(Duration::from_secs(10)))
            .add_routes(self.routes)
            .serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned());
        tokio::select! {
            served = serving => served.map_err(ListenError::Serve),
            () = async { stop.cancelled().await; tokio::time::sleep(STOP_GRACE).await } => Ok(()),
        }
    }
}
