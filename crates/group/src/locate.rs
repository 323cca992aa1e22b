//! From what a caller names to where it is: root keys behind lookup keys, owners behind slots.
//!
//! Asks this engine first, then the peers, then the backend. Changes of lookup keys are
//! acknowledged after the backend accepted them (R16), so the backend knows every acknowledged
//! one and a silent peer hides none; what it knows beside them the owner verifies.

use cachetier_model::{LookupId, LookupKey, NodeEntry, RootKey, SlotSet};
use futures::StreamExt;
use futures::stream::FuturesUnordered;

use crate::calls::{KeySelector, Located};
use crate::core::Core;
use crate::error::GroupError;
use crate::ownership::SlotState;
use crate::read_through::{Looks, lacks_takeovers};

impl Core {
    pub(crate) async fn locate(&self, key: &KeySelector) -> Result<Located, GroupError> {
        self.shared.check_alive()?;
        let root = match key {
            KeySelector::Root(root) => Some(root.clone()),
            KeySelector::Lookup { lookup, key } => self.find_root(*lookup, key).await?,
        };
        let Some(root) = root else {
            return Ok(Located { root: None, here: true, owner: None });
        };
        let slot = root.slot();
        let here =
            matches!(self.shared.slots.state(slot), SlotState::Serving | SlotState::Acquiring);
        let topology = self.shared.topology.borrow().clone();
        let owner = topology.and_then(|t| t.owner(slot).cloned());
        Ok(Located { root: Some(root), here, owner })
    }

    /// The root key behind a lookup key, whoever knows it.
    pub(crate) async fn find_root(
        &self,
        lookup: LookupId,
        key: &LookupKey,
    ) -> Result<Option<RootKey>, GroupError> {
        if let Some(root) = self.resolve(lookup, key).await? {
            return Ok(Some(root));
        }
        if let Some(root) = self.ask_peers(lookup, key).await {
            return Ok(Some(root));
        }
        self.resolve_at_backend(lookup, key).await
    }

    /// Among the instances loaded here; a miss waits for durability too (R7).
    pub(crate) async fn resolve(
        &self,
        lookup: LookupId,
        key: &LookupKey,
    ) -> Result<Option<RootKey>, GroupError> {
        let resolved = self.engine.resolve(lookup, key);
        self.visible(resolved.as_of).await?;
        // leftovers of slots that moved away do not count
        Ok(resolved.root.filter(|root| {
            matches!(self.shared.slots.state(root.slot()), SlotState::Serving | SlotState::Leaving)
        }))
    }

    pub(crate) async fn resolve_at_backend(
        &self,
        lookup: LookupId,
        key: &LookupKey,
    ) -> Result<Option<RootKey>, GroupError> {
        let values = key.decode().map_err(GroupError::internal)?;
        let mut looks = Looks::default();
        loop {
            // any slot could have the key
            let trusted = self.lanes.trust(&SlotSet::full());
            let as_of = self.lanes.as_of();
            let found = self.shared.backend.resolve_lookup(lookup, &values, as_of.as_ref()).await;
            let error = match found {
                Ok(found) if trusted.is_some() && trusted == self.lanes.trust(&SlotSet::full()) => {
                    return Ok(found);
                }
                Ok(_) => lacks_takeovers(),
                Err(error) => error,
            };
            looks.again(&self.lanes, &error).await?;
        }
    }

    async fn ask_peers(&self, lookup: LookupId, key: &LookupKey) -> Option<RootKey> {
        let others = self.other_nodes();
        let ask = |node| self.shared.peers.resolve(node, lookup, key);
        let mut answers: FuturesUnordered<_> = others.iter().map(ask).collect();
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(Some(root)) => return Some(root),
                Ok(None) => {}
                Err(error) => tracing::debug!(reason = %error, "a peer did not resolve"),
            }
        }
        None
    }

    fn other_nodes(&self) -> Vec<NodeEntry> {
        let topology = self.shared.topology.borrow().clone();
        let nodes = topology.map(|t| t.nodes.clone()).unwrap_or_default();
        nodes.into_iter().filter(|n| n.name != self.shared.node.name).collect()
    }
}
