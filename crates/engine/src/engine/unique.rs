//! Lookup keys: unique on this node, and registered before a transaction commits.
//!
//! A new lookup key is entered before the commit (so that two transactions cannot both take it)
//! and an old one leaves after the change is visible. Whether a candidate really has the key can
//! only be seen in its record, in another slot, whose lock is only ever tried: the holder of that
//! one may be waiting for ours.

use super::{Changing, Engine};
use crate::TransactError;
use crate::layout::hash_key;
use crate::lookup::Candidates;
use crate::slot::{Slot, Target};
use cachetier_model::{LookupId, LookupKey};

/// What a change of the root row does to one lookup index.
pub(super) struct LookupMove {
    lookup: LookupId,
    from: Option<LookupKey>,
    to: Option<LookupKey>,
}

enum Holder {
    /// The candidate has another key.
    Other,
    Taken,
    /// It takes or releases the key in a transaction the backend has not decided on.
    Undecided,
    /// Its slot's lock is not free.
    Busy,
}

impl Engine {
    /// The lookups whose key changes between two packed instances.
    pub(super) fn lookup_moves(
        &self,
        before: Option<&[u8]>,
        after: Option<&[u8]>,
    ) -> Vec<LookupMove> {
        let key = |lookup: LookupId, packed: Option<&[u8]>| {
            self.lookup_shapes.get(lookup)?.lookup_key(&self.layout, packed?)
        };
        (0..self.lookups.len())
            .map(|lookup| LookupMove { lookup, from: key(lookup, before), to: key(lookup, after) })
            .filter(|change| change.from != change.to)
            .collect()
    }

    /// Enters the new keys; false when another slot's lock is needed and not free.
    pub(super) fn reserve(
        &self,
        slot: &Changing<'_>,
        target: Target<'_>,
        moves: &[LookupMove],
    ) -> Result<bool, TransactError> {
        for (done, change) in moves.iter().enumerate() {
            let outcome = self.reserve_one(slot, target, change);
            if !matches!(outcome, Ok(true)) {
                self.unreserve(target, moves.get(..done).unwrap_or_default());
                return outcome;
            }
        }
        Ok(true)
    }

    fn reserve_one(
        &self,
        slot: &Changing<'_>,
        target: Target<'_>,
        change: &LookupMove,
    ) -> Result<bool, TransactError> {
        let (Some(index), Some(key)) = (self.lookups.get(change.lookup), &change.to) else {
            return Ok(true);
        };
        let hash = hash_key(key.as_bytes());
        let mut harmless = Candidates::new();
        loop {
            match index.insert_checked(hash, target.short(), &harmless) {
                Ok(growth) => {
                    self.memory.resized(0, growth);
                    return Ok(true);
                }
                Err(candidates) => {
                    for candidate in candidates {
                        match self.holder(slot, target, change.lookup, key, candidate) {
                            Holder::Other => harmless.push(candidate),
                            Holder::Busy => return Ok(false),
                            Holder::Undecided => return Err(TransactError::AwaitingBackend),
                            Holder::Taken => {
                                let schema = self.schema.lookups.get(change.lookup);
                                let constraint =
                                    schema.map_or_else(String::new, |l| l.constraint.clone());
                                return Err(TransactError::LookupTaken { constraint });
                            }
                        }
                    }
                }
            }
        }
    }

    fn holder(
        &self,
        own: &Changing<'_>,
        target: Target<'_>,
        lookup: LookupId,
        key: &LookupKey,
        candidate: u32,
    ) -> Holder {
        if candidate >> 20 == target.short() >> 20 {
            return self.holder_in(own, target, lookup, key, candidate);
        }
        match self.slots.get((candidate >> 20) as usize).map(|slot| slot.try_read()) {
            Some(Some(slot)) => self.holder_in(&slot, target, lookup, key, candidate),
            _ => Holder::Busy,
        }
    }

    fn holder_in(
        &self,
        slot: &Slot,
        target: Target<'_>,
        lookup: LookupId,
        key: &LookupKey,
        candidate: u32,
    ) -> Holder {
        let Some(shape) = self.lookup_shapes.get(lookup) else { return Holder::Other };
        let has = |packed: &[u8]| shape.matches(&self.layout, packed, key.as_bytes());
        let own = target.key.as_bytes();
        let other =
            |packed: &[u8]| has(packed) && !self.root_shape.matches(&self.layout, packed, own);
        let record = slot.candidate(candidate, other);
        let holder = record.and_then(|packed| self.root_shape.root_key(&self.layout, packed));
        if let Some(holder) = holder {
            let undecided = slot.state(&holder).is_some_and(|s| s.pending.is_some());
            return if undecided { Holder::Undecided } else { Holder::Taken };
        }
        let reserved = slot.states.iter().any(|(holder, state)| {
            let image = state.pending.as_ref().and_then(|p| p.image.as_deref());
            holder != target.key && image.is_some_and(has)
        });
        if reserved { Holder::Undecided } else { Holder::Other }
    }

    /// Takes the new keys of a change that will not be out again.
    pub(super) fn unreserve(&self, target: Target<'_>, moves: &[LookupMove]) {
        moves.iter().for_each(|m| self.drop_entry(target, m.lookup, m.to.as_ref()));
    }

    /// Takes the old keys of a change that is visible now out.
    pub(super) fn release(&self, target: Target<'_>, moves: &[LookupMove]) {
        moves.iter().for_each(|m| self.drop_entry(target, m.lookup, m.from.as_ref()));
    }

    fn drop_entry(&self, target: Target<'_>, lookup: LookupId, key: Option<&LookupKey>) {
        if let (Some(index), Some(key)) = (self.lookups.get(lookup), key) {
            index.remove(hash_key(key.as_bytes()), target.short());
        }
    }

    /// Enters the keys of an instance the backend vouches for.
    pub(super) fn enter(&self, target: Target<'_>, moves: &[LookupMove]) {
        for change in moves {
            let index = self.lookups.get(change.lookup);
            if let (Some(index), Some(key)) = (index, &change.to) {
                let growth = index.insert(hash_key(key.as_bytes()), target.short());
                self.memory.resized(0, growth);
            }
        }
    }
}
