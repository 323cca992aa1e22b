//! Each test plays the pure state machine forward by hand.

use super::*;
use crate::nodes::BacklogView;

struct World {
    names: GroupNames,
    desired: u32,
    record: Option<Topology>,
    stopping: bool,
    owners_before: u32,
    version_seen: u64,
    pods: Option<u32>,
    members: BTreeMap<u32, Member>,
    held: Option<Topology>,
}

impl World {
    /// A settled group of `count` nodes at epoch 1.
    fn settled(count: u32) -> Self {
        let names = GroupNames::new("telecom", "hlr");
        let record = Topology::initial("uid", Epoch(1), entries(&names, count)).unwrap();
        let mut world = Self {
            names,
            desired: count,
            record: Some(record),
            stopping: false,
            owners_before: 0,
            version_seen: 1,
            pods: Some(count),
            members: BTreeMap::new(),
            held: None,
        };
        world.settle();
        world
    }

    /// All pods answer and have done what the record says.
    fn settle(&mut self) {
        let record = self.record.clone().unwrap();
        for ordinal in 0..self.pods.unwrap_or(0) {
            let slots = record.slots_of(&self.names.pod(ordinal)).len() as u32;
            let view = NodeView {
                topology_version: record.epoch.0,
                slots_assigned: slots,
                slots_serving: slots,
                ..NodeView::default()
            };
            self.members.insert(ordinal, Member { view: Some(view), ..Member::default() });
        }
        let pods = self.pods.unwrap_or(0);
        self.members.retain(|ordinal, _| *ordinal < pods);
    }

    fn view(&mut self, ordinal: u32) -> &mut NodeView {
        self.members.get_mut(&ordinal).unwrap().view.as_mut().unwrap()
    }

    fn decide(&self) -> Decision {
        decide(&Input {
            names: &self.names,
            uid: "uid",
            desired: self.desired,
            record: self.record.as_ref(),
            stopping: self.stopping,
            owners_before: self.owners_before,
            version_seen: self.version_seen,
            pods_wanted: self.pods,
            members: &self.members,
            held: self.held.as_ref(),
        })
    }

    /// Carries the decision out, except what nodes do.
    fn step(&mut self) -> Decision {
        let decision = self.decide();
        if let Some(topology) = &decision.publish {
            self.owners_before = self.record.as_ref().map_or(0, member_count);
            self.record = Some(topology.clone());
        }
        self.pods = Some(decision.replicas);
        self.stopping = decision.stopping;
        decision
    }
}

#[test]
fn a_new_group_gets_its_first_topology_before_any_pod_exists() {
    let mut world = World::settled(3);
    world.record = None;
    world.pods = None;
    world.version_seen = 0;
    world.members.clear();
    let decision = world.decide();
    assert_eq!(decision.replicas, 3);
    let topology = decision.publish.unwrap();
    assert_eq!((topology.epoch, topology.nodes.len()), (Epoch(1), 3));
    assert_eq!(topology.nodes[2].address, "hlr-2.hlr-nodes.telecom.svc:7070");
}

#[test]
fn scaling_out_starts_pods_first_and_gives_slots_when_they_answer() {
    let mut world = World::settled(1);
    world.desired = 3;
    let decision = world.step();
    assert_eq!((decision.replicas, decision.publish), (3, None));
    world.members.insert(1, Member { view: Some(NodeView::default()), ..Member::default() });
    assert_eq!(world.step().publish, None, "one of the new nodes does not answer yet");
    world.members.insert(2, Member { view: Some(NodeView::default()), ..Member::default() });
    let published = world.step().publish.unwrap();
    assert_eq!((published.epoch, published.nodes.len()), (Epoch(2), 3));
    assert_eq!(world.decide().activity, Activity::MovingSlots);
    world.settle();
    assert_eq!(world.decide().activity, Activity::Steady);
}

#[test]
fn scaling_in_moves_slots_first_and_takes_pods_when_nothing_waits_in_them() {
    let mut world = World::settled(3);
    world.desired = 1;
    let decision = world.step();
    assert_eq!(decision.replicas, 3);
    assert_eq!(decision.publish.unwrap().nodes.len(), 1);
    assert_eq!(world.step().replicas, 3, "nobody has taken anything over yet");
    world.settle();
    world.view(2).slots_leaving = 7;
    assert_eq!(world.step().replicas, 3);
    world.settle();
    world.view(1).backlog = BacklogView { transactions: 1, ..BacklogView::default() };
    assert_eq!(world.step().replicas, 3);
    world.settle();
    assert_eq!(world.step().replicas, 1);
    world.settle();
    assert_eq!(world.decide().activity, Activity::Steady);
}

#[test]
fn o22_an_operator_killed_at_any_point_of_a_scale_goes_on_from_what_it_sees() {
    // Every state below was left by a pass that never ran its successor.
    let mut world = World::settled(3);
    world.desired = 1;
    world.record = world.record.map(|r| r.rebalanced(entries(&world.names, 1)).unwrap());
    assert_eq!(world.decide().publish, None, "recorded and not pushed: no second version");
    world.settle();
    assert_eq!(world.decide().replicas, 1, "drained, and pods not yet taken");
    world.pods = Some(1);
    world.settle();
    assert_eq!(world.decide().activity, Activity::Steady);
}

#[test]
fn o19_scale_in_waits_for_a_crash_looping_node_that_may_hold_writes() {
    let mut world = World::settled(3);
    world.members.insert(2, Member::default());
    world.desired = 2;
    let decision = world.step();
    assert_eq!((decision.replicas, decision.publish), (3, None));
    assert_eq!(decision.blocked, Some(Blocked::Unreachable(vec!["hlr-2".to_owned()])));
    world.desired = 3;
    assert_eq!(world.decide().activity, Activity::Starting, "called off: nothing has changed");
}

#[test]
fn a_scale_in_that_is_called_off_gives_the_slots_back() {
    let mut world = World::settled(3);
    world.desired = 2;
    world.step();
    world.members.insert(2, Member::default());
    world.desired = 3;
    let decision = world.step();
    assert_eq!(decision.replicas, 3);
    assert_eq!(decision.publish.unwrap().epoch, Epoch(3));
}

#[test]
fn o21_a_second_change_waits_until_the_first_has_settled() {
    let mut world = World::settled(1);
    world.desired = 2;
    world.step();
    world.members.insert(1, Member { view: Some(NodeView::default()), ..Member::default() });
    assert!(world.step().publish.is_some());
    world.desired = 1;
    let decision = world.step();
    assert_eq!((decision.publish, decision.replicas), (None, 2), "slots are still moving");
    world.settle();
    assert_eq!(world.step().publish.unwrap().epoch, Epoch(3));
}

#[test]
fn o58_scaling_beyond_the_hosts_uses_those_that_fit() {
    let mut world = World::settled(1);
    world.desired = 4;
    world.step();
    for ordinal in 1..3 {
        world
            .members
            .insert(ordinal, Member { view: Some(NodeView::default()), ..Member::default() });
    }
    world.members.insert(3, Member { unschedulable: true, ..Member::default() });
    assert_eq!(world.step().publish.unwrap().nodes.len(), 3);
    world.settle();
    world.members.insert(3, Member { unschedulable: true, ..Member::default() });
    assert_eq!(world.decide().publish, None, "no new version while nothing new answers");
    world.desired = 3;
    assert_eq!(world.step().replicas, 3);
}

#[test]
fn o15_to_zero_writes_everything_and_back_needs_nobody() {
    let mut world = World::settled(2);
    world.desired = 0;
    let decision = world.step();
    assert_eq!((decision.replicas, decision.drain), (2, vec![(0, true), (1, true)]));
    world.view(0).writes_stopped = true;
    world.view(1).writes_stopped = true;
    world.view(1).backlog.transactions = 1;
    assert_eq!(world.step().replicas, 2);
    world.view(1).backlog.transactions = 0;
    assert_eq!(world.step().replicas, 0);
    world.members.clear();
    assert_eq!(world.step().activity, Activity::Stopped);
    world.desired = 2;
    let decision = world.step();
    assert_eq!((decision.replicas, decision.publish), (2, None));
}

#[test]
fn a_stop_that_is_called_off_takes_writes_again() {
    let mut world = World::settled(1);
    world.desired = 0;
    world.step();
    world.view(0).writes_stopped = true;
    world.view(0).backlog.transactions = 5;
    world.step();
    world.desired = 1;
    let decision = world.step();
    assert_eq!(decision.drain, [(0, false)]);
    world.view(0).writes_stopped = false;
    assert!(!world.step().stopping);
    world.view(0).writes_stopped = true;
    assert!(world.decide().drain.is_empty(), "a stop by somebody else is left alone");
}

#[test]
fn a_lost_record_is_rebuilt_above_what_nodes_hold_and_never_from_nothing() {
    let mut world = World::settled(2);
    let held = world.record.take().unwrap();
    let views = std::mem::take(&mut world.members);
    let decision = world.decide();
    assert_eq!((decision.publish, decision.blocked), (None, Some(Blocked::RecordLost)));
    assert_eq!(decision.replicas, 2);
    world.members = views;
    world.held = Some(at(&held, Epoch(9)));
    let published = world.decide().publish.unwrap();
    assert_eq!(published.epoch, Epoch(10 + UNSEEN_VERSIONS_MAX));
    assert_eq!(published.slots_of("hlr-0"), held.slots_of("hlr-0"));
}

#[test]
fn a_record_lost_before_any_node_had_a_volume_is_simply_made_again() {
    let mut world = World::settled(2);
    world.record = None;
    for member in world.members.values_mut() {
        *member = Member { never_ran: true, ..Member::default() };
    }
    assert_eq!(world.decide().publish.unwrap().epoch, Epoch(2 + UNSEEN_VERSIONS_MAX));
}

#[test]
fn a_record_that_was_set_back_goes_above_what_nodes_hold() {
    let mut world = World::settled(2);
    world.held = world.record.as_ref().map(|t| at(t, Epoch(5)));
    assert_eq!(world.step().publish.unwrap().epoch, Epoch(6 + UNSEEN_VERSIONS_MAX));
}

#[test]
fn r22_a_rebuilt_record_is_above_versions_that_only_a_silent_node_may_hold() {
    let mut world = World::settled(2);
    let held = world.record.take().unwrap();
    world.version_seen = 5;
    world.held = Some(at(&held, Epoch(5)));
    // version 6 was given out to it, and the operator died before it told anybody
    world.members.remove(&1);
    let rebuilt = world.decide().publish.unwrap();
    assert!(rebuilt.epoch > Epoch(6), "{:?}", rebuilt.epoch);
    world.record = Some(at(&held, Epoch(3)));
    let republished = world.decide().publish.unwrap();
    assert!(republished.epoch > Epoch(6), "{:?}", republished.epoch);
}
