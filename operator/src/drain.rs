//! Deletion: refuse writes everywhere, wait until nothing waits for the backend, then let go.
//!
//! Pure, like `topology`: recomputed from what is observed in each pass.

use crate::topology::Member;
use cachetier_api::TimeSpan;
use cachetier_api::names::GroupNames;
use cachetier_api::v1alpha1::DeletionPolicy;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drain {
    /// The finalizer can go.
    pub done: bool,
    /// Nothing is given up: every journal is known to hold nothing that waits.
    pub clean: bool,
    /// Ordinals whose writes are to be stopped.
    pub stop_writes: Vec<u32>,
    pub transactions: u64,
    pub bytes: u64,
    /// Pods that do not answer and may hold writes.
    pub silent: Vec<String>,
    /// Pods whose node has not finished its start and may hold writes.
    pub starting: Vec<String>,
    /// Deletion was asked for longer ago than the deadline.
    pub deadline_passed: bool,
}

pub fn decide(
    names: &GroupNames,
    policy: DeletionPolicy,
    members: &BTreeMap<u32, Member>,
    deadline_passed: bool,
) -> Drain {
    let mut drain = Drain { deadline_passed, ..Drain::default() };
    let mut waiting = false;
    for (ordinal, member) in members {
        match &member.view {
            Some(view) => {
                if !view.writes_stopped {
                    drain.stop_writes.push(*ordinal);
                }
                waiting |= !member.is_drained();
                if !view.has_started() && !view.backlog_empty() {
                    drain.starting.push(names.pod(*ordinal));
                }
                drain.transactions += view.backlog.transactions;
                drain.bytes += view.backlog.bytes;
            }
            None if member.never_ran => {}
            None => drain.silent.push(names.pod(*ordinal)),
        }
    }
    drain.clean = !waiting && drain.silent.is_empty();
    drain.done = drain.clean || policy == DeletionPolicy::Discard;
    drain
}

impl Drain {
    /// What is waited for, for how long, and how to override, for the status.
    pub fn message(&self, group: &str, deadline: &TimeSpan) -> String {
        let mut parts = Vec::new();
        if self.transactions > 0 {
            parts.push(format!(
                "{} transactions ({} bytes) wait to be written to the backend",
                self.transactions, self.bytes
            ));
        } else if self.silent.is_empty() && self.starting.is_empty() {
            parts.push("nodes are told to refuse writes".to_owned());
        }
        if !self.silent.is_empty() {
            parts.push(format!("{} do not answer and may hold writes", self.silent.join(", ")));
        }
        if !self.starting.is_empty() {
            parts.push(format!(
                "{} have not finished their start (their log says why) and may hold writes",
                self.starting.join(", ")
            ));
        }
        if !self.deadline_passed && !self.clean {
            parts.push(format!(
                "nothing is given up; after {deadline} (spec.deletion.deadline) this asks what to do"
            ));
        }
        if self.deadline_passed {
            parts.push(format!(
                "the deadline has passed. Bring backend and nodes back, or give these writes up: \
                 kubectl patch cg {group} --type merge -p \
                 '{{\"spec\":{{\"deletion\":{{\"policy\":\"Discard\"}}}}}}'"
            ));
        }
        parts.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::{BacklogView, NodeView};

    fn member(transactions: u64, writes_stopped: bool) -> Member {
        let backlog = BacklogView { transactions, bytes: transactions * 100, ..Default::default() };
        Member {
            view: Some(NodeView {
                phase: "Serving".to_owned(),
                backlog,
                writes_stopped,
                ..NodeView::default()
            }),
            ..Member::default()
        }
    }

    fn run(policy: DeletionPolicy, members: Vec<Member>) -> Drain {
        let members = (0..).zip(members).collect();
        decide(&GroupNames::new("telecom", "hlr"), policy, &members, false)
    }

    #[test]
    fn a_group_goes_only_when_every_node_refuses_writes_and_has_none_left() {
        let drain = run(DeletionPolicy::Drain, vec![member(0, false), member(0, true)]);
        assert!(!drain.done);
        assert_eq!(drain.stop_writes, [0]);
        let drain = run(DeletionPolicy::Drain, vec![member(3, true), member(0, true)]);
        assert!(!drain.done && drain.stop_writes.is_empty());
        assert!(drain.message("hlr", &TimeSpan::parse("10m").unwrap()).contains("3 transactions"));
        assert!(run(DeletionPolicy::Drain, vec![member(0, true), member(0, true)]).done);
    }

    #[test]
    fn a_node_that_has_not_finished_its_start_holds_the_group_while_its_journal_holds_writes() {
        let starting = |transactions| {
            let mut starting = member(transactions, true);
            starting.view.as_mut().unwrap().phase = "Starting".to_owned();
            starting
        };
        // not counted yet: a node says that something waits before it has read its journal
        let drain = run(DeletionPolicy::Drain, vec![member(0, true), starting(1)]);
        assert!(!drain.done);
        assert!(
            drain
                .message("hlr", &TimeSpan::parse("10m").unwrap())
                .contains("hlr-1 have not finished their start")
        );
        let drain = run(DeletionPolicy::Drain, vec![member(0, true), starting(0)]);
        assert!(drain.done, "a group that never worked can go");
    }

    #[test]
    fn a_silent_node_holds_the_group_unless_it_never_ran_or_the_user_gives_up() {
        let silent = Member::default();
        assert!(!run(DeletionPolicy::Drain, vec![silent.clone()]).done);
        assert!(run(DeletionPolicy::Discard, vec![silent]).done);
        assert!(
            run(DeletionPolicy::Drain, vec![Member { never_ran: true, ..Member::default() }]).done
        );
        assert!(run(DeletionPolicy::Drain, Vec::new()).done);
    }
}
