//! Settings of a load, with their limits.

use std::time::Duration;

/// Instances per page of the scan.
pub(crate) const PAGE_INSTANCES: u32 = 256;
/// Instances on their way to one node, beside the page in hand.
pub(crate) const STREAM_INSTANCES: usize = 512;
/// Subscribers a chunk aims at: small enough to be cheap to lose, large enough to amortise its
/// tickets and snapshot.
pub(crate) const CHUNK_INSTANCES: u64 = 20_000;
pub(crate) const CHUNKS_MIN: u64 = 16;
pub(crate) const CHUNKS_MAX: u64 = 8_192;

#[derive(Clone, Debug)]
pub struct PreloadOptions {
    pub group_uid: String,
    /// Names the load in the ledger and at the nodes; pods of one Job share it.
    pub load_id: String,
    /// Names this process in the ledger; unique among the pods.
    pub worker: String,
    /// SQL condition over the root table; empty: everything.
    pub filter: String,
    /// Chunks in hand at once in this process.
    pub parallelism: usize,
    /// A chunk whose holder is silent for this long goes to another.
    pub lease: Duration,
    /// How long a chunk, or the start, is tried again before the process gives up with the reason.
    pub patience: Duration,
    /// How long the start waits for nodes to serve all slots given to them, which is what makes
    /// their slots count for this load.
    pub serving_wait: Duration,
}

impl PreloadOptions {
    pub fn new(group_uid: &str, load_id: &str, worker: &str) -> Self {
        Self {
            group_uid: group_uid.to_owned(),
            load_id: load_id.to_owned(),
            worker: worker.to_owned(),
            filter: String::new(),
            parallelism: 2,
            lease: Duration::from_secs(30),
            patience: Duration::from_secs(300),
            serving_wait: Duration::from_secs(120),
        }
    }
}
