//! What the status says for hand-made observations.

use super::super::apply::Applied;
use super::*;
use crate::build::topology_record::{Found, Record};
use crate::nodes::{NodeError, NodeView, ProblemView};
use crate::observed::{BackendSecret, ClaimView, PodView, Storage};
use crate::plan::plan;
use crate::topology::entries;
use cachetier_api::condition::reason;
use cachetier_api::names::GroupNames;
use cachetier_model::{Epoch, Topology};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A group of `count` nodes at rest.
pub(in crate::reconcile) fn resting(count: u32) -> Observed {
    let names = GroupNames::new("telecom", "hlr");
    let topology = Topology::initial("uid", Epoch(3), entries(&names, count)).unwrap();
    let group: CacheGroup = serde_json::from_value(json!({
        "apiVersion": "cachetier.dev/v1alpha1", "kind": "CacheGroup",
        "metadata": {"name": "hlr", "namespace": "telecom", "uid": "uid", "generation": 2},
        "spec": {
            "replicas": count,
            "backend": {"postgres": {"secretRef": {"name": "hlr-backend"}}},
            "tables": [{"name": "subscriber"}],
        },
    }))
    .unwrap();
    let stateful_set = serde_json::from_value(json!({
        "metadata": {"name": "hlr", "generation": 1},
        "spec": {"replicas": count, "selector": {}, "serviceName": "hlr-nodes", "template": {}},
        "status": {"replicas": count, "observedGeneration": 1, "updateRevision": "r1"},
    }))
    .unwrap();
    let pod = |ordinal: u32| PodView {
        name: names.pod(ordinal),
        uid: format!("pod-{ordinal}"),
        address: Some(format!("10.0.0.{ordinal}")),
        ready: true,
        revision: "r1".to_owned(),
        host: Some("node-1".to_owned()),
        running: true,
        ever_started: true,
        ..PodView::default()
    };
    let view = |ordinal: u32| {
        let slots = topology.slots_of(&names.pod(ordinal)).len() as u32;
        NodeView {
            group_uid: "uid".to_owned(),
            phase: "Serving".to_owned(),
            ready: true,
            topology_version: 3,
            slots_assigned: slots,
            slots_serving: slots,
            slots_covered: slots,
            backend_reachable: true,
            ..NodeView::default()
        }
    };
    Observed {
        group: Arc::new(group),
        uid: "uid".to_owned(),
        now: jiff::Timestamp::from_second(1_800_000_000).unwrap(),
        secret: BackendSecret::Found { keys: ["uri".to_owned()].into() },
        storage: Storage::Fine,
        stateful_set: Some(stateful_set),
        pods: (0..count).map(|n| (n, pod(n))).collect(),
        jobs: Vec::new(),
        certificates: BTreeMap::new(),
        answers: (0..count).map(|n| (n, Ok(view(n)))).collect(),
        held: None,
        claims: (0..count)
            .map(|n| {
                let claim = ClaimView {
                    name: format!("journal-hlr-{n}"),
                    bound: true,
                    incarnation: Some("uid".to_owned()),
                    drained: false,
                };
                (n, claim)
            })
            .collect(),
        hosts: [("node-1".to_owned(), true)].into(),
        record: Found::Read {
            record: Record { topology, served: true, stopping: false, owners_before: 0 },
            resource_version: "1".to_owned(),
        },
        names,
    }
}

fn status(observed: &Observed) -> CacheGroupStatus {
    let plan = plan(observed);
    compute(observed, &plan, &Applied::paused(observed))
}

fn edit(observed: &mut Observed, change: impl FnOnce(&mut CacheGroup)) {
    change(Arc::make_mut(&mut observed.group));
}

fn condition<'a>(status: &'a CacheGroupStatus, kind: &str) -> (&'a str, &'a str, &'a str) {
    let found = status.conditions.iter().find(|c| c.type_ == kind).unwrap();
    (&found.status, &found.reason, &found.message)
}

fn view(observed: &mut Observed, ordinal: u32) -> &mut NodeView {
    observed.answers.get_mut(&ordinal).unwrap().as_mut().unwrap()
}

#[test]
fn a_group_at_rest_is_ready_and_says_nothing_else() {
    let status = status(&resting(3));
    assert_eq!((status.phase, status.ready.as_str()), (Phase::Ready, "3/3"));
    assert_eq!((status.reason.as_str(), status.message.as_str()), ("", ""));
    assert_eq!(condition(&status, kind::READY).0, "True");
    assert_eq!(condition(&status, kind::DRAIN_SAFE).0, "True");
    assert_eq!(status.preload.unwrap().loaded, "100%");
    assert_eq!(status.medium.unwrap().in_use, "MemoryMode");
    assert_eq!(status.conditions.len(), kind::ALL.len());
}

#[test]
fn o02_the_same_facts_later_give_the_same_status() {
    let mut observed = resting(2);
    let first = status(&observed);
    edit(&mut observed, |group| group.status = Some(first.clone()));
    observed.now = jiff::Timestamp::from_second(1_800_009_999).unwrap();
    assert_eq!(status(&observed), first);
}

#[test]
fn o03_a_missing_secret_is_named_the_same_way_each_time() {
    let mut observed = resting(1);
    observed.secret = BackendSecret::Missing;
    observed.stateful_set = None;
    observed.pods.clear();
    observed.answers.clear();
    let first = status(&observed);
    let (value, why, message) = condition(&first, kind::CONFIG_VALID);
    assert_eq!((value, why), ("False", reason::SECRET_NOT_FOUND));
    assert!(message.contains("hlr-backend") && message.contains("telecom"));
    assert_eq!(first.reason, reason::SECRET_NOT_FOUND);
    assert!(!plan(&observed).with_pods, "pods that cannot start are not made");
    edit(&mut observed, |group| group.status = Some(first.clone()));
    assert_eq!(status(&observed), first);
}

#[test]
fn a_secret_without_the_needed_keys_says_which_are_missing() {
    let mut observed = resting(1);
    let keys = ["host", "username"].map(str::to_owned);
    observed.secret = BackendSecret::Found { keys: keys.into() };
    let status = status(&observed);
    let (_, why, message) = condition(&status, kind::CONFIG_VALID);
    assert_eq!(why, reason::SECRET_INCOMPLETE);
    assert!(message.contains("dbname") && message.contains("password"), "{message}");
}

#[test]
fn no_labelled_host_and_no_volume_and_no_class_each_say_what_to_do() {
    let mut observed = resting(1);
    observed.answers.clear();
    let pod = observed.pods.get_mut(&0).unwrap();
    *pod = PodView { name: "hlr-0".to_owned(), ..PodView::default() };
    pod.unschedulable = Some(
        "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.".to_owned(),
    );
    edit(&mut observed, |group| {
        group.spec.placement.node_selector.insert("example.com/pmem".into(), "yes".into());
    });
    let first = status(&observed);
    assert_eq!(first.reason, reason::NO_MATCHING_NODE);
    assert!(first.message.contains("example.com/pmem=yes"), "{}", first.message);
    assert!(first.message.contains("kubectl label node"), "{}", first.message);
    assert_eq!(condition(&first, kind::PROGRESSING).0, "False");
    observed.pods.get_mut(&0).unwrap().unschedulable =
        Some("1 node(s) didn't find available persistent volumes to bind.".to_owned());
    assert_eq!(status(&observed).reason, reason::NO_VOLUME);
    observed.storage = Storage::ClassMissing("no-such-class".to_owned());
    let third = status(&observed);
    assert_eq!(third.reason, reason::STORAGE_CLASS_NOT_FOUND);
    assert!(third.message.contains("no-such-class"));
}

#[test]
fn what_a_node_reports_turns_the_condition_it_is_about() {
    for (why, kind) in
        [("AuthenticationFailed", kind::BACKEND_REACHABLE), ("TableMissing", kind::CONFIG_VALID)]
    {
        let mut observed = resting(1);
        let problem = ProblemView {
            reason: why.to_owned(),
            message: "what to do".to_owned(),
            degraded: true,
        };
        view(&mut observed, 0).problems.push(problem);
        let status = status(&observed);
        assert_eq!(condition(&status, kind), ("False", why, "hlr-0: what to do"));
        assert_eq!(status.reason, why);
    }
}

#[test]
fn a_backend_that_is_away_leaves_the_group_available() {
    let mut observed = resting(1);
    view(&mut observed, 0).backend_reachable = false;
    let status = status(&observed);
    assert_eq!(condition(&status, kind::BACKEND_REACHABLE).0, "False");
    assert_eq!(condition(&status, kind::AVAILABLE).0, "True");
}

#[test]
fn o66_ready_is_not_claimed_while_children_are_missing() {
    let mut observed = resting(2);
    observed.stateful_set = None;
    assert_eq!(condition(&status(&observed), kind::READY).0, "False");
    let mut observed = resting(2);
    observed.pods.remove(&1);
    observed.answers.remove(&1);
    let status = status(&observed);
    assert_eq!((condition(&status, kind::READY).0, status.ready.as_str()), ("False", "1/2"));
}

#[test]
fn o52_ready_is_not_claimed_for_a_template_that_pods_do_not_run_yet() {
    let mut observed = resting(2);
    observed.stateful_set.as_mut().unwrap().metadata.generation = Some(2);
    assert_eq!(condition(&status(&observed), kind::READY).0, "False");
    let mut observed = resting(2);
    let stateful_set = observed.stateful_set.as_mut().unwrap();
    stateful_set.status.as_mut().unwrap().update_revision = Some("r2".to_owned());
    let status = status(&observed);
    assert_eq!(condition(&status, kind::READY).1, reason::ROLLING);
    assert_eq!(condition(&status, kind::AVAILABLE).0, "True");
    assert_eq!(plan(&observed).rollout.replace, Some(1));
}

#[test]
fn a_node_that_does_not_answer_is_named_and_makes_removal_unsafe() {
    let mut observed = resting(2);
    observed.answers.insert(1, Err(NodeError("connection refused".to_owned())));
    let status = status(&observed);
    assert_eq!(condition(&status, kind::DEGRADED).1, reason::NODE_UNREACHABLE);
    assert_eq!(condition(&status, kind::DRAIN_SAFE).1, reason::NODE_UNREACHABLE);
    assert_eq!(status.nodes[1].phase, "Unreachable");
}

#[test]
fn auto_says_when_it_fell_back_to_ordinary_memory() {
    let mut observed = resting(1);
    observed.hosts.insert("node-1".to_owned(), false);
    let medium = status(&observed).medium.unwrap();
    assert_eq!((medium.requested.as_str(), medium.in_use.as_str()), ("Auto", "DRAM"));
    assert!(medium.message.contains(reason::FELL_BACK));
}

#[test]
fn o37_a_deletion_that_waits_says_for_what_and_how_to_override() {
    let mut observed = resting(1);
    let view = view(&mut observed, 0);
    view.writes_stopped = true;
    view.backlog.transactions = 42;
    edit(&mut observed, |group| {
        let asked = jiff::Timestamp::from_second(1_800_000_000 - 3_600).unwrap();
        group.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(asked));
    });
    let status = status(&observed);
    assert_eq!(status.phase, Phase::Deleting);
    let (_, why, message) = condition(&status, kind::DRAIN_SAFE);
    assert_eq!(why, reason::DEADLINE_PASSED);
    assert!(message.contains("42 transactions") && message.contains("Discard"), "{message}");
}

#[test]
fn o38_a_group_that_never_ran_is_let_go_at_once() {
    let mut observed = resting(1);
    observed.answers.clear();
    observed.claims.clear();
    observed.pods.get_mut(&0).unwrap().ever_started = false;
    edit(&mut observed, |group| {
        group.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(observed_now()));
    });
    assert!(plan(&observed).drain.unwrap().done);
}

#[test]
fn o38_a_silent_pod_may_hold_writes_as_soon_as_anybody_was_given_a_topology() {
    let mut observed = resting(2);
    edit(&mut observed, |group| {
        group.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(observed_now()));
    });
    let Found::Read { record, .. } = &mut observed.record else { panic!("no record") };
    record.served = false;
    view(&mut observed, 0).writes_stopped = true;
    // pod 1 was made anew and finds no place; its volume is there
    observed.answers.remove(&1);
    observed.pods.get_mut(&1).unwrap().ever_started = false;
    let drain = plan(&observed).drain.unwrap();
    assert_eq!((drain.done, drain.silent), (false, vec!["hlr-1".to_owned()]));
    // nobody answers, and the record alone must know: it did before the first topology was pushed
    observed.group = resting(2).group;
    let written = plan(&observed).record.unwrap();
    assert!(written.served, "in the pass that pushes");
    // a volume that was lost had something on it
    let lost = json!({"metadata": {"name": "journal-hlr-1"}, "status": {"phase": "Lost"}});
    assert!(ClaimView::read(&serde_json::from_value(lost).unwrap()).bound);
}

fn observed_now() -> jiff::Timestamp {
    jiff::Timestamp::from_second(1_800_000_000).unwrap()
}

#[test]
fn volumes_of_an_earlier_group_are_used_only_when_nothing_on_them_waits() {
    let mut observed = resting(1);
    observed.stateful_set = None;
    observed.pods.clear();
    observed.answers.clear();
    observed.claims.get_mut(&0).unwrap().incarnation = Some("earlier".to_owned());
    let blocked = plan(&observed);
    assert!(!blocked.with_pods && blocked.adopt.is_empty());
    let said = status(&observed);
    assert_eq!(said.reason, reason::VOLUME_OF_EARLIER_GROUP);
    assert!(said.message.contains("kubectl annotate pvc journal-hlr-0"), "{}", said.message);
    observed.claims.get_mut(&0).unwrap().drained = true;
    let adopting = plan(&observed);
    assert_eq!(adopting.adopt, ["journal-hlr-0"]);
    assert!(!adopting.with_pods, "no pod before the claim is ours");
}

#[test]
fn a_container_that_just_started_is_not_called_unreachable() {
    let mut observed = resting(1);
    observed.answers.insert(0, Err(NodeError("connection refused".to_owned())));
    let since = jiff::Timestamp::from_second(1_800_000_000 - 3).unwrap();
    observed.pods.get_mut(&0).unwrap().running_since = Some(since);
    assert_eq!(condition(&status(&observed), kind::DEGRADED).0, "False");
    observed.now = jiff::Timestamp::from_second(1_800_000_000 + 30).unwrap();
    assert_eq!(condition(&status(&observed), kind::DEGRADED).1, reason::NODE_UNREACHABLE);
}

#[test]
fn o54_a_journal_whose_host_is_gone_is_said_with_the_explicit_way_out() {
    let mut observed = resting(2);
    observed.answers.remove(&1);
    let pod = observed.pods.get_mut(&1).unwrap();
    *pod = PodView { name: "hlr-1".to_owned(), revision: "r1".to_owned(), ..PodView::default() };
    pod.unschedulable =
        Some("0/2 nodes are available: 2 node(s) had volume node affinity conflict.".to_owned());
    let status = status(&observed);
    assert_eq!(status.reason, reason::JOURNAL_HOST_AWAY);
    assert!(status.message.contains("kubectl delete pvc/journal-hlr-1 pod/hlr-1"));
    let plan = plan(&observed);
    assert_eq!((plan.topology.publish, plan.rollout.replace), (None, None), "nothing by itself");
}

#[test]
fn o86_addresses_and_certificates_suit_ipv6_and_other_domains() {
    use crate::certificates::node_hosts;
    use crate::reconcile::dereference::addresses;
    let mut observed = resting(1);
    observed.pods.get_mut(&0).unwrap().address = Some("fd00::17".to_owned());
    let identity = Arc::new(crate::nodes::Identity {
        certificate: String::new(),
        key: String::new(),
        ca: String::new(),
    });
    let nodes = addresses(&observed.names, "uid", &observed.pods, &identity);
    assert_eq!(nodes[&0].address, "[fd00::17]:7070");
    // the name that is verified has no cluster domain, so any domain is right
    assert_eq!(nodes[&0].server_name, "hlr-0.hlr-nodes.telecom.svc");
    let hosts = node_hosts(&observed.names, "example.internal");
    assert!(hosts.contains(&"*.hlr-nodes.telecom.svc".to_owned()));
    assert!(hosts.contains(&"hlr.telecom.svc.example.internal".to_owned()));
}

#[test]
fn times_are_rounded_to_steps() {
    for (seconds, text) in
        [(0.2, "1s"), (3.0, "5s"), (31.0, "1m"), (61.0, "2m"), (4_000.0, "2h"), (9_000.0, "3h")]
    {
        assert_eq!(figures::span(seconds), text);
    }
}
