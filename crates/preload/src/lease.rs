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
        // The work goes on while the renewal waits for a connection: it may hold the last one.
        let renewal = async {
            tokio::time::sleep(lease / 3).await;
            backend.renew_chunk(chunk, lease).await
        };
        let renewed = tokio::select! {
            done = &mut work => return Ok(Some(done)),
            renewed = renewal => renewed,
        };
        match renewed {
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
