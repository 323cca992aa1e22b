//! From a segment to the request that is sent: what is still ours, what follows a reject, the plan.

use super::Lane;
use super::segment::Segment;
use crate::backend::flush::{Fence, FlushRequest, NewReject};
use crate::error::{BackendError, Reason};
use crate::pending::Pending;
use crate::plan::plan;
use cachetier_model::node_config::BackendCommit;
use cachetier_model::{GroupSchema, RootKey};

/// What becomes of each transaction of a segment, decided before it is sent.
pub(super) struct Sorted {
    pub kept: Vec<Pending>,
    /// Of instances that are quarantined: joins the reject's tail (R17).
    pub following: Vec<Pending>,
    /// Of slots that are not ours (any more).
    pub foreign: Vec<Pending>,
}

impl Lane {
    /// Sorts a segment by what this process knows now.
    pub(super) fn sort(&self, segment: &Segment) -> Sorted {
        let state = self.shared.state.lock();
        let mut sorted = Sorted { kept: Vec::new(), following: Vec::new(), foreign: Vec::new() };
        for pending in &segment.entries {
            let kept = cachetier_defects::on("r09-lost-slots-are-written");
            let passes = cachetier_defects::on("r17-followers-pass");
            let again = segment.resent && self.returned.contains(pending.slot);
            let target = if !state.slots.contains(pending.slot) && !again && !kept {
                &mut sorted.foreign
            } else if state.quarantined.contains_key(&pending.key) && !passes {
                &mut sorted.following
            } else {
                &mut sorted.kept
            };
            target.push(pending.clone());
        }
        sorted
    }

    pub(super) fn fence(&self) -> Fence {
        Fence {
            writer: self.writer.clone(),
            token: self.token,
            version: self.version,
            position: self.position,
        }
    }

    /// A caller waits for the decision, or the group wants every commit synced.
    pub(super) fn must_sync(&self, pending: &[Pending]) -> bool {
        self.shared.options.backend_commit == BackendCommit::Sync
            || pending.iter().any(|p| p.awaits_backend || p.urgent)
    }

    /// The same, or it is this commit's turn.
    pub(super) fn wants_synced_commit(&self, pending: &[Pending]) -> bool {
        self.must_sync(pending) || !pending.is_empty() && self.shared.turns.take()
    }
}

/// The request for what was kept, with the followers set aside beside it.
pub(super) fn request<'a>(
    schema: &GroupSchema,
    fence: Fence,
    next: u64,
    sorted: &'a Sorted,
    synced_commit: bool,
) -> Result<FlushRequest<'a>, BackendError> {
    let changes = sorted.kept.iter().flat_map(|p| p.changes.iter());
    let waves = plan(schema, changes).map_err(|error| {
        let mut refused =
            BackendError::new("plan", Reason::ValueRefused, "the changes cannot be planned");
        refused.detail = Some(error.to_string().into());
        refused
    })?;
    let rejects = sorted.following.iter().map(|p| set_aside(p, None)).collect();
    Ok(FlushRequest { fence, next, along: Vec::new(), waves, rejects, synced_commit, hasty: false })
}

pub(super) fn set_aside(pending: &Pending, cause: Option<&BackendError>) -> NewReject {
    NewReject {
        sequence: pending.sequence,
        key: pending.key.clone(),
        changes: pending.changes.clone(),
        cause: cause.map(Into::into),
    }
}

/// The instance of each, with their sequences, in order of first appearance.
pub(super) fn by_instance(pending: &[Pending]) -> Vec<(RootKey, Vec<u64>)> {
    let mut instances: Vec<(RootKey, Vec<u64>)> = Vec::new();
    for p in pending {
        match instances.iter_mut().find(|(key, _)| *key == p.key) {
            Some((_, sequences)) => sequences.push(p.sequence),
            None => instances.push((p.key.clone(), vec![p.sequence])),
        }
    }
    instances
}
