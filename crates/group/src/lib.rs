//! A node's share of one cache group: engine, journal and write-through composed, without any
//! network interface. Linked into an application it is the direct mode; `cache-node` puts gRPC
//! around it.
//!
//! Owns the order of things: durable before visible before acknowledged, load before write, refuse
//! before flush before hand over. Must never name a transport, a cluster or a SQL driver.
//!
//! Read it along a node's life: `open` and `start` (identity, claim), `restore` (journal's tail),
//! `images` (the store on the volume) and `tenure`;
//! `write` (one transaction), `repeats` and `answers` (a repeated one), `flush_events` (what the
//! backend made of it), `unconfirmed`, `trim`; `read`,
//! `read_through`, `locate`; `load` and `coverage`; `topology`, `ownership` and `move_slots`;
//! `rejects`, `compare`, `repair`, `probe`, `report`; `end`.

mod answers;
mod aside;
mod calls;
mod compare;
mod core;
mod coverage;
mod decisions;
mod difference;
mod end;
mod ends;
mod error;
mod evaluate;
mod flush_events;
mod frames;
mod group;
mod host;
mod images;
mod load;
mod locate;
mod medium;
mod move_slots;
mod notebook;
mod open;
mod ownership;
mod peers;
mod probe;
mod read;
mod read_through;
mod refusals;
mod rejects;
mod repair;
mod repeats;
mod report;
mod restore;
mod shared;
mod slots;
mod start;
mod status;
mod tail;
mod tenure;
mod topology;
mod trim;
mod unconfirmed;
mod undecided;
mod write;

pub use cachetier_engine::RowSink;
pub use calls::{
    AnswerWhen, BacklogFigures, BeginLoad, ChunkOutcome, CompareCall, CompareProgress, Drained,
    InstanceDifference, InstanceTable, KeySelector, LoadBegun, Located, Position, ReadCall,
    ReadFound, ReadOutcome, Refreshed, RejectFigure, RejectedChange, RejectedTransaction, Released,
    Repair, Source, TableDifference, TableRowsFigure, TransactCall, Transacted,
};
pub use error::{Disposition, ErrorFacts, GroupError, Refusal, RefusalReason};
pub use group::{Group, GroupOptions};
pub use host::{Host, Labour};
pub use load::ChunkLoad;
pub use peers::{NoPeers, PeerError, Peers};
pub use status::{Counters, Ended, LoadFigures, Phase, Problem, Status};
