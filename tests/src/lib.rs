//! Support library of the system tests.

#![allow(
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a panic here is a failed test, and what is left behind is said to the person who runs it"
)]

pub mod e2e;
pub mod local;
pub mod operator;
pub mod torture;
