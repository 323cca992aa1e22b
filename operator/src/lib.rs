//! The controller of `CacheGroup`s.
//!
//! Owns the way from a resource to its children, the topology's record, and the status. Must never
//! talk to the database or read a journal: what it must know of those, nodes and Jobs report. Data
//! comes from the API server and from the nodes, and goes back to both.
//!
//! Read in this order: `controller` (what starts a pass), `reconcile` (a pass), `observed` (what it
//! saw), `plan` with `topology`, `drain`, `preload`, `rollout` (what it decides), `build` (objects).

pub mod args;
pub mod build;
pub mod certificates;
pub mod controller;
pub mod drain;
pub mod events;
pub mod farewell;
pub mod lease;
pub mod metrics;
pub mod nodes;
pub mod observed;
pub mod plan;
pub mod preload;
pub mod reconcile;
pub mod rollout;
pub mod run;
pub mod topology;
