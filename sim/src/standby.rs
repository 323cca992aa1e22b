//! What a standby that lags behind the database has got of the bookkeeping.
//!
//! Owns the rules of what it may lack when it is promoted: what the product only tells and does not
//! repair, it never lacks.

use std::time::Duration;

use cachetier_write_through::Takeover;
use tokio::time::Instant;

use crate::line::Line;
use crate::world::World;

/// In a second and by one node: those that wait are spaced 300 ms and more.
const TAKES_IN_VAIN_MAX: u32 = 20;

/// A standby that lags has every synchronous change of the bookkeeping.
pub fn synchronous(world: &World) {
    let mut standby = world.standby.lock();
    if standby.is_some() {
        *standby = Some(world.database.standby());
        *world.takeover_missed.lock() = None;
    }
}

/// A node took slots. A standby that hears nothing does not hear of takeovers either.
pub fn takeover(world: &World, line: &Line, epoch: u64, takeover: &Takeover) {
    let lagging = world.standby.lock().is_some();
    if lagging && !takeover.owned.is_empty() {
        let before = world.takeover_missed.lock().replace(line.node.clone());
        let another = before.is_some_and(|node| node != line.node);
        if another || world.topology.lock().epoch.0 != epoch {
            // two owners in a row, or slots that are somebody else's already: told, not repaired
            synchronous(world);
        }
    }
    if takeover.owned.is_empty() {
        in_vain(world, line);
    }
}

/// Who waits for another node to let go asks again after a pause.
fn in_vain(world: &World, line: &Line) {
    let now = Instant::now();
    let mut takes = world.takes_in_vain.lock();
    let (since, count) = takes.entry(line.node.clone()).or_insert((now, 0));
    if now - *since > Duration::from_secs(1) {
        (*since, *count) = (now, 0);
    }
    *count += 1;
    if *count > TAKES_IN_VAIN_MAX {
        world.violate(format!("{} asks for slots in a loop", line.name()));
    }
}
