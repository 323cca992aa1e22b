//! Decides which nodes own the slots and how many pods there are: the state machine behind scaling
//! out, scaling in and stopping.
//!
//! Pure: what was observed goes in, a decision comes out, and the next pass starts again from what
//! is observed then. Killing the operator between two passes therefore changes nothing.

use cachetier_api::names::GroupNames;
use cachetier_model::{Epoch, NodeEntry, Topology};
use std::collections::BTreeMap;

use crate::nodes::NodeView;

/// What was seen of one pod's node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Member {
    /// Absent: no answer.
    pub view: Option<NodeView>,
    /// The scheduler finds no place for it.
    pub unschedulable: bool,
    /// It cannot hold a write that the backend does not have: it never ran on a bound volume.
    pub never_ran: bool,
}

impl Member {
    /// Its answer proves that nothing waits for the backend and nothing can come. A node that has
    /// not finished its start answers by its journal's tail, and not with none before it was read.
    pub fn is_drained(&self) -> bool {
        self.view.as_ref().is_some_and(|view| view.writes_stopped && view.backlog_empty())
    }
}

#[derive(Clone, Debug)]
pub struct Input<'a> {
    pub names: &'a GroupNames,
    pub uid: &'a str,
    pub desired: u32,
    /// The operator's record.
    pub record: Option<&'a Topology>,
    /// The record says that this group is being stopped by the operator.
    pub stopping: bool,
    /// Number of owners in the version before the record; 0 when there was none.
    pub owners_before: u32,
    /// Highest version ever reported in the status.
    pub version_seen: u64,
    /// Replicas that the StatefulSet asks for; absent when there is no StatefulSet.
    pub pods_wanted: Option<u32>,
    /// By ordinal, pods that exist.
    pub members: &'a BTreeMap<u32, Member>,
    /// The newest topology that a node holds, when it is newer than the record.
    pub held: Option<&'a Topology>,
}

/// What is going on, for the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    Steady,
    Starting,
    ScalingOut,
    ScalingIn,
    MovingSlots,
    Stopping,
    Stopped,
}

/// Why the activity cannot go on by itself right now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// The record is gone and not enough nodes answer to rebuild it.
    RecordLost,
    /// These nodes must answer first.
    Unreachable(Vec<String>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Replicas of the StatefulSet.
    pub replicas: u32,
    /// A new version to record, then push.
    pub publish: Option<Topology>,
    /// New value of the record's stopping mark.
    pub stopping: bool,
    /// Ordinals whose writes are to be stopped (true) or taken again (false).
    pub drain: Vec<(u32, bool)>,
    pub activity: Activity,
    pub blocked: Option<Blocked>,
}

impl Decision {
    fn new(replicas: u32, activity: Activity) -> Self {
        Self {
            replicas,
            publish: None,
            stopping: false,
            drain: Vec::new(),
            activity,
            blocked: None,
        }
    }
}

pub fn decide(input: &Input<'_>) -> Decision {
    match input.record {
        None => first_or_lost(input),
        Some(record) => {
            if let Some(held) = input.held.filter(|held| held.epoch > record.epoch) {
                return republish(input, held);
            }
            if input.desired == 0 { stop(input, record) } else { scale(input, record) }
        }
    }
}

/// The named nodes with their addresses.
pub fn entries(names: &GroupNames, count: u32) -> Vec<NodeEntry> {
    (0..count)
        .map(|ordinal| {
            let name = names.pod(ordinal);
            NodeEntry { address: names.node_address(&name), name }
        })
        .collect()
}

/// The same owners under another version.
fn at(topology: &Topology, epoch: Epoch) -> Topology {
    let mut topology = topology.clone();
    topology.epoch = epoch;
    topology
}

fn member_count(topology: &Topology) -> u32 {
    u32::try_from(topology.nodes.len()).unwrap_or(u32::MAX)
}

fn unanswered(input: &Input<'_>, ordinals: impl Iterator<Item = u32>) -> Vec<String> {
    ordinals
        .filter(|n| input.members.get(n).is_none_or(|member| member.view.is_none()))
        .map(|n| input.names.pod(n))
        .collect()
}

/// No record: either nothing was ever started, or it is lost and rebuilt from what nodes hold.
fn first_or_lost(input: &Input<'_>) -> Decision {
    let pods = input.pods_wanted.unwrap_or(0);
    if pods == 0 && input.version_seen == 0 {
        return first(input, Epoch(1), input.desired);
    }
    lost(input, pods.max(input.desired))
}

fn first(input: &Input<'_>, epoch: Epoch, replicas: u32) -> Decision {
    let mut decision = Decision::new(replicas, Activity::Starting);
    if input.desired == 0 {
        decision.activity = Activity::Stopped;
        return decision;
    }
    decision.publish =
        Topology::initial(input.uid, epoch, entries(input.names, input.desired)).ok();
    decision
}

/// Versions that were given out and are in no status and no answer, at most: a pass gives out one
/// and tells of it at its end. A silent node may hold one of them, with other owners: what is
/// rebuilt must be above it, else there are two topologies of one epoch (R22).
const UNSEEN_VERSIONS_MAX: u64 = 100;

/// A version above every one that may have been given out.
fn above(input: &Input<'_>, newest_held: u64) -> Epoch {
    Epoch(newest_held.max(input.version_seen) + 1 + UNSEEN_VERSIONS_MAX)
}

fn lost(input: &Input<'_>, replicas: u32) -> Decision {
    let may_hold_one =
        (0..replicas).filter(|n| input.members.get(n).is_none_or(|member| !member.never_ran));
    let missing = unanswered(input, may_hold_one);
    let newest = input.held.map_or(0, |held| held.epoch.0);
    // What nodes hold is the newest there was if it reaches what was seen, or if all were asked.
    let reaches = input.version_seen > 0 && newest >= input.version_seen;
    if reaches || missing.is_empty() {
        let next = above(input, newest);
        if let Some(held) = input.held {
            let mut decision = Decision::new(replicas, Activity::MovingSlots);
            decision.publish = Some(at(held, next));
            return decision;
        }
        return first(input, next, replicas);
    }
    let mut decision = Decision::new(replicas, Activity::Starting);
    decision.blocked = Some(Blocked::RecordLost);
    decision
}

/// A node holds a newer version than the record: the record was set back. Go above it.
fn republish(input: &Input<'_>, held: &Topology) -> Decision {
    let replicas = input.pods_wanted.unwrap_or(0).max(member_count(held));
    let mut decision = Decision::new(replicas, Activity::MovingSlots);
    decision.stopping = input.stopping;
    decision.publish = Some(at(held, above(input, held.epoch.0)));
    decision
}

/// Towards zero: refuse writes everywhere, wait for empty queues, then take the pods away. The
/// topology stays, so that starting again needs nobody's answer.
fn stop(input: &Input<'_>, record: &Topology) -> Decision {
    let pods = input.pods_wanted.unwrap_or(0);
    if pods == 0 {
        return Decision { stopping: true, ..Decision::new(0, Activity::Stopped) };
    }
    let mut decision = Decision::new(pods, Activity::Stopping);
    decision.stopping = true;
    let holders = 0..pods.max(member_count(record));
    let mut waiting = false;
    let mut silent = Vec::new();
    for ordinal in holders.filter(|n| *n < pods) {
        match input.members.get(&ordinal) {
            Some(member @ Member { view: Some(view), .. }) => {
                if !view.writes_stopped {
                    decision.drain.push((ordinal, true));
                }
                waiting |= !member.is_drained();
            }
            Some(member) if member.never_ran => {}
            _ => silent.push(input.names.pod(ordinal)),
        }
    }
    if !silent.is_empty() {
        decision.blocked = Some(Blocked::Unreachable(silent));
    } else if !waiting {
        decision.replicas = 0;
    }
    decision
}

fn scale(input: &Input<'_>, record: &Topology) -> Decision {
    let version = record.epoch.0;
    let owners = member_count(record);
    let pods = input.pods_wanted.unwrap_or(0);
    let settled = |range: std::ops::Range<u32>| {
        range.into_iter().all(|n| {
            input
                .members
                .get(&n)
                .and_then(|member| member.view.as_ref())
                .is_some_and(|view| view.settled_at(version))
        })
    };
    let owners_settled = settled(0..owners);
    let mut decision = Decision::new(pods.max(owners).max(input.desired), Activity::Steady);
    // a stop that was called off
    decision.drain = if input.stopping {
        input
            .members
            .iter()
            .filter(|(_, member)| member.view.as_ref().is_some_and(|view| view.writes_stopped))
            .map(|(ordinal, _)| (*ordinal, false))
            .collect()
    } else {
        Vec::new()
    };
    decision.stopping = input.stopping && !decision.drain.is_empty();

    if input.desired > owners {
        decision.activity = Activity::ScalingOut;
        scale_out(input, record, owners_settled, &mut decision);
    } else if input.desired < owners {
        decision.activity = Activity::ScalingIn;
        let silent = unanswered(input, 0..owners);
        if !silent.is_empty() {
            decision.blocked = Some(Blocked::Unreachable(silent));
        } else if owners_settled {
            decision.publish = record.rebalanced(entries(input.names, input.desired)).ok();
        }
    } else if pods > owners {
        decision.activity = Activity::ScalingIn;
        scale_in(input, owners, pods, owners_settled, &mut decision);
    } else if !owners_settled {
        let silent = unanswered(input, 0..owners);
        decision.activity =
            if silent.is_empty() { Activity::MovingSlots } else { Activity::Starting };
        decision.blocked = Some(silent).filter(|s| !s.is_empty()).map(Blocked::Unreachable);
    }
    decision
}

/// New pods first; slots are given to them when they answer.
fn scale_out(input: &Input<'_>, record: &Topology, settled: bool, decision: &mut Decision) {
    let owners = member_count(record);
    let pods = input.pods_wanted.unwrap_or(0);
    // A scale-in that is called off gives slots back to pods that still have them.
    let undo = input.desired.min(pods).min(input.owners_before);
    if undo > owners && !settled {
        decision.publish = record.rebalanced(entries(input.names, undo)).ok();
        return;
    }
    if !settled {
        let silent = unanswered(input, 0..owners);
        decision.blocked = Some(silent).filter(|s| !s.is_empty()).map(Blocked::Unreachable);
        return;
    }
    let answers = |n: &u32| input.members.get(n).is_some_and(|member| member.view.is_some());
    let fit = (owners..input.desired).take_while(answers).count();
    let fit = owners + u32::try_from(fit).unwrap_or(0);
    let rest_has_no_place = (fit..input.desired)
        .any(|n| input.members.get(&n).is_some_and(|member| member.unschedulable));
    if fit == input.desired || fit > owners && rest_has_no_place {
        decision.publish = record.rebalanced(entries(input.names, fit)).ok();
    }
}

/// Slots have new owners; pods go when those serve everything and nothing waits in the leaving ones.
fn scale_in(input: &Input<'_>, owners: u32, pods: u32, settled: bool, decision: &mut Decision) {
    if !settled {
        let silent = unanswered(input, 0..owners);
        decision.blocked = Some(silent).filter(|s| !s.is_empty()).map(Blocked::Unreachable);
        return;
    }
    // Owners that serve every slot took them over by the backend, which they could only when
    // nothing of them waited: a leaving node that does not answer has nothing left.
    let done = (owners..pods).all(|n| match input.members.get(&n).and_then(|m| m.view.as_ref()) {
        Some(view) => view.slots_leaving == 0 && view.backlog_empty(),
        None => true,
    });
    if done {
        decision.replicas = owners;
    }
}

#[cfg(test)]
mod tests;
