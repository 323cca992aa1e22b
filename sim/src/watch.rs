//! Looks from outside, on a thread of its own, whether a history still goes on.
//!
//! Owns the one judgement that no task can give: one of them never gives way, so that neither the
//! clock nor the bounds get their turn. It can only be told; the process that runs the history has
//! to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Real time without a turn of any task. A turn takes microseconds; machines may be busy.
const STALL_MAX: Duration = Duration::from_secs(120);
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Which seed runs, and a count that grows while it goes on. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Pulse {
    seed: Arc<AtomicU64>,
    beats: Arc<AtomicU64>,
}

impl Pulse {
    pub(crate) fn begin(&self, seed: u64) {
        self.seed.store(seed, Ordering::Relaxed);
        self.beat();
    }

    /// A task had its turn. Where turns cannot be counted only seeds are.
    pub(crate) fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }
}

/// Calls `stalled` with the seed and what is wrong, once, when nothing had a turn for too long.
pub fn watch(pulse: &Pulse, stalled: impl FnOnce(u64, String) + Send + 'static) {
    watch_for(pulse, STALL_MAX, LOOK_INTERVAL, stalled);
}

fn watch_for(
    pulse: &Pulse,
    stall_max: Duration,
    interval: Duration,
    stalled: impl FnOnce(u64, String) + Send + 'static,
) {
    let pulse = pulse.clone();
    std::thread::spawn(move || {
        let mut seen = (0, Duration::ZERO);
        // looks are counted, not the clock: a machine that stood still proves nothing
        while seen.1 < stall_max {
            std::thread::sleep(interval);
            let beats = pulse.beats.load(Ordering::Relaxed);
            seen =
                if seen.0 == beats { (beats, seen.1 + interval) } else { (beats, Duration::ZERO) };
        }
        let words = format!("a task does not give way: no turn of any for {stall_max:?}");
        stalled(pulse.seed.load(Ordering::Relaxed), words);
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_history_that_never_gives_way_is_named() {
        let (pulse, (sender, receiver)) = (Pulse::default(), mpsc::channel());
        pulse.begin(7);
        let tick = Duration::from_millis(2);
        watch_for(&pulse, tick * 5, tick, move |seed, words| sender.send((seed, words)).unwrap());
        let (seed, words) = receiver.recv().unwrap();
        assert_eq!(seed, 7);
        assert!(words.contains("does not give way"), "{words}");
    }
}
