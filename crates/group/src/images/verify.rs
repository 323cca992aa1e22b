//! Whether somebody changed the rows while the node was down: samples of the images, and stretches of
//! the backend's keys, are compared before anything of the images is served.
//!
//! Owns the verdict. Waits for a backend that holds what this node had confirmed. Must never take an
//! unflushed change for a difference.

use std::time::Duration;

use cachetier_engine::ReadAnswer;
use cachetier_model::{Instance, ReadPlan, RootKey, SlotSet};
use cachetier_write_through::{AsOf, BackendError, KeyRange, Reason, ScanRequest};

use crate::core::Core;
use crate::difference;
use crate::read_through::lacks_takeovers;
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

/// Whether somebody changed the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Same,
    Differs,
}

impl Core {
    /// Compares, as often as it takes to be believed; `None` when the node ends before.
    pub(super) async fn judge_images(&self, put: &PutBackSlots) -> Option<Verdict> {
        const TOPIC: &str = "images-unverified";
        loop {
            match self.compare_samples(put).await {
                Ok(verdict) => {
                    self.shared.problems.heal(TOPIC);
                    return Some(verdict);
                }
                Err(error) => {
                    let message = format!(
                        "images of slots are not served before samples of them were compared with \
                         the backend (memory.images: Verify): {error}"
                    );
                    let problem = Problem::new("ImagesUnverified", message, false);
                    if self.shared.problems.raise(TOPIC, problem) {
                        tracing::warn!(node = %self.shared.node.name, reason = "ImagesUnverified",
                            error = %error, "images wait for the backend");
                    }
                    self.lanes.look();
                }
            }
            tokio::select! {
                () = self.shared.shutdown.cancelled() => return None,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    async fn compare_samples(&self, put: &PutBackSlots) -> Result<Verdict, BackendError> {
        let trusted = self.lanes.trust(&put.slots).ok_or_else(lacks_takeovers)?;
        let as_of = self.lanes.as_of();
        let keys = self.sample(&put.slots).await?;
        let mut differing = 0_u64;
        for batch in keys.chunks(BATCH) {
            let found = self.shared.backend.read_instances(batch, as_of.as_ref()).await?;
            let pairs = batch.iter().zip(&found);
            differing +=
                pairs.filter(|(key, there)| !self.agrees(key, there.as_ref())).count() as u64;
        }
        let (mut counted, mut missing) = (0_u64, 0_u64);
        for key in keys.iter().step_by(keys.len().div_ceil(STRETCHES).max(1)) {
            for (key, there) in self.stretch(key, as_of.as_ref()).await? {
                if put.covered.contains(key.slot()) {
                    counted += 1;
                    missing += u64::from(!self.agrees(&key, Some(&there)));
                }
            }
        }
        if self.lanes.trust(&put.slots) != Some(trusted) {
            return Err(lacks_takeovers());
        }
        tracing::info!(node = %self.shared.node.name, compared = keys.len(), differing, counted, missing,
            "images were compared with the backend");
        Ok(if differing + missing == 0 { Verdict::Same } else { Verdict::Differs })
    }

    async fn sample(&self, slots: &SlotSet) -> Result<Vec<RootKey>, BackendError> {
        let engine = self.engine.clone();
        let (slots, phase) = (slots.clone(), self.shared.generation as usize);
        let sample =
            move || slots.iter().flat_map(|s| engine.sample_slot(s, PER_SLOT, phase)).collect();
        let taken = self.shared.labour.run(sample).await;
        taken.map_err(|e| BackendError::new("sample the images", Reason::Internal, e.to_string()))
    }

    /// What the backend has from this key on.
    async fn stretch(
        &self,
        from: &RootKey,
        as_of: Option<&AsOf>,
    ) -> Result<Vec<(RootKey, Instance)>, BackendError> {
        let request = ScanRequest {
            range: KeyRange { from: Some(from.clone()), to: None },
            filter: self.shared.config.preload.r#where.clone(),
            page: STRETCH,
            as_of: as_of.cloned().into_iter().collect(),
        };
        let mut scan = self.shared.backend.open_scan(request).await?;
        Ok(scan.next().await?.unwrap_or_default())
    }

    /// Whether the store has the same of this key; true for what is not flushed, or left its place
    /// meanwhile.
    fn agrees(&self, key: &RootKey, there: Option<&Instance>) -> bool {
        let none = Instance::absent(self.schema.tables.len());
        let there = there.unwrap_or(&none);
        match self.engine.read(key, &ReadPlan::default()) {
            Ok(ReadAnswer::Found { tables, as_of: 0 }) => {
                difference::same(&self.schema, &Instance { tables }, there)
            }
            Ok(ReadAnswer::Absent { as_of: 0 }) => !there.exists(),
            Ok(ReadAnswer::NotLoaded) => {
                let warming = self.shared.slots.look(|m| m.is_warming(key.slot()));
                !there.exists() || self.engine.evicts() || !warming
            }
            Ok(ReadAnswer::Found { .. } | ReadAnswer::Absent { .. } | ReadAnswer::Quarantined) => {
                true
            }
            Err(_) => false,
        }
    }
}
