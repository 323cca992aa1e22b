//! Transactions that the backend refused for good, as the bookkeeping keeps them.

use cachetier_model::{RootKey, RowChange};

/// One set-aside transaction.
#[derive(Clone, Debug)]
pub struct RejectEntry {
    pub id: u64,
    pub node: String,
    pub sequence: u64,
    pub key: RootKey,
    pub sqlstate: String,
    pub table: String,
    pub constraint: String,
    /// Our sentence about it, without subscriber data.
    pub message: String,
    /// The backend's own words; may contain subscriber data.
    pub detail: String,
    pub age_seconds: f64,
    /// Later transactions of the same instance set aside behind it (heads only).
    pub following: u32,
    /// Decoded only by [`crate::Backend::reject_tail`].
    pub changes: Vec<RowChange>,
}
