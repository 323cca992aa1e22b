//! Waiting for conditions, never for a time.

use anyhow::{Result, bail};
use std::time::{Duration, Instant};

/// Polls until `check` yields a value. An error or `None` counts as "not yet"; what it said last is
/// in the message when the time is up.
pub fn wait_until<T>(
    what: &str,
    limit: Duration,
    mut check: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    let mut last = String::from("not yet");
    loop {
        match check() {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => {}
            Err(error) => last = format!("{error:#}"),
        }
        if start.elapsed() > limit {
            bail!("waited {} s for: {what}; last: {last}", limit.as_secs());
        }
        std::thread::sleep(Duration::from_millis(250));
    }
}
