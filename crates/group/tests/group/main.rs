//! Whole groups against a real PostgreSQL.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "tests"
)]

mod answers;
mod basics;
mod compares;
mod direct_mode;
mod disks;
mod eviction;
mod faults;
mod histories;
mod images;
mod loads;
mod moves;
mod postgres;
mod refused;
mod repeats;
mod scene;
