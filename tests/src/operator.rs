//! Support for the tests that run the operator against a real API server without pods: the operator
//! runs inside the test, the test plays the controllers and the kubelet, and cache nodes are scripted.
//!
//! Owns one namespace per test. Where the API server is comes from KUBECONFIG, which
//! `cargo xtask test --level operator` sets.

pub mod controllers;
pub mod network;
pub mod scripted;
pub mod stage;

pub use network::Network;
pub use scripted::ScriptedNodes;
pub use stage::{Stage, minimal_group};
