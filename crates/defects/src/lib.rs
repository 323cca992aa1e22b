//! Deliberate defects of the data path, each breaking one rule: the proof that the simulator
//! would find it.
//!
//! Owns the list of their names and the switch. Without the feature `plant`, which nothing that is
//! shipped has, [`on`] is the constant `false` and the compiler drops every defect. A defect is
//! planted for the calling thread only; the simulator runs its nodes in one.

/// One defect: its name begins with the number of the rule it breaks.
#[derive(Clone, Copy, Debug)]
pub struct Defect {
    pub name: &'static str,
    /// What it does, in one line.
    pub what: &'static str,
}

const fn defect(name: &'static str, what: &'static str) -> Defect {
    Defect { name, what }
}

/// Every defect there is.
pub const ALL: [Defect; 34] = [
    defect("dax-last-line-not-flushed", "the last cache line of each store is not flushed"),
    defect("r01-unsynced-leaves", "the lanes take what is written, not what is synced"),
    defect("r02-same-generation", "a start goes on with the generation it finds"),
    defect("r03-trim-by-fastest-lane", "the journal is trimmed to the furthest lane"),
    defect("r04-image-of-the-root-only", "a frame's image leaves the child rows out"),
    defect("r05-any-volume", "a volume of another node is accepted"),
    defect("r06-sync-again", "a failed sync is tried again and believed"),
    defect("r07-shown-before-durable", "reads do not wait for durability"),
    defect("r08-any-token", "a claim is admitted whatever token the journal holds"),
    defect("r09-fence-missed-is-done", "a batch that missed its fence counts as committed"),
    defect("r09-lost-slots-are-written", "a lane goes on with slots that were taken from it"),
    defect("r09-takeover-lost-is-slots-lost", "a takeover that a failover lost is a loss of slots"),
    defect(
        "r09-lanes-travel-without-their-rows",
        "of lanes that travel together one moves its row",
    ),
    defect("r10-lanes-without-barrier", "the lane map changes with batches outstanding"),
    defect("r11-nothing-sent-again", "what the backend lost is not sent again"),
    defect("r11-commit-assumed", "an asynchronous commit counts as confirmed at once"),
    defect("r11-older-is-read", "a miss believes a backend that lacks confirmed commits"),
    defect("r15-write-without-load", "an instance that is not loaded counts as absent"),
    defect("r16-answer-before-backend", "unique keys are acknowledged before the backend decided"),
    defect("r17-followers-pass", "what follows a reject is sent"),
    defect("r19-late-ticket", "a miss takes its ticket after its query"),
    defect("r20-coverage-stays", "slots that went away stay covered"),
    defect("r22-older-topology", "an older topology is accepted"),
    defect("r23-move-with-backlog", "slots are let go with a backlog"),
    defect("r24-silent-owner", "slots of an owner that does not answer are taken"),
    defect("r25-own-bypass", "an owner reads past its own unflushed writes"),
    defect("r25-position-ignored", "a read past the store forgets the position asked for"),
    defect("r26-answers-forgotten", "a start forgets the answers of idempotency keys"),
    defect("r26-answers-stay-behind", "slots move without the answers of idempotency keys"),
    defect("r03-image-forgets-open-changes", "an image counts changes that it left out as held"),
    defect("r20-image-covers-anyway", "a slot counts as covered whatever its image says"),
    defect("image-brings-back-deleted", "an image puts back what the journal knows better"),
    defect("image-unchecked", "an image is used whatever its checksum says"),
    defect("restart-forgets-acceptance", "a start shows what was before an accepted change"),
];

#[cfg(feature = "plant")]
mod planted {
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// Plants a defect in this thread, or none; false if there is none of this name.
    pub fn plant(name: Option<&str>) -> bool {
        let known = super::ALL.iter().find(|defect| Some(defect.name) == name);
        PLANTED.set(known.map(|defect| defect.name));
        known.is_some() || name.is_none()
    }

    /// True while this defect is planted.
    pub fn on(name: &str) -> bool {
        PLANTED.get() == Some(name)
    }
}

#[cfg(feature = "plant")]
pub use planted::{on, plant};

/// No defect is ever on.
#[cfg(not(feature = "plant"))]
#[inline(always)]
pub const fn on(_name: &str) -> bool {
    false
}
