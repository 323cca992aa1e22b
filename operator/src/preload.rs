//! Decides about preload Jobs: one per load, named by a digest of what it depends on.
//!
//! Pure. What is loaded is known by the nodes (slots covered of slots serving); a Job is only the
//! means. A node that restarts or gets slots has uncovered ones, which changes the digest and makes
//! the next Job.

use crate::nodes::NodeView;
use cachetier_api::v1alpha1::{CacheGroupSpec, PreloadMode};
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// Seconds between the end of a Job that left slots uncovered and the next attempt.
pub const RETRY_SECONDS: i64 = 30;
const DIGEST_LENGTH: usize = 10;

/// A preload Job that exists.
#[derive(Clone, Debug, PartialEq)]
pub struct JobView {
    pub name: String,
    pub outcome: JobOutcome,
    /// Seconds since its end; 0 while it runs.
    pub ended_seconds_ago: i64,
    pub deleting: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobOutcome {
    Running,
    Complete,
    Failed(String),
}

#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// `preload.mode: None`.
    NotRequested,
    /// Nodes do not serve all their slots yet.
    Waiting,
    Loading {
        job: String,
    },
    Complete,
    Failed {
        job: String,
        message: String,
    },
    /// Nodes had no room for more; they go on serving.
    StoppedByMemory,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub state: State,
    /// Name of a Job to create.
    pub create: Option<String>,
    pub delete: Vec<String>,
}

/// `nodes`: the views of all owners in order, or `None` when some do not answer or are moving slots.
pub fn decide(
    spec: &CacheGroupSpec,
    job_name: impl Fn(&str) -> String,
    version: u64,
    nodes: Option<&[&NodeView]>,
    jobs: &[JobView],
) -> Decision {
    let mut decision = Decision { state: State::NotRequested, create: None, delete: Vec::new() };
    if spec.preload.mode == PreloadMode::None {
        decision.delete = active(jobs, "");
        return decision;
    }
    let Some(nodes) = nodes.filter(|nodes| !nodes.is_empty()) else {
        decision.state = match jobs.iter().find(|job| job.outcome == JobOutcome::Running) {
            Some(job) => State::Loading { job: job.name.clone() },
            None => State::Waiting,
        };
        return decision;
    };
    if nodes.iter().all(|node| node.slots_covered >= node.slots_serving) {
        decision.state = State::Complete;
        return decision;
    }
    let name = job_name(&digest(spec, version, nodes));
    decision.delete = active(jobs, &name);
    match jobs.iter().find(|job| job.name == name) {
        Some(job) => existing(job, nodes, &mut decision),
        None => {
            decision.state = State::Loading { job: name.clone() };
            decision.create = Some(name);
        }
    }
    decision
}

fn existing(job: &JobView, nodes: &[&NodeView], decision: &mut Decision) {
    let name = job.name.clone();
    let full = nodes.iter().any(|n| n.load.as_ref().is_some_and(|load| load.stopped_by_memory));
    let ended_long_ago = job.ended_seconds_ago >= RETRY_SECONDS && !job.deleting;
    decision.state = match &job.outcome {
        JobOutcome::Running => State::Loading { job: name.clone() },
        _ if full => State::StoppedByMemory,
        JobOutcome::Complete => State::Loading { job: name.clone() },
        JobOutcome::Failed(message) => {
            State::Failed { job: name.clone(), message: message.clone() }
        }
    };
    if job.outcome != JobOutcome::Running && !full && ended_long_ago {
        // gone now, created again by a later pass
        decision.delete.push(name);
    }
}

/// Jobs of loads that nobody needs any more.
fn active(jobs: &[JobView], except: &str) -> Vec<String> {
    jobs.iter().filter(|job| job.name != except && !job.deleting).map(|j| j.name.clone()).collect()
}

/// Everything that makes a load another load.
fn digest(spec: &CacheGroupSpec, version: u64, nodes: &[&NodeView]) -> String {
    let mut hash = Sha256::new();
    hash.update(version.to_be_bytes());
    for text in [&spec.preload.condition, &spec.backend.postgres.schema] {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    for node in nodes {
        hash.update(node.journal.as_bytes());
        hash.update(node.generation.to_be_bytes());
    }
    short_hex(&hash.finalize(), DIGEST_LENGTH)
}

pub fn short_hex(bytes: &[u8], length: usize) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text.truncate(length);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> CacheGroupSpec {
        serde_json::from_value(serde_json::json!({
            "backend": {"postgres": {"secretRef": {"name": "b"}}},
            "tables": [{"name": "t"}],
        }))
        .unwrap()
    }

    fn node(generation: u64, covered: u32) -> NodeView {
        NodeView { generation, slots_serving: 10, slots_covered: covered, ..NodeView::default() }
    }

    fn run(version: u64, nodes: &[NodeView], jobs: &[JobView]) -> Decision {
        let views: Vec<&NodeView> = nodes.iter().collect();
        decide(&spec(), |digest| format!("hlr-preload-{digest}"), version, Some(&views), jobs)
    }

    fn job(name: &str, outcome: JobOutcome, ended_seconds_ago: i64) -> JobView {
        JobView { name: name.to_owned(), outcome, ended_seconds_ago, deleting: false }
    }

    #[test]
    fn uncovered_slots_make_one_job_and_covered_ones_none() {
        let created = run(1, &[node(1, 0)], &[]).create.unwrap();
        let running = run(1, &[node(1, 4)], &[job(&created, JobOutcome::Running, 0)]);
        assert_eq!(running.create, None);
        assert_eq!(running.state, State::Loading { job: created.clone() });
        let complete = run(1, &[node(1, 10)], &[job(&created, JobOutcome::Complete, 1)]);
        assert_eq!((complete.state, complete.create), (State::Complete, None));
    }

    #[test]
    fn a_restarted_node_or_a_new_topology_makes_another_job_and_ends_the_old_one() {
        let first = run(1, &[node(1, 0)], &[]).create.unwrap();
        for (version, nodes) in [(1, [node(2, 0)]), (2, [node(1, 0)])] {
            let decision = run(version, &nodes, &[job(&first, JobOutcome::Running, 0)]);
            assert_ne!(decision.create.as_deref(), Some(first.as_str()));
            assert_eq!(decision.delete, [first.as_str()]);
        }
    }

    #[test]
    fn o64_a_failed_job_is_said_and_tried_again_after_a_pause() {
        let name = run(1, &[node(1, 0)], &[]).create.unwrap();
        let failed = |ago| job(&name, JobOutcome::Failed("why".to_owned()), ago);
        let decision = run(1, &[node(1, 0)], &[failed(3)]);
        assert!(matches!(decision.state, State::Failed { .. }) && decision.delete.is_empty());
        assert_eq!(run(1, &[node(1, 0)], &[failed(RETRY_SECONDS)]).delete, [name.as_str()]);
    }

    #[test]
    fn a_load_that_found_no_room_is_not_repeated_for_ever() {
        let name = run(1, &[node(1, 0)], &[]).create.unwrap();
        let load = crate::nodes::LoadView { stopped_by_memory: true, ..Default::default() };
        let full = NodeView { load: Some(load), ..node(1, 0) };
        let decision = run(1, &[full], &[job(&name, JobOutcome::Complete, 1_000)]);
        assert_eq!((decision.state, decision.delete), (State::StoppedByMemory, Vec::new()));
    }
}
