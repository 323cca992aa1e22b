//! Asynchronous commits are confirmed, not assumed (R11).
//!
//! A position counts as confirmed once the backend's log is flushed past a point taken after its
//! commit, on the same system and timeline. The point is forgotten whenever the session breaks:
//! the new one reads the position first and takes a new point.

use super::{Ended, Lane};
use crate::backend::flush::WalState;
use std::time::Duration;
use tokio::time::Instant;

const CONFIRM_INTERVAL: Duration = Duration::from_millis(50);
const RECONNECT_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
pub(super) struct Confirm {
    /// Commits up to this position are not confirmed.
    outstanding: Option<u64>,
    /// The log point that covers commits up to the position with it.
    target: Option<(u64, WalState)>,
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

    /// The session broke: the point may belong to another system.
    pub(super) fn session_lost(&mut self) {
        self.target = None;
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
        let reached = match self.target.take() {
            Some((position, target))
                if target.system_identifier == wal.system_identifier
                    && target.timeline == wal.timeline =>
            {
                if wal.flushed >= target.inserted {
                    Some(position)
                } else {
                    self.target = Some((position, target));
                    None
                }
            }
            _ => None,
        };
        if self.outstanding == reached {
            self.outstanding = None;
        }
        if self.target.is_none() {
            self.target = self.outstanding.map(|position| (position, wal));
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
        assert_eq!(confirm.observe(wal(1, 100, 100)), None, "this look only takes the point");
        confirm.committed(20);
        assert_eq!(confirm.observe(wal(1, 150, 99)), None);
        assert_eq!(confirm.observe(wal(1, 150, 120)), Some(10));
        assert_eq!(confirm.observe(wal(1, 200, 160)), Some(20));
        assert!(confirm.next_due().is_none());
    }

    #[test]
    fn a_point_of_another_timeline_confirms_nothing() {
        let mut confirm = Confirm::default();
        confirm.committed(10);
        assert_eq!(confirm.observe(wal(1, 100, 50)), None);
        assert_eq!(confirm.observe(wal(2, 90, 1_000)), None);
        assert_eq!(confirm.observe(wal(2, 1_100, 1_100)), Some(10));
    }
}
