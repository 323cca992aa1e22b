//! The other nodes of the group, as this one needs them. The process around the group implements
//! it over its transport.

use std::sync::Arc;

use cachetier_model::{LookupId, LookupKey, NodeEntry, RootKey, SlotSet, Topology};
use futures::future::BoxFuture;

use crate::calls::Released;

/// A peer did not answer, or refused.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct PeerError {
    pub reason: Arc<str>,
}

impl PeerError {
    pub fn new(reason: impl std::fmt::Display) -> Self {
        Self { reason: reason.to_string().into() }
    }
}

/// Calls to one peer each. Implementations bound every call in time.
pub trait Peers: Send + Sync + 'static {
    /// Asks `node` to stop serving `slots`, flush them, and let them go to `taker`.
    fn release_slots<'a>(
        &'a self,
        node: &'a NodeEntry,
        topology: &'a Topology,
        taker: &'a str,
        slots: &'a SlotSet,
    ) -> BoxFuture<'a, Result<Released, PeerError>>;

    /// The root key behind a lookup key, if an instance loaded on `node` has it.
    fn resolve<'a>(
        &'a self,
        node: &'a NodeEntry,
        lookup: LookupId,
        key: &'a LookupKey,
    ) -> BoxFuture<'a, Result<Option<RootKey>, PeerError>>;
}

/// No peers: a group of one node.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPeers;

impl Peers for NoPeers {
    fn release_slots<'a>(
        &'a self,
        node: &'a NodeEntry,
        _: &'a Topology,
        _: &'a str,
        _: &'a SlotSet,
    ) -> BoxFuture<'a, Result<Released, PeerError>> {
        let reason = format!("no way to reach node {}", node.name);
        Box::pin(async move { Err(PeerError::new(reason)) })
    }

    fn resolve<'a>(
        &'a self,
        _: &'a NodeEntry,
        _: LookupId,
        _: &'a LookupKey,
    ) -> BoxFuture<'a, Result<Option<RootKey>, PeerError>> {
        Box::pin(async { Ok(None) })
    }
}
