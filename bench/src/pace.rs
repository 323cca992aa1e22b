//! Waiting for an instant more precisely than the runtime's timer, which knows milliseconds only.

use std::time::Duration;
use tokio::time::Instant;

/// Left to the timer is what is longer than this; the rest is spent looking at the clock between
/// other tasks.
const PRECISE: Duration = Duration::from_micros(2_500);

/// Returns at `instant`, or at once when it has passed; late by one turn of the other tasks.
pub async fn until(instant: Instant) {
    loop {
        let left = instant.saturating_duration_since(Instant::now());
        match left {
            Duration::ZERO => return,
            left if left > PRECISE => tokio::time::sleep_until(instant - PRECISE).await,
            _ => tokio::task::yield_now().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wait_ends_within_a_fraction_of_the_timers_millisecond() {
        let mut late = Vec::new();
        for step in 1..=40_u64 {
            let instant = Instant::now() + Duration::from_micros(100 * step);
            until(instant).await;
            assert!(Instant::now() >= instant);
            late.push(instant.elapsed());
        }
        // The best of them: a busy machine delays most.
        assert!(late.iter().min().is_some_and(|best| *best < Duration::from_millis(1)), "{late:?}");
    }
}
