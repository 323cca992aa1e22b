//! Everything one pass decides, from everything it saw. Pure.

use crate::build::topology_record::Record;
use crate::drain::{self, Drain};
use crate::observed::{BackendSecret, Observed};
use crate::preload;
use crate::reconcile::validate::{Finding, findings};
use crate::rollout::{self, BACKLOG_AGE_SECONDS_MAX, PodState, Rollout};
use crate::topology::{self, Activity};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub struct Plan {
    pub findings: Vec<Finding>,
    pub topology: topology::Decision,
    /// Present while the group is being deleted.
    pub drain: Option<Drain>,
    pub preload: preload::Decision,
    pub rollout: Rollout,
    /// Pods can start: what they mount is there, and no volume holds another group's writes.
    pub with_pods: bool,
    /// Claims of earlier groups whose volumes become this group's.
    pub adopt: Vec<String>,
    /// The record to write, when it differs from what was found.
    pub record: Option<Record>,
}

pub fn plan(observed: &Observed) -> Plan {
    let members = observed.members();
    let record = observed.record.record();
    let topology = topology::decide(&topology::Input {
        names: &observed.names,
        uid: &observed.uid,
        desired: observed.desired(),
        record: record.map(|record| &record.topology),
        stopping: record.is_some_and(|record| record.stopping),
        owners_before: record.map_or(0, |record| record.owners_before),
        version_seen: observed.version_seen(),
        pods_wanted: observed.pods_wanted(),
        members: &members,
        held: observed.held.as_ref(),
    });
    let drain = observed.deleting().then(|| {
        let policy = observed.group.spec.deletion.policy;
        drain::decide(&observed.names, policy, &members, deadline_passed(observed))
    });
    let secret_there = observed.secret != BackendSecret::Missing;
    let volumes_ours = observed.foreign_claims().next().is_none();
    let mut plan = Plan {
        findings: findings(observed),
        preload: preload_decision(observed),
        rollout: rollout_decision(observed, topology.activity == Activity::Steady),
        with_pods: observed.stateful_set.is_some() || secret_there && volumes_ours,
        adopt: observed
            .foreign_claims()
            .filter(|claim| claim.drained)
            .map(|claim| claim.name.clone())
            .collect(),
        record: next_record(observed, &topology),
        drain,
        topology,
    };
    if plan.drain.is_some() {
        hold_still(observed, &mut plan);
    }
    plan
}

/// A group that is being deleted is not scaled, loaded or rolled any more.
fn hold_still(observed: &Observed, plan: &mut Plan) {
    let owners = observed.record.record().map_or(0, |record| record.topology.nodes.len());
    plan.topology.replicas =
        observed.pods_wanted().unwrap_or_else(|| u32::try_from(owners).unwrap_or(0));
    plan.topology.publish = None;
    plan.topology.drain.clear();
    plan.preload.create = None;
    plan.rollout.replace = None;
    plan.adopt.clear();
    plan.record = None;
}

fn deadline_passed(observed: &Observed) -> bool {
    let deadline = observed.group.spec.deletion.deadline.duration().as_secs();
    observed.group.metadata.deletion_timestamp.as_ref().is_some_and(|since| {
        let waited = observed.now.as_second() - since.0.as_second();
        u64::try_from(waited).unwrap_or(0) >= deadline
    })
}

fn next_record(observed: &Observed, decision: &topology::Decision) -> Option<Record> {
    let found = observed.record.record();
    let owners = |topology: &cachetier_model::Topology| {
        u32::try_from(topology.nodes.len()).unwrap_or(u32::MAX)
    };
    // whoever answers is given the topology in this pass, and may serve before the next one: the
    // record must know of it before the node does
    let serves = observed.answers.values().flatten().next().is_some();
    let record = match (&decision.publish, found) {
        (Some(topology), _) => Record {
            topology: topology.clone(),
            served: serves
                || found.is_some_and(|record| record.served)
                || decision_rebuilds(observed),
            stopping: decision.stopping,
            owners_before: found.map_or(0, |record| owners(&record.topology)),
        },
        (None, Some(found)) => {
            Record { served: serves || found.served, stopping: decision.stopping, ..found.clone() }
        }
        (None, None) => return None,
    };
    (found != Some(&record)).then_some(record)
}

/// A record that replaces a lost one cannot know whether nodes served before.
fn decision_rebuilds(observed: &Observed) -> bool {
    observed.record.record().is_none() && observed.version_seen() > 0
}

/// Views of all owners when every one of them answers and serves all its slots.
pub fn settled_owners(observed: &Observed) -> Option<Vec<&crate::nodes::NodeView>> {
    let record = observed.record.record()?;
    let version = record.topology.epoch.0;
    (0..u32::try_from(record.topology.nodes.len()).unwrap_or(u32::MAX))
        .map(|ordinal| observed.view(ordinal).filter(|view| view.settled_at(version)))
        .collect()
}

fn preload_decision(observed: &Observed) -> preload::Decision {
    let owners = settled_owners(observed).filter(|_| observed.desired() > 0);
    let version = observed.record.record().map_or(0, |record| record.topology.epoch.0);
    preload::decide(
        &observed.group.spec,
        |digest| observed.names.preload_job(digest),
        version,
        owners.as_deref(),
        &observed.jobs,
    )
}

fn rollout_decision(observed: &Observed, quiet: bool) -> Rollout {
    let Some(stateful_set) = &observed.stateful_set else { return Rollout::default() };
    let Some(status) = &stateful_set.status else { return Rollout::default() };
    let seen = status.observed_generation.unwrap_or(0);
    let update = status.update_revision.as_deref().unwrap_or_default();
    // until the StatefulSet's controller has seen the template, no pod can be called outdated
    if seen < stateful_set.metadata.generation.unwrap_or(0) || update.is_empty() {
        return Rollout::default();
    }
    let version = observed.record.record().map_or(0, |record| record.topology.epoch.0);
    let pods: BTreeMap<u32, PodState> = observed
        .pods
        .iter()
        .map(|(ordinal, pod)| {
            let settled = observed.view(*ordinal).is_some_and(|view| {
                view.settled_at(version) && view.backlog.oldest_seconds < BACKLOG_AGE_SECONDS_MAX
            });
            let state = PodState {
                current: pod.revision == update,
                ready: pod.ready,
                deleting: pod.deleting,
                settled,
            };
            (*ordinal, state)
        })
        .collect();
    rollout::decide(&pods, observed.pods_wanted().unwrap_or(0), quiet)
}
