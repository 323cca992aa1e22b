//! The HLR workload: population, traffic, and a driver that asks the backend and the cache the
//! same questions with the same code and histograms.
//!
//! A measuring instrument: it knows the HLR tables, which nothing in the data plane does. Must
//! never be linked into the product.
//!
//! Read in this order: `population` → `load` → `traffic` → `shape` and `self_check` → `target` →
//! `drive` → `report`; `writes` is the proof that acknowledged writes are kept. The experiments
//! over processes of this host are `hlr` and `flush`, on a `stage`, with a `ledger` of all answers.

pub mod backend;
pub mod drive;
pub mod engine;
pub mod flush;
pub mod flush_lag;
pub mod hlr;
pub mod journal;
pub mod ledger;
pub mod load;
pub mod pace;
pub mod population;
pub mod report;
pub mod self_check;
pub mod shape;
pub mod side_by_side;
pub mod stage;
pub mod target;
pub mod traffic;
pub mod writes;
