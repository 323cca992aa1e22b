//! The HLR workload: population, traffic, and a driver that asks the backend and the cache the
//! same questions with the same code and histograms.
//!
//! A measuring instrument: it knows the HLR tables, which nothing in the data plane does. Must
//! never be linked into the product.
//!
//! Read in this order: `population` → `load` → `traffic` → `shape` and `self_check` → `target` →
//! `drive` → `report`; `writes` is the proof that acknowledged writes are kept.

pub mod backend;
pub mod drive;
pub mod engine;
pub mod load;
pub mod population;
pub mod report;
pub mod self_check;
pub mod shape;
pub mod side_by_side;
pub mod target;
pub mod traffic;
pub mod writes;
