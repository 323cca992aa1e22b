//! Asynchronous commits are confirmed, not assumed (R11).
//!
//! A position counts as confirmed once the backend's log is flushed past a point taken after its
//! commit, on the same system and timeline. Points are forgotten whenever the session breaks: the
//! new one reads the position first and takes a new point.
//!
//! Nobody waits for the backend's own log writer, which may take more than half a second: of all
//! lanes' commits one in a while waits for the log itself, and the others look right after it.

use super::{Ended, Lane};
use crate::backend::flush::WalState;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

const CONFIRM_INTERVAL: Duration = Duration::from_millis(50);
const RECONNECT_INTERVAL: Duration = Duration::from_millis(200);
/// Points remembered at most; a later one covers what an earlier one does.
const POINTS_MAX: usize = 32;

#[derive(Debug, Default)]
pub(super) struct Confirm {
    /// Commits up to this position are not confirmed.
    outstanding: Option<u64>,
    /// Points of the log, each with the position up to which it covers commits; both ascend.
    points: VecDeque<(u64, WalState)>,
    next: Option<Instant>,
}

impl Confirm {
    pub(super) fn committed(&mut self, position: u64) {
        self.outstanding = Some(position);
        self.next.get_or_insert_with(|| Instant::now() + CONFIRM_INTERVAL);
    }

    /// A synced commit flushed the log past everything before it.
    pub(super) fn synced(&mut self) {
        *self = Self::default();
    }

    /// The session broke: the points may belong to another system.
    pub(super) fn session_lost(&mut self) {
        self.points.clear();
    }

    /// Another lane's commit waited for the log: what has a point may be confirmed now.
    pub(super) fn log_was_synced(&mut self) {
        if !self.points.is_empty() {
            self.next = Some(Instant::now());
        }
    }

    pub(super) fn due(&self) -> bool {
        self.next.is_some_and(|at| at <= Instant::now())
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.next
    }

    /// Takes the log's state in; answers the position that is confirmed by it.
    pub(super) fn observe(&mut self, wal: WalState) -> Option<u64> {
        if cachetier_defects::on("r11-commit-assumed") {
            self.next = None;
            return self.outstanding.take();
        }
        let same = |point: &WalState| {
            point.system_identifier == wal.system_identifier && point.timeline == wal.timeline
        };
        if !self.points.iter().all(|(_, point)| same(point)) {
            self.points.clear();
        }
        if let Some(position) = self.outstanding
            && self.points.back().is_none_or(|(covered, _)| *covered < position)
        {
            self.points.truncate(POINTS_MAX - 1);
            self.points.push_back((position, wal.clone()));
        }
        let mut reached = None;
        while let Some((position, _)) = self.points.pop_front_if(|(_, p)| p.inserted <= wal.flushed)
        {
            reached = Some(position);
        }
        if self.outstanding == reached {
            self.outstanding = None;
        }
        self.next = self.outstanding.map(|_| Instant::now() + CONFIRM_INTERVAL);
        reached
    }
}

impl Lane {
    /// One look at the backend's log. Without a session the writer row is read first: only what
    /// it still holds can be confirmed. The session alone proves nothing: behind a pooler it stays
    /// whole when the server behind it crashes or is replaced.
    pub(super) async fn confirm_commits(&mut self) -> Result<(), Ended> {
        if self.session.is_none() {
            self.confirm.next = Some(Instant::now() + RECONNECT_INTERVAL);
            return self.look_at_row().await;
        }
        let Some(session) = self.session.as_mut() else { return Ok(()) };
        match session.wal().await {
            Ok(wal) if wal.position != Some(self.position) => {
                self.confirm.session_lost();
                return self.look_at_row().await;
            }
            Ok(wal) => {
                if let Some(position) = self.confirm.observe(wal) {
                    self.shared.queue.confirmed(self.writer.lane, position);
                }
            }
            Err(_) => {
                // the next look finds the reason
                self.drop_session();
                self.confirm.next = Some(Instant::now() + CONFIRM_INTERVAL);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wal(timeline: u32, inserted: u64, flushed: u64) -> WalState {
        let (position, system_identifier) = (None, "s".to_owned());
        WalState { position, system_identifier, timeline, inserted, flushed }
    }

    #[test]
    fn a_commit_is_confirmed_only_by_a_flush_past_a_point_taken_after_it() {
        let mut confirm = Confirm::default();
        confirm.committed(10);
        assert_eq!(confirm.observe(wal(1, 100, 99)), None, "this look only takes the point");
        confirm.committed(20);
        assert_eq!(confirm.observe(wal(1, 150, 99)), None, "and so does this one");
        assert_eq!(confirm.observe(wal(1, 180, 120)), Some(10));
        assert_eq!(confirm.observe(wal(1, 200, 160)), Some(20));
        assert!(confirm.next_due().is_none());
    }

    #[test]
    fn a_log_that_is_flushed_whole_confirms_at_the_first_look() {
        let mut confirm = Confirm::default();
        confirm.committed(10);
        assert_eq!(confirm.observe(wal(1, 100, 100)), Some(10));
        assert!(confirm.next_due().is_none());
    }

    #[test]
    fn under_steady_load_each_commit_has_a_point_of_its_own_and_their_number_is_bounded() {
        let mut confirm = Confirm::default();
        for position in 1..=100 {
            confirm.committed(position);
            assert_eq!(confirm.observe(wal(1, 10 * position, 0)), None);
        }
        assert_eq!(confirm.points.len(), POINTS_MAX);
        assert_eq!(confirm.observe(wal(1, 2_000, 45)), Some(4), "not only what was first");
        assert_eq!(confirm.observe(wal(1, 2_000, 999)), Some(31), "100 has the last point");
        assert_eq!(confirm.observe(wal(1, 2_000, 1_000)), Some(100));
    }

    #[test]
    fn a_point_of_another_timeline_confirms_nothing() {
        let mut confirm = Confirm::default();
        confirm.committed(10);
        assert_eq!(confirm.observe(wal(1, 100, 50)), None);
        assert_eq!(confirm.observe(wal(2, 1_100, 1_000)), None);
        assert_eq!(confirm.observe(wal(2, 1_200, 1_100)), Some(10));
    }
}
