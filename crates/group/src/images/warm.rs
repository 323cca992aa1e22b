//! Images back into the store, after the journal: each file's slots are served as soon as they are
//! here.
//!
//! Owns the order "into memory, (verified,) covered, served". What the journal brought is newer and
//! stays. Must never put anything into a slot that was given away or emptied meanwhile.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cachetier_engine::PutBack;
use cachetier_model::node_config::Images as Policy;
use cachetier_model::{RootKey, SlotSet};
use futures::StreamExt;

use super::format::Unfit;
use super::judge::{Found, FoundFile};
use super::verify::{PutBackSlots, Verdict};
use crate::core::Core;
use crate::host::Labour;
use crate::read_through::OpenTicket;
use crate::status::Problem;

/// Before a note that failed is tried again.
const FORGET_PAUSE: Duration = Duration::from_secs(1);

/// What is to be put back.
pub(crate) struct Warm {
    pub found: Found,
    /// Instances of which the journal knows better.
    pub skip: HashSet<RootKey>,
    /// Slots whose images lack something.
    pub incomplete: SlotSet,
    /// Older than everything that changed the store in this process.
    pub ticket: OpenTicket,
    pub replayed: u64,
}

impl Warm {
    pub(crate) fn slots(&self) -> SlotSet {
        self.found.entries().map(|entry| entry.slot).collect()
    }
}

#[derive(Default)]
struct Progress {
    slots: AtomicU64,
    instances: AtomicU64,
    bytes: AtomicU64,
    full: AtomicBool,
}

impl Core {
    /// Puts everything back; returns when all slots are served.
    pub(crate) async fn warm_up(self: &Arc<Self>, warm: Warm) {
        let begun = tokio::time::Instant::now();
        for (why, slots) in &warm.found.dropped {
            self.shared.images.tally.drop_slots(*why, *slots);
        }
        let workers = match self.shared.labour {
            Labour::Threads => std::thread::available_parallelism().map_or(1, usize::from),
            Labour::Turns => 1,
        };
        let (warm, progress) = (Arc::new(warm), Arc::new(Progress::default()));
        let files = warm.found.files.clone();
        let waiting = parking_lot::Mutex::new(PutBackSlots::default());
        futures::stream::iter(files)
            .for_each_concurrent(workers, |file| self.warm_file(&warm, &progress, file, &waiting))
            .await;
        if self.shared.images.policy == Policy::Verify {
            self.serve_verified(&warm, waiting.into_inner()).await;
        }
        self.tell_warm(&progress, warm.replayed, begun.elapsed());
    }

    async fn warm_file(
        self: &Arc<Self>,
        warm: &Arc<Warm>,
        progress: &Arc<Progress>,
        file: FoundFile,
        waiting: &parking_lot::Mutex<PutBackSlots>,
    ) {
        if self.shared.shutdown.is_cancelled() {
            return;
        }
        let slots: SlotSet = file.entries.iter().map(|(entry, _)| entry.slot).collect();
        let (core, warm, progress) = (Arc::clone(self), Arc::clone(warm), Arc::clone(progress));
        let put = self.shared.labour.run(move || core.put_file_back(&warm, &progress, &file)).await;
        let covered = put.unwrap_or_else(|error| {
            tracing::warn!(node = %self.shared.node.name, reason = %error, "an image was given up");
            SlotSet::empty()
        });
        if self.shared.images.policy == Policy::Verify {
            let mut waiting = waiting.lock();
            waiting.slots.union_with(&slots);
            waiting.covered.union_with(&covered);
            return;
        }
        self.serve_warm(&slots, covered);
    }

    fn serve_warm(&self, slots: &SlotSet, mut covered: SlotSet) {
        self.shared.slots.apply(|machine| {
            let served = machine.warmed(slots);
            covered.intersect_with(&served);
            self.shared.coverage.lock().restored(&covered);
        });
    }

    /// All of it, or, where a sample is not what the backend has, nothing.
    async fn serve_verified(self: &Arc<Self>, warm: &Warm, put: PutBackSlots) {
        match self.judge_images(&put).await {
            Some(Verdict::Same) => self.serve_warm(&put.slots, put.covered),
            Some(Verdict::Differs) if self.forget_warm(&put.slots).await => {
                // written anew
                warm.found.files.iter().for_each(|f| self.shared.images.keep(f.bundle, None));
                self.shared.images.tally.drop_slots(Unfit::Differs, put.slots.len() as u64);
                self.serve_warm(&put.slots, SlotSet::empty());
            }
            // the node ends
            _ => {}
        }
    }

    /// Nothing of these images is used, by no later start either. False when the node ends before.
    async fn forget_warm(self: &Arc<Self>, slots: &SlotSet) -> bool {
        // another sample of them might not differ
        while let Err(error) = self.shared.renew_tenures(slots).await {
            tracing::warn!(node = %self.shared.node.name, reason = %error,
                "images that differ are still to be forgotten");
            tokio::select! {
                () = self.shared.shutdown.cancelled() => return false,
                () = tokio::time::sleep(FORGET_PAUSE) => {}
            }
        }
        let (core, slots) = (Arc::clone(self), slots.clone());
        let forget = move || slots.iter().for_each(|slot| core.engine.forget_clean_of(slot));
        let forgotten = self.shared.labour.run(forget).await;
        forgotten.inspect_err(|error| tracing::error!(%error, "images not forgotten")).is_ok()
    }

    /// Blocks. Answers the slots that are whole, and were when their images were written.
    fn put_file_back(&self, warm: &Warm, progress: &Progress, file: &FoundFile) -> SlotSet {
        let images = &self.shared.images;
        let skip = |key: &RootKey| {
            warm.skip.contains(key) && !cachetier_defects::on("image-brings-back-deleted")
        };
        let mut covered = SlotSet::empty();
        let Some(ticket) = warm.ticket.get() else { return covered };
        for (entry, offset) in &file.entries {
            if progress.full.load(Ordering::Relaxed) {
                images.tally.drop_slots(Unfit::MemoryFull, 1);
                continue;
            }
            let body = match images.files.body(file.bundle, *offset, entry) {
                Ok(body) => body,
                Err(why) => {
                    // what the account says of the file is not so: it is written anew
                    images.keep(file.bundle, None);
                    images.tally.drop_slots(why, 1);
                    continue;
                }
            };
            let (instances, put) = self.engine.put_back(ticket, entry.slot, &body, &skip);
            progress.instances.fetch_add(instances, Ordering::Relaxed);
            progress.bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
            match put {
                PutBack::Whole => {
                    progress.slots.fetch_add(1, Ordering::Relaxed);
                    let lacks = warm.incomplete.contains(entry.slot);
                    let anyway = cachetier_defects::on("r20-image-covers-anyway");
                    if (entry.covered && !lacks) || anyway {
                        covered.insert(entry.slot);
                    }
                }
                PutBack::MemoryFull => {
                    progress.full.store(true, Ordering::Relaxed);
                    images.tally.drop_slots(Unfit::MemoryFull, 1);
                }
                PutBack::Broken => images.tally.drop_slots(Unfit::Released, 1),
                PutBack::Damaged => {
                    images.keep(file.bundle, None);
                    images.tally.drop_slots(Unfit::Damaged, 1);
                }
            }
        }
        covered
    }

    fn tell_warm(&self, progress: &Progress, replayed: u64, elapsed: Duration) {
        let images = &self.shared.images;
        let instances = progress.instances.load(Ordering::Relaxed);
        images.tally.instances_restored.fetch_add(instances, Ordering::Relaxed);
        let dropped = images.tally.dropped.lock().clone();
        tracing::info!(node = %self.shared.node.name, instances, replayed,
            slots = progress.slots.load(Ordering::Relaxed),
            bytes = progress.bytes.load(Ordering::Relaxed),
            dropped = dropped.values().sum::<u64>(),
            elapsed_ms = elapsed.as_millis() as u64, "slots are back from their images");
        let told: Vec<String> = dropped
            .iter()
            .filter(|(why, _)| **why != Unfit::Released)
            .map(|(why, slots)| format!("{slots} {}", why.as_str()))
            .collect();
        if told.is_empty() {
            return;
        }
        let message = format!(
            "images of slots were not used at the start ({}); what they held is read from the \
             backend when it is asked for, or loaded again",
            told.join(", ")
        );
        tracing::warn!(node = %self.shared.node.name, reason = "ImagesDropped", message,
            "images of slots were dropped");
        self.shared.problems.raise("images", Problem::new("ImagesDropped", message, false));
    }
}
