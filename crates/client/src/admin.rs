//! Admin calls to one node, each bounded in time.
//!
//! The answers that people look at (`Status`, `Compare`) are the generated messages themselves.

use crate::channel::NodeChannel;
use crate::convert::{instance_to_wire, topology_to_wire, value_to_wire};
use crate::error::ClientError;
use crate::peer::bounded;
use cachetier_model::{Epoch, GroupSchema, Instance, SlotSet, Topology, Value};
use cachetier_proto::v1;
use futures::{Stream, StreamExt};
use std::sync::Arc;
use std::time::Duration;
use tonic::Request;

const CALL_TIMEOUT: Duration = Duration::from_secs(5);
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(60);
/// Instances per message of a load.
const LOAD_BATCH: usize = 256;

pub struct AdminClient {
    node: NodeChannel,
    timeout: Duration,
}

/// A node's answer to [`AdminClient::begin_load`].
#[derive(Clone, Debug)]
pub struct LoadTicket {
    pub ticket: u64,
    /// Slots that still need this load on that node.
    pub slots_needed: SlotSet,
    pub epoch: Epoch,
    /// Chunks that process has whole already.
    pub chunks_done: Vec<u32>,
    /// By lane: what a snapshot must hold to be loaded from; empty: nothing is known of it.
    pub positions: Vec<u64>,
    /// By lane: the newest version its writer row is known to have had.
    pub versions: Vec<u64>,
    /// The node's name in the backend's bookkeeping.
    pub node: String,
}

/// Which chunk of which load a stream of instances is.
#[derive(Clone, Debug)]
pub struct ChunkName {
    pub load_id: String,
    pub chunk: u32,
    pub ticket: u64,
}

impl AdminClient {
    pub fn new(node: NodeChannel) -> Self {
        Self { node, timeout: CALL_TIMEOUT }
    }

    /// Another bound for the quick calls.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    fn timed<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout);
        request
    }

    pub async fn status(&self) -> Result<v1::StatusResponse, ClientError> {
        let request = self.timed(v1::StatusRequest {});
        bounded(&self.node, self.timeout, self.node.admin().status(request)).await
    }

    /// Offers a topology; answers the version held afterwards.
    pub async fn apply_topology(&self, topology: &Topology) -> Result<Epoch, ClientError> {
        let topology = Some(topology_to_wire(topology));
        let request = self.timed(v1::ApplyTopologyRequest { topology });
        let mut service = self.node.admin();
        let call = service.apply_topology(request);
        bounded(&self.node, self.timeout, call).await.map(|answer| Epoch(answer.version))
    }

    /// Stops writes (or takes them again) and reports what is left to flush.
    pub async fn drain(&self, stop_writes: bool) -> Result<v1::DrainResponse, ClientError> {
        let request = v1::DrainRequest { stop_writes, ..v1::DrainRequest::default() };
        let request = self.timed(request);
        bounded(&self.node, self.timeout, self.node.admin().drain(request)).await
    }

    /// Holds the flushing back, or lets it go on; answers what waits.
    pub async fn pause_flushing(&self, pause: bool) -> Result<v1::Backlog, ClientError> {
        let request = self.timed(v1::PauseFlushingRequest { pause });
        let mut service = self.node.admin();
        let call = service.pause_flushing(request);
        let answer = bounded(&self.node, self.timeout, call).await?;
        Ok(answer.backlog.unwrap_or_default())
    }

    /// The group is being deleted: its bookkeeping leaves the backend. Refused while something
    /// waits to be flushed, unless `discard` gives it up.
    pub async fn end_group(&self, discard: bool) -> Result<(), ClientError> {
        let request = v1::DrainRequest { stop_writes: true, end_group: true, discard };
        let request = self.timed(request);
        bounded(&self.node, self.timeout, self.node.admin().drain(request)).await.map(|_| ())
    }

    /// For a node that was refused because of its journal: the one named is lost for good, and what
    /// it had not flushed with it. The node starts again.
    pub async fn accept_loss(&self, journal: &str) -> Result<(), ClientError> {
        let request = self.timed(v1::AcceptLossRequest { journal: journal.to_owned() });
        bounded(&self.node, self.timeout, self.node.admin().accept_loss(request)).await.map(|_| ())
    }

    /// Registers a load; take the ticket before the snapshot is opened.
    pub async fn begin_load(
        &self,
        load_id: &str,
        chunks_total: u32,
        expected: Vec<v1::TableLoad>,
    ) -> Result<LoadTicket, ClientError> {
        let load_id = load_id.to_owned();
        let request = self.timed(v1::BeginLoadRequest { load_id, chunks_total, expected });
        let answer =
            bounded(&self.node, self.timeout, self.node.admin().begin_load(request)).await?;
        let slots = SlotSet::from_bytes(&answer.slots_needed);
        Ok(LoadTicket {
            ticket: answer.ticket,
            slots_needed: slots.ok_or_else(|| self.protocol("the slot map is not 512 bytes"))?,
            epoch: Epoch(answer.topology_version),
            chunks_done: answer.chunks_done,
            positions: answer.positions,
            versions: answer.versions,
            node: answer.node,
        })
    }

    /// Sends one chunk. The stream must end only when the chunk was sent whole: an error in
    /// between (dropping this future) counts nothing at the node.
    pub async fn load(
        &self,
        schema: Arc<GroupSchema>,
        chunk: ChunkName,
        instances: impl Stream<Item = Instance> + Send + 'static,
    ) -> Result<v1::LoadResponse, ClientError> {
        let first = v1::LoadRequest {
            chunk: Some(v1::LoadChunk {
                load_id: chunk.load_id,
                chunk: chunk.chunk,
                ticket: chunk.ticket,
            }),
            instances: Vec::new(),
            end: false,
        };
        let rest = instances.ready_chunks(LOAD_BATCH).map(move |batch| v1::LoadRequest {
            chunk: None,
            instances: batch.iter().map(|i| instance_to_wire(&schema, i)).collect(),
            end: false,
        });
        // Reached only when `instances` ended by itself; a cancelled call never sends it.
        let last = v1::LoadRequest { chunk: None, instances: Vec::new(), end: true };
        let stream =
            futures::stream::iter([first]).chain(rest).chain(futures::stream::iter([last]));
        let address = &self.node.endpoint().address;
        let answer = self.node.admin().load(stream).await;
        answer.map(tonic::Response::into_inner).map_err(|s| ClientError::from_status(address, s))
    }

    /// Compares the node's instances with the backend; the last message has `done`.
    pub async fn compare(
        &self,
        request: v1::CompareRequest,
    ) -> Result<impl Stream<Item = Result<v1::CompareProgress, ClientError>> + use<>, ClientError>
    {
        let address = self.node.endpoint().address.clone();
        let stream = self.node.admin().compare(request).await;
        let stream = stream.map_err(|s| ClientError::from_status(&address, s))?.into_inner();
        Ok(stream.map(move |m| m.map_err(|s| ClientError::from_status(&address, s))))
    }

    /// Reads loaded instances of the node again; one answer per root key, at most 1,000.
    pub async fn refresh(&self, keys: &[Vec<Value>]) -> Result<Vec<v1::Refreshed>, ClientError> {
        let keys = keys
            .iter()
            .map(|key| v1::KeyValues { values: key.iter().map(value_to_wire).collect() });
        let request = Request::new(v1::RefreshRequest { keys: keys.collect() });
        let mut service = self.node.admin();
        let call = service.refresh(request);
        let answer = bounded(&self.node, RESOLVE_TIMEOUT, call).await?;
        Ok(answer.refreshed().collect())
    }

    pub async fn list_rejects(&self, limit: u32) -> Result<Vec<v1::Reject>, ClientError> {
        let request = self.timed(v1::ListRejectsRequest { limit });
        let mut service = self.node.admin();
        let call = service.list_rejects(request);
        bounded(&self.node, self.timeout, call).await.map(|answer| answer.rejects)
    }

    /// A reject with what it and the transactions behind it were to do.
    pub async fn show_reject(&self, id: u64) -> Result<v1::ShowRejectResponse, ClientError> {
        let request = self.timed(v1::ShowRejectRequest { id });
        let mut service = self.node.admin();
        let call = service.show_reject(request);
        bounded(&self.node, self.timeout, call).await
    }

    /// Discards or replays a reject with what follows it; answers the number of transactions.
    pub async fn resolve_reject(&self, id: u64, discard: bool) -> Result<u32, ClientError> {
        let request = Request::new(v1::ResolveRejectRequest { id, discard });
        let mut service = self.node.admin();
        let call = service.resolve_reject(request);
        bounded(&self.node, RESOLVE_TIMEOUT, call).await.map(|answer| answer.transactions)
    }

    fn protocol(&self, message: &str) -> ClientError {
        let node = self.node.endpoint().address.clone();
        ClientError::Protocol { node, message: message.to_owned() }
    }
}
