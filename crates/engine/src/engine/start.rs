//! At start: what the journal holds and the backend may not have yet.

use super::Engine;
use crate::EngineError;
use crate::state::Pending;
use cachetier_model::{RootKey, codec};

impl Engine {
    /// In order of sequence: a journaled transaction the backend may not have yet, with the whole
    /// instance after it. `awaits_backend` as it was committed: readers do not see it before
    /// [`Engine::decided`], and what is below it is not loaded unless an earlier transaction of it
    /// was restored. The budget does not refuse what was acknowledged.
    pub fn restore(
        &self,
        key: &RootKey,
        image: &[u8],
        sequence: u64,
        awaits_backend: bool,
    ) -> Result<(), EngineError> {
        let instance = codec::decode_instance(image)?;
        let packed = if instance.exists() { Some(self.pack(key, instance)?) } else { None };
        let target = self.target(key);
        let mut slot = self.change(target);
        // a later transaction was committed, so the pending one had been accepted
        if let Some(pending) = slot.state_mut(key).pending.take() {
            self.accept(&mut slot, target, *pending);
        }
        let before = slot.record(target).map(<[u8]>::to_vec);
        let moves = self.lookup_moves(before.as_deref(), packed.as_deref());
        self.enter(target, &moves);
        if awaits_backend {
            let image = packed.map(Vec::into_boxed_slice);
            slot.pending_bytes += image.as_ref().map_or(0, |i| i.len());
            slot.state_mut(key).pending = Some(Box::new(Pending { sequence, image }));
        } else {
            self.apply(&mut slot, target, packed.as_deref());
            self.release(target, &moves);
            let state = slot.state_mut(key);
            state.dirty = sequence;
            state.absent = packed.is_none();
        }
        Ok(())
    }
}
