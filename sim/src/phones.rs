//! How nodes reach each other: with delays, cut lines and peers that die in mid call.

use std::sync::{Arc, Weak};
use std::time::Duration;

use cachetier_group::{PeerError, Peers, Released};
use cachetier_model::{LookupId, LookupKey, NodeEntry, RootKey, SlotSet, Topology};
use futures::future::BoxFuture;

use crate::line::{Line, Step};
use crate::world::{Process, World};

const CALL_MAX: Duration = Duration::from_secs(5);

/// One process's way to its peers.
pub struct Phones {
    world: Weak<World>,
    line: Arc<Line>,
}

impl Phones {
    pub fn new(world: &Arc<World>, line: &Arc<Line>) -> Self {
        Self { world: Arc::downgrade(world), line: Arc::clone(line) }
    }

    async fn call<T, F>(&self, node: &str, ask: impl FnOnce(Process) -> F) -> Result<T, PeerError>
    where
        F: Future<Output = Result<T, PeerError>>,
    {
        let Some(world) = self.world.upgrade() else { return Err(PeerError::new("the end")) };
        if self.line.dies_at(Step::Peer) {
            return std::future::pending().await;
        }
        world.pause(3).await;
        let cut = world.weather.lock().cut.clone();
        if cut.iter().any(|name| name == node || *name == self.line.node) {
            return Err(PeerError::new("connection refused"));
        }
        let peer = world.process(node).ok_or_else(|| PeerError::new("connection refused"))?;
        let theirs = Arc::clone(&peer.line);
        let answer = tokio::select! {
            biased;
            () = theirs.died.cancelled() => Err(PeerError::new("connection reset")),
            answer = tokio::time::timeout(CALL_MAX, ask(peer)) => {
                answer.unwrap_or_else(|_| Err(PeerError::new("no answer in time")))
            }
        };
        world.pause(3).await;
        if self.line.is_dead() {
            return std::future::pending().await;
        }
        if world.chance(0.05) {
            return Err(PeerError::new("connection reset"));
        }
        answer
    }
}

impl Peers for Phones {
    fn release_slots<'a>(
        &'a self,
        node: &'a NodeEntry,
        topology: &'a Topology,
        taker: &'a str,
        slots: &'a SlotSet,
    ) -> BoxFuture<'a, Result<Released, PeerError>> {
        Box::pin(self.call(&node.name, move |peer: Process| async move {
            let released = peer.group.release_slots(topology.clone(), taker, slots).await;
            released.map_err(PeerError::new)
        }))
    }

    fn resolve<'a>(
        &'a self,
        node: &'a NodeEntry,
        lookup: LookupId,
        key: &'a LookupKey,
    ) -> BoxFuture<'a, Result<Option<RootKey>, PeerError>> {
        Box::pin(self.call(&node.name, move |peer: Process| async move {
            peer.group.resolve(lookup, key).await.map_err(PeerError::new)
        }))
    }
}
