//! How long a write waits in front of a queue that fills up: not at all below a mark, then longer the
//! fuller it is, so that writers feel the backend's pace before they are refused. Pure.

use std::time::Duration;

/// Above this share of the bound.
const SLOW_FROM_PERCENT: u64 = 80;
/// At the bound.
const SLOW_MAX: Duration = Duration::from_millis(100);
/// Shorter waits are finer than the timers.
const SLOW_MIN: Duration = Duration::from_millis(1);

/// Grows with the square of what is used beyond the mark.
pub(super) fn slowdown(bytes: u64, capacity: u64) -> Duration {
    let mark = capacity / 100 * SLOW_FROM_PERCENT;
    let room = capacity.saturating_sub(mark).max(1);
    let share = bytes.saturating_sub(mark).min(room) as f64 / room as f64;
    let wait = SLOW_MAX.mul_f64(share * share);
    if wait < SLOW_MIN { Duration::ZERO } else { wait }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_are_slowed_the_more_the_fuller_the_queue_and_never_for_longer_than_the_bound() {
        let waits = [0, 800, 850, 900, 1_000, 5_000].map(|bytes| slowdown(bytes, 1_000));
        let millis = [0.0, 0.0, 6.25, 25.0, 100.0, 100.0];
        assert_eq!(waits, millis.map(|ms: f64| Duration::from_secs_f64(ms / 1_000.0)));
        assert_eq!(slowdown(u64::MAX, 0), SLOW_MAX, "whatever the bound is");
    }
}
