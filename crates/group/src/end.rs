//! The end of a group's incarnation: its bookkeeping leaves the backend.
//!
//! Only after a drain: what is forgotten here is what makes unflushed frames worth anything. A node
//! therefore speaks for itself alone, under its own token: nobody forgets the rows of another node
//! whose queue it does not know.

use cachetier_write_through::{BackendError, Disposition, Leave};

use crate::core::Core;
use crate::error::{GroupError, RefusalReason};

/// Said of a node that left its group.
pub(crate) const FORGOTTEN: &str = "the group's bookkeeping was removed on request";

impl Core {
    /// Leaves the group, then serves nothing more. With `discard`, the whole group's bookkeeping
    /// goes and what waits for the backend is given up.
    pub(crate) async fn forget_group(&self, discard: bool) -> Result<(), GroupError> {
        let refuse = |why: &str| Err(GroupError::refused(RefusalReason::Schema, why));
        if !self.writes_stopped() {
            return refuse("stop writes and drain first, then forget the group");
        }
        if !discard && !self.lanes.backlog().is_empty() {
            return refuse("writes still wait for the backend; forget the group when none do");
        }
        let uid = &self.shared.config.group.uid;
        let away = |e: BackendError| GroupError::BackendAway { reason: e.to_string().into() };
        let others = if discard {
            self.shared.backend.forget_group(uid).await.map_err(away)?;
            Vec::new()
        } else {
            self.leave().await?
        };
        self.shared.retire("GroupForgotten", FORGOTTEN);
        if let Err(error) = self.shared.notebook.set_left().await {
            tracing::warn!(node = %self.shared.node.name, reason = %error,
                "the end of the group is not noted in the journal");
        }
        if !others.is_empty() {
            tracing::info!(node = %self.shared.node.name, nodes = others.len(),
                "left the group; the others still hold slots");
        }
        Ok(())
    }

    async fn leave(&self) -> Result<Vec<String>, GroupError> {
        let Some(token) = self.token() else {
            let reason = "this node has no claim at the backend yet".into();
            return Err(GroupError::Starting { reason });
        };
        let leave = Leave {
            group_uid: self.shared.config.group.uid.clone(),
            node: self.shared.node.name.clone(),
            token,
        };
        self.shared.backend.leave_group(leave).await.map_err(|error| {
            if error.disposition() == Disposition::Fenced {
                return GroupError::Fenced { reason: error.message.into() };
            }
            GroupError::BackendAway { reason: error.to_string().into() }
        })
    }
}
