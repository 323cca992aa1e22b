//! Whether the backend can be reached, also while nothing is flushed or missed.
//!
//! Asks for its identity now and then. A node that is idle must not call a backend reachable that
//! went away an hour ago.

use std::sync::Arc;
use std::time::Duration;

use cachetier_model::node_config::PreloadMode;
use cachetier_write_through::Disposition;

use crate::core::Core;
use crate::status::Problem;

const INTERVAL: Duration = Duration::from_secs(3);

impl Core {
    pub(crate) async fn probe_backend(self: Arc<Self>) {
        let mut checked = self.shared.config.preload.mode == PreloadMode::None;
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
                    if !checked {
                        checked = self.check_load_condition().await;
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

    /// A load that cannot begin must be known before somebody waits for it. True when the condition
    /// is good; a column that it names may still come.
    async fn check_load_condition(&self) -> bool {
        match self.shared.backend.check_filter(&self.shared.config.preload.r#where).await {
            Ok(()) => {
                self.shared.problems.heal("load condition");
                true
            }
            Err(error) if error.disposition() == Disposition::Retry => false,
            Err(error) => {
                let text = format!("{}; correct it: no load can begin", error.message);
                let problem = Problem::new("LoadConditionRefused", text, false);
                if self.shared.problems.raise("load condition", problem) {
                    tracing::warn!(node = %self.shared.node.name, reason = %error.reason,
                        "the condition of loads is refused");
                }
                false
            }
        }
    }
}
