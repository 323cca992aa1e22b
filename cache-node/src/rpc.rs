//! gRPC around a group: the only part of the node that names gRPC types.
//!
//! Owns the listener, TLS, roles, forwarding and the mapping of errors. Must never decide about
//! data. Requests come from clients and peers, are turned into calls of the group or sent on to
//! the owner, once.

mod admin;
mod answers;
mod authorize;
mod cache;
mod certificates;
mod encode;
mod errors;
mod forward;
mod health;
mod listener;
mod peer;
mod pipeline;
mod route;
mod selector;
mod server;
mod workers;

pub use listener::Entrance;
pub use server::Services;
