//! A backend in memory, for tests of whoever sits above: deterministic, with faults on demand.

pub mod store;
