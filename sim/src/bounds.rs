//! How long a history may go on: in simulated time, and in turns of its tasks.
//!
//! Owns the two limits and the count. A node that goes round in circles, whether its clock moves or
//! stands, breaks a promise as one that loses a write does; it must not keep the simulator for ever.
//! The turns are counted where the scheduler can be asked (see the crate's build script). A loop that
//! never gives way cannot be ended from within its thread: see `watch`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

use crate::watch::Pulse;

/// Simulated time. The longest history there can be waits 90 s for each of 16 answers, then twice
/// 15 minutes until everything is at rest.
const TIME_MAX: Duration = Duration::from_secs(3 * 3_600);
/// Turns of tasks: a history that keeps its promises takes some thousands; one that waits the whole
/// time for everything to come to rest takes thirty thousand.
const TURNS_MAX: u64 = 2_000_000;

/// Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    turns: Arc<AtomicU64>,
    exceeded: CancellationToken,
    #[cfg_attr(not(tokio_unstable), expect(dead_code, reason = "turns cannot be counted"))]
    pulse: Pulse,
}

impl Bounds {
    pub fn new(pulse: &Pulse) -> Self {
        Self { pulse: pulse.clone(), ..Self::default() }
    }

    /// Counts the turns of the runtime that is built.
    #[cfg_attr(not(tokio_unstable), expect(unused_variables, reason = "cannot be counted"))]
    pub fn count(&self, builder: &mut Builder) {
        #[cfg(tokio_unstable)]
        {
            let bounds = self.clone();
            builder.on_before_task_poll(move |_| {
                bounds.pulse.beat();
                if bounds.turns.fetch_add(1, Ordering::Relaxed) == TURNS_MAX {
                    bounds.exceeded.cancel();
                }
            });
        }
    }

    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Returns when a limit is passed, with what there is to say of it.
    pub async fn exceeded(&self) -> String {
        tokio::select! {
            biased;
            () = self.exceeded.cancelled() => {
                format!("it goes round in circles: {TURNS_MAX} turns of its tasks, and no end")
            }
            () = tokio::time::sleep(TIME_MAX) => {
                let hours = TIME_MAX.as_secs() / 3_600;
                format!("it has no end: {hours} hours of simulated time passed")
            }
        }
    }
}
