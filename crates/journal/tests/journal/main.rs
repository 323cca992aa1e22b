//! What the journal promises, checked from outside.

// helpers of tests are tests too; the lint only knows functions marked so
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout
)]

mod basics;
mod faults;
mod file_system;
mod fixtures;
mod killed;
mod model;
mod offline;
mod support;
