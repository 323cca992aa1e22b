//! The conditions, each from facts alone.

use super::super::apply::Applied;
use super::super::validate::{About, Finding};
use crate::nodes::NodeView;
use crate::observed::Observed;
use crate::plan::Plan;
use crate::preload::State;
use crate::topology::{Activity, Blocked};
use cachetier_api::condition::{kind, reason};
use cachetier_api::v1alpha1::PreloadMode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Oldest write above which the backlog is called unhealthy, seconds.
const BACKLOG_AGE_SECONDS_HEALTHY: f64 = 30.0;

pub struct Facts<'a> {
    pub observed: &'a Observed,
    pub plan: &'a Plan,
    pub applied: &'a Applied,
    pub ready_pods: usize,
    pub views: Vec<&'a NodeView>,
}

/// Status, reason, message.
struct Verdict {
    status: &'static str,
    reason: String,
    message: String,
}

fn yes(reason: &str, message: impl Into<String>) -> Verdict {
    Verdict { status: "True", reason: reason.to_owned(), message: message.into() }
}

fn no(reason: &str, message: impl Into<String>) -> Verdict {
    Verdict { status: "False", reason: reason.to_owned(), message: message.into() }
}

fn unknown(message: &str) -> Verdict {
    Verdict { status: "Unknown", reason: reason::UNKNOWN.to_owned(), message: message.to_owned() }
}

fn because(status: &'static str, finding: &Finding) -> Verdict {
    Verdict { status, reason: finding.reason.clone(), message: finding.message.clone() }
}

pub fn all(facts: &Facts<'_>, old: &[Condition]) -> Vec<Condition> {
    let verdicts = [
        (kind::READY, facts.ready()),
        (kind::AVAILABLE, facts.available()),
        (kind::PROGRESSING, facts.progressing()),
        (kind::DEGRADED, facts.degraded_condition()),
        (kind::CONFIG_VALID, facts.config_valid()),
        (kind::BACKEND_REACHABLE, facts.backend_reachable()),
        (kind::BACKLOG_HEALTHY, facts.backlog_healthy()),
        (kind::PRELOADED, facts.preloaded()),
        (kind::DRAIN_SAFE, facts.drain_safe()),
        (kind::PAUSED, facts.paused()),
    ];
    verdicts.into_iter().map(|(type_, verdict)| facts.condition(type_, verdict, old)).collect()
}

impl<'a> Facts<'a> {
    pub fn gather(observed: &'a Observed, plan: &'a Plan, applied: &'a Applied) -> Self {
        Self {
            observed,
            plan,
            applied,
            ready_pods: observed.pods.values().filter(|pod| pod.ready && !pod.deleting).count(),
            views: observed.answers.values().filter_map(|answer| answer.as_ref().ok()).collect(),
        }
    }

    fn condition(&self, type_: &str, verdict: Verdict, old: &[Condition]) -> Condition {
        let before = old.iter().find(|c| c.type_ == type_ && c.status == verdict.status);
        let now = jiff::Timestamp::from_second(self.observed.now.as_second());
        let now = Time(now.unwrap_or(self.observed.now));
        Condition {
            type_: type_.to_owned(),
            status: verdict.status.to_owned(),
            reason: verdict.reason,
            message: verdict.message,
            observed_generation: self.observed.group.metadata.generation,
            last_transition_time: before.map_or(now, |c| c.last_transition_time.clone()),
        }
    }

    fn finding(&self, about: About) -> Option<&Finding> {
        self.plan.findings.iter().find(|finding| finding.about == about)
    }

    /// The first thing that keeps it from serving as asked.
    pub fn degraded(&self) -> Option<&Finding> {
        self.plan.findings.iter().find(|finding| finding.degraded)
    }

    pub fn served_before(&self) -> bool {
        self.observed.record.record().is_some_and(|record| record.served)
    }

    pub fn loading(&self) -> bool {
        matches!(self.plan.preload.state, State::Loading { .. } | State::Failed { .. })
    }

    fn stopped(&self) -> bool {
        self.plan.topology.activity == Activity::Stopped && self.observed.pods.is_empty()
    }

    fn ready(&self) -> Verdict {
        if self.observed.deleting() {
            return no(reason::DELETING, self.drain_message());
        }
        if let Some((why, message)) = &self.applied.refused {
            return no(why, message.clone());
        }
        if self.stopped() {
            return yes(reason::SCALED_TO_ZERO, "no nodes are asked for, and nothing waits");
        }
        if let Some(finding) = self.degraded() {
            return because("False", finding);
        }
        if let Some((why, message)) = self.activity() {
            return no(why, message);
        }
        let desired = usize::try_from(self.observed.desired()).unwrap_or(usize::MAX);
        if self.ready_pods < desired || self.template_is_new() {
            if let Some((why, message)) = self.load_in_the_way() {
                return no(why, message);
            }
            let message = format!("{} of {desired} nodes are ready", self.ready_pods);
            return no(reason::STARTING, message);
        }
        yes(reason::ALL_SERVING, format!("{} all slots", serving(desired)))
    }

    /// The StatefulSet's controller has not seen the template yet.
    fn template_is_new(&self) -> bool {
        let Some(stateful_set) = &self.applied.stateful_set else { return true };
        let seen = stateful_set.status.as_ref().and_then(|status| status.observed_generation);
        seen.unwrap_or(0) < stateful_set.metadata.generation.unwrap_or(0)
    }

    /// What is under way, if anything.
    fn activity(&self) -> Option<(&'static str, String)> {
        let topology = &self.plan.topology;
        if let Some(Blocked::RecordLost) = topology.blocked {
            return Some((
                reason::TOPOLOGY_LOST,
                "the record of the topology is gone; it is rebuilt when the nodes answer"
                    .to_owned(),
            ));
        }
        let waits = match &topology.blocked {
            Some(Blocked::Unreachable(pods)) => format!("; waiting for {}", pods.join(", ")),
            _ => String::new(),
        };
        let slots = self.slots();
        let desired = self.observed.desired();
        match topology.activity {
            Activity::Steady | Activity::Stopped => {}
            Activity::Starting => {
                return Some((reason::STARTING, format!("nodes are starting{waits}")));
            }
            Activity::ScalingOut => {
                return Some((
                    reason::SCALING_OUT,
                    format!("new nodes start, then get their share of {desired}{waits}"),
                ));
            }
            Activity::ScalingIn => {
                return Some((
                    reason::SCALING_IN,
                    format!("slots move to the first {desired} nodes: {slots}{waits}"),
                ));
            }
            Activity::MovingSlots if !self.served_before() => {
                return Some((reason::STARTING, format!("nodes take their slots: {slots}{waits}")));
            }
            Activity::MovingSlots => {
                return Some((reason::MOVING_SLOTS, format!("slots change hands: {slots}{waits}")));
            }
            Activity::Stopping => {
                return Some((reason::DRAINING, format!("{}{waits}", self.pending())));
            }
        }
        (self.plan.rollout.outdated > 0).then(|| {
            let outdated = self.plan.rollout.outdated;
            (reason::ROLLING, format!("{outdated} pods still run an older template"))
        })
    }

    fn slots(&self) -> String {
        let serving: u32 = self.views.iter().map(|view| view.slots_serving).sum();
        let leaving: u32 = self.views.iter().map(|view| view.slots_leaving).sum();
        format!("{serving} of 4096 served, {leaving} still to be let go")
    }

    fn pending(&self) -> String {
        let transactions: u64 = self.views.iter().map(|view| view.backlog.transactions).sum();
        let bytes: u64 = self.views.iter().map(|view| view.backlog.bytes).sum();
        format!("{transactions} transactions ({bytes} bytes) wait to be written to the backend")
    }

    fn available(&self) -> Verdict {
        if self.stopped() {
            return no(reason::SCALED_TO_ZERO, "no nodes are asked for");
        }
        if self.ready_pods > 0 {
            return yes(reason::SERVING, serving(self.ready_pods));
        }
        match self.degraded() {
            Some(finding) => because("False", finding),
            None => no(reason::STARTING, "no node serves yet"),
        }
    }

    fn progressing(&self) -> Verdict {
        if self.observed.deleting() {
            return yes(reason::DELETING, self.drain_message());
        }
        let stuck = self.finding(About::Config).or_else(|| self.finding(About::Pods));
        if let Some(finding) = stuck.filter(|finding| finding.degraded) {
            return because("False", finding);
        }
        if let Some((why, message)) = self.activity() {
            return yes(why, message);
        }
        if self.loading() {
            return yes(reason::LOADING, "the preload is running");
        }
        no(reason::AS_EXPECTED, "nothing is under way")
    }

    fn degraded_condition(&self) -> Verdict {
        if let Some((why, message)) = &self.applied.refused {
            return yes(why, message.clone());
        }
        match self.degraded() {
            Some(finding) => because("True", finding),
            None => no(reason::AS_EXPECTED, "nothing is wrong"),
        }
    }

    fn config_valid(&self) -> Verdict {
        match self.finding(About::Config) {
            Some(finding) => because("False", finding),
            None => yes(reason::ACCEPTED, "the spec and what it refers to can be used"),
        }
    }

    fn backend_reachable(&self) -> Verdict {
        if let Some(finding) = self.finding(About::Backend) {
            return because("False", finding);
        }
        if self.views.iter().any(|view| view.backend_reachable) {
            return yes(reason::REACHABLE, "the nodes reach the backend");
        }
        unknown("no node has said yet whether it reaches the backend")
    }

    fn backlog_healthy(&self) -> Verdict {
        let oldest = self.views.iter().map(|v| v.backlog.oldest_seconds).fold(0.0, f64::max);
        if oldest > BACKLOG_AGE_SECONDS_HEALTHY {
            let message = format!(
                "the oldest write waits for longer than {BACKLOG_AGE_SECONDS_HEALTHY} seconds; is the \
                 backend slow or away, or writeThrough.paused set?"
            );
            return no(reason::BACKLOG_GROWING, message);
        }
        yes(reason::UP_TO_DATE, "the queue to the backend is short")
    }

    fn preloaded(&self) -> Verdict {
        match &self.plan.preload.state {
            State::NotRequested => yes(reason::NOT_REQUESTED, "spec.preload.mode is None"),
            State::Complete => yes(reason::LOADED, "every served slot is loaded"),
            State::Waiting if self.stopped() => {
                no(reason::SCALED_TO_ZERO, "no nodes are asked for")
            }
            State::Waiting => no(reason::STARTING, "nodes do not serve all their slots yet"),
            State::Loading { job } => no(reason::LOADING, format!("Job {job} is loading")),
            State::Failed { job, message } => no(reason::LOAD_FAILED, failed_load(job, message)),
            State::StoppedByMemory => no("MemoryFull", memory_full()),
        }
    }

    /// The load keeps nodes from being ready only with `BeforeReady`.
    fn load_in_the_way(&self) -> Option<(&'static str, String)> {
        if self.observed.group.spec.preload.mode != PreloadMode::BeforeReady {
            return None;
        }
        match &self.plan.preload.state {
            State::Loading { job } => Some((reason::LOADING, format!("Job {job} is loading"))),
            State::Failed { job, message } => {
                Some((reason::LOAD_FAILED, failed_load(job, message)))
            }
            State::StoppedByMemory => Some(("MemoryFull", memory_full())),
            _ => None,
        }
    }

    fn drain_message(&self) -> String {
        let name = self.observed.names.stateful_set();
        let deadline = &self.observed.group.spec.deletion.deadline;
        let Some(drain) = &self.plan.drain else { return String::new() };
        let message = drain.message(&name, deadline);
        match self.finding(About::Backend).filter(|_| drain.transactions > 0) {
            Some(cause) => format!("{message}; the backend: {}", cause.message),
            None => message,
        }
    }

    fn drain_safe(&self) -> Verdict {
        if let Some(drain) = &self.plan.drain {
            let why =
                if drain.deadline_passed { reason::DEADLINE_PASSED } else { reason::DRAINING };
            return no(why, self.drain_message());
        }
        let silent: Vec<&str> = self
            .observed
            .members()
            .iter()
            .filter(|(_, member)| member.view.is_none() && !member.never_ran)
            .filter_map(|(ordinal, _)| self.observed.pods.get(ordinal))
            .map(|pod| pod.name.as_str())
            .collect();
        if !silent.is_empty() {
            let message = format!("{} do not answer and may hold writes", silent.join(", "));
            return no(reason::NODE_UNREACHABLE, message);
        }
        if self.views.iter().any(|view| !view.backlog_empty()) {
            return no(
                reason::BACKLOG_PENDING,
                "writes wait for the backend; `.status.backlog` counts them",
            );
        }
        yes(reason::DRAINED, "nothing waits to be written to the backend")
    }

    fn paused(&self) -> Verdict {
        if self.observed.group.spec.paused {
            return yes(reason::PAUSED_BY_SPEC, "spec.paused is set: the operator changes nothing");
        }
        no(reason::NOT_PAUSED, "the operator acts")
    }
}

fn failed_load(job: &str, message: &str) -> String {
    format!("Job {job} failed: {message}. Look at `kubectl logs job/{job}`; it is started again")
}

fn serving(nodes: usize) -> String {
    match nodes {
        1 => "1 node serves".to_owned(),
        _ => format!("{nodes} nodes serve"),
    }
}

fn memory_full() -> String {
    "the load stopped because spec.memory.capacity is used up; raise it or add nodes, or load less by \
     spec.preload.where"
        .to_owned()
}
