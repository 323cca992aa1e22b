//! Letting go of journal frames that nobody can need any more (R3).
//!
//! Owns the clock of `keepFlushed`: frames stay for that time after their confirmation, so that a
//! backend that lost commits can be sent them again; less when the journal would fill up. Must
//! never trim past the lowest position that the backend holds, confirmed.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cachetier_journal::Sequence;
use cachetier_write_through::BackendHealth;

use crate::core::Core;
use crate::notebook::LanesNote;

const INTERVAL: Duration = Duration::from_secs(2);
/// The longest a note of what is settled waits for the journal's sync.
const SETTLE_MAX: Duration = Duration::from_millis(500);
/// Above this share of the journal's capacity, frames go as soon as they are confirmed; later while
/// the backend is away.
const FULL_PERCENT: u64 = 75;
const FULL_PERCENT_AWAY: u64 = 90;

/// Confirmed marks by the time they were seen; pure.
#[derive(Debug, Default)]
struct Kept {
    seen: VecDeque<(Instant, u64)>,
    looked: Option<Instant>,
}

/// What the clock of `keepFlushed` goes by.
#[derive(Clone, Copy, Debug)]
struct Weather {
    /// The journal lacks room.
    in_need: bool,
    /// The backend does not answer: whatever takes its place then may lack what it had confirmed, so
    /// nothing grows older.
    away: bool,
}

impl Kept {
    /// Notes the mark of now; answers up to where frames are old enough.
    fn due(&mut self, now: Instant, confirmed: u64, keep: Duration, weather: Weather) -> u64 {
        let since = self.looked.replace(now).unwrap_or(now);
        if weather.away {
            let passed = now.saturating_duration_since(since);
            self.seen.iter_mut().for_each(|(seen, _)| *seen += passed);
        }
        if self.seen.back().is_none_or(|(_, last)| *last < confirmed) {
            self.seen.push_back((now, confirmed));
        }
        if weather.in_need {
            self.seen.clear();
            return confirmed;
        }
        let mut due = 0;
        while let Some((since, mark)) = self.seen.front().copied() {
            if now.duration_since(since) < keep {
                break;
            }
            due = mark;
            self.seen.pop_front();
        }
        due
    }
}

fn forget_upto(sequences: &mut BTreeSet<u64>, gone: u64) {
    *sequences = sequences.split_off(&gone.saturating_add(1));
}

/// Tokio's clock, which a simulator can hold.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl Core {
    /// The confirmed position of each lane, once the journal holds, synced, every word about what
    /// the lanes passed up to there: a start believes them. `None` while that cannot be had.
    pub(crate) async fn settled_positions(&self) -> Option<Vec<u64>> {
        let marks = self.lanes.marks();
        self.aside.caught_up().await;
        if !self.renew_stays().await {
            return None;
        }
        let synced = self.shared.journal.wait_synced(self.shared.last_appended());
        tokio::time::timeout(SETTLE_MAX, synced).await.ok()?.ok()?;
        Some(marks.lanes.iter().map(|lane| lane.position.min(lane.confirmed)).collect())
    }

    pub(crate) async fn trim_journal(self: Arc<Self>) {
        let config = &self.shared.config;
        // idempotency answers are found again by a start as long as their frames are there (R26)
        let keep = config.journal.keep_flushed_seconds.max(config.idempotency.window_seconds);
        let keep = Duration::from_secs(keep);
        let mut kept = Kept::default();
        let mut noted = LanesNote::default();
        let mut due = 0;
        loop {
            tokio::select! {
                () = self.shared.shutdown.cancelled() => return,
                () = tokio::time::sleep(INTERVAL) => {}
            }
            self.tickets.expire(now());
            self.answers.expire();
            let marks = self.lanes.marks();
            let settled = self.settled_positions().await;
            let stats = self.shared.journal.stats();
            let away = matches!(*self.lanes.health().borrow(), BackendHealth::Down { .. });
            let percent = if away { FULL_PERCENT_AWAY } else { FULL_PERCENT };
            let in_need = stats.bytes > stats.capacity_bytes / 100 * percent;
            let mut trimmable = marks.trimmable;
            if cachetier_defects::on("r03-trim-by-fastest-lane") {
                trimmable = marks.lanes.iter().map(|l| l.position).max().unwrap_or(0);
            }
            due = due.max(kept.due(now(), trimmable, keep, Weather { in_need, away }));
            let positions: Vec<u64> =
                marks.lanes.iter().map(|l| l.position.min(l.confirmed)).collect();
            // noted before anything is trimmed: a start with the backend away begins there
            let note = LanesNote { positions, versions: self.lanes.versions(), settled };
            if note != noted && !note.positions.is_empty() {
                if let Err(error) = self.shared.notebook.set_lanes(&note).await {
                    tracing::debug!(reason = %error, "lane positions not noted");
                    continue;
                }
                noted = note;
            }
            if in_need {
                self.give_up_images(due).await;
            }
            // frames that are gone are never sent again, nor asked for
            let gone = stats.trimmed.get();
            self.aside.trimmed(gone);
            forget_upto(&mut self.annulled.lock(), gone);
            // what the images need stays, too, and what a backend that lost commits is to be sent
            let allowed = due.min(self.image_mark().unwrap_or(u64::MAX)).min(trimmable);
            if let Some(upto) = Sequence::from_stored(allowed) {
                self.shared.journal.trim(upto);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAIR: Weather = Weather { in_need: false, away: false };

    #[test]
    fn r03_frames_stay_for_their_time_after_confirmation_unless_the_journal_fills() {
        let mut kept = Kept::default();
        let start = Instant::now();
        let keep = Duration::from_secs(60);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(kept.due(start, 10, keep, FAIR), 0);
        assert_eq!(kept.due(after(30), 20, keep, FAIR), 0);
        assert_eq!(kept.due(after(59), 20, keep, FAIR), 0);
        assert_eq!(kept.due(after(60), 20, keep, FAIR), 10);
        assert_eq!(kept.due(after(90), 20, keep, FAIR), 20);
        let need = Weather { in_need: true, ..FAIR };
        assert_eq!(kept.due(after(91), 30, keep, need), 30, "no room to keep them");
    }

    #[test]
    fn r11_an_outage_does_not_use_up_the_time_that_frames_are_kept_for_it() {
        let mut kept = Kept::default();
        let start = Instant::now();
        let keep = Duration::from_secs(60);
        let after = |seconds| start + Duration::from_secs(seconds);
        let away = Weather { away: true, ..FAIR };
        assert_eq!(kept.due(start, 10, keep, FAIR), 0);
        assert_eq!(kept.due(after(10), 10, keep, FAIR), 0);
        assert_eq!(kept.due(after(3_600), 10, keep, away), 0);
        assert_eq!(kept.due(after(3_640), 10, keep, FAIR), 0);
        assert_eq!(kept.due(after(3_651), 10, keep, FAIR), 10);
    }
}
