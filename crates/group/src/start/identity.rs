//! Whose journal, which backend, which tables, which claim: the questions of R5 and R8, answered in
//! this order and noted before they count.

use std::sync::Arc;

use cachetier_model::node_config::TopologySource;
use cachetier_model::{Epoch, GroupSchema, Topology};
use cachetier_write_through::{Claim, ClaimRequest};
use uuid::Uuid;

use super::Stop;
use crate::end::FORGOTTEN;
use crate::error::GroupError;
use crate::notebook::{BackendHome, ClaimNote, Home};
use crate::shared::Shared;

/// The journal's own word on whose it is (R5).
pub(crate) async fn check_home(shared: &Arc<Shared>) -> Result<(), GroupError> {
    let ours = Home {
        group_uid: shared.config.group.uid.clone(),
        group_name: shared.config.group.name.clone(),
        node: shared.node.name.clone(),
    };
    match shared.notebook.home()? {
        None => shared.notebook.set_home(&ours).await?,
        Some(home) if home.group_uid == ours.group_uid && home.node == ours.node => {
            if shared.notebook.left() {
                shared.retire("GroupForgotten", FORGOTTEN);
            }
        }
        Some(_) if cachetier_defects::on("r05-any-volume") => {}
        Some(home) => shared.fence(
            "ForeignJournal",
            &format!(
                "the journal belongs to node {} of group {} (incarnation {}), not to node {} of \
                 group {} (incarnation {}); give this node its own volume, or empty this one if \
                 its content may be lost",
                home.node,
                home.group_name,
                home.group_uid,
                ours.node,
                ours.group_name,
                ours.group_uid
            ),
        ),
    }
    Ok(())
}

/// Topology from the journal, or this node alone.
pub(crate) async fn recall_topology(shared: &Arc<Shared>) -> Result<(), GroupError> {
    *shared.topology_change.lock().await = shared.notebook.addresses()?;
    if let Some(topology) = shared.notebook.topology()? {
        shared.adopt_topology(topology);
    } else if shared.config.topology == TopologySource::Standalone {
        let nodes = vec![shared.node.clone()];
        let topology = Topology::initial(&shared.config.group.uid, Epoch(1), nodes)
            .map_err(GroupError::internal)?;
        shared.apply_topology(topology).await?;
    }
    Ok(())
}

pub(super) async fn learn_schema(shared: &Arc<Shared>) -> Result<Arc<GroupSchema>, Stop> {
    let identity = shared.backend.identify().await?;
    let found =
        BackendHome { system_identifier: identity.system_identifier, database: identity.database };
    match shared.notebook.backend()? {
        None => shared.notebook.set_backend(&found).await?,
        Some(known) if known == found => {}
        Some(known) => {
            return Err(Stop::Fenced {
                reason: "ForeignBackend".to_owned(),
                message: format!(
                    "the journal belongs to database {} of system {}, and the backend is database \
                     {} of system {}; point the group back, or start with an empty volume",
                    known.database,
                    known.system_identifier,
                    found.database,
                    found.system_identifier
                ),
            });
        }
    }
    let schema = Arc::new(shared.backend.discover(&shared.config.tables).await?);
    shared.backend.use_schema(Arc::clone(&schema));
    shared.backend.prepare_bookkeeping().await?;
    Ok(schema)
}

pub(super) async fn claim(shared: &Arc<Shared>, schema: &GroupSchema) -> Result<Claim, Stop> {
    let mut note = shared.notebook.claim()?;
    let attempt = match &note.attempt {
        Some(attempt) => attempt.clone(),
        None => {
            let attempt = Uuid::new_v4().to_string();
            note.attempt = Some(attempt.clone());
            shared.notebook.set_claim(&note).await?;
            attempt
        }
    };
    let request = ClaimRequest {
        group: shared.config.group.clone(),
        node: shared.node.name.clone(),
        journal: shared.journal.id().to_string(),
        held_token: note.token,
        attempt,
        lanes: shared.config.write_through.lanes.max(1),
        epoch: shared.topology.borrow().as_ref().map_or(0, |t| t.epoch.0),
        tables: schema.tables.iter().map(|t| t.name.clone()).collect(),
        accept_lost_journal: shared.notebook.lost_journal()?,
    };
    let claim = shared.backend.claim(request).await?;
    let note = ClaimNote { token: Some(claim.token), attempt: None };
    shared.notebook.set_claim(&note).await?;
    let (group, node) = (shared.config.group.uid.as_str(), shared.node.name.as_str());
    shared.backend.settle_claim(group, node, claim.token).await?;
    tracing::info!(group = %shared.config.group.name, node = %shared.node.name,
        token = claim.token, slots = claim.slots().len(), lanes = claim.lane_count(), "claimed");
    Ok(claim)
}
