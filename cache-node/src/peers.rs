//! The other nodes, as the group needs them, over the client library.
//!
//! Owns the connections to peers. The schema is filled in once the group knows it; until then no
//! lookup can be asked.

use arc_swap::ArcSwapOption;
use cachetier_client::{Channels, Endpoint, Options, PeerClient, TlsIdentity};
use cachetier_group::{BacklogFigures, PeerError, Peers, Released};
use cachetier_model::node_config::NodeConfig;
use cachetier_model::{GroupSchema, LookupId, LookupKey, NodeEntry, RootKey, SlotSet, Topology};
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;

/// A peer that cannot be connected within this time is away.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(700);
const CONNECTIONS_PER_PEER: usize = 2;

pub struct NodePeers {
    channels: Channels,
    schema: ArcSwapOption<GroupSchema>,
}

impl NodePeers {
    pub fn new(config: &NodeConfig) -> Self {
        let tls = config.tls.as_ref().map(|t| TlsIdentity::Directory(t.directory.clone()));
        let options = Options {
            tls,
            connect_timeout: CONNECT_TIMEOUT,
            connections_per_node: CONNECTIONS_PER_PEER,
            ..Options::default()
        };
        Self { channels: Channels::new(options), schema: ArcSwapOption::empty() }
    }

    /// The connections, for forwarding.
    pub fn channels(&self) -> &Channels {
        &self.channels
    }

    pub fn set_schema(&self, schema: Arc<GroupSchema>) {
        self.schema.store(Some(schema));
    }

    fn client(&self, node: &NodeEntry) -> PeerClient {
        PeerClient::new(self.channels.node(&Endpoint::new(node.address.as_str())))
    }
}

impl Peers for NodePeers {
    fn release_slots<'a>(
        &'a self,
        node: &'a NodeEntry,
        topology: &'a Topology,
        taker: &'a str,
        slots: &'a SlotSet,
    ) -> BoxFuture<'a, Result<Released, PeerError>> {
        Box::pin(async move {
            let answer = self.client(node).release_slots(topology, taker, slots).await;
            let answer = answer.map_err(PeerError::new)?;
            let backlog = BacklogFigures {
                transactions: answer.backlog.transactions,
                bytes: answer.backlog.bytes,
                oldest: Duration::try_from_secs_f64(answer.backlog.oldest_seconds)
                    .unwrap_or_default(),
                flush_rows_per_second: answer.backlog.flush_rows_per_second,
            };
            Ok(Released {
                slots: answer.released,
                backlog,
                positions: answer.lane_positions,
                versions: answer.lane_versions,
                answers: answer.answers,
            })
        })
    }

    fn resolve<'a>(
        &'a self,
        node: &'a NodeEntry,
        lookup: LookupId,
        key: &'a LookupKey,
    ) -> BoxFuture<'a, Result<Option<RootKey>, PeerError>> {
        Box::pin(async move {
            let schema = self.schema.load_full();
            let schema = schema.ok_or_else(|| PeerError::new("the tables are not known yet"))?;
            let values = key.decode().map_err(PeerError::new)?;
            let found = self.client(node).resolve(&schema, lookup, &values).await;
            match found.map_err(PeerError::new)? {
                None => Ok(None),
                Some(root) => schema.encode_root_key(&root).map(Some).map_err(PeerError::new),
            }
        })
    }
}
