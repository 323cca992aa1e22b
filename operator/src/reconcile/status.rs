//! Computes the status from what was observed and applied, and writes it when it differs.
//!
//! Pure but for `update`. A status that says the same is never written again; transition times move
//! only when a condition's status does.

pub mod conditions;
pub mod figures;

use super::apply::Applied;
use super::{Context, ReconcileError};
use crate::build::labels;
use crate::metrics::GroupLabels;
use crate::observed::Observed;
use crate::plan::Plan;
use crate::topology::Activity;
use cachetier_api::condition::kind;
use cachetier_api::names::FIELD_MANAGER;
use cachetier_api::v1alpha1::status::NODES_LISTED_MAX;
use cachetier_api::v1alpha1::{CacheGroup, CacheGroupStatus, NodeStatus, Phase};
use conditions::Facts;
use kube::Resource;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;

/// Writes the status if it says something new.
pub async fn update(
    context: &Context,
    observed: &Observed,
    plan: &Plan,
    applied: &Applied,
) -> Result<(), ReconcileError> {
    let status = compute(observed, plan, applied);
    figures::export(context, observed, &status, labels_of(observed));
    let old = observed.group.status.clone().unwrap_or_default();
    if old == status {
        return Ok(());
    }
    let body = json!({
        "apiVersion": CacheGroup::api_version(&()),
        "kind": CacheGroup::kind(&()),
        "metadata": {"name": observed.names.stateful_set()},
        "status": status,
    });
    let api: Api<CacheGroup> = Api::namespaced(context.client.clone(), observed.names.namespace());
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    let name = observed.names.stateful_set();
    match api.patch_status(&name, &parameters, &Patch::Apply(&body)).await {
        Ok(_) => {}
        Err(kube::Error::Api(refusal)) if !has_another_cause(&refusal) => {
            replace(&api, observed, &status).await?;
        }
        Err(error) => return Err(error.into()),
    }
    context.metrics.status_writes.inc();
    context.events.transitions(&observed.group, &old.conditions, &status.conditions).await;
    Ok(())
}

/// Refusals that have nothing to do with what the status looks like.
fn has_another_cause(refusal: &kube::core::Status) -> bool {
    [401, 403, 404, 409, 429].contains(&refusal.code)
}

/// Under a resource definition that is older than this operator, applying refuses fields that it does
/// not declare; a replaced status is taken without them.
async fn replace(
    api: &Api<CacheGroup>,
    observed: &Observed,
    status: &CacheGroupStatus,
) -> Result<(), ReconcileError> {
    let mut group = CacheGroup::clone(&observed.group);
    group.status = Some(status.clone());
    let name = observed.names.stateful_set();
    api.replace_status(&name, &PostParams::default(), &group).await?;
    Ok(())
}

fn labels_of(observed: &Observed) -> GroupLabels {
    GroupLabels {
        namespace: observed.names.namespace().to_owned(),
        group: observed.names.stateful_set(),
    }
}

pub fn compute(observed: &Observed, plan: &Plan, applied: &Applied) -> CacheGroupStatus {
    let facts = Facts::gather(observed, plan, applied);
    let old = observed.group.status.as_ref();
    let conditions = conditions::all(&facts, old.map_or(&[], |status| &status.conditions));
    let ready = conditions.iter().find(|condition| condition.type_ == kind::READY);
    let not_ready = ready.filter(|condition| condition.status != "True");
    let topology_version = applied
        .topology
        .as_ref()
        .map_or(0, |topology| topology.epoch.0)
        .max(observed.version_seen());
    CacheGroupStatus {
        observed_generation: observed.group.metadata.generation,
        replicas: i32::try_from(observed.pods.len()).unwrap_or(i32::MAX),
        ready_replicas: i32::try_from(facts.ready_pods).unwrap_or(i32::MAX),
        selector: labels::node_selector_text(&observed.names.stateful_set()),
        ready: format!("{}/{}", facts.ready_pods, observed.desired()),
        phase: phase(&facts, not_ready.is_none()),
        reason: not_ready.map(|condition| condition.reason.clone()).unwrap_or_default(),
        message: not_ready.map(|condition| condition.message.clone()).unwrap_or_default(),
        backlog: figures::backlog(observed),
        preload: figures::preload(observed, plan),
        rejects: figures::rejects(observed),
        topology_version: figures::signed(topology_version),
        medium: figures::medium(observed),
        nodes: nodes(observed),
        conditions,
    }
}

fn phase(facts: &Facts<'_>, ready: bool) -> Phase {
    if facts.observed.deleting() {
        return Phase::Deleting;
    }
    if facts.observed.group.spec.paused {
        return Phase::Paused;
    }
    match facts.plan.topology.activity {
        Activity::Stopped => return Phase::Stopped,
        Activity::Stopping => return Phase::Draining,
        _ => {}
    }
    if ready {
        return Phase::Ready;
    }
    let never_served = !facts.served_before();
    match facts.degraded() {
        Some(_) if never_served => return Phase::Pending,
        Some(_) => return Phase::Degraded,
        None if facts.observed.pods.is_empty() => return Phase::Pending,
        None => {}
    }
    match facts.plan.topology.activity {
        Activity::ScalingOut | Activity::ScalingIn | Activity::MovingSlots if !never_served => {
            Phase::Scaling
        }
        _ if facts.plan.rollout.outdated > 0 => Phase::Rolling,
        _ if facts.loading() => Phase::Loading,
        _ => Phase::Starting,
    }
}

fn nodes(observed: &Observed) -> Vec<NodeStatus> {
    let line = |(ordinal, pod): (&u32, &crate::observed::PodView)| {
        let mut line = NodeStatus {
            name: pod.name.clone(),
            ready: pod.ready,
            host: pod.host.clone().unwrap_or_default(),
            phase: "Pending".to_owned(),
            ..NodeStatus::default()
        };
        match observed.answers.get(ordinal) {
            Some(Ok(view)) => {
                line.phase.clone_from(&view.phase);
                line.slots_serving = i32::try_from(view.slots_serving).unwrap_or(i32::MAX);
                line.slots_assigned = i32::try_from(view.slots_assigned).unwrap_or(i32::MAX);
                line.instances = figures::signed(view.instances);
                line.backlog_transactions = figures::signed(view.backlog.transactions);
                line.topology_version = figures::signed(view.topology_version);
                line.message = view.problems.first().map(|p| p.reason.clone()).unwrap_or_default();
            }
            Some(Err(_)) if pod.running => line.phase = "Unreachable".to_owned(),
            _ => {
                if let Some((why, _)) = &pod.waiting {
                    line.message.clone_from(why);
                }
            }
        }
        line
    };
    observed.pods.iter().take(NODES_LISTED_MAX).map(line).collect()
}

#[cfg(test)]
pub(super) mod tests;
