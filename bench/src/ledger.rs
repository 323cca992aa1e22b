//! What every answer proves: which values each column that the workload changes may have now.
//!
//! Begun and ended around every transaction of one side, by all its clients; the state of a
//! subscriber that nobody wrote is its generated one. A read is wrong when it shows a value that
//! had surely been overwritten, or none that anybody wrote; the final state is wrong when it is not
//! one that the acknowledged writes allow. So a lost write is found by the next read of its
//! subscriber, or at the end. Must never ask a side anything.

mod cell;

pub use cell::Value;

use crate::population::{Population, Subscriber};
use crate::target::{Outcome, Seen};
use crate::traffic::Input;
use cachetier_client::Position;
use cell::Cell;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::time::Instant;

/// A column of one subscriber that the workload changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Column {
    Bit1,
    VlrLocation,
    /// Of the facility of this type.
    DataA(i16),
    /// The forwarding row of this facility type and start.
    Forwarding(i16, i16),
}

/// A transaction that was sent and not answered.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    at_ns: u64,
}

/// Counted over the whole life of a side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Writes that were answered as done.
    pub acknowledged: u64,
    /// Writes whose outcome is unknown.
    pub in_doubt: u64,
    /// Acknowledged writes to the cache that carried a position.
    pub positions: u64,
    /// Acknowledged with a position that an earlier one had.
    pub doubled_positions: u64,
    /// Reads that showed a value that was overwritten before, or that nobody wrote.
    pub wrong_values: u64,
    /// Reads and updates that found what is not there, or did not find what is.
    pub wrong_finds: u64,
    pub highest_position: u64,
}

/// What the generator gave a subscriber, as far as reads are checked against it.
#[derive(Clone, Copy)]
struct Generated {
    vlr_location: u32,
    bit_1: bool,
    access_types: u8,
    facility_types: u8,
}

pub struct Ledger {
    epoch: Instant,
    /// Index 0 is subscriber 1.
    generated: Vec<Generated>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    subscribers: HashMap<u64, Vec<(Column, Cell)>>,
    positions: HashSet<u64>,
    tally: Tally,
}

impl Ledger {
    /// Of a side that holds subscribers 1..=`subscribers` as generated.
    pub fn new(population: Population, subscribers: u64) -> Self {
        let generated = (1..=subscribers).map(|id| generated(&population.subscriber(id))).collect();
        Self { epoch: Instant::now(), generated, state: Mutex::default() }
    }

    fn now(&self) -> u64 {
        // Never 0, which is when the generated values were written.
        self.epoch.elapsed().as_nanos() as u64 + 1
    }

    pub fn begin(&self, id: u64, input: &Input) -> Begun {
        let mut state = self.state.lock();
        let at_ns = self.now();
        for (column, value) in written(input) {
            state.cell(id, column).begin(at_ns, value);
        }
        Begun { at_ns }
    }

    pub fn end(
        &self,
        begun: Begun,
        id: u64,
        input: &Input,
        outcome: &Outcome,
        seen: Option<Seen>,
        position: Option<&Position>,
    ) {
        let mut state = self.state.lock();
        let now = self.now();
        let wrote = written(input);
        for (column, value) in &wrote {
            let cell = state.cell(id, *column);
            match outcome {
                Outcome::Hit => cell.acknowledge(begun.at_ns, *value, now),
                Outcome::Miss => cell.withdraw(begun.at_ns, *value),
                // It may have happened, or may yet.
                Outcome::Failed(_) => {}
            }
        }
        if !wrote.is_empty() {
            state.tally.acknowledged += u64::from(*outcome == Outcome::Hit);
            state.tally.in_doubt += u64::from(matches!(outcome, Outcome::Failed(_)));
        }
        if let Some(position) = position {
            state.count_position(position.sequence);
        }
        self.check(&mut state, begun, id, input, outcome, seen);
    }

    fn check(
        &self,
        state: &mut State,
        begun: Begun,
        id: u64,
        input: &Input,
        outcome: &Outcome,
        seen: Option<Seen>,
    ) {
        let Some(generated) = self.generated.get((id - 1) as usize) else { return };
        let expected = match input {
            Input::GetSubscriberData { .. } | Input::UpdateLocation { .. } => Some(true),
            Input::GetAccessData { ai_type, .. } => Some(has(generated.access_types, *ai_type)),
            Input::UpdateSubscriberData { sf_type, .. } => {
                Some(has(generated.facility_types, *sf_type))
            }
            _ => None,
        };
        let found = match outcome {
            Outcome::Hit => Some(true),
            Outcome::Miss => Some(false),
            Outcome::Failed(_) => None,
        };
        if let (Some(expected), Some(found)) = (expected, found) {
            state.tally.wrong_finds += u64::from(expected != found);
        }
        if let Some(seen) = seen {
            let vlr = (Column::VlrLocation, seen.vlr_location, i64::from(generated.vlr_location));
            let bit = (Column::Bit1, seen.bit_1, i64::from(generated.bit_1));
            for (column, value, untouched) in [vlr, bit] {
                let fits = match state.existing(id, column) {
                    Some(cell) => cell.may_show(value as Value, untouched as Value, begun.at_ns),
                    None => value == untouched,
                };
                state.tally.wrong_values += u64::from(!fits);
            }
        }
    }

    pub fn tally(&self) -> Tally {
        self.state.lock().tally.clone()
    }

    /// The columns of a subscriber that were written, with the values they may have at rest; a
    /// `None` among them is the generated one.
    pub fn allowed(&self, id: u64) -> Vec<(Column, Vec<Option<Value>>)> {
        let state = self.state.lock();
        let columns = state.subscribers.get(&id).map_or(&[][..], Vec::as_slice);
        columns.iter().map(|(column, cell)| (*column, cell.at_rest())).collect()
    }
}

impl State {
    fn cell(&mut self, id: u64, column: Column) -> &mut Cell {
        let columns = self.subscribers.entry(id).or_default();
        let at = match columns.iter().position(|(c, _)| *c == column) {
            Some(at) => at,
            None => {
                columns.push((column, Cell::default()));
                columns.len() - 1
            }
        };
        #[allow(clippy::indexing_slicing, reason = "found or pushed just now")]
        &mut columns[at].1
    }

    fn existing(&self, id: u64, column: Column) -> Option<&Cell> {
        let columns = self.subscribers.get(&id)?;
        columns.iter().find(|(c, _)| *c == column).map(|(_, cell)| cell)
    }

    fn count_position(&mut self, sequence: u64) {
        self.tally.positions += 1;
        self.tally.doubled_positions += u64::from(!self.positions.insert(sequence));
        self.tally.highest_position = self.tally.highest_position.max(sequence);
    }
}

fn generated(subscriber: &Subscriber) -> Generated {
    let types = |types: &mut dyn Iterator<Item = i16>| types.fold(0, |bits, t| bits | 1 << t);
    Generated {
        vlr_location: subscriber.vlr_location as u32,
        bit_1: subscriber.bits.first() == Some(&1),
        access_types: types(&mut subscriber.access.iter().map(|a| a.ai_type)),
        facility_types: types(&mut subscriber.facilities.iter().map(|f| f.sf_type)),
    }
}

fn has(types: u8, one: i16) -> bool {
    types >> one & 1 == 1
}

/// A forwarding row as one value; 0 is "no such row".
pub fn forwarding(end_time: i64, numberx: &str) -> Value {
    const HOUR_BITS_AT: u32 = 50;
    let number: u64 = numberx.parse().unwrap_or(u64::MAX >> (64 - HOUR_BITS_AT));
    1 << 63 | (end_time as u64) << HOUR_BITS_AT | number
}

/// The columns a transaction writes, and what.
fn written(input: &Input) -> Vec<(Column, Value)> {
    match input {
        Input::UpdateSubscriberData { bit_1, sf_type, data_a, .. } => {
            vec![(Column::Bit1, *bit_1 as Value), (Column::DataA(*sf_type), *data_a as Value)]
        }
        Input::UpdateLocation { vlr_location, .. } => {
            vec![(Column::VlrLocation, *vlr_location as Value)]
        }
        Input::InsertCallForwarding { sf_type, start_time, end_time, numberx, .. } => {
            let value = forwarding((*end_time).into(), numberx);
            vec![(Column::Forwarding(*sf_type, *start_time), value)]
        }
        Input::DeleteCallForwarding { sf_type, start_time, .. } => {
            vec![(Column::Forwarding(*sf_type, *start_time), 0)]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::population::DEFAULT_SEED;
    use crate::population::numbering::Numbering;

    fn ledger() -> (Ledger, Seen) {
        let population =
            Population { seed: DEFAULT_SEED, subscribers: 10, numbering: Numbering::Derived };
        let s = population.subscriber(1);
        let seen = Seen { bit_1: s.bits[0].into(), vlr_location: s.vlr_location };
        (Ledger::new(population, 10), seen)
    }

    fn update(value: i64) -> Input {
        Input::UpdateLocation { sub_nbr: "000000000000001".into(), vlr_location: value }
    }

    fn read(ledger: &Ledger, seen: Seen) -> u64 {
        let before = ledger.tally().wrong_values;
        let input = Input::GetSubscriberData { s_id: 1 };
        let begun = ledger.begin(1, &input);
        ledger.end(begun, 1, &input, &Outcome::Hit, Some(seen), None);
        ledger.tally().wrong_values - before
    }

    #[test]
    fn a_lost_write_is_seen_by_the_next_read_and_at_the_end() {
        let (ledger, first) = ledger();
        assert_eq!(read(&ledger, first), 0);
        let begun = ledger.begin(1, &update(7));
        // While it runs, both values are right.
        assert_eq!(read(&ledger, first), 0);
        assert_eq!(read(&ledger, Seen { vlr_location: 7, ..first }), 0);
        ledger.end(begun, 1, &update(7), &Outcome::Hit, None, None);
        assert_eq!(read(&ledger, first), 1);
        assert_eq!(read(&ledger, Seen { vlr_location: 7, ..first }), 0);
        assert_eq!(ledger.allowed(1), [(Column::VlrLocation, vec![Some(7)])]);
    }

    #[test]
    fn of_two_writes_at_the_same_time_either_may_be_the_last() {
        let (ledger, _) = ledger();
        let (a, b) = (ledger.begin(1, &update(7)), ledger.begin(1, &update(8)));
        ledger.end(b, 1, &update(8), &Outcome::Hit, None, None);
        ledger.end(a, 1, &update(7), &Outcome::Hit, None, None);
        let mut allowed = ledger.allowed(1).remove(0).1;
        allowed.sort();
        assert_eq!(allowed, [Some(7), Some(8)]);
    }

    #[test]
    fn a_refused_write_changes_nothing_and_a_failed_one_may_have() {
        let (ledger, first) = ledger();
        let begun = ledger.begin(1, &update(7));
        ledger.end(begun, 1, &update(7), &Outcome::Miss, None, None);
        assert_eq!(read(&ledger, Seen { vlr_location: 7, ..first }), 1);
        let begun = ledger.begin(1, &update(8));
        ledger.end(begun, 1, &update(8), &Outcome::Failed("x".into()), None, None);
        assert_eq!(ledger.allowed(1), [(Column::VlrLocation, vec![None, Some(8)])]);
        assert_eq!(ledger.tally().in_doubt, 1);
    }

    #[test]
    fn a_doubled_position_is_counted() {
        let (ledger, _) = ledger();
        let position = Position { journal: "j".into(), sequence: 3 };
        for value in [1, 2] {
            let begun = ledger.begin(1, &update(value));
            ledger.end(begun, 1, &update(value), &Outcome::Hit, None, Some(&position));
        }
        assert_eq!(ledger.tally().doubled_positions, 1);
    }
}
