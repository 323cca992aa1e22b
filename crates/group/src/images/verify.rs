//! Whether somebody changed the rows while the node was down: samples of the images, and stretches of
//! the backend's keys, are compared before anything of the images is served.
//!
//! Owns the verdict. Waits for a backend that holds what this node had confirmed. Must never take an
//! unflushed change for a difference.

use std::time::Duration;

use cachetier_engine::ReadAnswer;
use cachetier_model::{Instance, ReadPlan, RootKey, SlotId, SlotSet};
use cachetier_write_through::{AsOf, BackendError, KeyRange, ScanRequest};

use crate::core::Core;
use crate::difference;
use crate::status::Problem;

/// Instances of each slot.
const PER_SLOT: usize = 8;
/// Instances asked for together.
const BATCH: usize = 512;
/// Stretches of consecutive keys whose instances are counted here, and how many each has.
const STRETCHES: usize = 16;
const STRETCH: u32 = 512;
/// Before the backend is asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// What was put back.
#[derive(Default)]
pub(super) struct PutBackSlots {
    pub slots: SlotSet,
    /// Those of which every instance is here that the backend has.
    pub covered: SlotSet,
}

enum Verdict {
    Same { compared: u64 },
    Differs,
}

impl Core {
    /// Whether the samples are what the backend has; false, too, when the node ends before.
    pub(super) async fn images_hold(&self, put: &PutBackSlots) -> bool {
        loop {
            match self.compare_samples(put).await {
                Ok(Some(Verdict::Same { compared })) => {
                    self.shared.problems.heal("images-unverified");
                    tracing::info!(node = %self.shared.node.name, compared, "images are verified");
                    return true;
                }
                Ok(Some(Verdict::Differs)) => {
                    self.shared.problems.heal("images-unverified");
                    return false;
                }
                Ok(None) => self.lanes.look(),
                Err(error) => {
                    let message = format!(
                        "images of slots are not served before samples of them were compared with \
                         the backend (memory.images: Verify): {error}"
                    );
                    let problem = Problem::new("ImagesUnverified", message, false);
                    if self.shared.problems.raise("images-unverified", problem) {
                        tracing::warn!(node = %self.shared.node.name, reason = "ImagesUnverified",
                            "images wait for the backend");
                    }
                    self.lanes.look();
                }
            }
            tokio::select! {
                () = self.shared.shutdown.cancelled() => return false,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    /// `None`: what was read cannot be believed.
    async fn compare_samples(&self, put: &PutBackSlots) -> Result<Option<Verdict>, BackendError> {
        let trusted = self.lanes.trust(&put.slots);
        let as_of = self.lanes.as_of();
        let keys = self.sample(&put.slots).await;
        let mut compared = 0;
        let mut same = true;
        for batch in keys.chunks(BATCH) {
            let found = self.shared.backend.read_instances(batch, as_of.as_ref()).await?;
            for (key, there) in batch.iter().zip(found) {
                compared += 1;
                same &= self.agrees_here(key, there.as_ref());
            }
        }
        let step = keys.len().div_ceil(STRETCHES).max(1);
        for key in keys.iter().step_by(step) {
            same &= self.compare_stretch(key, &put.covered, as_of.as_ref()).await?;
        }
        let believed = trusted.is_some() && trusted == self.lanes.trust(&put.slots);
        let verdict = if same { Verdict::Same { compared } } else { Verdict::Differs };
        Ok(believed.then_some(verdict))
    }

    async fn sample(&self, slots: &SlotSet) -> Vec<RootKey> {
        let engine = self.engine.clone();
        let (slots, phase) = (slots.clone(), self.shared.generation as usize);
        let sample =
            move || slots.iter().flat_map(|s| engine.sample_slot(s, PER_SLOT, phase)).collect();
        // a thread that panicked leaves nothing to compare, which is told as a difference
        self.shared.labour.run(sample).await.unwrap_or_default()
    }

    /// Counts what the backend has from this key on: of the slots that are covered, all is here.
    async fn compare_stretch(
        &self,
        from: &RootKey,
        covered: &SlotSet,
        as_of: Option<&AsOf>,
    ) -> Result<bool, BackendError> {
        let request = ScanRequest {
            range: KeyRange { from: Some(from.clone()), to: None },
            filter: self.shared.config.preload.r#where.clone(),
            page: STRETCH,
            as_of: as_of.cloned().into_iter().collect(),
        };
        let mut scan = self.shared.backend.open_scan(request).await?;
        let page = scan.next().await?.unwrap_or_default();
        let of_ours = page.iter().filter(|(key, _)| covered.contains(key.slot()));
        Ok(of_ours.into_iter().all(|(key, there)| self.agrees_here(key, Some(there))))
    }

    /// Whether the store has the same of this key; true for what is not flushed, or left its place
    /// meanwhile.
    fn agrees_here(&self, key: &RootKey, there: Option<&Instance>) -> bool {
        let none = Instance::absent(self.schema.tables.len());
        let there = there.unwrap_or(&none);
        match self.engine.read(key, &ReadPlan::default()) {
            Ok(ReadAnswer::Found { tables, as_of: 0 }) => {
                difference::same(&self.schema, &Instance { tables }, there)
            }
            Ok(ReadAnswer::Absent { as_of: 0 }) => !there.exists(),
            Ok(ReadAnswer::NotLoaded) => {
                !there.exists() || self.engine.evicts() || !self.is_warming(key.slot())
            }
            Ok(ReadAnswer::Found { .. } | ReadAnswer::Absent { .. } | ReadAnswer::Quarantined) => {
                true
            }
            Err(_) => false,
        }
    }

    fn is_warming(&self, slot: SlotId) -> bool {
        self.shared.slots.look(|machine| machine.is_warming(slot))
    }
}
