//! The in-memory store of a cache group: slots of packed cache instances, transactions on one
//! instance, loads that never go back in time, exact memory accounting.
//!
//! Owns the instances, their states (not loaded, loaded, dirty, awaiting the backend, quarantined,
//! known absent) and the indexes over them. Knows the schema as data and nothing else: no journal,
//! no backend, no network, no clock. A committed transaction goes out through [`CommitSink`],
//! called under the lock of the instance's slot, so that the order in the journal is the order
//! here. Waiting for durability (R7) is the caller's part: every answer says in `as_of` which
//! sequence must be durable before the answer may leave.

mod answer;
mod arena;
mod condition;
mod engine;
mod error;
mod index;
mod layout;
mod lookup;
mod memory;
mod prefetch;
mod reservation;
#[cfg(test)]
mod samples;
mod slot;
mod state;
mod ticket;
mod work;

pub use answer::{
    CollectRows, Committed, Installed, ReadAnswer, ReadStatus, Resolved, RowSink, TableUsage, Usage,
};
pub use engine::{
    Commit, CommitSink, Engine, EngineOptions, LAYOUT_VERSION, PutBack, Restored, SlotCopy,
};
pub use error::{CommitRefused, EngineError, TransactError};
pub use reservation::{ArenaProvider, ArenaReport};
pub use ticket::Ticket;
