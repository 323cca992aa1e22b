//! The `Cache` service.

use super::authorize::{Act, authorize};
use super::pipeline;
use super::route::Route;
use super::{answers, errors};
use crate::metrics::{Method, RpcMetrics};
use cachetier_client::convert::topology_to_wire;
use cachetier_proto::v1;
use cachetier_proto::v1::cache_server::Cache;
use futures::StreamExt;
use futures::stream::BoxStream;
use std::sync::Arc;
use std::time::Instant;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

#[derive(Clone)]
pub struct CacheService {
    pub route: Arc<Route>,
    pub metrics: RpcMetrics,
    /// `namespace/name`.
    pub group_name: Arc<str>,
    /// Ends the endless streams.
    pub stop: CancellationToken,
}

impl CacheService {
    pub async fn read_one(&self, request: v1::ReadRequest) -> Result<v1::ReadResponse, Status> {
        let started = Instant::now();
        let answer = self.route.read(request).await;
        self.metrics.answered(Method::Read, errors::outcome(&answer), started.elapsed());
        answer
    }

    pub async fn transact_one(
        &self,
        request: v1::TransactRequest,
    ) -> Result<v1::TransactResponse, Status> {
        let started = Instant::now();
        let answer = self.route.transact(request).await;
        self.metrics.answered(Method::Transact, errors::outcome(&answer), started.elapsed());
        answer
    }
}

#[tonic::async_trait]
impl Cache for CacheService {
    async fn read(
        &self,
        request: Request<v1::ReadRequest>,
    ) -> Result<Response<v1::ReadResponse>, Status> {
        authorize(&request, Act::Cache)?;
        self.read_one(request.into_inner()).await.map(Response::new)
    }

    async fn transact(
        &self,
        request: Request<v1::TransactRequest>,
    ) -> Result<Response<v1::TransactResponse>, Status> {
        authorize(&request, Act::Cache)?;
        self.transact_one(request.into_inner()).await.map(Response::new)
    }

    type PipelineStream = BoxStream<'static, Result<v1::PipelineResponse, Status>>;

    async fn pipeline(
        &self,
        request: Request<Streaming<v1::PipelineRequest>>,
    ) -> Result<Response<Self::PipelineStream>, Status> {
        authorize(&request, Act::Cache)?;
        let answers = pipeline::run(self.clone(), request.into_inner(), &self.stop);
        Ok(Response::new(answers.boxed()))
    }

    async fn wait_flushed(
        &self,
        request: Request<v1::WaitFlushedRequest>,
    ) -> Result<Response<v1::WaitFlushedResponse>, Status> {
        authorize(&request, Act::Cache)?;
        let flushed = self.route.wait_flushed(request.into_inner()).await?;
        Ok(Response::new(v1::WaitFlushedResponse { flushed }))
    }

    async fn describe(
        &self,
        request: Request<v1::DescribeRequest>,
    ) -> Result<Response<v1::DescribeResponse>, Status> {
        authorize(&request, Act::Cache)?;
        let schema = self.route.schema()?;
        let node = &self.route.group.node().name;
        Ok(Response::new(answers::description(&schema, &self.group_name, node)))
    }

    type WatchTopologyStream = BoxStream<'static, Result<v1::Topology, Status>>;

    async fn watch_topology(
        &self,
        request: Request<v1::WatchTopologyRequest>,
    ) -> Result<Response<Self::WatchTopologyStream>, Status> {
        authorize(&request, Act::Cache)?;
        let stop = self.stop.clone().cancelled_owned();
        let topologies = WatchStream::new(self.route.group.watch_topology())
            .filter_map(|held| async move { held.map(|t| Ok(topology_to_wire(&t))) })
            .take_until(Box::pin(stop));
        Ok(Response::new(topologies.boxed()))
    }
}
