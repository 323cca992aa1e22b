//! A node's share of one cache group: engine, journal and write-through composed, without any
//! network interface. Linked into an application it is the direct mode; `cache-node` puts gRPC
//! around it.
//!
//! Owns the order of things: durable before visible before acknowledged, load before write, refuse
//! before freeze before flush before hand over. Must never name a transport, a cluster or a SQL
//! driver. Data comes in by the calls of [`Group`], goes to the journal (`write`), from there
//! through the lanes to the backend (`outlet`, `flush_events`), and comes from the backend by misses
//! (`read_through`) and loads (`load`).

mod calls;
mod error;
mod group;
mod peers;
mod status;

pub use calls::{
    AnswerWhen, BacklogFigures, BeginLoad, ChunkOutcome, CompareProgress, Drained, KeySelector,
    LoadBegun, Located, Position, ReadCall, ReadOutcome, RejectFigure, Released, Source,
    TableDifference, TableRowsFigure, TransactCall, Transacted,
};
pub use error::{Disposition, ErrorFacts, GroupError, Refusal, RefusalReason};
pub use group::{ChunkLoad, Group, GroupOptions};
pub use peers::{NoPeers, PeerError, Peers};
pub use status::{Counters, Ended, LoadFigures, Phase, Problem, Status};
