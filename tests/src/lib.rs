//! Support library of the system tests.

pub mod e2e;
pub mod local;
pub mod operator;
