//! The queue's promises without any backend.

use super::{LaneQueue, Queue, TakeLimits, Taken};
use crate::backend::claim::LaneClaim;
use crate::pending::Draft;
use cachetier_model::{ChangeKind, RootKey, RowChange, SlotSet, Value};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

const AT_ONCE: TakeLimits = TakeLimits { rows: 10, bytes: u64::MAX, delay: Duration::ZERO };

fn draft(id: i64) -> Draft {
    let key = RootKey::encode(&[Value::Int(id)]).unwrap();
    let change = RowChange {
        table: 0,
        kind: ChangeKind::Update,
        row: vec![Value::Int(id)],
        changed: vec![0],
    };
    Draft {
        slot: key.slot(),
        key,
        changes: Arc::new([change]),
        awaits_backend: false,
        urgent: false,
    }
}

fn lanes(queue: &Queue, count: u16) {
    let lanes: Vec<LaneClaim> = (0..count)
        .map(|lane| LaneClaim { lane, version: 1, position: 0, slots: SlotSet::full() })
        .collect();
    let mut inner = queue.inner.lock();
    inner.reset_lanes(&lanes);
    inner.route_staged(1_000);
}

fn put(queue: &Arc<Queue>, id: i64, sequence: u64, bytes: u64) {
    let reserved = queue.reserve(bytes).unwrap();
    reserved.commit(draft(id), || Ok::<u64, ()>(sequence)).unwrap();
}

#[test]
fn d10_batches_in_flight_count_against_the_bound() {
    let queue = Queue::new(1_000, 100, 0);
    lanes(&queue, 1);
    (1..=10).for_each(|n| put(&queue, 1, n, 100));
    let Taken::Batch(batch) = queue.take(0, u64::MAX, AT_ONCE) else { panic!("must be due") };
    assert_eq!(batch.len(), 10);
    let full = queue.reserve(1).err().unwrap();
    assert_eq!((full.bytes, full.capacity), (1_000, 1_000));
    queue.settled(0, &batch[..4], 4, true);
    let reserved = queue.reserve(400).unwrap();
    assert!(queue.reserve(1).is_err(), "what is reserved counts too");
    drop(reserved);
    assert!(queue.reserve(400).is_ok(), "and is given back when it is not used");
}

#[test]
fn r1_only_synced_sequences_leave() {
    let queue = Queue::new(1_000, 100, 0);
    lanes(&queue, 1);
    (1..=5).for_each(|n| put(&queue, 1, n, 1));
    assert!(matches!(queue.take(0, 0, AT_ONCE), Taken::AwaitsSync));
    let Taken::Batch(batch) = queue.take(0, 3, AT_ONCE) else { panic!("must be due") };
    assert_eq!(batch.iter().map(|p| p.sequence).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn r11_a_slot_has_a_backlog_until_its_own_commits_are_confirmed() {
    let queue = Queue::new(1_000, 100, 0);
    lanes(&queue, 1);
    put(&queue, 1, 1, 1);
    put(&queue, 2, 2, 1);
    let slots = |id| std::iter::once(draft(id).slot).collect::<SlotSet>();
    let Taken::Batch(batch) = queue.take(0, 9, AT_ONCE) else { panic!("must be due") };
    queue.settled(0, &batch[..1], 1, false);
    assert!(queue.transactions_of(&slots(1)) > 0, "a crash may take it back");
    queue.settled(0, &batch[1..], 2, false);
    queue.confirmed(0, 1);
    assert_eq!(queue.transactions_of(&slots(1)), 0, "others' commits do not hold it up");
    assert!(queue.transactions_of(&slots(2)) > 0);
    assert!(!queue.inner.lock().is_drained(), "nor do the lanes change before (R10)");
    queue.confirmed(0, 2);
    assert_eq!(queue.transactions_of(&slots(2)), 0);
    assert!(queue.inner.lock().is_drained());
}

#[test]
fn a_transaction_waits_for_company_no_longer_than_told_unless_somebody_waits_for_it() {
    let queue = Queue::new(1_000, 100, 0);
    lanes(&queue, 1);
    let patient = TakeLimits { delay: Duration::from_secs(3_600), ..AT_ONCE };
    put(&queue, 1, 1, 1);
    assert!(matches!(queue.take(0, 9, patient), Taken::NotBefore(_)));
    let reserved = queue.reserve(1).unwrap();
    let urgent = Draft { urgent: true, ..draft(2) };
    reserved.commit(urgent, || Ok::<u64, ()>(2)).unwrap();
    let Taken::Batch(batch) = queue.take(0, 9, patient) else { panic!("must be due") };
    assert_eq!(batch.len(), 2, "in order: what was before it leaves with it");
    (3..=12).for_each(|n| put(&queue, 1, n, 1));
    assert!(matches!(queue.take(0, 99, patient), Taken::Batch(_)), "a full batch does not wait");
}

#[test]
fn a_refused_append_gives_its_bytes_back_and_queues_nothing() {
    let queue = Queue::new(100, 10, 0);
    lanes(&queue, 1);
    let reserved = queue.reserve(100).unwrap();
    assert_eq!(reserved.commit(draft(1), || Err("disk full")), Err("disk full"));
    assert!(queue.backlog().bytes == 0 && queue.backlog().transactions == 0);
}

proptest! {
    /// Writers, takers and settlers in any interleaving: nothing is lost, doubled or reordered
    /// within a lane, and the marks never pass what is outstanding.
    #[test]
    fn d04_writes_beside_flush_completions_are_never_dropped(
        steps in proptest::collection::vec((0_u8..4, 0_i64..8, 1_usize..5), 1..200)
    ) {
        let queue = Queue::new(u64::MAX, 4, 0);
        lanes(&queue, 2);
        let mut next = 1;
        let mut in_flight: [Vec<crate::pending::Pending>; 2] = [Vec::new(), Vec::new()];
        let mut settled: Vec<u64> = Vec::new();
        let mut last = [0_u64; 2];
        for (step, id, count) in steps {
            let lane = usize::from(step % 2);
            match step {
                0 | 1 => {
                    put(&queue, id, next, 1);
                    next += 1;
                }
                _ if in_flight[lane].is_empty() => {
                    let limits = TakeLimits { rows: count as u32, ..AT_ONCE };
                    if let Taken::Batch(batch) = queue.take(lane as u16, u64::MAX, limits) {
                        in_flight[lane] = batch;
                    }
                }
                _ => {
                    let part: Vec<_> =
                        in_flight[lane].drain(..count.min(in_flight[lane].len())).collect();
                    let position = part.last().unwrap().sequence;
                    queue.settled(lane as u16, &part, position, true);
                    for pending in part {
                        prop_assert!(pending.sequence > last[lane], "order within a lane");
                        last[lane] = pending.sequence;
                        settled.push(pending.sequence);
                    }
                }
            }
            let marks = queue.subscribe().borrow().clone();
            for (lane, mark) in marks.lanes.iter().enumerate() {
                let first = in_flight[lane].first().map(|p| p.sequence);
                prop_assert!(first.is_none_or(|first| mark.flushed < first));
            }
            let outstanding = queue.inner.lock().lanes.iter().filter_map(LaneQueue::head).min();
            prop_assert!(outstanding.is_none_or(|first| marks.flushed < first));
        }
        let expected: u64 = next - 1 - settled.len() as u64;
        prop_assert_eq!(queue.backlog().transactions, expected);
        prop_assert_eq!(queue.backlog().bytes, expected);
    }
}

#[test]
fn r16_what_the_backend_decided_before_the_claim_is_not_taken_for_accepted() {
    let queue = Queue::new(1_000, 100, 0);
    let awaited = |id, sequence| Draft { awaits_backend: true, ..draft(id) }.at(sequence, 1);
    queue.enqueue(draft(1).at(5, 1)).unwrap();
    queue.enqueue(awaited(2, 7)).unwrap();
    let at = |position| {
        let lane = LaneClaim { lane: 0, version: 1, position, slots: SlotSet::full() };
        queue.staged_awaited(&[lane])
    };
    assert!(!at(6), "the backend has yet to decide");
    assert!(at(7), "accepted or refused: the position does not tell");
}
