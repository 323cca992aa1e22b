//! The end of a group's incarnation: its bookkeeping leaves the backend.
//!
//! Only after a drain: what is forgotten here is what makes unflushed frames worth anything.

use crate::core::Core;
use crate::error::{GroupError, RefusalReason};

impl Core {
    /// Frees the tables for another group, then serves nothing more. With `discard`, what waits
    /// for the backend is given up.
    pub(crate) async fn forget_group(&self, discard: bool) -> Result<(), GroupError> {
        let refuse = |why: &str| Err(GroupError::refused(RefusalReason::Schema, why));
        if !self.writes_stopped() {
            return refuse("stop writes and drain first, then forget the group");
        }
        if !discard && !self.lanes.backlog().is_empty() {
            return refuse("writes still wait for the backend; forget the group when none do");
        }
        let uid = &self.shared.config.group.uid;
        let forgotten = self.shared.backend.forget_group(uid).await;
        forgotten.map_err(|error| GroupError::BackendAway { reason: error.to_string().into() })?;
        self.shared.retire("GroupForgotten", "the group's bookkeeping was removed on request");
        Ok(())
    }
}
