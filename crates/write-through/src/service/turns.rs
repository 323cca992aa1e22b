//! Which commit waits for the backend's log, of those that need not: one of all lanes' in a while.
//!
//! It confirms the commits of all lanes before it (R11), which otherwise wait for the backend's own
//! log writer. Owns the time of the last one. Must never confirm anything: the lanes look.

use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) struct Turns {
    interval: Duration,
    last: Mutex<Option<Instant>>,
    /// Counts commits that have waited for the log.
    synced: watch::Sender<u64>,
}

impl Turns {
    pub fn new(interval: Duration) -> Self {
        Self { interval, last: Mutex::new(None), synced: watch::Sender::new(0) }
    }

    /// True for the one whose turn it is.
    pub fn take(&self) -> bool {
        let (mut last, now) = (self.last.lock(), Instant::now());
        let due = last.is_none_or(|last| now.duration_since(last) >= self.interval);
        if due {
            *last = Some(now);
        }
        due
    }

    pub fn log_was_synced(&self) {
        self.synced.send_modify(|count| *count += 1);
    }

    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.synced.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_commit_in_a_turn_waits_for_the_log() {
        let interval = Duration::from_millis(100);
        let turns = Turns::new(interval);
        assert!(turns.take(), "a lone commit is confirmed by itself");
        assert!(!turns.take());
        tokio::time::advance(interval / 2).await;
        assert!(!turns.take());
        tokio::time::advance(interval / 2).await;
        assert!(turns.take());
        assert!(!turns.take());
    }
}
