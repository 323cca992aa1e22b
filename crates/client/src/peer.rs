//! Node-to-node calls, each bounded in time.

use crate::channel::NodeChannel;
use crate::convert::{key_values_from_wire, topology_to_wire, value_to_wire};
use crate::error::ClientError;
use bytes::Bytes;
use cachetier_model::{GroupSchema, LookupId, SlotSet, Topology, Value};
use cachetier_proto::v1;
use std::time::Duration;
use tonic::Request;

const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
const RELEASE_TIMEOUT: Duration = Duration::from_secs(15);

/// What a node answered to a request for its slots.
#[derive(Clone, Debug)]
pub struct ReleasedSlots {
    pub released: SlotSet,
    pub backlog: v1::Backlog,
    /// By lane; empty from a node that does not say.
    pub lane_positions: Vec<u64>,
    /// The newest version that the writer row of each lane is known to have had.
    pub lane_versions: Vec<u64>,
    /// Idempotency answers of the slots, as a journal keeps them.
    pub answers: Vec<Bytes>,
}

pub struct PeerClient {
    node: NodeChannel,
}

impl PeerClient {
    pub fn new(node: NodeChannel) -> Self {
        Self { node }
    }

    /// The root key values behind a lookup key, if an instance loaded there has it.
    pub async fn resolve(
        &self,
        schema: &GroupSchema,
        lookup: LookupId,
        values: &[Value],
    ) -> Result<Option<Vec<Value>>, ClientError> {
        let root = schema.root();
        let columns = schema.lookups.get(lookup).map_or(&[][..], |l| &l.columns);
        let names = columns
            .iter()
            .filter_map(|c| root.and_then(|r| r.column(*c)).map(|c| c.name.clone()))
            .collect();
        let lookup =
            v1::LookupKey { columns: names, values: values.iter().map(value_to_wire).collect() };
        let mut request = Request::new(v1::ResolveRequest { lookup: Some(lookup) });
        request.set_timeout(RESOLVE_TIMEOUT);
        let answer =
            bounded(&self.node, RESOLVE_TIMEOUT, self.node.peer().resolve(request)).await?;
        match answer.root {
            Some(root) if answer.found => Ok(Some(key_values_from_wire(schema, &root)?)),
            _ => Ok(None),
        }
    }

    /// Asks the node to stop serving `slots`, flush them and let them go.
    pub async fn release_slots(
        &self,
        topology: &Topology,
        taker: &str,
        slots: &SlotSet,
    ) -> Result<ReleasedSlots, ClientError> {
        let mut request = Request::new(v1::ReleaseSlotsRequest {
            topology: Some(topology_to_wire(topology)),
            taker: taker.to_owned(),
            slots: slots.to_bytes().into(),
        });
        request.set_timeout(RELEASE_TIMEOUT);
        let mut service = self.node.peer();
        let call = service.release_slots(request);
        let answer = bounded(&self.node, RELEASE_TIMEOUT, call).await?;
        let released = SlotSet::from_bytes(&answer.released).ok_or_else(|| {
            let node = self.node.endpoint().address.clone();
            ClientError::Protocol { node, message: "the slot map is not 512 bytes".to_owned() }
        })?;
        Ok(ReleasedSlots {
            released,
            backlog: answer.backlog.unwrap_or_default(),
            lane_positions: answer.lane_positions,
            lane_versions: answer.lane_versions,
            answers: answer.answers,
        })
    }
}

/// Waits for a call no longer than `timeout` and sorts its error.
pub(crate) async fn bounded<T>(
    node: &NodeChannel,
    timeout: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, ClientError> {
    let address = &node.endpoint().address;
    match tokio::time::timeout(timeout, call).await {
        Ok(answer) => answer
            .map(tonic::Response::into_inner)
            .map_err(|s| ClientError::from_status(address, s)),
        Err(_) => Err(ClientError::Interrupted {
            node: address.clone(),
            message: format!("no answer within {timeout:?}"),
        }),
    }
}
