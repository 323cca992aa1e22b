//! Reads everything one pass needs: objects from the cluster, answers from the nodes.
//!
//! Changes nothing. Each call is bounded in time by the client or by `Nodes`.

use super::{Context, ReconcileError};
use crate::build::{labels, secrets, stateful_set::CLAIM, topology_record};
use crate::certificates::{Authority, role};
use crate::nodes::{Identity, NodeAddress, NodeError, NodeView};
use crate::observed::{BackendSecret, ClaimView, Observed, PodView, Storage, read_job};
use cachetier_api::names::{
    COMPONENT_PRELOAD, GRPC_PORT, GroupNames, LABEL_COMPONENT, LABEL_GROUP, NODE_LABEL_PMEM,
};
use cachetier_api::v1alpha1::CacheGroup;
use cachetier_model::Topology;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Node, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, ListParams};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
/// Nodes asked at a time.
const ASKED_AT_ONCE: usize = 32;
/// Above the bound that the calls have themselves: a last resort, so that no node holds up a pass.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

pub async fn dereference(
    context: &Context,
    group: Arc<CacheGroup>,
) -> Result<Observed, ReconcileError> {
    let uid = group.metadata.uid.clone().unwrap_or_default();
    let namespace = group.metadata.namespace.clone().unwrap_or_default();
    let names = GroupNames::new(&namespace, group.metadata.name.as_deref().unwrap_or_default());
    let now = jiff::Timestamp::now();
    let reader = Reader { context, names: &names };
    let (secret, storage, stateful_set, record, pods, jobs, claims, certificates) = tokio::try_join!(
        reader.backend_secret(&group),
        reader.storage(&group),
        reader.stateful_set(),
        reader.record(&uid),
        reader.pods(),
        reader.jobs(),
        reader.claims(),
        reader.certificates(),
    )?;
    let hosts = reader.hosts(&pods).await?;
    let identity = context.identity(&uid, stored_authority(&names, &certificates), now)?;
    let nodes = identity.map(|identity| addresses(&names, &uid, &pods, &identity));
    let nodes = nodes.unwrap_or_default();
    let kept: Vec<NodeAddress> = nodes.values().cloned().collect();
    context.nodes.retain(&uid, &kept);
    let answers = ask(context, &nodes).await;
    let recorded = record.record().map_or(0, |record| record.topology.epoch.0);
    let held = newest_held(context, &uid, recorded, &nodes, &answers).await;
    Ok(Observed {
        group,
        uid,
        now,
        secret,
        storage,
        stateful_set,
        record,
        pods,
        jobs: jobs.iter().map(|job| read_job(job, now)).collect(),
        certificates,
        answers,
        held,
        claims,
        hosts,
        names,
    })
}

/// The group's authority, when it is there and usable.
pub fn stored_authority(
    names: &GroupNames,
    certificates: &BTreeMap<String, Secret>,
) -> Option<Authority> {
    let secret = certificates.get(&names.ca_secret())?;
    secrets::read_authority(secret).filter(Authority::usable)
}

pub fn addresses(
    names: &GroupNames,
    uid: &str,
    pods: &BTreeMap<u32, PodView>,
    identity: &Arc<Identity>,
) -> BTreeMap<u32, NodeAddress> {
    pods.iter()
        .filter_map(|(ordinal, pod)| {
            let ip = pod.address.as_ref()?;
            let address = if ip.contains(':') {
                format!("[{ip}]:{GRPC_PORT}")
            } else {
                format!("{ip}:{GRPC_PORT}")
            };
            let node = NodeAddress {
                group_uid: uid.to_owned(),
                pod: pod.name.clone(),
                address,
                server_name: names.node_host(&pod.name),
                identity: identity.clone(),
            };
            Some((*ordinal, node))
        })
        .collect()
}

async fn ask(
    context: &Context,
    nodes: &BTreeMap<u32, NodeAddress>,
) -> BTreeMap<u32, Result<NodeView, NodeError>> {
    let mut answers = BTreeMap::new();
    let all: Vec<(u32, NodeAddress)> = nodes.iter().map(|(n, node)| (*n, node.clone())).collect();
    for some in all.chunks(ASKED_AT_ONCE) {
        let calls = some.iter().map(|(_, node)| async {
            tokio::time::timeout(ANSWER_TIMEOUT, context.nodes.status(node))
                .await
                .unwrap_or_else(|_| Err(NodeError("no answer in time".to_owned())))
        });
        let answered = futures::future::join_all(calls).await;
        answers.extend(some.iter().map(|(ordinal, _)| *ordinal).zip(answered));
    }
    answers
}

/// The topology of the node that holds the newest, when that is newer than the record.
async fn newest_held(
    context: &Context,
    uid: &str,
    recorded: u64,
    nodes: &BTreeMap<u32, NodeAddress>,
    answers: &BTreeMap<u32, Result<NodeView, NodeError>>,
) -> Option<Topology> {
    let (ordinal, _) = answers
        .iter()
        .filter_map(|(ordinal, answer)| Some((ordinal, answer.as_ref().ok()?)))
        .filter(|(_, view)| view.group_uid == uid && view.topology_version > recorded)
        .max_by_key(|(_, view)| view.topology_version)?;
    let held = context.nodes.topology(nodes.get(ordinal)?).await.ok().flatten();
    held.filter(|topology| topology.group == uid)
}

struct Reader<'a> {
    context: &'a Context,
    names: &'a GroupNames,
}

impl Reader<'_> {
    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.context.client.clone(), self.names.namespace())
    }

    async fn backend_secret(&self, group: &CacheGroup) -> Result<BackendSecret, ReconcileError> {
        let name = &group.spec.backend.postgres.secret_ref.name;
        let secret = self.api::<Secret>().get_opt(name).await?;
        Ok(secret.map_or(BackendSecret::Missing, |secret| BackendSecret::Found {
            keys: secret
                .data
                .unwrap_or_default()
                .into_iter()
                .filter(|(_, value)| !value.0.is_empty())
                .map(|(key, _)| key)
                .collect(),
        }))
    }

    async fn storage(&self, group: &CacheGroup) -> Result<Storage, ReconcileError> {
        let classes: Api<StorageClass> = Api::all(self.context.client.clone());
        if let Some(name) = &group.spec.journal.volume.storage_class_name {
            let class = classes.get_metadata_opt(name).await?;
            return Ok(class.map_or_else(|| Storage::ClassMissing(name.clone()), |_| Storage::Fine));
        }
        let all = classes.list_metadata(&ListParams::default()).await?;
        let default = all.items.iter().any(|class| {
            class
                .metadata
                .annotations
                .as_ref()
                .and_then(|a| a.get(DEFAULT_CLASS))
                .map(String::as_str)
                == Some("true")
        });
        Ok(if default { Storage::Fine } else { Storage::NoDefaultClass })
    }

    async fn stateful_set(&self) -> Result<Option<StatefulSet>, ReconcileError> {
        Ok(self.api::<StatefulSet>().get_opt(&self.names.stateful_set()).await?)
    }

    async fn record(&self, uid: &str) -> Result<topology_record::Found, ReconcileError> {
        let found = self.api::<ConfigMap>().get_opt(&self.names.topology_record()).await?;
        Ok(found.map_or(topology_record::Found::Missing, |config_map| {
            topology_record::read(&config_map, uid)
        }))
    }

    async fn pods(&self) -> Result<BTreeMap<u32, PodView>, ReconcileError> {
        let selector = labels::node_selector_text(&self.names.stateful_set());
        let pods = self.api::<Pod>().list(&ListParams::default().labels(&selector)).await?;
        Ok(pods
            .items
            .iter()
            .map(PodView::read)
            .filter_map(|pod| Some((self.names.ordinal(&pod.name)?, pod)))
            .collect())
    }

    async fn jobs(&self) -> Result<Vec<Job>, ReconcileError> {
        let selector = format!(
            "{LABEL_GROUP}={},{LABEL_COMPONENT}={COMPONENT_PRELOAD}",
            self.names.stateful_set()
        );
        Ok(self.api::<Job>().list(&ListParams::default().labels(&selector)).await?.items)
    }

    async fn certificates(&self) -> Result<BTreeMap<String, Secret>, ReconcileError> {
        let mut found = BTreeMap::new();
        let stored = role::STORED.iter().map(|role| self.names.certificate_secret(role));
        for name in stored.chain([self.names.ca_secret()]) {
            if let Some(secret) = self.api::<Secret>().get_opt(&name).await? {
                found.insert(name, secret);
            }
        }
        Ok(found)
    }

    /// Whether the hosts of pods are labelled for persistent memory.
    async fn hosts(
        &self,
        pods: &BTreeMap<u32, PodView>,
    ) -> Result<BTreeMap<String, bool>, ReconcileError> {
        let names: BTreeSet<&String> = pods.values().filter_map(|pod| pod.host.as_ref()).collect();
        let api: Api<Node> = Api::all(self.context.client.clone());
        let mut hosts = BTreeMap::new();
        for name in names {
            let node = api.get_metadata_opt(name).await?;
            let labels = node.and_then(|node| node.metadata.labels).unwrap_or_default();
            let labelled = labels.get(NODE_LABEL_PMEM).map(String::as_str) == Some("true");
            hosts.insert(name.clone(), labelled);
        }
        Ok(hosts)
    }

    async fn claims(&self) -> Result<BTreeMap<u32, ClaimView>, ReconcileError> {
        let selector = labels::node_selector_text(&self.names.stateful_set());
        let claims = self.api::<PersistentVolumeClaim>();
        let claims = claims.list(&ListParams::default().labels(&selector)).await?;
        Ok(claims
            .items
            .iter()
            .map(ClaimView::read)
            .filter_map(|claim| {
                let pod = claim.name.strip_prefix(CLAIM)?.strip_prefix('-')?;
                Some((self.names.ordinal(pod)?, claim))
            })
            .collect())
    }
}
