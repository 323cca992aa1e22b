//! What happened, in words, with the simulated time: what a person reads of a failing seed.
//!
//! Owns the lines. Never drops one; whoever prints decides how many.

use parking_lot::Mutex;
use tokio::time::Instant;

/// Cheap to share by reference.
#[derive(Debug)]
pub struct History {
    begun: Instant,
    lines: Mutex<Vec<String>>,
}

impl History {
    /// Begins now, on the runtime's clock.
    pub fn begin() -> Self {
        Self { begun: Instant::now(), lines: Mutex::default() }
    }

    pub fn say(&self, words: impl std::fmt::Display) {
        let at = self.begun.elapsed().as_secs_f64();
        self.lines.lock().push(format!("{at:10.4}s  {words}"));
    }

    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.lock())
    }
}
