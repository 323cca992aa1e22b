//! What the backend got after the images were written, from the journal back into the store.
//!
//! One pass in order, before the unflushed tail: each frame of an imaged slot that the backend has
//! brings the whole instance (R4), newer than what the image holds. Frames whose fate the journal
//! does not tell for sure make their instance unknown instead. Must never queue anything.

use std::collections::{BTreeMap, HashSet};

use cachetier_engine::{Engine, Restored};
use cachetier_model::{RootKey, SlotId, SlotSet};

use super::judge::Found;
use crate::frames::{Payload, TransactionFrame};
use crate::restore::{Tail, unreadable};
use crate::status::Problem;

/// What the images must not put back, and what they lack.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    pub frames: u64,
    /// Deleted since, or unknown.
    pub skip: HashSet<RootKey>,
    /// Slots with instances that are not here although the backend may have them.
    pub incomplete: SlotSet,
}

/// What is known of the frames' fates. `flushed` tells by the lanes' positions of now, `settled` by
/// those whose words (annulled, set aside) are in the journal for sure.
pub(crate) struct Fates<'a> {
    pub flushed: &'a Tail<'a>,
    pub settled: &'a Tail<'a>,
    /// The backend said which instances are quarantined.
    pub claimed: bool,
}

/// Blocks.
pub(crate) fn replay(
    fates: &Fates<'_>,
    found: &Found,
    trimmed: u64,
    engine: &Engine,
) -> Result<Replayed, Problem> {
    let after: BTreeMap<SlotId, u64> = found.entries().map(|e| (e.slot, e.sequence)).collect();
    let Some(oldest) = after.values().copied().min() else { return Ok(Replayed::default()) };
    let mut pass =
        Pass { fates, after, engine, awaiting: BTreeMap::new(), done: Replayed::default() };
    fates.flushed.each_after(oldest.max(trimmed), |sequence, payload, _| {
        match payload {
            Payload::Transaction(frame) => pass.transaction(sequence, frame)?,
            Payload::Annul { sequence } => {
                if let Some(key) = pass.awaiting.remove(&sequence) {
                    pass.unknown(key);
                }
            }
            Payload::Rejected { key, .. } => {
                if pass.is_after_image(key.slot(), sequence) {
                    pass.unknown(key);
                }
            }
            Payload::Answered { .. } => {}
        }
        Ok(())
    })?;
    Ok(pass.done)
}

struct Pass<'a> {
    fates: &'a Fates<'a>,
    /// The sequence of each imaged slot.
    after: BTreeMap<SlotId, u64>,
    engine: &'a Engine,
    /// Frames that may be annulled yet.
    awaiting: BTreeMap<u64, RootKey>,
    done: Replayed,
}

impl Pass<'_> {
    fn is_after_image(&self, slot: SlotId, sequence: u64) -> bool {
        self.after.get(&slot).is_some_and(|of_image| sequence > *of_image)
    }

    fn transaction(&mut self, sequence: u64, frame: TransactionFrame) -> Result<(), Problem> {
        let slot = frame.key.slot();
        if !self.is_after_image(slot, sequence)
            || !self.fates.flushed.is_flushed(sequence, &frame.key)
        {
            return Ok(());
        }
        self.done.frames += 1;
        if frame.awaits_backend {
            self.awaiting.insert(sequence, frame.key.clone());
        }
        let settled = self.fates.settled.is_flushed(sequence, &frame.key);
        // a refused one was never acknowledged; a rejected one is quarantined by the claim
        let told = settled || (self.fates.claimed && !frame.awaits_backend);
        if frame.schema != self.fates.flushed.schema_version || !told {
            self.done.incomplete.insert(slot);
            self.unknown(frame.key);
            return Ok(());
        }
        let here = self.engine.restore_flushed(&frame.key, &frame.image);
        match here.map_err(|error| unreadable(&crate::error::in_full(&error)))? {
            Restored::Here => {
                self.done.skip.remove(&frame.key);
                return Ok(());
            }
            Restored::MemoryFull => {
                self.done.incomplete.insert(slot);
            }
            Restored::Absent => {}
        }
        self.done.skip.insert(frame.key);
        Ok(())
    }

    /// The backend may have something else than what is here, or nothing.
    fn unknown(&mut self, key: RootKey) {
        self.engine.forget(&key);
        self.done.skip.insert(key);
    }
}
