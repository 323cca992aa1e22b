//! The `Admin` service.

use super::authorize::{Act, authorize};
use super::selector::root_key;
use super::{answers, errors};
use cachetier_client::convert::{instance_from_wire, topology_from_wire};
use cachetier_group::{
    BeginLoad, ChunkLoad, CompareCall, Group, GroupError, Repair, TableRowsFigure,
};
use cachetier_model::Instance;
use cachetier_proto::v1;
use cachetier_proto::v1::admin_server::Admin;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

#[derive(Clone)]
pub struct AdminService {
    pub group: Group,
}

fn refused(error: &GroupError) -> Status {
    errors::from_group(error, None)
}

#[tonic::async_trait]
impl Admin for AdminService {
    async fn status(
        &self,
        request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        authorize(&request, Act::Load)?;
        Ok(Response::new(answers::status(self.group.status().await)))
    }

    async fn apply_topology(
        &self,
        request: Request<v1::ApplyTopologyRequest>,
    ) -> Result<Response<v1::ApplyTopologyResponse>, Status> {
        authorize(&request, Act::Admin)?;
        let wire = request.into_inner().topology.ok_or_else(|| errors::missing("the topology"))?;
        let topology = topology_from_wire(&wire).map_err(|e| errors::from_convert(&e))?;
        let version = self.group.apply_topology(topology).await.map_err(|e| refused(&e))?.0;
        Ok(Response::new(v1::ApplyTopologyResponse { version }))
    }

    async fn drain(
        &self,
        request: Request<v1::DrainRequest>,
    ) -> Result<Response<v1::DrainResponse>, Status> {
        authorize(&request, Act::Admin)?;
        let v1::DrainRequest { stop_writes, end_group, discard } = request.into_inner();
        let drained = self.group.drain(stop_writes).await.map_err(|e| refused(&e))?;
        if end_group {
            self.group.forget_group(discard).await.map_err(|e| refused(&e))?;
        }
        Ok(Response::new(v1::DrainResponse {
            backlog: Some(answers::backlog(&drained.backlog)),
            writes_stopped: drained.writes_stopped,
        }))
    }

    async fn pause_flushing(
        &self,
        request: Request<v1::PauseFlushingRequest>,
    ) -> Result<Response<v1::PauseFlushingResponse>, Status> {
        authorize(&request, Act::Admin)?;
        let waiting = self.group.pause_flushing(request.into_inner().pause).await;
        let backlog = Some(answers::backlog(&waiting.map_err(|e| refused(&e))?));
        Ok(Response::new(v1::PauseFlushingResponse { backlog }))
    }

    async fn accept_loss(
        &self,
        request: Request<v1::AcceptLossRequest>,
    ) -> Result<Response<v1::AcceptLossResponse>, Status> {
        authorize(&request, Act::Admin)?;
        let journal = request.into_inner().journal;
        self.group.accept_lost_journal(&journal).await.map_err(|e| refused(&e))?;
        Ok(Response::new(v1::AcceptLossResponse {}))
    }

    async fn begin_load(
        &self,
        request: Request<v1::BeginLoadRequest>,
    ) -> Result<Response<v1::BeginLoadResponse>, Status> {
        authorize(&request, Act::Load)?;
        let v1::BeginLoadRequest { load_id, chunks_total, expected } = request.into_inner();
        let expected = expected
            .into_iter()
            .map(|t| TableRowsFigure {
                table: t.table,
                rows: t.rows,
                expected_rows: t.expected_rows,
            })
            .collect();
        let call = BeginLoad { load_id, chunks_total, expected };
        let begun = self.group.begin_load(call).await.map_err(|e| refused(&e))?;
        Ok(Response::new(answers::load_begun(begun)))
    }

    async fn load(
        &self,
        request: Request<Streaming<v1::LoadRequest>>,
    ) -> Result<Response<v1::LoadResponse>, Status> {
        authorize(&request, Act::Load)?;
        let mut stream = request.into_inner();
        let first = stream.message().await?.ok_or_else(|| errors::missing("the chunk"))?;
        let chunk = first.chunk.ok_or_else(|| errors::missing("the chunk's name"))?;
        let mut load = self
            .group
            .load_chunk(&chunk.load_id, chunk.chunk, chunk.ticket)
            .map_err(|e| refused(&e))?;
        self.install(&mut load, first.instances)?;
        let mut whole = first.end;
        // an error in between drops the chunk: it is not counted
        while let Some(message) = stream.message().await? {
            self.install(&mut load, message.instances)?;
            whole |= message.end;
            // installing is synchronous; let reads have their turn
            tokio::task::yield_now().await;
        }
        // the transport reports a cancelled stream as one that ended
        if !whole {
            return Err(Status::cancelled(
                "the chunk ended before it was whole; it is not counted",
            ));
        }
        Ok(Response::new(answers::chunk(load.finish())))
    }

    type CompareStream = BoxStream<'static, Result<v1::CompareProgress, Status>>;

    async fn compare(
        &self,
        request: Request<v1::CompareRequest>,
    ) -> Result<Response<Self::CompareStream>, Status> {
        authorize(&request, Act::Admin)?;
        let request = request.into_inner();
        let repair = match request.repair() {
            v1::Repair::Unspecified => None,
            v1::Repair::FromBackend => Some(Repair::FromBackend),
            v1::Repair::FromCache => Some(Repair::FromCache),
        };
        let v1::CompareRequest { sample, rows_per_second, .. } = request;
        let progress = self.group.compare(CompareCall { sample, repair, rows_per_second }).await;
        let progress = ReceiverStream::new(progress.map_err(|e| refused(&e))?);
        let messages =
            progress.map(|step| step.map(answers::compare).map_err(|error| refused(&error)));
        Ok(Response::new(messages.boxed()))
    }

    async fn refresh(
        &self,
        request: Request<v1::RefreshRequest>,
    ) -> Result<Response<v1::RefreshResponse>, Status> {
        authorize(&request, Act::Admin)?;
        let schema = self.group.schema().map_err(|e| refused(&e))?;
        let keys = request.into_inner().keys;
        let keys = keys.iter().map(|key| root_key(&schema, key)).collect::<Result<Vec<_>, _>>()?;
        let answers = self.group.refresh(&keys).await.map_err(|e| refused(&e))?;
        let refreshed = answers.into_iter().map(|a| answers::refreshed(a).into()).collect();
        Ok(Response::new(v1::RefreshResponse { refreshed }))
    }

    async fn list_rejects(
        &self,
        request: Request<v1::ListRejectsRequest>,
    ) -> Result<Response<v1::ListRejectsResponse>, Status> {
        authorize(&request, Act::Admin)?;
        let found = self.group.rejects(request.into_inner().limit).await;
        let rejects = found.map_err(|e| refused(&e))?.into_iter().map(answers::reject).collect();
        Ok(Response::new(v1::ListRejectsResponse { rejects }))
    }

    async fn show_reject(
        &self,
        request: Request<v1::ShowRejectRequest>,
    ) -> Result<Response<v1::ShowRejectResponse>, Status> {
        authorize(&request, Act::Admin)?;
        let shown = self.group.reject(request.into_inner().id).await;
        let (reject, transactions) = shown.map_err(|e| refused(&e))?;
        Ok(Response::new(v1::ShowRejectResponse {
            reject: Some(answers::reject(reject)),
            transactions: transactions.into_iter().map(answers::rejected_transaction).collect(),
        }))
    }

    async fn resolve_reject(
        &self,
        request: Request<v1::ResolveRejectRequest>,
    ) -> Result<Response<v1::ResolveRejectResponse>, Status> {
        authorize(&request, Act::Admin)?;
        let v1::ResolveRejectRequest { id, discard } = request.into_inner();
        let resolved = self.group.resolve_reject(id, discard).await;
        let transactions = resolved.map_err(|e| refused(&e))?;
        Ok(Response::new(v1::ResolveRejectResponse { transactions }))
    }
}

impl AdminService {
    fn install(&self, load: &mut ChunkLoad, wire: Vec<v1::LoadInstance>) -> Result<(), Status> {
        if wire.is_empty() {
            return Ok(());
        }
        let schema = self.group.schema().map_err(|e| refused(&e))?;
        let instances: Vec<Instance> = wire
            .into_iter()
            .map(|instance| instance_from_wire(&schema, &instance))
            .collect::<Result<_, _>>()
            .map_err(|e| errors::from_convert(&e))?;
        load.install(instances).map_err(|e| refused(&e))
    }
}
