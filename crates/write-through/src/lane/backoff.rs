//! How long to wait before the next attempt: exponential with jitter and a cap, for ever.

use crate::error::Disposition;
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use std::time::Duration;

/// First and longest wait for what passes by itself.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(3);
/// First and longest wait for what a human must change.
const ASK_MIN: Duration = Duration::from_millis(500);
const ASK_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct Backoff {
    running: Option<(Disposition, ExponentialBackoff)>,
    attempts: u32,
}

impl Backoff {
    /// The next wait; starts over when the kind of trouble changed.
    pub(crate) fn next(&mut self, disposition: Disposition) -> Duration {
        let (min, max) = match disposition {
            Disposition::Retry => (RETRY_MIN, RETRY_MAX),
            Disposition::Reject | Disposition::StopAndAsk | Disposition::Fenced => {
                (ASK_MIN, ASK_MAX)
            }
        };
        self.attempts = self.attempts.saturating_add(1);
        match &mut self.running {
            Some((same, waits)) if *same == disposition => waits.next().unwrap_or(max),
            _ => {
                let builder = ExponentialBuilder::default()
                    .with_min_delay(min)
                    .with_max_delay(max)
                    .without_max_times()
                    .with_jitter();
                let mut waits = builder.build();
                let first = waits.next().unwrap_or(min);
                self.running = Some((disposition, waits));
                first
            }
        }
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    pub(crate) fn reset(&mut self) {
        self.running = None;
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d02_waits_grow_to_a_cap_and_never_end() {
        let mut backoff = Backoff::default();
        let waits: Vec<Duration> = (0..1_000).map(|_| backoff.next(Disposition::Retry)).collect();
        assert!(waits[0] < Duration::from_millis(200));
        assert!(waits[100..].iter().all(|w| *w >= RETRY_MAX && *w <= RETRY_MAX * 2));
        assert_eq!(backoff.attempts(), 1_000);
        backoff.reset();
        assert!(backoff.next(Disposition::Retry) < Duration::from_millis(200));
    }
}
