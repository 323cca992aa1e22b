//! What every pass shares: clients, settings, and caches that can be lost at any time.

use super::ReconcileError;
use crate::build::Installation;
use crate::certificates::{Authority, role};
use crate::events::Events;
use crate::metrics::Metrics;
use crate::nodes::{Identity, Nodes};
use dashmap::DashMap;
use std::sync::Arc;
use std::time::Duration;

pub struct Context {
    pub client: kube::Client,
    pub nodes: Arc<dyn Nodes>,
    pub installation: Installation,
    pub events: Events,
    pub metrics: Metrics,
    /// Time between two looks at a group that is at rest.
    pub poll: Duration,
    /// The operator's own certificates by group UID, with the authority they are of.
    identities: DashMap<String, (String, Arc<Identity>)>,
    /// Children by group UID, kind and name: digest of what was applied, and the resource version
    /// that made. A child that still has that version needs no second write.
    applied: DashMap<String, (Vec<u8>, String)>,
    /// Failed passes in a row by object, for the growing pause.
    failures: DashMap<String, u32>,
}

impl Context {
    pub fn new(
        client: kube::Client,
        nodes: Arc<dyn Nodes>,
        installation: Installation,
        metrics: Metrics,
        poll: Duration,
    ) -> Self {
        Self {
            events: Events::new(client.clone()),
            client,
            nodes,
            installation,
            metrics,
            poll,
            identities: DashMap::new(),
            applied: DashMap::new(),
            failures: DashMap::new(),
        }
    }

    /// The operator's certificate towards a group; issued in memory once per process and authority.
    pub fn identity(
        &self,
        uid: &str,
        authority: Option<Authority>,
        now: jiff::Timestamp,
    ) -> Result<Option<Arc<Identity>>, ReconcileError> {
        let Some(authority) = authority else { return Ok(None) };
        if let Some(known) = self.identities.get(uid)
            && known.0 == authority.certificate
        {
            return Ok(Some(known.1.clone()));
        }
        let identity = Arc::new(authority.issue(role::OPERATOR, &[], now)?);
        self.identities.insert(uid.to_owned(), (authority.certificate, identity.clone()));
        Ok(Some(identity))
    }

    /// The group is gone.
    pub fn forget(&self, uid: &str) {
        self.identities.remove(uid);
        self.applied.retain(|key, _| !key.starts_with(uid));
        self.nodes.retain(uid, &[]);
    }

    pub fn is_applied(&self, key: &str, wanted: &[u8], version: &str) -> bool {
        self.applied.get(key).is_some_and(|known| known.0 == wanted && known.1 == version)
    }

    pub fn applied(&self, key: String, wanted: Vec<u8>, version: String) {
        self.applied.insert(key, (wanted, version));
    }

    /// Counts a failed pass; answers how many there were in a row.
    pub fn failed(&self, object: &str) -> u32 {
        let mut count = self.failures.entry(object.to_owned()).or_insert(0);
        *count = count.saturating_add(1);
        *count
    }

    pub fn succeeded(&self, object: &str) {
        self.failures.remove(object);
    }
}
