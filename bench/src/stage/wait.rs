//! Waiting for conditions, never for a time.

use anyhow::{Result, bail};
use std::future::Future;
use std::time::{Duration, Instant};

/// Polls until `check` yields a value; an error counts as "not yet" and the last one is told when
/// the time is up.
pub async fn eventually<T, F>(
    what: &str,
    limit: Duration,
    mut check: impl FnMut() -> F,
) -> Result<T>
where
    F: Future<Output = Result<Option<T>>>,
{
    let start = Instant::now();
    let mut last = String::from("not yet");
    loop {
        match check().await {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => {}
            Err(error) => last = format!("{error:#}"),
        }
        if start.elapsed() > limit {
            bail!("waited {} s for {what}; last: {last}", limit.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
