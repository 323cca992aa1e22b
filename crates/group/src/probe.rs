//! Whether the backend can be reached, also while nothing is flushed or missed.
//!
//! Asks for its identity now and then. A node that is idle must not call a backend reachable that
//! went away an hour ago.

use std::sync::Arc;
use std::time::Duration;

use crate::core::Core;
use crate::status::Problem;

const INTERVAL: Duration = Duration::from_secs(3);

impl Core {
    pub(crate) async fn probe_backend(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.shared.shutdown.cancelled() => return,
                () = tokio::time::sleep(INTERVAL) => {}
            }
            match self.shared.backend.identify().await {
                Ok(_) => {
                    if self.shared.problems.heal("probe") {
                        tracing::info!(node = %self.shared.node.name, "backend answers again");
                    }
                }
                Err(error) => {
                    let text = format!("{error}; cached rows are served, misses fail");
                    let problem = Problem::new(error.reason.as_str(), text, true);
                    if self.shared.problems.raise("probe", problem) {
                        tracing::warn!(node = %self.shared.node.name, reason = %error.reason,
                            "backend does not answer");
                    }
                }
            }
        }
    }
}
