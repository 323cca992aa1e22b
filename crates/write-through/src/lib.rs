//! Asynchronous write-through: from committed transactions to the backend, in order, exactly once.
//!
//! Owns the write-behind queue, the lanes, the plan of each flush batch, and everything that is
//! said to the backend: discovery of tables, the bookkeeping schema, claims and takeovers,
//! read-through, snapshot scans, the load ledger and the rejects. Must never acknowledge anything
//! to a caller, open the journal, or touch the store: it takes committed transactions in and
//! reports what happened to them as [`FlushEvent`]s.
//!
//! ```text
//! Reservation::commit → queue → lane → plan → Backend (one transaction: fence, rows, position)
//!                                 └→ FlushEvent, marks
//! ```
//!
//! Only `postgres.rs` and the files below `postgres/` name the SQL driver.

pub mod backend;
#[cfg(any(test, feature = "double"))]
pub mod double;
pub mod error;
pub mod events;
mod lane;
pub mod options;
pub mod pending;
pub mod plan;
pub mod postgres;
pub mod queue;
pub mod service;

pub use backend::bypass::{BypassRead, WriterMark};
pub use backend::claim::{
    Claim, ClaimRequest, LaneChange, LaneClaim, Leave, Release, SlotHolder, Takeover,
    TakeoverRequest,
};
pub use backend::flush::{
    AsOf, Fence, FlushOutcome, FlushRequest, LaneSession, Move, NewReject, WalState, WriterId,
    WriterRow,
};
pub use backend::load::{Chunk, KeyRange, LoadInfo, LoadSpec, Scan, ScanRequest};
pub use backend::reject::RejectEntry;
pub use backend::{Backend, BackendFuture, BackendIdentity};
pub use error::{BackendError, Disposition, Reason, is_held};
pub use events::{BackendHealth, FlushEvent, RejectCause};
pub use options::WriteThroughOptions;
pub use pending::{Draft, Pending};
pub use postgres::{PostgresBackend, PostgresOptions};
pub use queue::{Backlog, FlushMarks, LaneMark, OutOfOrder, QueueFull, Reservation};
pub use service::{FlushCounters, Replay, ReplayError, WaitError, WriteThrough, lane_of};
