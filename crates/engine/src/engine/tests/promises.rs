//! Promises of the design that are the engine's to keep, one history each.

use super::*;
use crate::{Installed, ReadAnswer, TransactError};
use cachetier_model::schema::UniqueKey;
use cachetier_model::{
    ColumnType, Comparison, Condition, LookupKey, Operation, ReadPlan, TableRead,
};
use rand::SeedableRng;
use std::sync::atomic::{AtomicBool, Ordering};

const CAPACITY: u64 = 64 << 20;

fn random() -> rand_chacha::ChaCha8Rng {
    rand_chacha::ChaCha8Rng::seed_from_u64(11)
}

fn set_vlr(value: i64) -> Transaction {
    let column = 33;
    one(Operation::Update {
        table: 0,
        conditions: Vec::new(),
        set: vec![(column, Value::Int(value))],
        expect: Some(1),
    })
}

fn set_number(number: &str) -> Transaction {
    one(Operation::Update {
        table: 0,
        conditions: Vec::new(),
        set: vec![(1, Value::Text(number.into()))],
        expect: Some(1),
    })
}

/// Deletes children first: the workload's foreign keys have no action.
fn delete_all() -> Transaction {
    let delete = |table| Operation::Delete { table, conditions: Vec::new(), expect: None };
    Transaction { guards: Vec::new(), operations: vec![delete(3), delete(2), delete(1), delete(0)] }
}

fn number(text: &str) -> LookupKey {
    LookupKey::encode(&[Value::Text(text.into())]).unwrap()
}

fn hlr_with(ids: std::ops::RangeInclusive<i64>) -> Engine {
    let engine = engine(samples::hlr(), CAPACITY);
    let mut random = random();
    for id in ids {
        let mut subscriber = samples::subscriber(id, &mut random);
        subscriber.tables[0][0][1] = Value::Text(format!("{id:015}").into());
        assert_eq!(load(&engine, &int_key(id), Some(subscriber)), Installed::Inserted);
    }
    engine
}

#[test]
fn d05_a_dirty_instance_cannot_be_evicted() {
    let engine = hlr_with(1..=1);
    let sink = Recorder::default();
    let done = engine.transact(&int_key(1), &set_vlr(7), &sink).unwrap();
    assert!(!engine.forget(&int_key(1)));
    assert_eq!(engine.slot_dirty(int_key(1).slot()), 1);
    engine.flushed(&int_key(1), done.sequence);
    assert!(engine.forget(&int_key(1)));
    assert_eq!(whole(&engine, &int_key(1)), ReadAnswer::NotLoaded);
}

#[test]
fn d06_a_deleted_instance_is_not_resurrected_by_a_load_that_began_before_the_delete() {
    let engine = hlr_with(1..=1);
    let sink = Recorder::default();
    let key = int_key(1);
    let old = sink_image(&engine, &key);
    let before = engine.open_ticket().unwrap();
    let deleted = engine.transact(&key, &delete_all(), &sink).unwrap();
    assert!(deleted.awaits_backend);
    assert!(matches!(whole(&engine, &key), ReadAnswer::Found { .. }), "not decided yet");
    assert_eq!(engine.install(&before, &key, Some(old.clone())).unwrap(), Installed::Present);
    engine.decided(&key, deleted.sequence, true);
    assert_eq!(whole(&engine, &key), ReadAnswer::Absent { as_of: 0 });
    assert_eq!(engine.install(&before, &key, Some(old.clone())).unwrap(), Installed::Broken);
    engine.close_ticket(before);
    assert_eq!(whole(&engine, &key), ReadAnswer::NotLoaded);
    assert_eq!(engine.resolve(0, &number("000000000000001")).root, None);
}

/// The instance as it is now.
fn sink_image(engine: &Engine, key: &RootKey) -> Instance {
    match whole(engine, key) {
        ReadAnswer::Found { tables, .. } => Instance { tables },
        other => panic!("{other:?}"),
    }
}

#[test]
fn d21_not_loaded_is_not_absent_and_a_write_waits_for_the_load() {
    let engine = engine(samples::hlr(), CAPACITY);
    let sink = Recorder::default();
    let key = int_key(5);
    assert_eq!(whole(&engine, &key), ReadAnswer::NotLoaded);
    let outcome = engine.transact(&key, &set_vlr(1), &sink);
    assert!(matches!(outcome, Err(TransactError::NotLoaded)));
    let ticket = engine.open_ticket().unwrap();
    engine.install(&ticket, &key, None).unwrap();
    assert_eq!(whole(&engine, &key), ReadAnswer::Absent { as_of: 0 });
    let root = samples::subscriber(5, &mut random()).tables[0][0].clone();
    let insert = one(Operation::Insert { table: 0, row: root });
    let done = engine.transact(&key, &insert, &sink).unwrap();
    engine.close_ticket(ticket);
    assert!(matches!(
        engine.transact(&key, &set_vlr(1), &sink),
        Err(TransactError::AwaitingBackend)
    ));
    assert_eq!(whole(&engine, &key), ReadAnswer::Absent { as_of: 0 }, "not accepted yet");
    engine.decided(&key, done.sequence, true);
    assert!(matches!(whole(&engine, &key), ReadAnswer::Found { as_of: 0, .. }));
}

#[test]
fn d23_a_full_budget_refuses_loads_and_inserts_and_goes_on_serving() {
    let capacity = 3 << 20;
    let engine = engine(samples::hlr(), capacity);
    let mut random = random();
    let mut loaded = 0;
    for id in 1..100_000 {
        match load(&engine, &int_key(id), Some(samples::subscriber(id, &mut random))) {
            Installed::Inserted => loaded = id,
            Installed::MemoryFull => break,
            other => panic!("{other:?}"),
        }
    }
    let usage = engine.usage();
    assert!(usage.bytes <= capacity && usage.bytes > capacity * 9 / 10, "{usage:?}");
    assert_eq!(usage.instances, loaded as u64);
    assert!(matches!(whole(&engine, &int_key(loaded)), ReadAnswer::Found { .. }));
}

#[test]
fn d31_keys_may_be_composite_text_uuid_and_negative() {
    let column = samples::column;
    let root = vec![
        column("name", ColumnType::Text, true),
        column("id", ColumnType::Uuid, true),
        column("n", ColumnType::Int4, true),
        column("amount", ColumnType::Numeric { precision: Some(9), scale: Some(2) }, true),
        column("code", ColumnType::Char { length: 6 }, true),
    ];
    let schema = GroupSchema {
        backend_schema: "public".to_owned(),
        tables: vec![samples::table("t", None, root, vec![0, 1, 2], vec![0, 1, 2])],
        lookups: vec![cachetier_model::schema::LookupSchema {
            columns: vec![3, 4],
            constraint: "amount_code".to_owned(),
        }],
    };
    let engine = engine(schema, CAPACITY);
    let text = |s: &str| Value::Text(s.into());
    let row =
        vec![text("žluťoučký"), Value::Uuid([7; 16]), Value::Int(-3), text("1.50"), text("ab    ")];
    let key = engine.schema().encode_root_key(&row[..3]).unwrap();
    load(&engine, &key, Some(Instance { tables: vec![vec![row.clone()]] }));
    assert_eq!(whole(&engine, &key), ReadAnswer::Found { tables: vec![vec![row]], as_of: 0 });
    // R21: 1.5 is 1.50, and padding does not count
    let lookup = engine.schema().encode_lookup_key(0, &[text("1.5"), text("ab")]).unwrap();
    assert_eq!(engine.resolve(0, &lookup).root, Some(key));
}

#[test]
fn d32_two_lookup_keys_swapped_are_serialised_and_never_wrongly_refused() {
    let engine = hlr_with(1..=2);
    let sink = Recorder::default();
    let (a, b) = (int_key(1), int_key(2));
    let step = |key: &RootKey, to: &str| {
        let done = engine.transact(key, &set_number(to), &sink).unwrap();
        assert!(done.awaits_backend);
        done.sequence
    };
    let taken = engine.transact(&a, &set_number("000000000000002"), &sink);
    assert!(matches!(taken, Err(TransactError::LookupTaken { .. })));
    let first = step(&a, "9");
    // the old key is still a's for everyone, until the backend has spoken
    assert_eq!(engine.resolve(0, &number("000000000000001")).root, Some(a.clone()));
    assert_eq!(engine.resolve(0, &number("9")).root, None);
    for wanted in ["000000000000001", "9"] {
        let early = engine.transact(&b, &set_number(wanted), &sink);
        assert!(matches!(early, Err(TransactError::AwaitingBackend)), "{early:?}");
    }
    engine.decided(&a, first, true);
    let second = step(&b, "000000000000001");
    engine.decided(&b, second, true);
    let third = step(&a, "000000000000002");
    engine.decided(&a, third, true);
    assert_eq!(engine.resolve(0, &number("000000000000001")).root, Some(b));
    assert_eq!(engine.resolve(0, &number("000000000000002")).root, Some(a));
}

#[test]
fn a_refused_change_of_a_lookup_key_gives_the_new_key_back() {
    let engine = hlr_with(1..=2);
    let sink = Recorder::default();
    let done = engine.transact(&int_key(1), &set_number("9"), &sink).unwrap();
    engine.decided(&int_key(1), done.sequence, false);
    assert_eq!(whole(&engine, &int_key(1)), ReadAnswer::NotLoaded);
    assert!(engine.transact(&int_key(2), &set_number("9"), &sink).is_ok());
}

#[test]
fn answers_say_which_change_they_depend_on() {
    let engine = hlr_with(1..=1);
    let sink = Recorder::default();
    let key = int_key(1);
    let done = engine.transact(&key, &set_vlr(42), &sink).unwrap();
    assert_eq!((done.sequence, done.awaits_backend), (1, false));
    assert!(matches!(whole(&engine, &key), ReadAnswer::Found { as_of: 1, .. }));
    assert_eq!(engine.resolve(0, &number("000000000000001")).as_of, 1);
    let again = engine.transact(&key, &set_vlr(42), &sink).unwrap();
    assert_eq!((again.sequence, again.rows), (0, vec![1]), "no effect, no commit");
    engine.flushed(&key, 1);
    assert!(matches!(whole(&engine, &key), ReadAnswer::Found { as_of: 0, .. }));
}

#[test]
fn a_refused_commit_changes_nothing() {
    let engine = hlr_with(1..=1);
    let sink = Recorder::default();
    let before = whole(&engine, &int_key(1));
    sink.refuse.store(true, Ordering::Relaxed);
    for transaction in [set_vlr(42), set_number("9"), delete_all()] {
        let outcome = engine.transact(&int_key(1), &transaction, &sink);
        assert!(matches!(outcome, Err(TransactError::Refused(_))));
    }
    assert_eq!(whole(&engine, &int_key(1)), before);
    assert_eq!(engine.usage().dirty_instances, 0);
    sink.refuse.store(false, Ordering::Relaxed);
    assert!(engine.transact(&int_key(1), &set_number("9"), &sink).is_ok());
}

#[test]
fn a_quarantined_instance_is_out_of_service_until_it_is_forgotten() {
    let engine = hlr_with(1..=1);
    let sink = Recorder::default();
    let key = int_key(1);
    engine.transact(&key, &set_number("9"), &sink).unwrap();
    engine.quarantine(&key);
    assert_eq!(whole(&engine, &key), ReadAnswer::Quarantined);
    assert!(matches!(engine.transact(&key, &set_vlr(1), &sink), Err(TransactError::Quarantined)));
    let root = samples::subscriber(1, &mut random());
    assert_eq!(load(&engine, &key, Some(root.clone())), Installed::Present);
    assert_eq!(engine.usage().quarantined_instances, 1);
    assert!(engine.forget(&key));
    assert_eq!(load(&engine, &key, Some(root)), Installed::Inserted);
}

#[test]
fn r16_what_the_backend_must_decide_is_recognised() {
    let mut schema = samples::hlr();
    schema.tables[1]
        .unique_keys
        .push(UniqueKey { constraint: "data4_key".to_owned(), columns: vec![5] });
    let engine = engine(schema, CAPACITY);
    let subscriber = samples::subscriber(1, &mut random());
    load(&engine, &int_key(1), Some(subscriber));
    let sink = Recorder::default();
    let update = |table, column, value| {
        let set = vec![(column, value)];
        one(Operation::Update { table, conditions: Vec::new(), set, expect: None })
    };
    let plain = engine.transact(&int_key(1), &update(1, 2, Value::Int(999)), &sink).unwrap();
    assert!(!plain.awaits_backend);
    let unique =
        engine.transact(&int_key(1), &update(1, 5, Value::Text("x".into())), &sink).unwrap();
    assert!(unique.awaits_backend);
}

#[test]
fn reads_select_rows_and_columns_and_refuse_what_has_another_meaning_in_the_backend() {
    let mut schema = samples::hlr();
    schema.tables[3].columns[4].orders_by_bytes = false;
    let engine = engine(schema, CAPACITY);
    let mut subscriber = samples::subscriber(1, &mut random());
    let row = |start: i64, number: &str| {
        let number = Value::Text(number.into());
        vec![Value::Int(1), Value::Int(1), Value::Int(start), Value::Int(start + 5), number]
    };
    subscriber.tables[3] = vec![row(0, "1"), row(8, "2"), row(16, "3")];
    load(&engine, &int_key(1), Some(subscriber));
    let condition =
        |column, comparison, value| Condition { column, comparison, values: vec![value] };
    let read = |conditions| {
        let table = TableRead { table: 3, columns: vec![4, 2], conditions };
        engine.read(&int_key(1), &ReadPlan { tables: vec![table] })
    };
    let answer = read(vec![
        condition(2, Comparison::LessOrEqual, Value::Int(8)),
        condition(3, Comparison::Greater, Value::Int(6)),
    ]);
    let expected = vec![vec![vec![Value::Text("2".into()), Value::Int(8)]]];
    assert_eq!(answer.unwrap(), ReadAnswer::Found { tables: expected, as_of: 0 });
    let range = read(vec![condition(4, Comparison::Less, Value::Text("2".into()))]);
    assert!(range.unwrap_err().to_string().contains("COLLATE"));
    let kind = read(vec![condition(2, Comparison::Equal, Value::Bool(true))]);
    assert!(kind.unwrap_err().to_string().contains("start_time"));
}

#[test]
fn errors_name_table_column_and_constraint_and_never_a_value() {
    let engine = hlr_with(1..=1);
    let sink = Recorder::default();
    let forwarding = |sf_type: i64, number: &str| Operation::Insert {
        table: 3,
        row: vec![
            Value::Int(1),
            Value::Int(sf_type),
            Value::Int(0),
            Value::Int(5),
            Value::Text(number.into()),
        ],
    };
    let fail =
        |operation| engine.transact(&int_key(1), &one(operation), &sink).unwrap_err().to_string();
    let orphan = fail(forwarding(77, "1234"));
    assert!(orphan.contains("call_forwarding_fkey") && !orphan.contains("77"), "{orphan}");
    let long = fail(forwarding(1, "1234567890123456"));
    assert!(long.contains("numberx") && long.contains("character varying(15)"), "{long}");
    assert!(!long.contains("1234567890123456"));
}

#[test]
fn a_cleared_slot_is_empty_and_loads_begun_before_do_not_fill_it() {
    let engine = hlr_with(1..=1);
    let empty = self::engine(samples::hlr(), CAPACITY).usage().bytes;
    let image = sink_image(&engine, &int_key(1));
    let ticket = engine.open_ticket().unwrap();
    engine.transact(&int_key(1), &set_number("9"), &Recorder::default()).unwrap();
    engine.clear_slot(int_key(1).slot());
    assert_eq!(whole(&engine, &int_key(1)), ReadAnswer::NotLoaded);
    assert_eq!(
        engine.install(&ticket, &int_key(1), Some(image.clone())).unwrap(),
        Installed::Broken
    );
    let usage = engine.usage();
    assert_eq!(usage.instances, 0);
    assert!(usage.bytes <= empty + 2 * 16 * 7, "only lookup shards keep their size");
    assert_eq!(load(&engine, &int_key(1), Some(image)), Installed::Inserted);
}

#[test]
fn readers_on_other_threads_see_each_transaction_whole_and_in_order() {
    let engine = Arc::new(hlr_with(1..=4));
    let stop = Arc::new(AtomicBool::new(false));
    let reader = {
        let (engine, stop) = (engine.clone(), stop.clone());
        std::thread::spawn(move || {
            let mut last = [0; 5];
            while !stop.load(Ordering::Relaxed) {
                for id in 1..=4 {
                    let ReadAnswer::Found { tables, as_of } = whole(&engine, &int_key(id)) else {
                        panic!("it is loaded");
                    };
                    let root = &tables[0][0];
                    let Value::Int(seen) = root[33] else { panic!("an integer") };
                    assert!(root[32] == root[33] || as_of == 0, "both columns or neither");
                    assert!(seen >= last[id as usize], "never back in time");
                    last[id as usize] = if as_of == 0 { 0 } else { seen };
                }
            }
        })
    };
    let sink = Recorder::default();
    for round in 1..2_000_i64 {
        for id in 1..=4 {
            let set = vec![(32, Value::Int(round)), (33, Value::Int(round))];
            let update =
                one(Operation::Update { table: 0, conditions: Vec::new(), set, expect: Some(1) });
            engine.transact(&int_key(id), &update, &sink).unwrap();
        }
    }
    stop.store(true, Ordering::Relaxed);
    reader.join().unwrap();
}

#[test]
fn concurrent_claims_of_one_lookup_key_have_one_winner() {
    let engine = Arc::new(hlr_with(1..=64));
    let winners: usize = (0..8_i64)
        .map(|thread| {
            let engine = engine.clone();
            std::thread::spawn(move || {
                let sink = Recorder::default();
                let claim =
                    |n: i64| engine.transact(&int_key(n), &set_number("777"), &sink).is_ok();
                (1..=64).filter(|n| n % 8 == thread).filter(|n| claim(*n)).count()
            })
        })
        .collect::<Vec<_>>()
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .sum();
    assert_eq!(winners, 1);
}

#[test]
fn a_full_subscriber_takes_at_most_160_bytes_with_its_indexes() {
    let engine = engine(samples::hlr(), 1 << 30);
    let base = engine.usage().bytes;
    let mut random = random();
    let ticket = engine.open_ticket().unwrap();
    // few slots, filled as a node with two million subscribers fills all of them
    let count = 30_000;
    let mut ids = (1..).filter(|id| int_key(*id).slot().index() < 64);
    for id in ids.by_ref().take(count) {
        let subscriber = samples::subscriber(id, &mut random);
        engine.install(&ticket, &int_key(id), Some(subscriber)).unwrap();
    }
    let each = (engine.usage().bytes - base) as f64 / count as f64;
    assert!(each <= 160.0, "{each} bytes per subscriber");
}

#[test]
fn a_batch_of_lookups_answers_as_one_by_one() {
    let engine = hlr_with(1..=100);
    let numbers: Vec<_> = (0..=101).map(|id| number(&format!("{id:015}"))).collect();
    let batch = engine.resolve_batch(0, &numbers.iter().collect::<Vec<_>>());
    let single: Vec<_> = numbers.iter().map(|n| engine.resolve(0, n)).collect();
    assert_eq!(batch, single);
    assert_eq!(batch.iter().filter(|r| r.root.is_some()).count(), 100);
    engine.prefetch(&[int_key(1), int_key(1_000)]);
}
