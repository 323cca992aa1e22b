//! Letting go of journal frames that nobody can need any more (R3).
//!
//! Owns the clock of `keepFlushed`: frames stay for that time after their confirmation, so that a
//! backend that lost commits can be sent them again; less when the journal would fill up. Must
//! never trim past the lowest position that the backend holds, confirmed.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cachetier_journal::Sequence;

use crate::core::Core;

const INTERVAL: Duration = Duration::from_secs(2);
/// Above this share of the journal's capacity, frames go as soon as they are confirmed.
const FULL_PERCENT: u64 = 75;

/// Confirmed marks by the time they were seen; pure.
#[derive(Debug, Default)]
struct Kept {
    seen: VecDeque<(Instant, u64)>,
}

impl Kept {
    /// Notes the mark of now; answers up to where frames are old enough.
    fn due(&mut self, now: Instant, confirmed: u64, keep: Duration, in_need: bool) -> u64 {
        if self.seen.back().is_none_or(|(_, last)| *last < confirmed) {
            self.seen.push_back((now, confirmed));
        }
        if in_need {
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
    pub(crate) async fn trim_journal(self: Arc<Self>) {
        let config = &self.shared.config;
        // idempotency answers are found again by a start as long as their frames are there (R26)
        let keep = config.journal.keep_flushed_seconds.max(config.idempotency.window_seconds);
        let keep = Duration::from_secs(keep);
        let mut kept = Kept::default();
        let mut noted: Vec<u64> = Vec::new();
        loop {
            tokio::select! {
                () = self.shared.shutdown.cancelled() => return,
                () = tokio::time::sleep(INTERVAL) => {}
            }
            self.tickets.expire(now());
            self.answers.expire();
            let marks = self.lanes.marks();
            let stats = self.shared.journal.stats();
            let in_need = stats.bytes > stats.capacity_bytes / 100 * FULL_PERCENT;
            let mut trimmable = marks.trimmable;
            if cachetier_defects::on("r03-trim-by-fastest-lane") {
                trimmable = marks.lanes.iter().map(|l| l.position).max().unwrap_or(0);
            }
            let due = kept.due(now(), trimmable, keep, in_need);
            let positions: Vec<u64> =
                marks.lanes.iter().map(|l| l.position.min(l.confirmed)).collect();
            // noted before anything is trimmed: a start with the backend away begins there
            if positions != noted && !positions.is_empty() {
                if let Err(error) = self.shared.notebook.set_lanes(&positions).await {
                    tracing::debug!(reason = %error, "lane positions not noted");
                    continue;
                }
                noted = positions;
            }
            // frames that are gone are never sent again, nor asked for
            let gone = stats.trimmed.get();
            self.aside.trimmed(gone);
            forget_upto(&mut self.annulled.lock(), gone);
            if let Some(due) = Sequence::from_stored(due).filter(|due| *due > stats.trimmed) {
                self.shared.journal.trim(due);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r03_frames_stay_for_their_time_after_confirmation_unless_the_journal_fills() {
        let mut kept = Kept::default();
        let start = Instant::now();
        let keep = Duration::from_secs(60);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(kept.due(start, 10, keep, false), 0);
        assert_eq!(kept.due(after(30), 20, keep, false), 0);
        assert_eq!(kept.due(after(59), 20, keep, false), 0);
        assert_eq!(kept.due(after(60), 20, keep, false), 10);
        assert_eq!(kept.due(after(90), 20, keep, false), 20);
        assert_eq!(kept.due(after(91), 30, keep, true), 30, "no room to keep them");
    }
}
