//! The published states of the slots: read by every call without a lock.
//!
//! Owns the ownership machine under its lock and the array of states derived from it. A commit
//! reads its slot's state while it holds its lane's order lock (see `outlet`); whoever freezes
//! slots passes through those locks afterwards, so that no commit with the old state is under way.

use std::sync::atomic::{AtomicU8, Ordering};

use cachetier_model::{SlotId, SlotSet};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::ownership::{Ownership, SlotState};

pub(crate) struct Slots {
    /// Written under the machine's lock only.
    states: Box<[AtomicU8]>,
    machine: Mutex<Ownership>,
    /// Grows with every change; calls that wait for a slot watch it.
    changed: watch::Sender<u64>,
}

impl Slots {
    pub(crate) fn new() -> Self {
        let states = SlotId::all().map(|_| AtomicU8::new(SlotState::Foreign as u8)).collect();
        Self { states, machine: Mutex::default(), changed: watch::Sender::new(0) }
    }

    pub(crate) fn state(&self, slot: SlotId) -> SlotState {
        let byte = self.states.get(slot.index()).map_or(0, |s| s.load(Ordering::Acquire));
        SlotState::from_byte(byte)
    }

    /// Applies an event and publishes what follows from it.
    pub(crate) fn apply<T>(&self, event: impl FnOnce(&mut Ownership) -> T) -> T {
        let mut machine = self.machine.lock();
        let answer = event(&mut machine);
        for (slot, state) in SlotId::all().zip(self.states.iter()) {
            state.store(machine.state(slot) as u8, Ordering::Release);
        }
        drop(machine);
        self.changed.send_modify(|version| *version += 1);
        answer
    }

    /// Looks at the machine.
    pub(crate) fn look<T>(&self, question: impl FnOnce(&Ownership) -> T) -> T {
        question(&self.machine.lock())
    }

    pub(crate) fn serving(&self) -> SlotSet {
        self.look(|m| m.serving().clone())
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}
