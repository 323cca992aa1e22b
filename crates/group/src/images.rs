//! Slot images: the store on the volume, so that a start is warm without the backend (R3, R4, R20).
//!
//! Owns the account of what the image files hold, and the ways around it: `format` and `files` are
//! bytes and disk, `judge` says at a start which images may be used, `replay` brings what came
//! after them from the journal, `warm` puts them back while slots are served one after the other,
//! `verify` compares samples with the backend where that is asked for, `write` keeps them new. An
//! image holds only what the backend has; everything else comes from the journal. Must never decide
//! what the truth is: an image that is in doubt is dropped.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use cachetier_model::node_config::Images as Policy;
use cachetier_model::{SlotId, SlotSet};
use parking_lot::Mutex;

use crate::tenure::Tenures;

mod files;
mod format;
mod judge;
mod replay;
mod verify;
mod warm;
mod write;

pub(crate) use files::ImageFiles;
pub(crate) use format::{BUNDLE_SLOTS, BUNDLES, Entry, Unfit};
pub(crate) use judge::{Found, Terms, judge};
pub(crate) use replay::{Fates, Replayed, replay};
pub(crate) use warm::Warm;

/// An image is written again after this time, if the slots of its file changed.
pub(crate) const REFRESH: Duration = Duration::from_secs(300);

/// A file as it is on the volume.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub entries: Vec<Entry>,
    pub bytes: u64,
    /// When its slots were looked at last.
    pub since: Instant,
}

pub(crate) struct Images {
    pub files: ImageFiles,
    pub policy: Policy,
    pub refresh: Duration,
    /// By number of the file; `None`: nothing is known of it. Written by the start and by `write`
    /// after the file is in its place, and by `trim`, which gives files up.
    kept: Mutex<Vec<Option<Kept>>>,
    /// Slots of which the journal misses a word about a change, with that change: images from
    /// before it are worth nothing, and their stay must be renewed.
    lost_words: Mutex<LostWords>,
    pub tally: ImageTally,
}

#[derive(Default)]
struct LostWords {
    floors: HashMap<SlotId, u64>,
    to_renew: SlotSet,
}

/// Counts since the start, for metrics.
#[derive(Default)]
pub(crate) struct ImageTally {
    pub files_written: AtomicU64,
    pub bytes_written: AtomicU64,
    pub instances_restored: AtomicU64,
    pub dropped: Mutex<BTreeMap<Unfit, u64>>,
}

impl ImageTally {
    pub(crate) fn drop_slots(&self, why: Unfit, slots: u64) {
        *self.dropped.lock().entry(why).or_default() += slots;
    }
}

impl Images {
    pub(crate) fn new(files: ImageFiles, policy: Policy, refresh: Duration) -> Self {
        Self {
            files,
            policy,
            refresh,
            kept: Mutex::new(vec![None; BUNDLES]),
            lost_words: Mutex::default(),
            tally: ImageTally::default(),
        }
    }

    pub(crate) fn on(&self) -> bool {
        self.policy != Policy::Reload
    }

    pub(crate) fn kept(&self, bundle: usize) -> Option<Kept> {
        self.look(bundle, |kept| kept.cloned())
    }

    /// What is known of a file, without copying it.
    pub(crate) fn look<T>(&self, bundle: usize, look: impl FnOnce(Option<&Kept>) -> T) -> T {
        look(self.kept.lock().get(bundle).and_then(Option::as_ref))
    }

    pub(crate) fn keep(&self, bundle: usize, kept: Option<Kept>) {
        if let Some(place) = self.kept.lock().get_mut(bundle) {
            *place = kept;
        }
    }

    /// The file that needs the oldest frames, of the slots held, and the last frame that it does
    /// not need.
    pub(crate) fn oldest(&self, held: &SlotSet, tenures: &Tenures) -> Option<(usize, u64)> {
        let kept = self.kept.lock();
        let files = kept.iter().enumerate().filter_map(|(n, k)| Some((n, k.as_ref()?)));
        files
            .flat_map(|(bundle, kept)| kept.entries.iter().map(move |entry| (bundle, entry)))
            .filter(|(_, e)| held.contains(e.slot) && tenures.of(e.slot) == e.tenure)
            .map(|(bundle, entry)| (bundle, entry.sequence))
            .min_by_key(|(_, sequence)| *sequence)
    }

    /// Gives up the older half of the files that need a frame up to `confirmed`; which those are.
    pub(crate) fn give_up(&self, held: &SlotSet, tenures: &Tenures, confirmed: u64) -> Vec<usize> {
        let mut kept = self.kept.lock();
        let current = |e: &&Entry| held.contains(e.slot) && tenures.of(e.slot) == e.tenure;
        let mut needy: Vec<(u64, usize)> = Vec::new();
        for (bundle, file) in kept.iter().enumerate() {
            let entries = file.iter().flat_map(|file| &file.entries);
            let oldest = entries.filter(current).map(|entry| entry.sequence).min();
            needy.extend(oldest.filter(|s| *s < confirmed).map(|sequence| (sequence, bundle)));
        }
        needy.sort_unstable();
        needy.truncate(needy.len().div_ceil(2));
        for (_, bundle) in &needy {
            if let Some(place) = kept.get_mut(*bundle) {
                *place = None;
            }
        }
        needy.into_iter().map(|(_, bundle)| bundle).collect()
    }

    /// Bytes on the volume, and when the file was looked at that was not for the longest time.
    pub(crate) fn figures(&self) -> (u64, Option<Instant>) {
        let kept = self.kept.lock();
        let files = || kept.iter().flatten().filter(|kept| !kept.entries.is_empty());
        (files().map(|kept| kept.bytes).sum(), files().map(|kept| kept.since).min())
    }

    /// The journal could not take the word that a change never happened, or was set aside.
    pub(crate) fn word_lost(&self, slot: SlotId, sequence: u64) {
        let mut lost = self.lost_words.lock();
        let floor = lost.floors.entry(slot).or_default();
        *floor = (*floor).max(sequence);
        lost.to_renew.insert(slot);
    }

    /// Images up to this sequence would need a word that the journal does not have.
    pub(crate) fn floor(&self, slot: SlotId) -> u64 {
        self.lost_words.lock().floors.get(&slot).copied().unwrap_or(0)
    }

    pub(crate) fn to_renew(&self) -> SlotSet {
        self.lost_words.lock().to_renew.clone()
    }

    pub(crate) fn renewed(&self, slots: &SlotSet) {
        self.lost_words.lock().to_renew.subtract(slots);
    }
}

/// The slots of a file.
pub(crate) fn slots_of(bundle: usize) -> impl Iterator<Item = SlotId> {
    let first = bundle * BUNDLE_SLOTS;
    (first..first + BUNDLE_SLOTS).filter_map(|n| SlotId::new(u16::try_from(n).ok()?))
}
