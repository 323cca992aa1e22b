//! Slots out of one store and back into another.

use super::*;
use crate::{Installed, LAYOUT_VERSION, PutBack, ReadAnswer, SlotCopy};
use cachetier_model::{LookupKey, Operation};
use rand::SeedableRng;

const CAPACITY: u64 = 64 << 20;
const COUNT: i64 = 500;

fn number(id: i64) -> String {
    format!("{id:015}")
}

fn filled() -> Engine {
    let engine = engine(samples::hlr(), CAPACITY);
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(31);
    for id in 1..=COUNT {
        let mut subscriber = samples::subscriber(id, &mut random);
        subscriber.tables[0][0][1] = Value::Text(number(id).into());
        assert_eq!(load(&engine, &int_key(id), Some(subscriber)), Installed::Inserted);
    }
    engine
}

fn update(id: i64) -> Transaction {
    let set = vec![(33, Value::Int(id + 1_000_000))];
    one(Operation::Update { table: 0, conditions: Vec::new(), set, expect: Some(1) })
}

/// Copies every slot and puts it into another store.
fn through(from: &Engine, to: &Engine, skip: &dyn Fn(&RootKey) -> bool) -> Vec<(u64, PutBack)> {
    let ticket = to.open_ticket().unwrap();
    let put = SlotId::all().map(|slot| {
        let mut image = Vec::new();
        from.copy_slot(slot, || 0, &mut image);
        to.put_back(&ticket, slot, &image, skip)
    });
    let put = put.collect();
    to.close_ticket(ticket);
    put
}

#[test]
fn what_was_copied_out_is_the_same_when_it_is_back_by_key_lookup_and_account() {
    let (from, to) = (filled(), engine(samples::hlr(), CAPACITY));
    let put = through(&from, &to, &|_| false);
    assert!(put.iter().all(|(_, how)| *how == PutBack::Whole));
    assert_eq!(put.iter().map(|(count, _)| count).sum::<u64>(), COUNT as u64);
    for id in 1..=COUNT {
        assert_eq!(whole(&from, &int_key(id)), whole(&to, &int_key(id)));
        let key = LookupKey::encode(&[Value::Text(number(id).into())]).unwrap();
        assert_eq!(to.resolve(0, &key).root, Some(int_key(id)));
    }
    assert_eq!(from.usage().tables, to.usage().tables);
    for engine in [&from, &to] {
        SlotId::all().for_each(|slot| engine.clear_slot(slot));
    }
    assert_eq!(to.memory.held(), from.memory.held(), "what the lookup indexes keep");
}

#[test]
fn r01_r03_a_copy_leaves_out_what_is_not_flushed_and_says_from_where_the_journal_must_go_on() {
    let (from, sink) = (filled(), Recorder::default());
    let key = int_key(7);
    let mut sequence = 0;
    for _ in 0..3 {
        sequence = from.transact(&key, &update(sequence as i64), &sink).unwrap().sequence;
    }
    let (mut image, slot) = (Vec::new(), key.slot());
    let copy = from.copy_slot(slot, || 90, &mut image);
    assert_eq!((copy.sequence, copy.newest_open), (sequence - 1, sequence));
    let to = engine(samples::hlr(), CAPACITY);
    let ticket = to.open_ticket().unwrap();
    let (put, how) = to.put_back(&ticket, slot, &image, &|_| false);
    assert_eq!((put, how), (copy.instances, PutBack::Whole));
    assert_eq!(whole(&to, &key), ReadAnswer::NotLoaded);
    from.flushed(&key, sequence);
    image.clear();
    let later = from.copy_slot(slot, || 90, &mut image);
    let instances = copy.instances + 1;
    assert_eq!(later, SlotCopy { sequence: 90, newest_open: 0, instances });
}

#[test]
fn an_image_never_replaces_what_is_known_nor_enters_a_slot_that_was_emptied() {
    let (from, to, sink) = (filled(), engine(samples::hlr(), CAPACITY), Recorder::default());
    let (newer, deleted, skipped) = (int_key(1), int_key(2), int_key(3));
    let ticket = to.open_ticket().unwrap();
    for id in [1, 2] {
        let ReadAnswer::Found { tables, .. } = whole(&from, &int_key(id)) else { panic!() };
        load(&to, &int_key(id), Some(Instance { tables }));
    }
    let first = to.transact(&newer, &update(1), &sink).unwrap().sequence;
    to.flushed(&newer, first);
    let gone =
        (0..4).rev().map(|table| Operation::Delete { table, conditions: Vec::new(), expect: None });
    let gone = Transaction { guards: Vec::new(), operations: gone.collect() };
    let last = to.transact(&deleted, &gone, &sink).unwrap().sequence;
    to.decided(&deleted, last, true);
    to.flushed(&deleted, last);
    let before = whole(&to, &newer);
    for slot in SlotId::all() {
        let mut image = Vec::new();
        from.copy_slot(slot, || 0, &mut image);
        to.put_back(&ticket, slot, &image, &|key| *key == skipped);
    }
    assert_eq!(whole(&to, &newer), before);
    assert!(!matches!(whole(&to, &deleted), ReadAnswer::Found { .. }), "it was deleted");
    assert_eq!(whole(&to, &skipped), ReadAnswer::NotLoaded);
    let mut image = Vec::new();
    let slot = int_key(9).slot();
    from.copy_slot(slot, || 0, &mut image);
    to.clear_slot(slot);
    assert_eq!(to.put_back(&ticket, slot, &image, &|_| false), (0, PutBack::Broken));
    assert_eq!(whole(&to, &int_key(9)), ReadAnswer::NotLoaded);
}

#[test]
fn d23_images_stop_at_the_budget() {
    let from = filled();
    let budget = Engine::capacity_bytes_min(1) + (40 << 10);
    let to = engine(samples::hlr(), budget);
    let put = through(&from, &to, &|_| false);
    assert!(put.iter().any(|(_, how)| *how == PutBack::MemoryFull));
    assert!(to.memory.held() <= budget, "{} {:?}", to.memory.held(), to.usage());
    assert!(to.usage().instances > 0);
}

#[test]
fn bytes_that_are_no_image_are_refused_and_never_panic() {
    let from = filled();
    let slot = int_key(5).slot();
    let mut image = Vec::new();
    from.copy_slot(slot, || 0, &mut image);
    let to = engine(samples::hlr(), CAPACITY);
    let ticket = to.open_ticket().unwrap();
    let cut = &image[..image.len() - 1];
    assert_eq!(to.put_back(&ticket, slot, cut, &|_| false), (0, PutBack::Damaged));
    let other = SlotId::new((slot.number() + 1) % 4_096).unwrap();
    assert_eq!(to.put_back(&ticket, other, &image, &|_| false).1, PutBack::Damaged);
    for at in 0..image.len() {
        let mut flipped = image.clone();
        flipped[at] ^= 0x55;
        to.put_back(&ticket, slot, &flipped, &|_| false);
        to.clear_slot(slot);
    }
}

/// Images outlive a process: whoever changes the packed form changes its version, and this.
#[test]
fn the_packed_form_of_this_version_is_frozen() {
    let from = filled();
    let mut all = Vec::new();
    for slot in SlotId::all() {
        let mut image = Vec::new();
        from.copy_slot(slot, || 0, &mut image);
        all.extend(image);
    }
    let digest = xxhash_rust::xxh3::xxh3_64(&all);
    assert_eq!((LAYOUT_VERSION, all.len(), digest), (1, 61_312, 12_288_658_699_075_295_893));
}
