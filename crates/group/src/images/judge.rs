//! Which images a start may use.
//!
//! Owns the terms. An image is of use only when the journal holds everything of the slot that came
//! after it, and the slot was this node's all the time since; whatever else is on the volume is
//! removed. Must never repair.

use std::collections::BTreeMap;

use cachetier_engine::LAYOUT_VERSION;
use cachetier_model::SlotSet;
use uuid::Uuid;

use super::files::ImageFiles;
use super::format::{DIRECTORY_BYTES, Directory, Entry, Unfit};
use crate::tenure::Tenures;

/// What an image must agree with.
pub(crate) struct Terms {
    pub journal: Uuid,
    pub schema: u64,
    /// Token that this process holds.
    pub token: u64,
    /// No frame up to here is in the journal for sure.
    pub trimmed: u64,
    /// The last frame of the journal.
    pub last: u64,
    /// See [`super::format::Header::condition`].
    pub condition: u32,
    /// Slots that were held before this start and are to be served by it.
    pub slots: SlotSet,
    pub tenures: Tenures,
}

/// The usable slots of one file, each with the place of its bytes.
#[derive(Clone, Debug)]
pub(crate) struct FoundFile {
    pub bundle: usize,
    pub entries: Vec<(Entry, u64)>,
}

#[derive(Debug, Default)]
pub(crate) struct Found {
    pub files: Vec<FoundFile>,
    /// Slots that are not used, by reason.
    pub dropped: BTreeMap<Unfit, u64>,
}

impl Found {
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.files.iter().flat_map(|file| file.entries.iter().map(|(entry, _)| entry))
    }
}

/// Looks through all files. Blocks.
pub(crate) fn judge(files: &ImageFiles, terms: &Terms) -> Found {
    let mut found = Found::default();
    let present = files.present().unwrap_or_else(|error| {
        tracing::warn!(reason = %error, "images cannot be listed");
        Vec::new()
    });
    for bundle in present {
        let usable = match files.directory(bundle, LAYOUT_VERSION) {
            Ok(None) => continue,
            Ok(Some(directory)) => judge_file(bundle, &directory, terms, &mut found.dropped),
            Err(why) => {
                // how many slots it had cannot be known any more
                *found.dropped.entry(why).or_default() += 1;
                None
            }
        };
        match usable {
            Some(file) => found.files.push(file),
            None => {
                if let Err(error) = files.remove(bundle) {
                    tracing::debug!(%error, "an image of no use stays on the volume");
                }
            }
        }
    }
    found
}

fn judge_file(
    bundle: usize,
    directory: &Directory,
    terms: &Terms,
    dropped: &mut BTreeMap<Unfit, u64>,
) -> Option<FoundFile> {
    let Directory { header, entries } = directory;
    let of_file = if header.journal != terms.journal || header.token > terms.token {
        Some(Unfit::Foreign)
    } else if header.schema != terms.schema {
        Some(Unfit::Schema)
    } else {
        None
    };
    let (mut usable, mut at) = (Vec::new(), DIRECTORY_BYTES as u64);
    for entry in entries {
        match of_file.or_else(|| judge_entry(entry, terms)) {
            None => {
                // loaded under another condition: what is here is true, and not all
                let covered = entry.covered && header.condition == terms.condition;
                usable.push((Entry { covered, ..entry.clone() }, at));
            }
            Some(why) => *dropped.entry(why).or_default() += 1,
        }
        at = at.saturating_add(entry.bytes);
    }
    (!usable.is_empty()).then_some(FoundFile { bundle, entries: usable })
}

fn judge_entry(entry: &Entry, terms: &Terms) -> Option<Unfit> {
    if !terms.slots.contains(entry.slot) || terms.tenures.of(entry.slot) != entry.tenure {
        Some(Unfit::Released)
    } else if entry.sequence > terms.last {
        Some(Unfit::Foreign)
    } else if entry.sequence < terms.trimmed {
        Some(Unfit::TooOld)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::Header;
    use super::*;
    use cachetier_model::SlotId;

    fn terms() -> Terms {
        Terms {
            journal: Uuid::from_u128(1),
            schema: 42,
            token: 5,
            trimmed: 100,
            last: 200,
            condition: 9,
            slots: SlotSet::full(),
            tenures: Tenures::default(),
        }
    }

    fn directory(header: Header, sequence: u64) -> Directory {
        let entry = Entry {
            slot: SlotId::new(3).unwrap(),
            covered: true,
            checksum: 0,
            tenure: 0,
            sequence,
            instances: 1,
            bytes: 10,
        };
        Directory { header, entries: vec![entry] }
    }

    fn header() -> Header {
        let journal = Uuid::from_u128(1);
        Header {
            layout: LAYOUT_VERSION,
            journal,
            schema: 42,
            token: 5,
            generation: 1,
            condition: 9,
        }
    }

    fn verdict(directory: &Directory, terms: &Terms) -> Option<Unfit> {
        let mut dropped = BTreeMap::new();
        let file = judge_file(0, directory, terms, &mut dropped);
        assert_eq!(file.is_some(), dropped.is_empty());
        dropped.into_keys().next()
    }

    #[test]
    fn r03_an_image_is_used_only_while_the_journal_holds_all_that_came_after_it() {
        assert_eq!(verdict(&directory(header(), 100), &terms()), None);
        assert_eq!(verdict(&directory(header(), 200), &terms()), None);
        assert_eq!(verdict(&directory(header(), 99), &terms()), Some(Unfit::TooOld));
        assert_eq!(verdict(&directory(header(), 201), &terms()), Some(Unfit::Foreign));
    }

    #[test]
    fn r20_a_slot_loaded_under_another_condition_is_used_and_not_covered() {
        let covered = |condition| {
            let directory = directory(Header { condition, ..header() }, 150);
            let file = judge_file(0, &directory, &terms(), &mut BTreeMap::new()).unwrap();
            file.entries[0].0.covered
        };
        assert!(covered(9));
        assert!(!covered(10));
    }

    #[test]
    fn r08_r20_images_of_other_journals_tables_tokens_and_stays_are_dropped() {
        let foreign = Header { journal: Uuid::from_u128(2), ..header() };
        assert_eq!(verdict(&directory(foreign, 150), &terms()), Some(Unfit::Foreign));
        let later = Header { token: 6, ..header() };
        assert_eq!(verdict(&directory(later, 150), &terms()), Some(Unfit::Foreign));
        let tables = Header { schema: 43, ..header() };
        assert_eq!(verdict(&directory(tables, 150), &terms()), Some(Unfit::Schema));
        let not_held = Terms { slots: SlotSet::empty(), ..terms() };
        assert_eq!(verdict(&directory(header(), 150), &not_held), Some(Unfit::Released));
        let mut tenures = Tenures::default();
        tenures.renew(&SlotSet::full());
        let back = Terms { tenures, ..terms() };
        assert_eq!(verdict(&directory(header(), 150), &back), Some(Unfit::Released));
    }
}
