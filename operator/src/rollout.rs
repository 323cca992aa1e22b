//! Replaces pods of an older template one at a time, with the StatefulSet's own updates switched
//! off (`OnDelete`).
//!
//! Pure. A pod that serves is replaced only when every other pod is well and its own queue is short;
//! one that does not serve is replaced at once, so that a corrected spec heals a broken rollout.

use std::collections::BTreeMap;

/// Oldest unflushed write of a pod that may still be replaced, seconds. The rest is flushed by the
/// pod while it stops, or replayed from its journal.
pub const BACKLOG_AGE_SECONDS_MAX: f64 = 10.0;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodState {
    /// Runs the current template.
    pub current: bool,
    pub ready: bool,
    pub deleting: bool,
    /// Answers, serves all its slots, and its queue is short.
    pub settled: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rollout {
    pub outdated: u32,
    /// Ordinal of the pod to delete now.
    pub replace: Option<u32>,
}

/// `wanted`: replicas of the StatefulSet. `quiet`: no slots are moving.
pub fn decide(pods: &BTreeMap<u32, PodState>, wanted: u32, quiet: bool) -> Rollout {
    let outdated = |pod: &PodState| !pod.current && !pod.deleting;
    let count = pods.values().filter(|pod| outdated(pod)).count();
    let mut rollout = Rollout { outdated: u32::try_from(count).unwrap_or(u32::MAX), replace: None };
    if pods.values().any(|pod| pod.deleting) {
        return rollout;
    }
    let broken = pods.iter().rev().find(|(_, pod)| outdated(pod) && !pod.ready);
    if let Some((ordinal, _)) = broken {
        rollout.replace = Some(*ordinal);
        return rollout;
    }
    let all_well = pods.len() >= usize::try_from(wanted).unwrap_or(usize::MAX)
        && pods.values().all(|pod| pod.ready && pod.settled);
    if quiet && all_well {
        rollout.replace = pods.iter().rev().find(|(_, pod)| outdated(pod)).map(|(n, _)| *n);
    }
    rollout
}

#[cfg(test)]
mod tests {
    use super::*;

    fn well(current: bool) -> PodState {
        PodState { current, ready: true, deleting: false, settled: true }
    }

    fn run(pods: Vec<PodState>) -> Rollout {
        let wanted = pods.len() as u32;
        decide(&(0..).zip(pods).collect(), wanted, true)
    }

    #[test]
    fn o44_one_pod_at_a_time_and_the_next_only_when_all_are_well() {
        assert_eq!(run(vec![well(false), well(false), well(false)]).replace, Some(2));
        let gone = PodState { deleting: true, ..well(false) };
        assert_eq!(run(vec![well(false), well(false), gone]).replace, None);
        let starting = PodState { ready: false, settled: false, ..well(true) };
        assert_eq!(run(vec![well(false), well(false), starting]).replace, None);
        assert_eq!(run(vec![well(false), well(false), well(true)]).replace, Some(1));
        assert_eq!(run(vec![well(true), well(true), well(true)]).outdated, 0);
    }

    #[test]
    fn o43_a_broken_pod_of_an_old_template_is_replaced_first_and_at_once() {
        let crashing = PodState { ready: false, settled: false, ..well(false) };
        let rollout = run(vec![crashing.clone(), well(false), crashing]);
        assert_eq!(rollout, Rollout { outdated: 3, replace: Some(2) });
    }

    #[test]
    fn o46_a_pod_that_is_not_ready_is_replaced_before_those_that_are() {
        let unready = PodState { ready: false, ..well(false) };
        assert_eq!(run(vec![unready, well(false), well(false)]).replace, Some(0));
    }

    #[test]
    fn a_pod_with_a_long_queue_or_moving_slots_is_left_alone() {
        let busy = PodState { settled: false, ..well(false) };
        assert_eq!(run(vec![well(true), busy]).replace, None);
        let pods = (0..).zip([well(false), well(false)]).collect();
        assert_eq!(decide(&pods, 2, false).replace, None);
        assert_eq!(decide(&pods, 3, true).replace, None, "one pod is missing");
    }
}
