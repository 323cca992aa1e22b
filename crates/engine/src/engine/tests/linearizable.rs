//! Readers and writers of one instance on several threads: what they were answered could have
//! happened one by one, while records beside it move and its changes are flushed.

use super::history::{Answer, Call, Event, State, is_linearizable};
use super::*;
use crate::{Installed, ReadAnswer, TransactError};
use cachetier_model::{Comparison, Condition, Guard, Operation, ReadPlan, TableRead};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const VALUE: usize = 33;
const CHILD_KIND: i64 = 9;
const THREADS: u64 = 4;
const CALLS: usize = 7;

/// Something that answers calls, rightly or not.
trait Subject: Sync {
    fn answer(&self, call: Call) -> Answer;
}

/// The engine, with the journal in memory and a second hand that reports flushes.
struct Store {
    engine: Engine,
    sequence: AtomicU64,
    key: RootKey,
    /// Instances of the same slot.
    neighbours: Vec<RootKey>,
}

impl CommitSink for Store {
    fn commit(&self, _: &Commit<'_>) -> Result<u64, CommitRefused> {
        Ok(self.sequence.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

impl Store {
    fn new() -> Self {
        let engine = engine(samples::hlr(), 64 << 20);
        let mut random = ChaCha8Rng::seed_from_u64(51);
        let key = int_key(1);
        let beside = (2..).map(int_key).filter(|k| k.slot() == key.slot());
        let neighbours: Vec<_> = beside.take(60).collect();
        for key in std::iter::once(&key).chain(&neighbours) {
            let Some(Value::Int(id)) = key.decode().unwrap().pop() else { panic!("an integer") };
            let mut subscriber = samples::subscriber(id, &mut random);
            subscriber.tables[1].truncate(1);
            assert_eq!(load(&engine, key, Some(subscriber)), Installed::Inserted);
        }
        let store = Self { engine, sequence: AtomicU64::new(0), key, neighbours };
        store.answer(Call::Set(0));
        store
    }

    fn state(&self) -> State {
        match self.answer(Call::Read) {
            Answer::Seen(state) => state,
            other => panic!("{other:?}"),
        }
    }

    fn read(&self, table: usize) -> (Vec<Vec<Vec<Value>>>, u64) {
        let child = vec![equal(1, CHILD_KIND)];
        let root = TableRead { table: 0, columns: vec![VALUE], conditions: Vec::new() };
        let child = TableRead { table: 1, columns: vec![2], conditions: child };
        let mut plan = ReadPlan { tables: vec![root, child] };
        plan.tables.drain(..table);
        match self.engine.read(&self.key, &plan).unwrap() {
            ReadAnswer::Found { tables, as_of } => (tables, as_of),
            other => panic!("{other:?}"),
        }
    }

    fn transact(&self, guards: Vec<Guard>, operation: Operation) -> Answer {
        let transaction = Transaction { guards, operations: vec![operation] };
        match self.engine.transact(&self.key, &transaction, self) {
            Ok(done) => Answer::Done(done.sequence),
            Err(
                TransactError::GuardFailed { .. }
                | TransactError::PrimaryKey { .. }
                | TransactError::RowCount { .. },
            ) => Answer::Refused,
            Err(error) => panic!("{error}"),
        }
    }

    /// Lets the neighbours grow and shrink and the instance become clean, until told to stop.
    fn disturb(&self, stop: &AtomicBool, mut random: ChaCha8Rng) {
        while !stop.load(Ordering::Relaxed) {
            let key = &self.neighbours[random.random_range(0..self.neighbours.len())];
            let Some(Value::Int(id)) = key.decode().unwrap().pop() else { panic!("an integer") };
            let operations = vec![insert_child(id, random.random())];
            let grown =
                self.engine.transact(key, &Transaction { guards: vec![], operations }, self);
            let shrunk =
                grown.or_else(|_| self.engine.transact(key, &one(delete_child(None)), self));
            self.engine.flushed(key, shrunk.unwrap().sequence);
            self.engine.flushed(&self.key, self.sequence.load(Ordering::Relaxed));
        }
    }
}

fn equal(column: usize, value: i64) -> Condition {
    Condition { column, comparison: Comparison::Equal, values: vec![Value::Int(value)] }
}

fn set(value: i64) -> Operation {
    let set = vec![(VALUE, Value::Int(value))];
    Operation::Update { table: 0, conditions: Vec::new(), set, expect: Some(1) }
}

fn insert_child(id: i64, value: i16) -> Operation {
    let text = |length| Value::Text("X".repeat(length).into());
    let numbers = [id, CHILD_KIND, i64::from(value), 0].map(Value::Int);
    let row = numbers.into_iter().chain([text(3), text(5)]).collect();
    Operation::Insert { table: 1, row }
}

fn delete_child(expect: Option<u32>) -> Operation {
    Operation::Delete { table: 1, conditions: vec![equal(1, CHILD_KIND)], expect }
}

/// The state that these rows are.
fn seen(root: &[Vec<Value>], child: &[Vec<Value>], version: u64) -> Answer {
    let number = |row: &Vec<Value>| match row[..] {
        [Value::Int(value)] => value,
        ref other => panic!("{other:?}"),
    };
    Answer::Seen(State { value: number(&root[0]), child: child.first().map(number), version })
}

impl Subject for Store {
    fn answer(&self, call: Call) -> Answer {
        match call {
            Call::Read => {
                let (tables, as_of) = self.read(0);
                seen(&tables[0], &tables[1], as_of)
            }
            Call::Set(value) => self.transact(Vec::new(), set(value)),
            Call::Swap(from, to) => {
                let guard = Guard::Exists { table: 0, conditions: vec![equal(VALUE, from)] };
                self.transact(vec![guard], set(to))
            }
            Call::InsertChild(value) => self.transact(Vec::new(), insert_child(1, value as i16)),
            Call::DeleteChild => self.transact(Vec::new(), delete_child(Some(1))),
        }
    }
}

/// One round: every thread makes its calls; what happened, and from which state on.
fn history(subject: &dyn Subject, store: &Store, round: u64) -> (State, Vec<Event>) {
    let start = store.state();
    let (clock, barrier) = (AtomicU64::new(0), std::sync::Barrier::new(THREADS as usize));
    let (clock, barrier) = (&clock, &barrier);
    let stop = AtomicBool::new(false);
    let events = std::thread::scope(|scope| {
        let disturber = scope.spawn(|| store.disturb(&stop, seeded(round, 9)));
        let thread = |n| {
            move || {
                let mut random = seeded(round, n);
                barrier.wait();
                let event = |_| {
                    let call = random_call(&mut random);
                    let begun = clock.fetch_add(1, Ordering::SeqCst);
                    let answer = subject.answer(call);
                    Event { begun, ended: clock.fetch_add(1, Ordering::SeqCst), call, answer }
                };
                (0..CALLS).map(event).collect::<Vec<_>>()
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|n| scope.spawn(thread(n))).collect();
        let events = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
        stop.store(true, Ordering::Relaxed);
        disturber.join().unwrap();
        events
    });
    (start, events)
}

fn seeded(round: u64, thread: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(round * 10 + thread)
}

fn random_call(random: &mut ChaCha8Rng) -> Call {
    let mut few = || random.random_range(0..3);
    match few() * 3 + few() {
        0..4 => Call::Read,
        4 => Call::Set(few()),
        5..7 => Call::Swap(few(), few()),
        7 => Call::InsertChild(few()),
        _ => Call::DeleteChild,
    }
}

#[test]
fn every_history_of_one_instance_could_have_happened_one_by_one() {
    let store = Store::new();
    let rounds = std::env::var("ENGINE_ROUNDS").ok().and_then(|s| s.parse().ok()).unwrap_or(100);
    let (mut overlapping, mut refused) = (0_u64, 0_u64);
    for round in 0..rounds {
        let (start, events) = history(&store, &store, round);
        assert!(is_linearizable(start, &events), "round {round} from {start:?}: {events:#?}");
        overlapping += events.iter().filter(|e| e.ended > e.begun + 1).count() as u64;
        refused += events.iter().filter(|e| e.answer == Answer::Refused).count() as u64;
    }
    assert!(
        overlapping > rounds && refused > rounds,
        "{overlapping} overlapped, {refused} refused"
    );
}

/// The engine with one defect.
struct Broken<'a> {
    store: &'a Store,
    answer: fn(&Store, Call) -> Answer,
}

impl Subject for Broken<'_> {
    fn answer(&self, call: Call) -> Answer {
        (self.answer)(self.store, call)
    }
}

/// Checks and sets in two steps.
fn checks_before_the_lock(store: &Store, call: Call) -> Answer {
    let Call::Swap(from, to) = call else { return store.answer(call) };
    if store.state().value != from {
        return Answer::Refused;
    }
    std::thread::yield_now();
    store.answer(Call::Set(to))
}

/// Reads the tables one after the other.
fn reads_in_two_steps(store: &Store, call: Call) -> Answer {
    let Call::Read = call else { return store.answer(call) };
    let (tables, _) = store.read(0);
    std::thread::yield_now();
    let (child, _) = store.read(1);
    seen(&tables[0], &child[0], 0)
}

/// Answers before the change is there to be seen.
fn answers_too_early(store: &Store, call: Call) -> Answer {
    let Call::DeleteChild = call else { return store.answer(call) };
    let before = store.state();
    if before.child.is_none() { Answer::Refused } else { Answer::Done(before.version + 1) }
}

#[test]
fn planted_defects_are_found_in_the_history() {
    for answer in [checks_before_the_lock, reads_in_two_steps, answers_too_early] {
        let store = Store::new();
        let broken = Broken { store: &store, answer };
        let found = (0..3_000).any(|round| {
            let (start, events) = history(&broken, &store, round);
            !is_linearizable(start, &events)
        });
        assert!(found, "a defect was not found");
    }
}
