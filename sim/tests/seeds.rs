//! Many seeds in CI, the same seed twice, and the seeds that broke a promise once.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "tests")]

use sim::Outcome;

/// Ends the test with the readable history of a seed that breaks a promise.
fn must_hold(outcome: &Outcome) {
    let Some(violation) = &outcome.violation else { return };
    let skipped = outcome.history.len().saturating_sub(120);
    let history: Vec<&str> = outcome.history.iter().skip(skipped).map(String::as_str).collect();
    panic!("{}\nseed {}: {violation}", history.join("\n"), outcome.seed);
}

/// A thousand seeds, in two tests for two processors.
fn all_hold(seeds: std::ops::RangeInclusive<u64>) {
    let mut acknowledged = 0;
    for seed in seeds {
        let outcome = sim::run(seed);
        must_hold(&outcome);
        acknowledged += outcome.acknowledged;
    }
    assert!(acknowledged > 2_500, "histories in which hardly anything happens prove nothing");
}

#[test]
fn the_first_five_hundred_seeds_keep_every_promise() {
    all_hold(1..=500);
}

#[test]
fn the_next_five_hundred_seeds_keep_every_promise() {
    all_hold(501..=1_000);
}

/// Changed accepted rows vanished from reads while a node started with the database away: these
/// seeds showed it.
#[test]
fn what_the_backend_accepted_is_not_taken_back_by_a_start_without_it() {
    must_hold(&sim::run(437));
}

/// A copy of a volume that was made while its node claimed was let in after that claim.
#[test]
fn a_copy_made_during_a_claim_is_refused_after_it() {
    must_hold(&sim::run(204_709));
}

/// The answer to a takeover that was long under way, while another node had the slots and gave them
/// back, was served on: a write of that time was acknowledged and lost.
#[test]
fn r09_an_answer_to_a_takeover_counts_under_its_own_topology_only() {
    must_hold(&sim::run(4_553));
}

/// A node with an empty volume, which no topology had told of the holder of its slots, waited for it
/// without asking.
#[test]
fn r23_a_holder_that_no_topology_names_any_more_is_asked_all_the_same() {
    must_hold(&sim::run(3_947));
}

/// A standby that lagged took over while the lanes were idle: a miss read what it still had, and a
/// transaction was judged by it.
#[test]
fn r11_a_miss_believes_no_backend_that_lacks_confirmed_commits() {
    must_hold(&sim::run(700_141));
}

/// The loser of a takeover that a failover had lost did not look at its row, and the taker asked it, and
/// the database, as fast as they answered.
#[test]
fn r11_a_holder_that_is_asked_again_looks_at_its_row_and_is_not_asked_in_a_loop() {
    must_hold(&sim::run(905_271));
}

/// A lane that sent again what a failover lost was refused for a number that another lane, idle and not
/// aware of the failover, had freed once: the rename that had been acknowledged was undone.
#[test]
fn r11_what_was_accepted_once_is_not_undone_when_it_is_sent_again() {
    must_hold(&sim::run(936_883));
}

/// A failover took a reject back, and the database took the transaction when it was sent again: its
/// instance stayed quarantined, and there was no reject to decide about.
#[test]
fn r17_a_reject_that_a_failover_took_back_quarantines_nothing() {
    must_hold(&sim::run(943_203));
}

/// A part of the slots that a failover took back was taken again and the answer was lost: the node asked for
/// that part for ever, and was refused it until it had the others.
#[test]
fn r11_a_lost_answer_does_not_hold_up_what_is_taken_again() {
    must_hold(&sim::run(952_083));
}

#[cfg(tokio_unstable)]
#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 1..=40 {
        assert_eq!(sim::run(seed), sim::run(seed), "seed {seed}");
    }
}

/// Those that need few seeds; `cargo xtask sim --defects` hunts them all.
#[cfg(feature = "defects")]
#[test]
fn planted_defects_are_found() {
    let names = [
        "r01-unsynced-leaves",
        "r04-image-of-the-root-only",
        "r09-lost-slots-are-written",
        "r15-write-without-load",
        "r20-coverage-stays",
        "r23-move-with-backlog",
        "r26-answers-forgotten",
    ];
    for name in names {
        let defect = cachetier_defects::ALL.iter().find(|defect| defect.name == name).unwrap();
        let hunt = sim::proof::hunt(defect, 1, 5_000, &sim::watch::Pulse::default());
        assert!(hunt.seed.is_some(), "{name} was not found");
    }
}
