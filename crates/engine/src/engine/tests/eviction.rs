//! Eviction: who goes, who never goes, and how well the clock chooses.

use super::*;
use crate::{Installed, ReadAnswer};
use cachetier_model::Operation;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, VecDeque};

fn wanted(engine: &Engine, id: i64, random: &mut rand_chacha::ChaCha8Rng) -> Installed {
    let ticket = engine.open_ticket().unwrap();
    let instance = Some(samples::subscriber(id, random));
    let installed = engine.install_wanted(&ticket, &int_key(id), instance).unwrap();
    engine.close_ticket(ticket);
    installed
}

fn update(id: i64) -> Transaction {
    one(Operation::Update {
        table: 0,
        conditions: Vec::new(),
        set: vec![(33, Value::Int(id + 1_000_000))],
        expect: Some(1),
    })
}

/// Ids whose instances share sixteen slots, so that a small budget holds hundreds in each.
fn crowded(count: usize) -> Vec<i64> {
    (1..).filter(|id| int_key(*id).slot().index() < 16).take(count).collect()
}

#[test]
fn d05_a_full_budget_evicts_clean_instances_and_never_a_dirty_one() {
    let capacity = 2_600 << 10;
    let engine = engine(samples::hlr(), capacity);
    engine.set_eviction(true);
    let sink = Recorder::default();
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(21);
    let mut dirty = BTreeMap::new();
    let ids = crowded(11_000);
    for (number, id) in ids.iter().enumerate() {
        assert_eq!(wanted(&engine, *id, &mut random), Installed::Inserted, "{number}");
        if number % 50 == 0 {
            let done = engine.transact(&int_key(*id), &update(*id), &sink).unwrap();
            dirty.insert(*id, done.sequence);
        }
    }
    let usage = engine.usage();
    assert!(engine.evicted() > 2_000, "{usage:?}");
    assert!(usage.bytes <= capacity && usage.bytes > capacity * 8 / 10, "{usage:?}");
    assert_eq!(usage.dirty_instances, dirty.len() as u64);
    for (id, sequence) in &dirty {
        let ReadAnswer::Found { as_of, .. } = whole(&engine, &int_key(*id)) else {
            panic!("a dirty instance was evicted")
        };
        assert_eq!(as_of, *sequence);
    }
    // what went is not loaded
    let gone = ids.iter().filter(|id| whole(&engine, &int_key(**id)) == ReadAnswer::NotLoaded);
    assert_eq!(gone.count() as u64, engine.evicted());
    assert_eq!(usage.instances + engine.evicted(), ids.len() as u64);
}

#[test]
fn without_eviction_a_full_budget_refuses_what_was_asked_for_too() {
    let engine = engine(samples::hlr(), 3 << 20);
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(22);
    let ids = crowded(20_000);
    let full = |id: &&i64| wanted(&engine, **id, &mut random) == Installed::MemoryFull;
    assert!(ids.iter().find(full).is_some());
    assert_eq!(engine.evicted(), 0);
}

#[test]
fn an_instance_that_nobody_read_between_two_passes_is_idle() {
    let engine = engine(samples::hlr(), CAPACITY);
    engine.set_eviction(true);
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(23);
    (1..=200).for_each(|id| assert_eq!(wanted(&engine, id, &mut random), Installed::Inserted));
    engine.transact(&int_key(7), &update(7), &Recorder::default()).unwrap();
    (1..=50).for_each(|id| drop(whole(&engine, &int_key(id))));
    let idle: usize = SlotId::all().map(|slot| engine.evict_idle(slot)).sum();
    assert_eq!(idle, 150);
    assert_eq!(SlotId::all().map(|slot| engine.evict_idle(slot)).sum::<usize>(), 49);
    assert!(matches!(whole(&engine, &int_key(7)), ReadAnswer::Found { .. }), "dirty ones stay");
}

const CAPACITY: u64 = 64 << 20;

/// Least recently used first out, over as many instances as the engine held.
struct Lru {
    order: VecDeque<(i64, u64)>,
    last: BTreeMap<i64, u64>,
    clock: u64,
}

impl Lru {
    fn read(&mut self, id: i64, room: usize) -> bool {
        self.clock += 1;
        let hit = self.last.insert(id, self.clock).is_some();
        self.order.push_back((id, self.clock));
        while self.last.len() > room {
            let Some((oldest, at)) = self.order.pop_front() else { break };
            if self.last.get(&oldest) == Some(&at) {
                self.last.remove(&oldest);
            }
        }
        hit
    }
}

#[test]
fn the_clock_hits_about_as_often_as_least_recently_used() {
    let engine = engine(samples::hlr(), 2_600 << 10);
    engine.set_eviction(true);
    let all = crowded(20_000);
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(24);
    let mut trace = rand_chacha::ChaCha8Rng::seed_from_u64(25);
    let mut draw = || {
        // a few ids much, many ids little
        let skewed = trace.random::<f64>().powi(4);
        all[(skewed * all.len() as f64) as usize]
    };
    let (mut hits, mut reads) = (0, 0);
    let mut ids = Vec::new();
    for step in 0..24_000 {
        let id = draw();
        ids.push(id);
        let hit = whole(&engine, &int_key(id)) != ReadAnswer::NotLoaded;
        if !hit {
            assert_eq!(wanted(&engine, id, &mut random), Installed::Inserted);
        }
        // the first half warms up
        if step >= 12_000 {
            (hits, reads) = (hits + u32::from(hit), reads + 1);
        }
    }
    let room = engine.usage().instances as usize;
    let mut lru = Lru { order: VecDeque::new(), last: BTreeMap::new(), clock: 0 };
    let outcomes: Vec<bool> = ids.iter().map(|id| lru.read(*id, room)).collect();
    let lru_hits = outcomes[12_000..].iter().filter(|hit| **hit).count();
    let percent = |hits: f64| hits * 100.0 / f64::from(reads);
    let (clock, lru) = (percent(f64::from(hits)), percent(lru_hits as f64));
    assert!(engine.evicted() > 1_000, "the budget was never reached");
    assert!(clock > lru - 3.0, "clock {clock:.1} %, LRU {lru:.1} % of {room} instances");
    assert!((20.0..99.0).contains(&clock), "the trace tells nothing: {clock:.1} %");
    eprintln!("hit ratio: clock {clock:.1} %, LRU {lru:.1} %, {room} instances held");
}
