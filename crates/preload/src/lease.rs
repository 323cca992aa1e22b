//! Keeps a chunk's lease alive while it is worked on.

use crate::error::PreloadError;
use cachetier_write_through::{Backend, Chunk};
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

/// Runs `work`, renewing the lease every third of it. `None`: the chunk went to another worker,
/// and the work was dropped.
pub(crate) async fn under_lease<T>(
    backend: &dyn Backend,
    chunk: &Chunk,
    lease: Duration,
    work: impl Future<Output = T>,
) -> Result<Option<T>, PreloadError> {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Ok(Some(done)),
            () = tokio::time::sleep(lease / 3) => {}
        }
        match backend.renew_chunk(chunk, lease).await {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            // Losing the lease costs doubled work, not correctness: loads only insert what is
            // absent. So a failed renewal is not a reason to stop.
            Err(error) => {
                tracing::warn!(chunk = chunk.number, reason = %error.reason, "lease not renewed");
            }
        }
    }
}
