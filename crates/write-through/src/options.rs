//! Settings of the lanes, with their defaults and limits in one place.

use cachetier_model::node_config::{BackendCommit, NodeConfig};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct WriteThroughOptions {
    pub group_uid: String,
    pub node: String,
    /// Lanes wanted; a claim that finds another lane map changes it at a barrier.
    pub lanes: u16,
    /// Row changes per batch at most (one transaction may exceed it alone).
    pub batch_rows_max: u32,
    /// Bytes per batch at most.
    pub batch_bytes_max: u64,
    /// A transaction waits at most this long for company.
    pub delay_max: Duration,
    /// Bound of the queue in bytes, batches in flight included.
    pub backlog_bytes_max: u64,
    pub backend_commit: BackendCommit,
    /// With asynchronous commits, the pause between two that wait for the backend's log after all
    /// and so confirm the others: short beside the flush lag that is promised, long beside the
    /// sync of a log, so that the backend hardly waits.
    pub log_wait_interval: Duration,
    pub paused: bool,
    /// How often an idle lane's position follows the others, so that positions stay young.
    pub idle_position_interval: Duration,
    /// Events queued towards the group at most.
    pub events_max: usize,
}

impl WriteThroughOptions {
    pub fn new(group_uid: &str, node: &str) -> Self {
        Self {
            group_uid: group_uid.to_owned(),
            node: node.to_owned(),
            lanes: 4,
            batch_rows_max: 1_024,
            batch_bytes_max: 8 << 20,
            delay_max: Duration::from_millis(100),
            backlog_bytes_max: 1 << 30,
            backend_commit: BackendCommit::Sync,
            log_wait_interval: Duration::from_millis(100),
            paused: false,
            idle_position_interval: Duration::from_secs(5),
            events_max: 1_024,
        }
    }

    pub fn from_config(config: &NodeConfig, node: &str) -> Self {
        let wt = &config.write_through;
        Self {
            lanes: wt.lanes.max(1),
            batch_rows_max: wt.max_batch_rows.max(1),
            delay_max: Duration::from_millis(wt.max_delay_ms),
            backlog_bytes_max: wt.max_backlog_bytes,
            backend_commit: wt.backend_commit,
            paused: wt.paused,
            ..Self::new(&config.group.uid, node)
        }
    }
}
