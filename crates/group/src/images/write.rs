//! Keeping images new, in the background at a bounded rate, and all of them at a stop in order.
//!
//! Owns when a file is written. Its slots are copied one after the other, each under its lock for
//! as long as the copy takes; the draft takes the old file's place once every change that it left
//! out is synced, so that the journal brings it back (R1). Must never take room on the volume that
//! the journal may still need.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cachetier_engine::LAYOUT_VERSION;
use cachetier_journal::Sequence;
use cachetier_model::SlotSet;
use crc32c::crc32c;
use tokio::time::Instant;

use super::files::Draft;
use super::format::{BUNDLES, DIRECTORY_BYTES, Directory, Entry, Header};
use super::{Kept, slots_of};
use crate::core::Core;
use crate::error::in_full;
use crate::ownership::SlotState;
use crate::status::Problem;

/// How often it is looked for what is due.
const INTERVAL: Duration = Duration::from_secs(1);
/// In the background, at most so much is written.
const BYTES_PER_SECOND: u64 = 64 << 20;
/// An image is written anew when a start would have to read so much of the journal after it, or an
/// eighth of all images where that is more; but never more than this share of the journal.
const REPLAY_BYTES: u64 = 256 << 20;
const JOURNAL_PERCENT: u64 = 30;
/// What must stay free on the volume besides what the journal may need.
const SPARE_BYTES: u64 = 4 << 20;

/// What was copied out of the slots of a file.
#[derive(Default)]
struct Copied {
    entries: Vec<Entry>,
    bytes: u64,
    /// The newest change that was left out.
    newest_open: u64,
}

/// Why a file was not written.
enum NotWritten {
    NoRoom {
        needed: u64,
    },
    Failed(io::Error),
    /// The journal stopped, or this process does.
    Stopped,
}

impl From<io::Error> for NotWritten {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// Tokio's clock, which a simulator can hold.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

impl Core {
    /// Keeps the images new for as long as the node lives.
    pub(crate) async fn keep_images(self: &Arc<Self>) {
        let shared = &self.shared;
        let every = INTERVAL.min(shared.images.refresh);
        let (mut pause, begun) = (every, Instant::now());
        loop {
            tokio::select! {
                () = shared.shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = every;
            if begun.elapsed() >= shared.images.refresh {
                // what the start dropped was told for long enough
                shared.problems.heal("images");
            }
            let Some(bundle) = self.next_due() else { continue };
            match self.write_image(bundle).await {
                Ok(bytes) => pause = Duration::from_millis(bytes * 1_000 / BYTES_PER_SECOND),
                Err(NotWritten::Stopped) => {}
                Err(error) => self.tell_not_written(bundle, error),
            }
        }
    }

    /// At a stop in order: what changed since it was written last, as far as the time allows.
    pub(crate) async fn write_images_until(self: &Arc<Self>, deadline: Instant) {
        let (begun, mut files) = (Instant::now(), 0_u64);
        let written = async {
            for bundle in 0..BUNDLES {
                match self.write_image(bundle).await {
                    Ok(bytes) => files += u64::from(bytes > 0),
                    Err(NotWritten::Stopped) => return,
                    Err(error) => self.tell_not_written(bundle, error),
                }
            }
        };
        let all = tokio::time::timeout_at(deadline, written).await.is_ok();
        tracing::info!(node = %self.shared.node.name, files, all,
            elapsed_ms = begun.elapsed().as_millis() as u64, "images written at the stop");
    }

    /// The file to be written or looked at now, if any.
    fn next_due(&self) -> Option<usize> {
        let (shared, now) = (&self.shared, now());
        let serving = shared.slots.serving();
        let oldest = shared.images.oldest(&serving, &shared.tenures.lock());
        let trimmable = self.lanes.marks().trimmable;
        let late = oldest.filter(|(_, upto)| *upto < trimmable && self.is_far_behind(*upto));
        if let Some((bundle, _)) = late {
            return Some(bundle);
        }
        let coverage = shared.coverage.lock();
        let (covered, loading) = (coverage.covered().clone(), coverage.loading(now));
        drop(coverage);
        let tenures = shared.tenures.lock();
        let served = |bundle| slots_of(bundle).filter(|slot| serving.contains(*slot));
        let due = |bundle: &usize| {
            shared.images.look(*bundle, |kept| {
                let Some(kept) = kept else { return !loading && served(*bundle).next().is_some() };
                if now.duration_since(kept.since) >= shared.images.refresh {
                    return true;
                }
                let is_whole = |e: &&Entry| e.covered && e.tenure == tenures.of(e.slot);
                let whole: SlotSet = kept.entries.iter().filter(is_whole).map(|e| e.slot).collect();
                let lacks = |slot| covered.contains(slot) && !whole.contains(slot);
                !loading && served(*bundle).any(lacks)
            })
        };
        (0..BUNDLES).find(due)
    }

    /// Writes a file unless nothing in it changed; answers how many bytes were written.
    async fn write_image(self: &Arc<Self>, bundle: usize) -> Result<u64, NotWritten> {
        let images = &self.shared.images;
        if self.shared.slots.look(|m| slots_of(bundle).any(|slot| m.is_warming(slot))) {
            // what is in the file is not in use yet: written now, it would be lost
            return Ok(0);
        }
        let core = Arc::clone(self);
        let copied = self.run(move || core.copy_slots(bundle, None)).await?;
        let before = images.kept(bundle);
        if copied.entries.is_empty() {
            if before.is_some_and(|kept| !kept.entries.is_empty()) {
                let files = images.files.clone();
                self.run(move || files.remove(bundle).map(|_| ())).await?;
            }
            images.keep(bundle, Some(Kept { entries: Vec::new(), bytes: 0, since: now() }));
            return Ok(0);
        }
        if let Some(before) = before.filter(|kept| self.is_as_kept(kept, &copied.entries)) {
            images.keep(bundle, Some(Kept { since: now(), ..before }));
            return Ok(0);
        }
        self.check_room(copied.bytes).await?;
        let core = Arc::clone(self);
        let drafted = self.run(move || core.draft(bundle)).await;
        let (draft, copied, bytes) = drafted.inspect_err(|_| images.files.discard(bundle))?;
        self.brought_back(&copied).await?;
        let files = images.files.clone();
        self.run(move || files.publish(&draft)).await?;
        images.keep(bundle, Some(Kept { entries: copied.entries, bytes, since: now() }));
        images.tally.files_written.fetch_add(1, Ordering::Relaxed);
        images.tally.bytes_written.fetch_add(bytes, Ordering::Relaxed);
        self.shared.problems.heal("images-unwritten");
        Ok(bytes)
    }

    async fn run<T: Send + 'static>(
        &self,
        act: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, NotWritten> {
        let done = self.shared.labour.run(act).await;
        Ok(done.map_err(|_| NotWritten::Stopped)??)
    }

    /// A start would have to read too much of the journal after this frame, by the mean length of
    /// the frames written by this process; those of earlier ones were counted by them.
    fn is_far_behind(&self, upto: u64) -> bool {
        let stats = self.shared.journal.stats();
        let upto = Sequence::from_stored(upto).unwrap_or_default();
        let before = if upto.generation() == self.shared.generation { upto.counter() } else { 0 };
        let frames = stats.appended.counter().saturating_sub(before);
        let behind = frames.saturating_mul(stats.bytes_written / stats.frames_written.max(1));
        let images = self.shared.images.figures().0;
        let share = stats.capacity_bytes / 100 * JOURNAL_PERCENT;
        behind > REPLAY_BYTES.max(images / 8).min(share)
    }

    /// The same slots with the same content. Where the journal waits for newer images, only a new
    /// file helps.
    fn is_as_kept(&self, kept: &Kept, entries: &[Entry]) -> bool {
        let same = |(a, b): (&Entry, &Entry)| {
            let newer = a.sequence > b.sequence && self.is_far_behind(b.sequence);
            Entry { sequence: b.sequence, ..a.clone() } == *b && !newer
        };
        kept.entries.len() == entries.len() && entries.iter().zip(&kept.entries).all(same)
    }

    /// Blocks.
    fn draft(&self, bundle: usize) -> io::Result<(Draft, Copied, u64)> {
        let room = slots_of(bundle).map(|slot| self.engine.slot_bytes(slot) as u64).sum();
        let mut draft = self.shared.images.files.begin(bundle, room)?;
        let copied = self.copy_slots(bundle, Some(&mut draft))?;
        let header = Header {
            layout: LAYOUT_VERSION,
            journal: self.shared.journal.id(),
            schema: self.schema_version,
            token: self
                .token()
                .or(self.shared.notebook.claim().ok().and_then(|c| c.token))
                .unwrap_or(0),
            generation: self.shared.generation,
            condition: crc32c(self.shared.config.preload.r#where.as_bytes()),
        };
        let bytes = draft.finish(&Directory { header, entries: copied.entries.clone() })?;
        Ok((draft, copied, bytes))
    }

    /// Copies the slots of a file that are served; without a draft only to know what is in them.
    fn copy_slots(&self, bundle: usize, mut draft: Option<&mut Draft>) -> io::Result<Copied> {
        let shared = &self.shared;
        let (mut copied, mut body) = (Copied::default(), Vec::new());
        for slot in slots_of(bundle) {
            let seen = || {
                let covered = shared.coverage.lock().covered().contains(slot);
                (shared.slots.state(slot), shared.tenures.lock().of(slot), covered)
            };
            let before = seen();
            body.clear();
            let appended = || shared.last_appended().get();
            let copy = self.engine.copy_slot(slot, appended, &mut body);
            let (state, tenure, covered) = before;
            let unwanted = copy.instances == 0 && !covered;
            // a slot that came, went or was covered meanwhile is for the next time
            let steady = state == SlotState::Serving && before == seen();
            if unwanted || !steady || copy.sequence < shared.images.floor(slot) {
                continue;
            }
            let late = cachetier_defects::on("r03-image-forgets-open-changes");
            let sequence = if late { appended() } else { copy.sequence };
            copied.entries.push(Entry {
                slot,
                covered,
                checksum: crc32c(&body),
                tenure,
                sequence,
                instances: copy.instances,
                bytes: body.len() as u64,
            });
            copied.bytes += body.len() as u64;
            copied.newest_open = copied.newest_open.max(copy.newest_open).max(sequence);
            if let Some(draft) = draft.as_deref_mut() {
                draft.append(&body)?;
            }
        }
        Ok(copied)
    }

    /// Returns once everything that the copy left out, and everything it counts as held, is synced.
    async fn brought_back(&self, copied: &Copied) -> Result<(), NotWritten> {
        let newest = Sequence::from_stored(copied.newest_open).ok_or(NotWritten::Stopped)?;
        let synced = self.shared.journal.wait_synced(newest).await;
        synced.map_err(|_| NotWritten::Stopped)
    }

    async fn check_room(&self, bytes: u64) -> Result<(), NotWritten> {
        let files = self.shared.images.files.clone();
        let Some(free) = self.run(move || files.free_bytes()).await? else { return Ok(()) };
        let stats = self.shared.journal.stats();
        let journal = stats.capacity_bytes.saturating_sub(stats.bytes);
        let needed = journal + bytes + DIRECTORY_BYTES as u64 + SPARE_BYTES;
        if needed > free { Err(NotWritten::NoRoom { needed: needed - free }) } else { Ok(()) }
    }

    fn tell_not_written(&self, bundle: usize, error: NotWritten) {
        let images = &self.shared.images;
        // not before it is due again
        let kept = images.kept(bundle);
        let nothing = || Kept { entries: Vec::new(), bytes: 0, since: now() };
        images.keep(bundle, Some(kept.map_or_else(nothing, |k| Kept { since: now(), ..k })));
        let message = match error {
            NotWritten::NoRoom { needed } => format!(
                "images of slots are not written: the volume lacks {needed} bytes beside what the \
                 journal may still need; give the journal a larger volume, or set memory.images to \
                 Reload. A restart reads from the backend what no image holds"
            ),
            NotWritten::Failed(error) => format!(
                "images of slots are not written: {}; a restart reads from the backend what no \
                 image holds",
                in_full(&error)
            ),
            NotWritten::Stopped => return,
        };
        let problem = Problem::new("ImagesNotWritten", message.clone(), false);
        if self.shared.problems.raise("images-unwritten", problem) {
            tracing::warn!(node = %self.shared.node.name, reason = "ImagesNotWritten", message,
                "images of slots are not written");
        }
    }

    /// The last frame that no usable image needs; `None` when none needs any.
    pub(crate) fn image_mark(&self) -> Option<u64> {
        let held = self.shared.slots.look(|machine| machine.kept());
        let oldest = self.shared.images.oldest(&held, &self.shared.tenures.lock());
        oldest.map(|(_, sequence)| sequence)
    }

    /// The journal needs room: files that need frames up to `confirmed` are given up, the oldest
    /// half of them, before the frames go.
    pub(crate) async fn give_up_images(&self, confirmed: u64) {
        let held = self.shared.slots.look(|machine| machine.kept());
        let given_up = self.shared.images.give_up(&held, &self.shared.tenures.lock(), confirmed);
        if given_up.is_empty() {
            return;
        }
        let files = self.shared.images.files.clone();
        let count = given_up.len();
        let removed = self.run(move || {
            given_up.into_iter().try_for_each(|bundle| files.remove(bundle).map(|_| ()))
        });
        // one that stays is found too old by the next start
        let removed = removed.await.is_ok();
        tracing::warn!(node = %self.shared.node.name, files = count, removed,
            "images were given up: the journal needs the room");
    }

    /// Slots of which the journal lacks a word begin a new stay, so that no older image of them is
    /// used.
    pub(crate) async fn renew_stays(&self) -> bool {
        let slots: SlotSet = self.shared.images.to_renew();
        if slots.is_empty() {
            return true;
        }
        let renewed = self.shared.renew_tenures(&slots).await.is_ok();
        if renewed {
            self.shared.images.renewed(&slots);
        }
        renewed
    }
}
