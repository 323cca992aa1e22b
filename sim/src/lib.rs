//! A simulator that tries to lose a write.
//!
//! Whole nodes (the group crate as shipped) on simulated disks, against a simulated database, over
//! a simulated network, on a simulated clock, all in one thread and all from one seed. Owns the
//! world around the nodes, the clients, the disturbances and the judgement; must never reach into
//! a node: everything goes through its public calls and through the seams it has anyway.
//!
//! Read in this order: `settings` (what a seed means), `run` (one history from beginning to
//! verdict) with `bounds` and `watch`, `clients`, `nemesis` and `scene` (what happens in it), `world` with `line`,
//! `volume`, `images`, `wire` and `phones` (what nodes stand on), `oracle` with `account` (what must hold).

pub mod account;
mod bounds;
mod check;
mod clients;
pub mod history;
pub mod images;
mod line;
mod nemesis;
mod oracle;
mod phones;
pub mod proof;
pub mod run;
mod scene;
pub mod settings;
mod standby;
mod tables;
mod volume;
pub mod watch;
mod wire;
mod world;

pub use run::{Outcome, run, run_watched};
