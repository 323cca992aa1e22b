//! Support for the end-to-end tests: a real cluster, a real PostgreSQL, the installed chart.
//!
//! Owns namespaces and databases it creates for one test ("scenes") and removes them again. Talks to
//! the cluster as a person does, through `kubectl`, `helm` and `cachectl`. Where things are comes from
//! the environment that `cargo xtask e2e` sets.

pub mod command;
pub mod database;
pub mod load;
pub mod scene;
pub mod wait;

pub use command::{bench, cachectl, helm, kubectl, kubectl_json, xtask};
pub use database::Database;
pub use load::WriteLoad;
pub use scene::{GroupOptions, Scene};
pub use wait::wait_until;
