//! What one pass saw: the plain values between reading the cluster and deciding.
//!
//! Owns no decisions except how raw objects are read. Filled by `reconcile::dereference` once, never
//! changed afterwards.

use crate::build::topology_record::Found;
use crate::nodes::{NodeError, NodeView};
use crate::preload::{JobOutcome, JobView};
use crate::topology::Member;
use cachetier_api::names::{ANNOTATION_DRAINED, GroupNames, LABEL_INCARNATION};
use cachetier_api::v1alpha1::CacheGroup;
use cachetier_model::Topology;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use kube::ResourceExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The backend's Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendSecret {
    Missing,
    Found { keys: BTreeSet<String> },
}

/// The StorageClass that journals need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    Fine,
    ClassMissing(String),
    NoDefaultClass,
}

#[derive(Clone, Debug)]
pub struct Observed {
    pub group: Arc<CacheGroup>,
    pub uid: String,
    pub names: GroupNames,
    pub now: jiff::Timestamp,
    pub secret: BackendSecret,
    pub storage: Storage,
    pub stateful_set: Option<StatefulSet>,
    pub record: Found,
    /// By ordinal.
    pub pods: BTreeMap<u32, PodView>,
    pub jobs: Vec<JobView>,
    /// The group's certificates by Secret name.
    pub certificates: BTreeMap<String, Secret>,
    /// By ordinal, pods that have an address.
    pub answers: BTreeMap<u32, Result<NodeView, NodeError>>,
    /// The newest topology that a node holds, when it is newer than the record.
    pub held: Option<Topology>,
    /// Journal claims by ordinal, also those of earlier groups of this name.
    pub claims: BTreeMap<u32, ClaimView>,
    /// Hosts of pods, and whether they are labelled for persistent memory.
    pub hosts: BTreeMap<String, bool>,
}

/// A claim for a journal's volume.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimView {
    pub name: String,
    /// It has, or had, a volume: one that was lost may have held writes.
    pub bound: bool,
    /// UID of the group whose journal is on it; absent on claims of earlier versions.
    pub incarnation: Option<String>,
    /// Nothing on it waits for the backend.
    pub drained: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodView {
    pub name: String,
    pub uid: String,
    pub address: Option<String>,
    pub ready: bool,
    pub deleting: bool,
    pub revision: String,
    pub host: Option<String>,
    /// The scheduler's words, when it found no place.
    pub unschedulable: Option<String>,
    /// Why the container waits, e.g. `ImagePullBackOff`, with the kubelet's words.
    pub waiting: Option<(String, String)>,
    pub running: bool,
    /// Since when, if the kubelet says so.
    pub running_since: Option<jiff::Timestamp>,
    pub ever_started: bool,
}

impl Observed {
    pub fn desired(&self) -> u32 {
        u32::try_from(self.group.spec.replicas).unwrap_or(0)
    }

    pub fn deleting(&self) -> bool {
        self.group.metadata.deletion_timestamp.is_some()
    }

    /// Replicas that the StatefulSet asks for.
    pub fn pods_wanted(&self) -> Option<u32> {
        let spec = &self.stateful_set.as_ref()?.spec;
        Some(u32::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0))
    }

    pub fn version_seen(&self) -> u64 {
        let version = self.group.status.as_ref().map_or(0, |status| status.topology_version);
        u64::try_from(version).unwrap_or(0)
    }

    pub fn view(&self, ordinal: u32) -> Option<&NodeView> {
        self.answers.get(&ordinal)?.as_ref().ok()
    }

    /// The claim's volume is there and is this group's.
    fn has_volume(&self, ordinal: u32) -> bool {
        self.claims.get(&ordinal).is_some_and(|claim| claim.bound && !self.is_foreign(claim))
    }

    /// The journal on it is of an earlier group of this name. A claim that does not say is ours if
    /// our pods exist, and otherwise of somebody before us.
    pub fn is_foreign(&self, claim: &ClaimView) -> bool {
        match &claim.incarnation {
            Some(incarnation) => *incarnation != self.uid,
            None => self.stateful_set.is_none(),
        }
    }

    pub fn foreign_claims(&self) -> impl Iterator<Item = &ClaimView> {
        self.claims.values().filter(|claim| self.is_foreign(claim))
    }

    /// Every pod that exists or should, whether it answers or not.
    pub fn members(&self) -> BTreeMap<u32, Member> {
        let owners = self.record.record().map_or(0, |record| record.topology.nodes.len());
        let expected =
            self.pods_wanted().unwrap_or_else(|| u32::try_from(owners).unwrap_or(u32::MAX));
        // without a record nobody knows, and what nobody knows may be so
        let served = self.record.record().is_none_or(|record| record.served)
            || self.answers.values().flatten().next().is_some();
        let ordinals: BTreeSet<u32> = (0..expected).chain(self.pods.keys().copied()).collect();
        ordinals
            .into_iter()
            .map(|ordinal| {
                let pod = self.pods.get(&ordinal);
                let started = pod.is_some_and(|pod| pod.ever_started);
                let member = Member {
                    view: self.view(ordinal).cloned(),
                    unschedulable: pod.is_some_and(|pod| pod.unschedulable.is_some()),
                    never_ran: !self.has_volume(ordinal) || !served && !started,
                };
                (ordinal, member)
            })
            .collect()
    }
}

impl PodView {
    pub fn read(pod: &Pod) -> Self {
        let status = pod.status.clone().unwrap_or_default();
        let condition = |kind: &str| {
            status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
        };
        let container = status.container_statuses.iter().flatten().next();
        let state = container.and_then(|c| c.state.as_ref());
        let unschedulable = condition("PodScheduled")
            .filter(|c| c.status == "False" && c.reason.as_deref() == Some("Unschedulable"))
            .map(|c| c.message.clone().unwrap_or_default());
        let waiting = state.and_then(|s| s.waiting.as_ref()).map(|waiting| {
            (
                waiting.reason.clone().unwrap_or_default(),
                waiting.message.clone().unwrap_or_default(),
            )
        });
        Self {
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            address: status.pod_ip.clone().filter(|ip| !ip.is_empty()),
            ready: condition("Ready").is_some_and(|c| c.status == "True"),
            deleting: pod.metadata.deletion_timestamp.is_some(),
            revision: pod
                .metadata
                .labels
                .as_ref()
                .and_then(|labels| labels.get("controller-revision-hash").cloned())
                .unwrap_or_default(),
            host: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            unschedulable,
            waiting,
            running: state.is_some_and(|s| s.running.is_some()),
            running_since: state
                .and_then(|s| s.running.as_ref()?.started_at.as_ref())
                .map(|time| time.0),
            ever_started: container.is_some_and(|c| {
                c.restart_count > 0
                    || c.last_state.as_ref().is_some_and(|s| s.terminated.is_some())
                    || state.is_some_and(|s| s.running.is_some() || s.terminated.is_some())
            }),
        }
    }
}

impl ClaimView {
    pub fn read(claim: &PersistentVolumeClaim) -> Self {
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        Self {
            name: claim.metadata.name.clone().unwrap_or_default(),
            bound: matches!(phase, Some("Bound" | "Lost")),
            incarnation: claim.labels().get(LABEL_INCARNATION).cloned(),
            drained: claim.annotations().get(ANNOTATION_DRAINED).map(String::as_str)
                == Some("true"),
        }
    }
}

/// A preload Job as the decision needs it.
pub fn read_job(job: &Job, now: jiff::Timestamp) -> JobView {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ended = conditions.into_iter().flatten().find(|condition| {
        condition.status == "True" && matches!(condition.type_.as_str(), "Complete" | "Failed")
    });
    let outcome = match ended {
        None => JobOutcome::Running,
        Some(condition) if condition.type_ == "Complete" => JobOutcome::Complete,
        Some(condition) => JobOutcome::Failed(condition.message.clone().unwrap_or_default()),
    };
    let ended_at = ended.and_then(|condition| condition.last_transition_time.as_ref());
    JobView {
        name: job.metadata.name.clone().unwrap_or_default(),
        outcome,
        ended_seconds_ago: ended_at.map_or(0, |at| now.as_second() - at.0.as_second()),
        deleting: job.metadata.deletion_timestamp.is_some(),
    }
}
