//! The body of the preload Job: reads the backend's tables by key range and sends whole instances
//! to the nodes that own them.
//!
//! Owns the order of a load: tickets at every node, then the snapshot, then the stream, then the
//! ledger. Must never decide what is covered: that is each node's own account (R20); the ledger in
//! the backend only hands out chunks, so that a killed pod costs one of them. Rows come from
//! `write-through`'s snapshot scan and leave through `client`.
//!
//! ```text
//! ledger → chunk: tickets → snapshot → pages → (by owner) one bounded stream per node → counted
//! ```

mod chunk;
mod error;
mod lease;
mod options;
mod progress;
mod run;
mod targets;

pub use error::PreloadError;
pub use options::PreloadOptions;
pub use run::{Preload, Summary};
