//! The way of one read or transaction: here, at the owner, or past the store.
//!
//! Decides only where; what the answer is, the group at that place decides.

use super::encode::EncodedRows;
use super::forward::Forwarder;
use super::selector::selector;
use super::{answers, errors};
use cachetier_client::convert::{ConvertError, read_plan, topology_from_wire, transaction};
use cachetier_client::{ClientError, Reason};
use cachetier_group::{
    AnswerWhen, Group, GroupError, KeySelector, Position, ReadCall, ReadOutcome, TransactCall,
};
use cachetier_model::node_config::{BypassConfig, BypassWrites};
use cachetier_model::{GroupSchema, IdempotencyKey, NodeEntry, Value};
use cachetier_proto::v1;
use cachetier_proto::v1::operation::Kind;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tonic::{Code, Status};
use uuid::Uuid;

const WAIT_MAX: Duration = Duration::from_secs(600);
const HOLD_PAUSE: Duration = Duration::from_millis(50);

fn idempotency_key(request: &v1::TransactRequest) -> Result<Option<IdempotencyKey>, Status> {
    let given = Some(&request.idempotency_key).filter(|key| !key.is_empty());
    let key = given.map(|key| IdempotencyKey::new(key.clone())).transpose();
    key.map_err(|e| errors::from_convert(&ConvertError::IdempotencyKey(e.to_string())))
}

fn position(wire: &v1::Position) -> Result<Position, Status> {
    let journal = Uuid::parse_str(&wire.journal)
        .map_err(|_| errors::missing("a journal identity in the position"))?;
    Ok(Position { journal, sequence: wire.sequence })
}

/// Serves calls wherever their instance is.
pub struct Route {
    pub group: Group,
    pub forwarder: Forwarder,
    pub bypass: BypassConfig,
    pub metrics: crate::metrics::RpcMetrics,
}

/// What a forwarded call led to.
enum Forwarded<T> {
    Answered(T),
    Failed(Status),
    /// Nothing happened; look again where the slot is.
    Again(ClientError),
}

impl Route {
    pub async fn read(&self, request: v1::ReadRequest) -> Result<v1::ReadResponse, Status> {
        let schema = self.schema()?;
        let key = selector(&schema, request.key.as_ref())?;
        let plan = read_plan(&schema, &request.tables).map_err(|e| errors::from_convert(&e))?;
        let min_position = request.min_position.as_ref().map(position).transpose()?;
        let call = ReadCall { key, plan, no_bypass: request.no_bypass, min_position };
        let mut rows = EncodedRows::new(&schema);
        let error = match self.group.read_into(&call, &mut rows).await {
            Ok(found) => return Ok(rows.answer(found)),
            Err(error) => error,
        };
        self.read_elsewhere(&schema, request, &call, error).await
    }

    /// The way of a read that this node could not answer from its own slots.
    async fn read_elsewhere(
        &self,
        schema: &GroupSchema,
        request: v1::ReadRequest,
        call: &ReadCall,
        mut error: GroupError,
    ) -> Result<v1::ReadResponse, Status> {
        let deadline = Instant::now() + self.hold_timeout();
        let around = |outcome: ReadOutcome| {
            let mut rows = EncodedRows::new(schema);
            let found = outcome.give(&call.plan, &mut rows);
            Ok(rows.answer(found))
        };
        loop {
            let Some(owner) = self.elsewhere(&error, request.forwarded) else {
                return Err(self.refused(&error));
            };
            if self.forwarder.is_away(&owner)
                && let Ok(outcome) = self.group.bypass_read(call).await
            {
                return around(outcome);
            }
            self.metrics.forwarded();
            let sent = self.forwarder.read(&owner, request.clone()).await;
            match self.judge(sent, false).await {
                Forwarded::Answered(response) => return Ok(response),
                Forwarded::Failed(status) => return Err(status),
                Forwarded::Again(reason) => {
                    let refusal = match self.around(&reason, call).await {
                        Ok(outcome) => return around(outcome),
                        Err(refusal) => refusal,
                    };
                    let held = self.hold(deadline, &reason).await;
                    held.map_err(|status| refusal.map_or(status, |e| self.refused(&e)))?;
                }
            }
            let mut rows = EncodedRows::new(schema);
            match self.group.read_into(call, &mut rows).await {
                Ok(found) => return Ok(rows.answer(found)),
                Err(again) => error = again,
            }
        }
    }

    pub async fn transact(
        &self,
        request: v1::TransactRequest,
    ) -> Result<v1::TransactResponse, Status> {
        let schema = self.schema()?;
        let key = selector(&schema, request.key.as_ref())?;
        let deadline = Instant::now() + self.hold_timeout();
        loop {
            let error = match self.transact_here(&schema, &key, &request).await? {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let Some(owner) = self.elsewhere(&error, request.forwarded) else {
                return Err(self.refused(&error));
            };
            self.metrics.forwarded();
            let sent = self.forwarder.transact(&owner, request.clone()).await;
            match self.judge(sent, true).await {
                Forwarded::Answered(response) => return Ok(response),
                Forwarded::Failed(status) => return Err(status),
                Forwarded::Again(reason) => {
                    let hold = self.bypass.writes == BypassWrites::Hold;
                    if !hold && matches!(reason, ClientError::Unreachable { .. }) {
                        return Err(errors::from_peer(&reason));
                    }
                    self.hold(deadline, &reason).await?;
                }
            }
        }
    }

    /// Whether a position has reached the backend; the node whose journal it is knows.
    pub async fn wait_flushed(&self, mut request: v1::WaitFlushedRequest) -> Result<bool, Status> {
        request.timeout_ms = request.timeout_ms.min(WAIT_MAX.as_millis() as u64);
        let wire = request.position.as_ref().ok_or_else(|| errors::missing("the position"))?;
        let position = position(wire)?;
        let timeout = Duration::from_millis(request.timeout_ms);
        let error = match self.group.wait_flushed(position, timeout).await {
            Ok(flushed) => return Ok(flushed),
            Err(error) => error,
        };
        if request.forwarded || !matches!(error, GroupError::Unknown { .. }) {
            return Err(self.refused(&error));
        }
        let own = &self.group.node().name;
        let nodes = self.group.topology().map(|t| t.nodes.clone()).unwrap_or_default();
        let others: Vec<NodeEntry> = nodes.into_iter().filter(|n| n.name != *own).collect();
        match self.forwarder.wait_flushed(&others, request).await {
            Some(Ok(flushed)) => Ok(flushed),
            Some(Err(error)) => Err(errors::from_peer(&error)),
            None => Err(self.refused(&error)),
        }
    }

    /// The outer error is the request's own fault.
    async fn transact_here(
        &self,
        schema: &GroupSchema,
        key: &KeySelector,
        request: &v1::TransactRequest,
    ) -> Result<Result<v1::TransactResponse, GroupError>, Status> {
        let root = match self.root_values(key, request).await {
            Ok(root) => root,
            Err(error) => return Ok(Err(error)),
        };
        let answer = match request.answer() {
            v1::Answer::Durable => AnswerWhen::Durable,
            v1::Answer::Flushed => AnswerWhen::Flushed,
        };
        let transaction = transaction(schema, &root, request);
        let transaction = transaction.map_err(|e| errors::from_convert(&e))?;
        let idempotency_key = idempotency_key(request)?;
        let call = TransactCall { key: key.clone(), transaction, answer, idempotency_key };
        Ok(self.group.transact(call).await.map(answers::transacted))
    }

    /// Values for root key columns that inserts leave out.
    async fn root_values(
        &self,
        key: &KeySelector,
        request: &v1::TransactRequest,
    ) -> Result<Vec<Value>, GroupError> {
        let inserts = request
            .operations
            .iter()
            .any(|o| matches!(o.kind, Some(Kind::Insert(_) | Kind::Upsert(_))));
        if !inserts {
            return Ok(Vec::new());
        }
        let root = match key {
            KeySelector::Root(root) => root.clone(),
            KeySelector::Lookup { .. } => {
                let located = self.group.locate(key).await?;
                let root = located.root.ok_or(GroupError::NotFound)?;
                if !located.here {
                    return Err(GroupError::NotOwner { slot: root.slot(), owner: located.owner });
                }
                root
            }
        };
        root.decode().map_err(|e| GroupError::Internal { reason: e.to_string().into() })
    }

    pub fn schema(&self) -> Result<Arc<GroupSchema>, Status> {
        self.group.schema().map_err(|e| self.refused(&e))
    }

    pub fn refused(&self, error: &GroupError) -> Status {
        errors::from_group(error, self.group.topology().as_deref())
    }

    /// The other node to ask, unless this call was forwarded already.
    fn elsewhere(&self, error: &GroupError, forwarded: bool) -> Option<NodeEntry> {
        match error {
            GroupError::NotOwner { owner: Some(owner), .. }
                if !forwarded && owner.name != self.group.node().name =>
            {
                Some(owner.clone())
            }
            _ => None,
        }
    }

    async fn judge<T>(&self, sent: Result<T, ClientError>, write: bool) -> Forwarded<T> {
        let error = match sent {
            Ok(answer) => return Forwarded::Answered(answer),
            Err(error) => error,
        };
        if error.reason() == Some(Reason::NotOwner) {
            self.learn(&error).await;
            return Forwarded::Again(error);
        }
        match &error {
            ClientError::Unreachable { .. } | ClientError::Unsent { .. } => Forwarded::Again(error),
            ClientError::Interrupted { .. } if !write => Forwarded::Again(error),
            _ => Forwarded::Failed(errors::from_peer(&error)),
        }
    }

    /// The peer may know a newer topology; it is the same record that the operator pushes.
    async fn learn(&self, error: &ClientError) {
        let offered = error.refusal().and_then(|r| r.detail.topology.as_ref());
        let Some(Ok(topology)) = offered.map(topology_from_wire) else { return };
        let held = self.group.topology().map_or(0, |t| t.epoch.0);
        if topology.epoch.0 > held
            && let Err(error) = self.group.apply_topology(topology).await
        {
            tracing::warn!(reason = %error, "topology offered by a peer not taken");
        }
    }

    /// A read past the store, when the owner could not be reached; or why its answer would not do.
    async fn around(
        &self,
        reason: &ClientError,
        call: &ReadCall,
    ) -> Result<ReadOutcome, Option<GroupError>> {
        match reason {
            ClientError::Unreachable { .. } => {
                self.group.bypass_read(call).await.map_err(|error| match error {
                    GroupError::PositionNotReached { .. } | GroupError::Quarantined => Some(error),
                    _ => None,
                })
            }
            _ => Err(None),
        }
    }

    async fn hold(&self, deadline: Instant, reason: &ClientError) -> Result<(), Status> {
        if Instant::now() + HOLD_PAUSE >= deadline {
            return Err(match reason.refusal() {
                Some(_) => errors::refuse(
                    Code::Unavailable,
                    Reason::SlotMoving,
                    "the slot is changing hands; try again",
                ),
                None => errors::refuse(Code::Unavailable, Reason::OwnerAway, reason.to_string()),
            });
        }
        tokio::time::sleep(HOLD_PAUSE).await;
        Ok(())
    }

    fn hold_timeout(&self) -> Duration {
        Duration::from_millis(self.bypass.hold_timeout_ms)
    }
}
