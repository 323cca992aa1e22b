//! Support for the tests that run real cache-node processes against a real PostgreSQL on this host,
//! without Kubernetes.
//!
//! Owns temporary directories, certificates, one PostgreSQL instance and the node processes of one
//! test; all of them end with the test. Everything listens on 127.0.0.0/8.

pub mod certificates;
pub mod counter;
pub mod group;
pub mod hlr;
pub mod http;
pub mod node;
pub mod ports;
pub mod postgres;
pub mod wait;

pub use certificates::Certificates;
pub use counter::{CounterLoad, CounterReport};
pub use group::{TestGroup, TestGroupOptions};
pub use node::NodeProcess;
pub use postgres::Postgres;
pub use wait::eventually;
