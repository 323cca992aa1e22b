//! For a backend whose rows somebody else changed: an instance is forgotten, to be read again, or
//! written once more although nothing of it changes here.
//!
//! Then the sink is told the changes that make the backend's rows those of the instance; the instance is
//! dirty until they are flushed, as after any other change.

use super::{Commit, CommitSink, Engine};
use crate::state::Pending;
use crate::{Committed, TransactError};
use cachetier_model::{Instance, RootKey, RowChange};

/// What the state of one more dirty instance may take.
const STATE_BYTES: usize = 512;

impl Engine {
    /// Makes a clean instance not loaded, so that the next read fetches it; false, and nothing
    /// happens, while a change of it is not flushed or it is quarantined.
    pub fn forget_clean(&self, key: &RootKey) -> bool {
        let target = self.target(key);
        let mut slot = self.change(target);
        if slot.state(key).is_some_and(|s| s.is_unflushed() || s.quarantined) {
            return false;
        }
        self.discard(&mut slot, target);
        slot.settle(key);
        true
    }

    /// `None`, and nothing happens, unless the instance is loaded, clean, and still `as_compared`:
    /// what changed since belongs to another comparison.
    pub fn write_again(
        &self,
        key: &RootKey,
        as_compared: &Instance,
        changes: &[RowChange],
        sink: &dyn CommitSink,
    ) -> Result<Option<Committed>, TransactError> {
        let target = self.target(key);
        let mut slot = self.change(target);
        let busy = slot.state(key).is_some_and(|s| s.is_unflushed() || s.quarantined || s.absent);
        let packed = slot.record(target).map(<[u8]>::to_vec);
        let Some(packed) = packed.filter(|packed| {
            !busy && !changes.is_empty() && self.layout.decode(packed) == *as_compared
        }) else {
            return Ok(None);
        };
        if !self.memory.admits(STATE_BYTES + packed.len()) {
            return Err(TransactError::MemoryFull);
        }
        let awaits_backend = self.rules.awaits_backend(changes);
        let commit = Commit {
            slot: key.slot(),
            key,
            changes,
            rows: &[],
            awaits_backend,
            packed: Some(&packed),
            layout: &self.layout,
        };
        let sequence = sink.commit(&commit).map_err(TransactError::Refused)?;
        if awaits_backend {
            slot.pending_bytes += packed.len();
            let image = Some(packed.into_boxed_slice());
            slot.state_mut(key).pending = Some(Box::new(Pending { sequence, image }));
        } else {
            slot.state_mut(key).dirty = sequence;
        }
        Ok(Some(Committed { sequence, rows: Vec::new(), awaits_backend }))
    }
}
