//! The `Peer` service: what nodes ask of each other.

use super::answers;
use super::authorize::{Act, authorize};
use super::errors;
use super::selector::lookup;
use cachetier_client::convert::{topology_from_wire, value_to_wire};
use cachetier_group::{Group, GroupError, KeySelector};
use cachetier_model::SlotSet;
use cachetier_proto::v1;
use cachetier_proto::v1::peer_server::Peer;
use tonic::{Request, Response, Status};

#[derive(Clone)]
pub struct PeerService {
    pub group: Group,
}

fn refused(error: &GroupError) -> Status {
    errors::from_group(error, None)
}

#[tonic::async_trait]
impl Peer for PeerService {
    async fn resolve(
        &self,
        request: Request<v1::ResolveRequest>,
    ) -> Result<Response<v1::ResolveResponse>, Status> {
        authorize(&request, Act::Peer)?;
        let wire = request.into_inner().lookup.ok_or_else(|| errors::missing("the lookup key"))?;
        let schema = self.group.schema().map_err(|e| refused(&e))?;
        let KeySelector::Lookup { lookup, key } = lookup(&schema, &wire)? else {
            return Err(errors::missing("a lookup key"));
        };
        let root = self.group.resolve(lookup, &key).await.map_err(|e| refused(&e))?;
        let values = root
            .map(|root| root.decode())
            .transpose()
            .map_err(|e| refused(&GroupError::Internal { reason: e.to_string().into() }))?;
        let root = values
            .map(|values| v1::KeyValues { values: values.iter().map(value_to_wire).collect() });
        Ok(Response::new(v1::ResolveResponse { found: root.is_some(), root }))
    }

    async fn release_slots(
        &self,
        request: Request<v1::ReleaseSlotsRequest>,
    ) -> Result<Response<v1::ReleaseSlotsResponse>, Status> {
        authorize(&request, Act::Peer)?;
        let v1::ReleaseSlotsRequest { topology, taker, slots } = request.into_inner();
        let wire = topology.ok_or_else(|| errors::missing("the topology"))?;
        let topology = topology_from_wire(&wire).map_err(|e| errors::from_convert(&e))?;
        let slots = SlotSet::from_bytes(&slots)
            .ok_or_else(|| errors::missing("a slot map of 512 bytes"))?;
        let released = self.group.release_slots(topology, &taker, &slots).await;
        let released = released.map_err(|e| refused(&e))?;
        Ok(Response::new(v1::ReleaseSlotsResponse {
            released: released.slots.to_bytes().into(),
            backlog: Some(answers::backlog(&released.backlog)),
            lane_positions: released.positions,
            lane_versions: released.versions,
            answers: released.answers,
        }))
    }
}
