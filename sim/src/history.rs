//! What happened, in words, with the simulated time: what a person reads of a failing seed.
//!
//! Owns the lines. Whoever prints decides how many.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Two hundred times a long history; of one that goes round in circles the last ones are kept.
const LINES_MAX: usize = 100_000;

/// Cheap to share by reference.
#[derive(Debug)]
pub struct History {
    begun: Instant,
    lines: Mutex<VecDeque<String>>,
}

impl History {
    /// Begins now, on the runtime's clock.
    pub fn begin() -> Self {
        Self { begun: Instant::now(), lines: Mutex::default() }
    }

    pub fn say(&self, words: impl std::fmt::Display) {
        let at = self.begun.elapsed().as_secs_f64();
        let mut lines = self.lines.lock();
        if lines.len() >= LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(format!("{at:10.4}s  {words}"));
    }

    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.lock()).into()
    }
}
