//! What others changed in the backend: read again on request, or repaired after a comparison, with
//! the backend's rows or the cache's.
//!
//! Owns these ways and their record in the log. Must never touch an instance with a change that is
//! not flushed, nor one that changed since it was compared; and must never name a key or a value.

use cachetier_engine::ReadAnswer;
use cachetier_model::{Instance, ReadPlan, RootKey};

use crate::calls::{InstanceDifference, Refreshed, Repair};
use crate::core::Core;
use crate::difference;
use crate::error::GroupError;
use crate::ownership::SlotState;

const NOT_STILL: &str = "it changed since it was compared, or has changes that are not flushed";

impl Core {
    /// Repairs one instance, and says in `found` what came of it. A refusal concerns this instance
    /// only; the comparison goes on.
    pub(crate) async fn repair(
        &self,
        key: &RootKey,
        (ours, backend): (&Instance, &Instance),
        repair: Repair,
        found: &mut InstanceDifference,
    ) {
        let outcome = match repair {
            Repair::FromBackend => self.take_from_backend(key).await,
            Repair::FromCache => self.write_from_cache(key, ours, backend).await,
        };
        match outcome {
            Ok(true) => found.repaired = true,
            Ok(false) => NOT_STILL.clone_into(&mut found.left),
            Err(error) => found.left = error.to_string(),
        }
        let (node, key) = (&self.shared.node.name, &found.key_hash);
        let tables: Vec<&str> = found.tables.iter().map(|t| t.table.as_str()).collect();
        if found.repaired {
            tracing::info!(%node, %key, ?tables, way = repair.word(), "instance repaired");
        } else {
            tracing::warn!(%node, %key, ?tables, way = repair.word(), reason = %found.left,
                "instance not repaired");
        }
    }

    /// Forgets the instance and reads it again; false when it is dirty.
    async fn take_from_backend(&self, key: &RootKey) -> Result<bool, GroupError> {
        if !self.engine.forget_clean(key) {
            return Ok(false);
        }
        self.misses.fetch(key).await.map(|_| true)
    }

    /// Reads a loaded instance again, whose rows others may have changed in the backend.
    pub(crate) async fn refresh(&self, key: &RootKey) -> Result<Refreshed, GroupError> {
        self.shared.check_alive()?;
        if self.shared.slots.state(key.slot()) != SlotState::Serving {
            return Ok(Refreshed::NotOwner);
        }
        let read = self.engine.read(key, &ReadPlan::default());
        match read.map_err(crate::refusals::from_engine)? {
            ReadAnswer::NotLoaded => return Ok(Refreshed::NotLoaded),
            ReadAnswer::Quarantined => return Ok(Refreshed::Quarantined),
            ReadAnswer::Found { .. } | ReadAnswer::Absent { .. } => {}
        }
        match self.take_from_backend(key).await? {
            true => Ok(Refreshed::Done),
            false => Ok(Refreshed::Pending),
        }
    }

    async fn write_from_cache(
        &self,
        key: &RootKey,
        ours: &Instance,
        backend: &Instance,
    ) -> Result<bool, GroupError> {
        if !ours.exists() {
            return Err(GroupError::refused(
                crate::error::RefusalReason::Request,
                "the cache does not hold it; only a repair from the backend can mend it",
            ));
        }
        let changes = difference::changes(&self.schema, ours, backend);
        self.write_again(key, ours, &changes).await
    }
}
