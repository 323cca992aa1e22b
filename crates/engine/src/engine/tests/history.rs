//! Whether a history of concurrent calls on one instance could have happened one by one.
//!
//! The instance is a register and a child row, and its version is the sequence of its last change.
//! A history is linearizable when its calls can be put in an order that respects time (a call that
//! ended before another began stands before it) and in which each call's result is the one the
//! plain model below gives. All orders are tried (Wing and Gong, 1993); what was seen to fail, by
//! the set of calls placed and the state they leave, is not tried again (Lowe, 2017).

use std::collections::BTreeSet;

/// The model: what the instance is between two calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct State {
    pub(super) value: i64,
    pub(super) child: Option<i64>,
    /// Sequence of the last change.
    pub(super) version: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Read,
    Set(i64),
    /// Sets the second where the first is found.
    Swap(i64, i64),
    InsertChild(i64),
    DeleteChild,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The state, with a version of 0 when all of it has been flushed.
    Seen(State),
    /// Done under this sequence; 0: it changed nothing.
    Done(u64),
    /// The guard did not hold, the row was there already, or there was none.
    Refused,
}

/// A call with its answer, begun and ended at these ticks of one clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) begun: u64,
    pub(super) ended: u64,
    pub(super) call: Call,
    pub(super) answer: Answer,
}

impl State {
    /// The state after the call; `None` when it would not have answered so.
    fn after(self, call: Call, answer: Answer) -> Option<Self> {
        let (next, refused) = match call {
            Call::Read => {
                let Answer::Seen(seen) = answer else { return None };
                let version = seen.version == 0 || seen.version == self.version;
                let same = (seen.value, seen.child) == (self.value, self.child);
                return (version && same).then_some(self);
            }
            Call::Set(value) => (Self { value, ..self }, false),
            Call::Swap(from, to) => (Self { value: to, ..self }, self.value != from),
            Call::InsertChild(child) => (Self { child: Some(child), ..self }, self.child.is_some()),
            Call::DeleteChild => (Self { child: None, ..self }, self.child.is_none()),
        };
        match answer {
            Answer::Refused if refused => Some(self),
            Answer::Done(0) if !refused && next == self => Some(self),
            Answer::Done(version) if !refused && next != self && version > self.version => {
                Some(Self { version, ..next })
            }
            _ => None,
        }
    }
}

/// At most 64 events.
pub(super) fn is_linearizable(start: State, events: &[Event]) -> bool {
    assert!(events.len() <= 64, "a longer history would take too long");
    let mut failed = BTreeSet::new();
    place(start, 0, events, &mut failed)
}

/// `placed`: a bit per event that stands in the order already.
fn place(state: State, placed: u64, events: &[Event], failed: &mut BTreeSet<(u64, State)>) -> bool {
    let open = || events.iter().enumerate().filter(|(n, _)| placed >> n & 1 == 0);
    // whoever comes next began before every other one ended
    let Some(limit) = open().map(|(_, event)| event.ended).min() else { return true };
    if failed.contains(&(placed, state)) {
        return false;
    }
    for (n, event) in open().filter(|(_, event)| event.begun <= limit) {
        if let Some(next) = state.after(event.call, event.answer)
            && place(next, placed | 1 << n, events, failed)
        {
            return true;
        }
    }
    failed.insert((placed, state));
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(begun: u64, ended: u64, call: Call, answer: Answer) -> Event {
        Event { begun, ended, call, answer }
    }

    fn seen(value: i64, version: u64) -> Answer {
        Answer::Seen(State { value, child: None, version })
    }

    #[test]
    fn concurrent_calls_may_take_effect_in_either_order() {
        let write = event(1, 4, Call::Set(7), Answer::Done(1));
        for answer in [seen(0, 0), seen(7, 1)] {
            let read = event(2, 3, Call::Read, answer);
            assert!(is_linearizable(State::default(), &[write, read]));
        }
        // the second writer's guard saw what the first one wrote
        let swaps = [
            event(1, 6, Call::Swap(5, 6), Answer::Done(2)),
            event(2, 5, Call::Swap(0, 5), Answer::Done(1)),
            event(3, 4, Call::Swap(0, 9), Answer::Refused),
        ];
        assert!(is_linearizable(State::default(), &swaps));
    }

    #[test]
    fn what_no_order_explains_is_found() {
        let write = event(1, 2, Call::Set(7), Answer::Done(1));
        let read = |begun, ended, answer| event(begun, ended, Call::Read, answer);
        let insert = |begun, ended, answer| event(begun, ended, Call::InsertChild(1), answer);
        let stale = vec![write, read(3, 4, seen(0, 0))];
        let back_in_time = vec![
            event(1, 6, Call::Set(7), Answer::Done(1)),
            read(2, 3, seen(7, 1)),
            read(4, 5, seen(0, 0)),
        ];
        let lost_update = vec![
            event(1, 4, Call::Swap(0, 1), Answer::Done(1)),
            event(2, 3, Call::Swap(0, 1), Answer::Done(2)),
        ];
        let wrong_version = vec![write, read(3, 4, seen(7, 2))];
        let same_sequence = vec![write, event(3, 4, Call::Set(8), Answer::Done(1))];
        let twice = vec![insert(1, 4, Answer::Done(1)), insert(2, 3, Answer::Done(2))];
        for history in [stale, back_in_time, lost_update, wrong_version, same_sequence, twice] {
            assert!(!is_linearizable(State::default(), &history), "{history:?}");
        }
    }
}
