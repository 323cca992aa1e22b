//! The write-through against a real PostgreSQL.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests may fail loudly"
)]

mod company;
mod discovery;
mod equality;
mod failover;
mod faults;
mod flush;
mod pooler;
mod rate;
mod reading;
mod support;
mod tls;
mod triggers;
