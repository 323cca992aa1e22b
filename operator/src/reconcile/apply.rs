//! Writes what the pass decided: children by server-side apply, the topology record by
//! compare-and-set, then what nodes are told.
//!
//! Order matters: a topology is recorded before any node hears of it; pods come last.

use super::dereference::{addresses, stored_authority};
use super::{Context, ReconcileError};
use crate::build::{Blueprint, Children, build, secrets, topology_record};
use crate::certificates::{Authority, node_hosts, role, still_good};
use crate::observed::Observed;
use crate::plan::Plan;
use cachetier_api::names::{ANNOTATION_DRAINED, FIELD_MANAGER, LABEL_INCARNATION};
use cachetier_api::v1alpha1::CacheGroup;
use cachetier_model::Topology;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::fmt::Debug;

/// What the status is computed from, next to what was observed.
#[derive(Clone, Debug)]
pub struct Applied {
    pub stateful_set: Option<StatefulSet>,
    pub topology: Option<Topology>,
    /// What the API server refused, as reason and message.
    pub refused: Option<(String, String)>,
}

impl Applied {
    /// Nothing was written because the spec says so.
    pub fn paused(observed: &Observed) -> Self {
        Self {
            stateful_set: observed.stateful_set.clone(),
            topology: observed.record.record().map(|record| record.topology.clone()),
            refused: None,
        }
    }

    /// The pass failed half-way; the status still says what is known.
    pub fn failed(observed: &Observed, error: &ReconcileError) -> Self {
        use cachetier_api::condition::reason;
        let reason = match error {
            ReconcileError::NameTaken { .. } => Some(reason::NAME_TAKEN),
            ReconcileError::Refused { .. } => Some(reason::APPLY_REFUSED),
            _ => None,
        };
        let refused = reason.map(|reason| (reason.to_owned(), error.to_string()));
        Self { refused, ..Self::paused(observed) }
    }
}

pub async fn apply(
    context: &Context,
    observed: &Observed,
    plan: &Plan,
) -> Result<Applied, ReconcileError> {
    let blueprint = blueprint(context, observed, plan);
    let secrets = certificates(context, observed, &blueprint)?;
    let children = build(&blueprint, secrets)?;
    let writer = Writer { context, observed };
    writer.adopt(plan).await?;
    let topology = writer.record(plan, &blueprint.owner).await?;
    let stateful_set = Box::pin(writer.children(children)).await?;
    writer.jobs_to_delete(plan).await?;
    tell_nodes(context, observed, plan, topology.as_ref()).await;
    writer.replace_pod(plan).await?;
    Ok(Applied {
        stateful_set: stateful_set.or_else(|| observed.stateful_set.clone()),
        topology,
        refused: None,
    })
}

fn blueprint<'a>(context: &'a Context, observed: &'a Observed, plan: &Plan) -> Blueprint<'a> {
    let record = plan.record.as_ref().or(observed.record.record());
    Blueprint {
        group: &observed.group,
        uid: &observed.uid,
        names: &observed.names,
        owner: owner(&observed.group),
        installation: &context.installation,
        replicas: plan.topology.replicas,
        with_pods: plan.with_pods,
        claims_in_force: claims_in_force(observed),
        preload: plan.preload.create.clone(),
        owners: record
            .map_or(0, |record| u32::try_from(record.topology.nodes.len()).unwrap_or(u32::MAX)),
    }
}

fn owner(group: &CacheGroup) -> OwnerReference {
    group.controller_owner_ref(&()).unwrap_or_default()
}

/// The claim templates as they are, without what the API server fills in.
fn claims_in_force(observed: &Observed) -> Option<Vec<PersistentVolumeClaim>> {
    let spec = &observed.stateful_set.as_ref()?.spec;
    let mut claims = spec.volume_claim_templates.clone()?;
    for claim in &mut claims {
        claim.status = None;
    }
    Some(claims)
}

/// The group's Secrets: those in force where they are good, new ones where not.
fn certificates(
    context: &Context,
    observed: &Observed,
    blueprint: &Blueprint<'_>,
) -> Result<Vec<Secret>, ReconcileError> {
    let names = &observed.names;
    let authority = match stored_authority(names, &observed.certificates) {
        Some(authority) => authority,
        None => {
            let group = format!("{}/{}", names.namespace(), names.stateful_set());
            Authority::create(&group, observed.now)?
        }
    };
    let mut built = vec![secrets::authority(blueprint, &authority)];
    for role in role::STORED {
        let hosts = if role == role::NODE {
            node_hosts(names, &context.installation.cluster_domain)
        } else {
            Vec::new()
        };
        let stored = observed
            .certificates
            .get(&names.certificate_secret(role))
            .and_then(secrets::read_identity)
            .filter(|identity| still_good(identity, &authority, &hosts, observed.now));
        let identity = match stored {
            Some(identity) => identity,
            None => authority.issue(role, &hosts, observed.now)?,
        };
        built.push(secrets::certificate(blueprint, role, &identity));
    }
    Ok(built)
}

/// Which stored object a child may be applied to.
enum Place<'a> {
    /// Whatever is there, if it is ours.
    Any,
    /// The one that this pass read, or nothing if there was none.
    Read(Option<&'a ObjectMeta>),
}

struct Writer<'a> {
    context: &'a Context,
    observed: &'a Observed,
}

impl Writer<'_> {
    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.context.client.clone(), self.observed.names.namespace())
    }

    /// Writes the record if it changes; answers the topology in force.
    async fn record(
        &self,
        plan: &Plan,
        owner: &OwnerReference,
    ) -> Result<Option<Topology>, ReconcileError> {
        let found = &self.observed.record;
        let Some(record) = &plan.record else {
            return Ok(found.record().map(|record| record.topology.clone()));
        };
        let names = &self.observed.names;
        let version = found.resource_version();
        let object = topology_record::render(names, owner, record, version)?;
        let api = self.api::<ConfigMap>();
        let parameters =
            PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        match version {
            Some(_) => api.replace(&names.topology_record(), &parameters, &object).await?,
            None => api.create(&parameters, &object).await?,
        };
        if let Some(topology) = &plan.topology.publish {
            self.context.metrics.topologies_published.inc();
            let note = format!(
                "topology version {} gives the slots to {} nodes",
                topology.epoch.0,
                topology.nodes.len()
            );
            tracing::info!(
                namespace = names.namespace(),
                group = names.stateful_set(),
                epoch = topology.epoch.0,
                nodes = topology.nodes.len(),
                "topology recorded"
            );
            let events = &self.context.events;
            events.normal(&self.observed.group, "TopologyPublished", "Scale", &note).await;
        }
        Ok(Some(record.topology.clone()))
    }

    async fn children(&self, children: Children) -> Result<Option<StatefulSet>, ReconcileError> {
        let Children {
            service_account,
            config_map,
            headless_service,
            client_service,
            disruption_budget,
            secrets,
            stateful_set,
            preload_job,
        } = children;
        self.child("ServiceAccount", service_account).await?;
        for secret in secrets {
            self.secret(secret).await?;
        }
        self.child("ConfigMap", config_map).await?;
        self.child("Service", headless_service).await?;
        self.child("Service", client_service).await?;
        self.child("PodDisruptionBudget", disruption_budget).await?;
        let applied = match stateful_set {
            Some(stateful_set) => self.child("StatefulSet", stateful_set).await?,
            None => None,
        };
        if let Some(job) = preload_job {
            self.child("Job", job).await?;
        }
        Ok(applied)
    }

    /// Applies a Secret in the place of the one that this pass read, and of no other: it carries that
    /// one's certificate on, and must not put it back after a deletion or a change in the meantime.
    async fn secret(&self, secret: Secret) -> Result<Option<Secret>, ReconcileError> {
        let read = self.observed.certificates.get(&secret.name_any());
        self.child_in_place("Secret", secret, Place::Read(read.map(|read| &read.metadata))).await
    }

    async fn child<K>(&self, kind: &'static str, object: K) -> Result<Option<K>, ReconcileError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        self.child_in_place(kind, object, Place::Any).await
    }

    /// Applies one child, unless it is known to be as it should. What belongs to somebody else is
    /// never taken over.
    async fn child_in_place<K>(
        &self,
        kind: &'static str,
        mut object: K,
        place: Place<'_>,
    ) -> Result<Option<K>, ReconcileError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let name = object.name_any();
        let key = format!("{}/{kind}/{name}", self.observed.uid);
        let wanted = Sha256::digest(serde_json::to_vec(&object)?).to_vec();
        let api = self.api::<K>();
        let existing = api.get_metadata_opt(&name).await?.map(|existing| existing.metadata);
        if let Some(existing) = &existing {
            self.check(kind, &name, existing)?;
            let version = existing.resource_version.as_deref().unwrap_or_default();
            if self.context.is_applied(&key, &wanted, version) {
                return Ok(None);
            }
        }
        match place {
            Place::Any => {}
            Place::Read(None) if existing.is_some() => {
                return Err(ReconcileError::Changed { kind, name });
            }
            Place::Read(None) => {}
            // the API server refuses to apply to another object, or to none
            Place::Read(Some(read)) => {
                object.meta_mut().uid.clone_from(&read.uid);
                object.meta_mut().resource_version.clone_from(&read.resource_version);
            }
        }
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let applied = api
            .patch(&name, &parameters, &Patch::Apply(&object))
            .await
            .map_err(|error| refusal(error, kind, &name))?;
        let version = applied.resource_version().unwrap_or_default();
        self.context.applied(key, wanted, version);
        Ok(Some(applied))
    }

    /// Ours, and not on its way out.
    fn check(
        &self,
        kind: &'static str,
        name: &str,
        existing: &ObjectMeta,
    ) -> Result<(), ReconcileError> {
        let name = name.to_owned();
        let mut owners = existing.owner_references.iter().flatten();
        if !owners.any(|reference| reference.uid == self.observed.uid) {
            return Err(ReconcileError::NameTaken { kind, name });
        }
        if existing.deletion_timestamp.is_some() {
            // its own event starts the next pass
            return Err(ReconcileError::Leaving { kind, name });
        }
        Ok(())
    }

    /// Makes drained volumes of earlier groups ours, before any pod can write to them.
    async fn adopt(&self, plan: &Plan) -> Result<(), ReconcileError> {
        let ours = json!({"metadata": {
            "labels": {LABEL_INCARNATION: self.observed.uid},
            "annotations": {ANNOTATION_DRAINED: null},
        }});
        for name in &plan.adopt {
            let claims = self.api::<PersistentVolumeClaim>();
            let patch = Patch::Merge(&ours);
            absent_is_fine(
                claims.patch_metadata(name, &PatchParams::default(), &patch).await.map(drop),
            )?;
        }
        Ok(())
    }

    async fn jobs_to_delete(&self, plan: &Plan) -> Result<(), ReconcileError> {
        for name in &plan.preload.delete {
            absent_is_fine(
                self.api::<Job>().delete(name, &DeleteParams::background()).await.map(drop),
            )?;
        }
        Ok(())
    }

    /// Deletes the pod whose turn it is, if it is still the one that was looked at.
    async fn replace_pod(&self, plan: &Plan) -> Result<(), ReconcileError> {
        let Some(pod) = plan.rollout.replace.and_then(|n| self.observed.pods.get(&n)) else {
            return Ok(());
        };
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(pod.uid.clone()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        tracing::info!(
            namespace = self.observed.names.namespace(),
            group = self.observed.names.stateful_set(),
            node = pod.name,
            "replacing pod of an older template"
        );
        absent_is_fine(self.api::<Pod>().delete(&pod.name, &parameters).await.map(drop))
    }
}

/// A refusal that trying again does not change is told to the user.
fn refusal(error: kube::Error, kind: &'static str, name: &str) -> ReconcileError {
    match error {
        kube::Error::Api(status)
            if (400..500).contains(&status.code) && ![401, 409, 429].contains(&status.code) =>
        {
            ReconcileError::Refused { kind, name: name.to_owned(), message: status.message }
        }
        error => error.into(),
    }
}

fn absent_is_fine(result: Result<(), kube::Error>) -> Result<(), ReconcileError> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => Ok(other?),
    }
}

/// Pushes the topology to nodes that have an older one, and stops or starts writes. A node that does
/// not take it is asked again by the next pass.
async fn tell_nodes(
    context: &Context,
    observed: &Observed,
    plan: &Plan,
    topology: Option<&Topology>,
) {
    let authority = stored_authority(&observed.names, &observed.certificates);
    let Ok(Some(identity)) = context.identity(&observed.uid, authority, observed.now) else {
        return;
    };
    let nodes = addresses(&observed.names, &observed.uid, &observed.pods, &identity);
    let to_drain = plan.topology.drain.iter().copied();
    let for_deletion = plan.drain.iter().flat_map(|drain| &drain.stop_writes).map(|n| (*n, true));
    for (ordinal, stop) in to_drain.chain(for_deletion) {
        let Some(node) = nodes.get(&ordinal) else { continue };
        if let Err(error) = context.nodes.drain(node, stop).await {
            tracing::warn!(node = node.pod, %error, stop, "node did not take the drain order");
        }
    }
    let Some(topology) = topology else { return };
    let behind = |ordinal: &u32| {
        observed.view(*ordinal).is_some_and(|view| {
            view.group_uid == observed.uid && view.topology_version < topology.epoch.0
        })
    };
    let to_push: Vec<_> =
        nodes.iter().filter(|(ordinal, _)| behind(ordinal)).map(|(_, node)| node).collect();
    let pushes = to_push.iter().map(|node| context.nodes.apply_topology(node, topology));
    let answers = futures::future::join_all(pushes).await;
    for (node, answer) in to_push.into_iter().zip(answers) {
        match answer {
            Ok(held) => tracing::info!(node = node.pod, epoch = held.0, "topology pushed"),
            Err(error) => tracing::warn!(node = node.pod, %error, "node did not take the topology"),
        }
    }
}

#[cfg(test)]
mod tests;
