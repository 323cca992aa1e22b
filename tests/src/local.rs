//! Support for the tests that run real cache-node processes against a real PostgreSQL on this host,
//! without Kubernetes.
//!
//! Owns the group of one test: its nodes, what they are told, and the loads on them. Servers,
//! certificates and folders are a stage's ([`hlr_bench::stage`]); all of them end with the test.

pub mod counter;
pub mod group;
pub mod hlr;
pub mod http;
pub mod node;
pub mod shop;

pub use counter::{CounterLoad, CounterReport};
pub use group::{Dataset, TestGroup, TestGroupOptions};
pub use hlr_bench::stage::eventually;
pub use node::NodeProcess;
