//! Watermarks and backlog, as others see them.

use crate::queue::lane_of;
use cachetier_model::SlotId;
use std::time::Duration;

/// How far one lane came. `position ≤`-relations: everything of the lane at or below `flushed` is
/// committed at the backend or set aside; at or below `confirmed` no backend crash takes it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneMark {
    /// Stored in the backend's writer row.
    pub position: u64,
    pub flushed: u64,
    pub confirmed: u64,
    /// The furthest position that the writer row held for sure, also while the backend lacks it.
    pub held: u64,
}

/// How far the node came; every mark but `trimmable` only grows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlushMarks {
    /// One per lane; empty before the claim.
    pub lanes: Vec<LaneMark>,
    /// Lowest `flushed` of all lanes.
    pub flushed: u64,
    /// Lowest `confirmed` of all lanes.
    pub confirmed: u64,
    /// Lowest confirmed *stored* position: what the journal may be trimmed to, because the
    /// backend can never ask for anything below it again. Goes back with a backend that lost
    /// commits.
    pub trimmable: u64,
}

impl FlushMarks {
    pub(crate) fn unclaimed(upto: u64) -> Self {
        Self { lanes: Vec::new(), flushed: upto, confirmed: upto, trimmable: 0 }
    }

    pub(crate) fn of_lanes(lanes: Vec<LaneMark>, staged: Option<u64>, upto: u64) -> Self {
        let idle = staged.unwrap_or(upto);
        let min = |mark: fn(&LaneMark) -> u64| lanes.iter().map(mark).min().unwrap_or(idle);
        let flushed = min(|l| l.flushed);
        let confirmed = min(|l| l.confirmed);
        let trimmable = lanes.iter().map(|l| l.position.min(l.confirmed)).min().unwrap_or_default();
        Self { lanes, flushed, confirmed, trimmable }
    }

    /// Takes over newer marks; what was promised to callers does not go back.
    pub(crate) fn advance_to(&mut self, newer: FlushMarks) {
        let same_map = self.lanes.len() == newer.lanes.len();
        let lanes = newer.lanes.into_iter().enumerate().map(|(n, new)| match self.lanes.get(n) {
            Some(old) if same_map => LaneMark {
                position: new.position,
                flushed: new.flushed.max(old.flushed),
                confirmed: new.confirmed.max(old.confirmed),
                held: new.held.max(old.held),
            },
            _ => new,
        });
        self.lanes = lanes.collect();
        self.flushed = self.flushed.max(newer.flushed);
        self.confirmed = self.confirmed.max(newer.confirmed);
        self.trimmable = newer.trimmable;
    }

    /// The confirmed mark that counts for a slot.
    pub fn confirmed_of(&self, slot: SlotId) -> u64 {
        let lane = usize::from(lane_of(slot, self.lanes.len() as u16));
        self.lanes.get(lane).map_or(self.confirmed, |l| l.confirmed)
    }
}

/// What the backend does not have yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Backlog {
    pub transactions: u64,
    /// Reserved, queued and in flight.
    pub bytes: u64,
    pub oldest_age: Duration,
    /// Lanes with commits that a crash of the backend could still take back, or did.
    pub unconfirmed_lanes: u16,
    /// Rows per second written to the backend lately.
    pub rows_per_second: f64,
}

impl Backlog {
    /// Nothing is lost if this node goes away now.
    pub fn is_empty(&self) -> bool {
        self.transactions == 0 && self.unconfirmed_lanes == 0
    }
}
