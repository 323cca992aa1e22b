//! Which slots this node may answer for: a pure state machine over topology, writer rows in the
//! backend, and requests of new owners.
//!
//! Owns the truth of this process about its slots. Must never do I/O; events come from `topology`,
//! `move_slots` and `flush_events`, and the resulting states are published by `slots`.
//!
//! The rules: a slot is served only when the writer row says it is ours; a slot that was frozen for
//! a taker is served again only after the backend confirmed it anew, because the taker may still
//! complete its take-over; a slot that the topology gives away is served until its new owner asks.

use cachetier_model::{SlotId, SlotSet};

/// What a call for a slot meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SlotState {
    /// Another node's, or nobody's.
    Foreign = 0,
    /// Ours, by the topology and not yet by the backend: calls wait.
    Acquiring = 1,
    /// Ours.
    Serving = 2,
    /// Ours at the backend, refused for a taker: what is queued is being flushed.
    Leaving = 3,
    /// Ours at the backend, flushed and forgotten here: the taker may take it.
    Released = 4,
}

impl SlotState {
    pub(crate) fn from_byte(byte: u8) -> Self {
        match byte {
            1 => Self::Acquiring,
            2 => Self::Serving,
            3 => Self::Leaving,
            4 => Self::Released,
            _ => Self::Foreign,
        }
    }
}

/// The machine. `held` is what the writer row in the backend says; the other sets are disjoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ownership {
    assigned: SlotSet,
    held: SlotSet,
    serving: SlotSet,
    /// To be served once their images are back in memory; calls wait.
    warming: SlotSet,
    leaving: SlotSet,
    released: SlotSet,
}

impl Ownership {
    pub(crate) fn state(&self, slot: SlotId) -> SlotState {
        if self.serving.contains(slot) {
            SlotState::Serving
        } else if self.leaving.contains(slot) {
            SlotState::Leaving
        } else if self.assigned.contains(slot) || self.warming.contains(slot) {
            SlotState::Acquiring
        } else if self.held.contains(slot) {
            SlotState::Released
        } else {
            SlotState::Foreign
        }
    }

    pub(crate) fn assigned(&self) -> &SlotSet {
        &self.assigned
    }

    /// Held and not let go: nobody was told that they are free.
    pub(crate) fn kept(&self) -> SlotSet {
        let mut slots = self.held.clone();
        slots.subtract(&self.released);
        slots
    }

    pub(crate) fn serving(&self) -> &SlotSet {
        &self.serving
    }

    /// Held slots that the topology gives to others.
    pub(crate) fn given_away(&self) -> SlotSet {
        let mut slots = self.held.clone();
        slots.subtract(&self.assigned);
        slots
    }

    /// Slots to be taken, or to be confirmed anew: assigned and not served. What is still being
    /// flushed for a taker comes later.
    pub(crate) fn wanted(&self) -> SlotSet {
        let mut slots = self.assigned.clone();
        slots.subtract(&self.serving);
        slots.subtract(&self.warming);
        slots.subtract(&self.leaving);
        slots
    }

    /// Slots whose images are on their way into memory.
    pub(crate) fn warming(&self) -> &SlotSet {
        &self.warming
    }

    /// These slots are to be served, and not before their images are in memory.
    pub(crate) fn warm(&mut self, slots: &SlotSet) {
        self.warming = slots.clone();
        self.warming.intersect_with(&self.serving);
        self.serving.subtract(&self.warming);
    }

    /// As much of these slots' images as is of use is in memory: they are served, those that are
    /// still this node's. Returns which.
    pub(crate) fn warmed(&mut self, slots: &SlotSet) -> SlotSet {
        let mut served = slots.clone();
        served.intersect_with(&self.warming);
        self.warming.subtract(&served);
        self.serving.union_with(&served);
        served
    }

    /// Its image is not served yet.
    pub(crate) fn is_warming(&self, slot: SlotId) -> bool {
        self.warming.contains(slot)
    }

    /// A process starts with these slots in its writer row (or last known to be there). Only what
    /// the topology still gives to it is served: a taker may have been told that the rest is free.
    /// The rest may have unflushed frames in the journal, so it leaves in order.
    pub(crate) fn started(assigned: SlotSet, held: SlotSet) -> Self {
        let mut serving = held.clone();
        serving.intersect_with(&assigned);
        let mut leaving = held.clone();
        leaving.subtract(&assigned);
        Self { assigned, held, serving, leaving, ..Self::default() }
    }

    /// The claim answered what the writer row really holds; slots that are not there are no longer
    /// served. Returns those.
    pub(crate) fn claimed(&mut self, held: SlotSet) -> SlotSet {
        let mut lost = self.serving.clone();
        lost.union_with(&self.warming);
        lost.subtract(&held);
        self.serving.subtract(&lost);
        self.warming.subtract(&lost);
        self.leaving.intersect_with(&held);
        self.released.intersect_with(&held);
        self.held = held;
        // nothing of these was released by this process: they may be served at once
        let mut fresh = self.held.clone();
        fresh.subtract(&self.released);
        fresh.subtract(&self.leaving);
        fresh.subtract(&self.warming);
        let mut given_away = fresh.clone();
        given_away.subtract(&self.assigned);
        given_away.subtract(&self.serving);
        self.leaving.union_with(&given_away);
        fresh.intersect_with(&self.assigned);
        self.serving.union_with(&fresh);
        lost
    }

    /// A newer topology gives these slots to this node.
    pub(crate) fn assign(&mut self, assigned: SlotSet) {
        self.assigned = assigned;
    }

    /// The taker asks for these slots: those served and not assigned are refused from now on.
    pub(crate) fn freeze(&mut self, slots: &SlotSet) {
        let mut frozen = slots.clone();
        frozen.intersect_with(&self.serving);
        frozen.subtract(&self.assigned);
        self.serving.subtract(&frozen);
        self.leaving.union_with(&frozen);
    }

    /// Frozen slots whose backlog is empty and whose instances are forgotten.
    pub(crate) fn release(&mut self, slots: &SlotSet) {
        let mut free = slots.clone();
        free.intersect_with(&self.leaving);
        self.leaving.subtract(&free);
        self.released.union_with(&free);
    }

    /// Slots of the request that this process keeps its hands off: released, or never held.
    pub(crate) fn free_for_taker(&self, slots: &SlotSet) -> SlotSet {
        let mut free = slots.clone();
        free.subtract(&self.serving);
        free.subtract(&self.warming);
        free.subtract(&self.leaving);
        free.subtract(&self.assigned);
        free
    }

    /// Frozen slots that are still being flushed.
    pub(crate) fn leaving(&self) -> &SlotSet {
        &self.leaving
    }

    /// The backend confirmed that these slots are in our writer row under the current topology.
    /// Served from now on, unless a newer topology took them away meanwhile. Returns what is newly
    /// served.
    pub(crate) fn taken(&mut self, slots: &SlotSet) -> SlotSet {
        self.held.union_with(slots);
        let mut fresh = slots.clone();
        fresh.subtract(&self.serving);
        fresh.subtract(&self.warming);
        fresh.subtract(&self.leaving);
        let mut serve = fresh.clone();
        serve.intersect_with(&self.assigned);
        self.serving.union_with(&serve);
        self.released.subtract(&serve);
        fresh.subtract(&serve);
        // given away again before it was served: nothing of it is here
        self.released.union_with(&fresh);
        serve
    }

    /// The writer row no longer has these slots. Returns those that were being served: somebody
    /// took them by force.
    pub(crate) fn lost(&mut self, slots: &SlotSet) -> SlotSet {
        let mut unexpected = slots.clone();
        unexpected.intersect_with(&self.serving);
        self.held.subtract(slots);
        self.serving.subtract(slots);
        self.warming.subtract(slots);
        self.leaving.subtract(slots);
        self.released.subtract(slots);
        unexpected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(slots: std::ops::Range<u16>) -> SlotSet {
        slots.filter_map(SlotId::new).collect()
    }

    fn slot(number: u16) -> SlotId {
        SlotId::new(number).unwrap()
    }

    #[test]
    fn r23_a_slot_is_served_until_asked_for_and_never_again_without_the_backend() {
        let mut node = Ownership::started(set(0..100), set(0..100));
        node.assign(set(0..50));
        assert_eq!(node.state(slot(70)), SlotState::Serving, "nobody asked yet");
        node.freeze(&set(50..100));
        assert_eq!(node.state(slot(70)), SlotState::Leaving);
        assert!(node.free_for_taker(&set(50..100)).is_empty(), "the backlog is not flushed");
        node.release(&set(50..100));
        assert_eq!(node.free_for_taker(&set(50..100)), set(50..100));
        // the topology turns back before the taker took anything
        node.assign(set(0..100));
        assert_eq!(node.state(slot(70)), SlotState::Acquiring, "the taker may still complete");
        assert_eq!(node.wanted(), set(50..100));
        assert_eq!(node.taken(&set(50..100)), set(50..100));
        assert_eq!(node.state(slot(70)), SlotState::Serving);
    }

    #[test]
    fn a_restarted_loser_does_not_serve_what_it_may_have_released() {
        let mut node = Ownership::started(set(0..50), set(0..100));
        assert_eq!(node.state(slot(70)), SlotState::Leaving);
        assert!(node.free_for_taker(&set(50..100)).is_empty(), "frames may be unflushed");
        node.release(&set(50..100));
        assert_eq!(node.free_for_taker(&set(50..100)), set(50..100));
        assert_eq!(node.given_away(), set(50..100));
    }

    #[test]
    fn assigned_slots_are_not_frozen_for_a_taker_with_an_older_topology() {
        let mut node = Ownership::started(set(0..100), set(0..100));
        node.freeze(&set(50..100));
        assert_eq!(node.state(slot(70)), SlotState::Serving);
        assert!(node.free_for_taker(&set(50..100)).is_empty());
    }

    #[test]
    fn a_claim_that_finds_fewer_slots_stops_serving_them_and_one_that_finds_more_serves_them() {
        let mut node = Ownership::started(set(0..50), set(0..40));
        assert_eq!(node.claimed(set(10..60)), set(0..10));
        assert_eq!(node.serving(), &set(10..50));
        assert_eq!(node.state(slot(5)), SlotState::Acquiring);
        assert_eq!(node.state(slot(55)), SlotState::Leaving);
    }

    #[test]
    fn slots_taken_by_force_are_reported_and_wait_to_be_taken_back() {
        let mut node = Ownership::started(set(0..100), set(0..100));
        assert_eq!(node.lost(&set(10..20)), set(10..20));
        assert_eq!(node.state(slot(15)), SlotState::Acquiring);
        node.assign(set(0..10));
        assert_eq!(node.state(slot(15)), SlotState::Foreign);
    }

    #[test]
    fn r23_a_slot_that_is_not_in_memory_yet_is_neither_served_nor_free_nor_taken_again() {
        let mut node = Ownership::started(set(0..100), set(0..100));
        node.warm(&set(50..100));
        assert_eq!(node.state(slot(70)), SlotState::Acquiring);
        assert!(node.wanted().is_empty());
        node.assign(set(0..80));
        node.freeze(&set(80..100));
        assert!(node.free_for_taker(&set(80..100)).is_empty(), "it comes from its image");
        assert_eq!(node.lost(&set(50..60)), set(0..0));
        assert_eq!(node.warmed(&set(50..100)), set(60..100));
        assert_eq!(node.state(slot(55)), SlotState::Acquiring, "it is taken anew");
        assert_eq!(node.state(slot(90)), SlotState::Serving, "until its new owner asks");
        node.freeze(&set(80..100));
        assert_eq!(node.state(slot(90)), SlotState::Leaving);
    }

    #[test]
    fn a_claim_without_a_slot_takes_it_out_of_warming() {
        let mut node = Ownership::started(set(0..100), set(0..100));
        node.warm(&set(50..100));
        assert_eq!(node.claimed(set(0..60)), set(60..100));
        assert_eq!(node.warmed(&set(50..100)), set(50..60));
    }

    #[test]
    fn a_take_over_that_ends_after_the_topology_moved_on_is_not_served() {
        let mut node = Ownership::started(set(0..100), SlotSet::empty());
        node.assign(set(0..10));
        assert_eq!(node.taken(&set(0..100)), set(0..10));
        assert_eq!(node.state(slot(50)), SlotState::Released);
        assert_eq!(node.given_away(), set(10..100));
    }
}
