//! The machines of one experiment or system test, all on this host: a throw-away PostgreSQL, cache
//! nodes, certificates, and what they cost.
//!
//! Owns folders and child processes. Both end with the value; when this process is killed, the
//! kernel ends the children and the next stage removes the folders. Servers of an experiment are
//! started on their own processors, away from the driver. Everything listens on 127.0.0.1. Must
//! never decide what is measured or tested.

pub mod certificates;
pub mod cpu;
pub mod folder;
pub mod launch;
pub mod node;
pub mod ports;
pub mod postgres;
pub mod processors;
pub mod signals;
pub mod wait;

pub use certificates::Certificates;
pub use folder::Folder;
pub use launch::Launch;
pub use postgres::{Postgres, ServerSettings};
pub use processors::{Pinning, Processors};
pub use wait::eventually;
