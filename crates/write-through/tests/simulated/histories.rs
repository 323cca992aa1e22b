//! Single histories that broke a promise once.

use super::*;
use cachetier_model::SlotId;
use cachetier_write_through::{BackendHealth, Reason, lane_of};

/// A node like [`Node::start`]'s, which owns only these slots at first.
async fn owner_of(
    backend: &DoubleBackend,
    options: WriteThroughOptions,
    slots: &SlotSet,
) -> (Node, u64) {
    let claim = backend.claim(claim_request(None, "a", options.lanes)).await.unwrap();
    let token = claim.token;
    take(backend, token, slots).await;
    let node = node_of(backend, options);
    node.through.claimed(claim);
    node.through.slots_gained(slots, &[]);
    (node, token)
}

/// A node that was not given its claim yet.
fn node_of(backend: &DoubleBackend, options: WriteThroughOptions) -> Node {
    let (synced, watching) = watch::channel(0);
    let journal = Arc::<Journal>::default();
    let stop = CancellationToken::new();
    let (through, events) = WriteThrough::start(
        options,
        Arc::new(backend.clone()),
        Arc::new(schema()),
        watching,
        Some(Arc::clone(&journal) as Arc<dyn Replay>),
        0,
        stop.clone(),
    );
    Node { through, events, synced, journal, next: 1, stop }
}

async fn take(backend: &DoubleBackend, token: u64, slots: &SlotSet) {
    let takeover = TakeoverRequest {
        group_uid: "g".to_owned(),
        node: "n".to_owned(),
        token,
        epoch: 1,
        slots: slots.clone(),
        holding: SlotSet::empty(),
        released: Vec::new(),
    };
    backend.take_slots(takeover).await.unwrap();
}

fn one(slot: SlotId) -> SlotSet {
    std::iter::once(slot).collect()
}

pub(super) fn insert(id: i64, v: i64) -> Vec<RowChange> {
    vec![change(ROOT, ChangeKind::Insert, row(id, id, v))]
}

#[test]
fn r09_a_writer_row_read_before_a_takeover_takes_none_of_the_slots_gained_by_it() {
    run(async {
        let backend = DoubleBackend::new(schema());
        let (first, second) = (key(1).slot(), key(2).slot());
        assert_ne!(first, second);
        backend.set_faults(|f| f.writer_answer_delay = Duration::from_secs(1));
        let (mut node, token) =
            owner_of(&backend, options(1, BackendCommit::Sync), &one(first)).await;
        node.commit(1, insert(1, 1));
        // the lane has read the row, and its answer is on the way
        tokio::time::sleep(Duration::from_millis(500)).await;
        take(&backend, token, &one(second)).await;
        node.through.slots_gained(&one(second), &[]);
        node.commit(2, insert(2, 2));
        let told = node.settle(&backend).await;
        let lost = told
            .iter()
            .any(|e| matches!(e, FlushEvent::SlotsLost { .. } | FlushEvent::Dropped { .. }));
        assert!(!lost, "{told:?}");
        assert_eq!(backend.store().tables[ROOT].len(), 2);
        assert!(node.through.still_lost(&one(second)).is_empty());
        node.stop.cancel();
    });
}

/// The first instance from `from` on whose slot is of this lane.
pub(super) fn id_of_lane(from: i64, lane: u16, lanes: u16) -> i64 {
    (from..).find(|id| lane_of(key(*id).slot(), lanes) == lane).unwrap()
}

#[test]
fn r17_a_rewind_of_one_lane_lifts_no_quarantine_of_another() {
    run(async {
        let backend = DoubleBackend::new(schema());
        let bad = Value::Int(66);
        backend.set_faults(|f| {
            f.refuse = Some(Box::new(move |s| s.rows.iter().any(|r| r[2] == bad)));
        });
        let mut node = Node::start(&backend, options(2, BackendCommit::Async)).await;
        let (mine, other) = (id_of_lane(1, 0, 2), id_of_lane(1, 1, 2));
        node.commit(mine, insert(mine, 1));
        node.settle(&backend).await;
        // lane 1 commits and is not confirmed, lane 0 sets a transaction aside in a synced commit
        node.commit(mine, vec![change(ROOT, ChangeKind::Update, row(mine, mine, 66))]);
        let mut marks = node.through.watch();
        marks.wait_for(|m| m.lanes.len() == 2 && m.lanes[0].confirmed >= 2).await.unwrap();
        let written = node.commit(other, insert(other, 1));
        marks.wait_for(|m| m.lanes[1].position >= written).await.unwrap();
        backend.crash();
        assert!(backend.store().tables[ROOT].len() == 1, "the crash took what was not synced");
        node.commit(other, vec![change(ROOT, ChangeKind::Update, row(other, other, 2))]);
        node.settle(&backend).await;
        // what follows the reject joins it
        let follower =
            node.commit(mine, vec![change(ROOT, ChangeKind::Update, row(mine, mine, 3))]);
        node.settle(&backend).await;
        let heads = backend.list_rejects("g", 10).await.unwrap();
        let tail = backend.reject_tail(heads[0].id).await.unwrap();
        assert_eq!(tail.iter().map(|e| e.sequence).collect::<Vec<_>>(), vec![2, follower]);
        node.stop.cancel();
    });
}

#[test]
fn r10_commits_lost_before_the_lane_map_changed_are_sent_again_under_the_old_one() {
    run(async {
        let backend = DoubleBackend::new(schema());
        owner_of(&backend, options(1, BackendCommit::Async), &SlotSet::full())
            .await
            .0
            .stop
            .cancel();
        let claim = backend.claim(claim_request(Some(1), "b", 2)).await.unwrap();
        assert_eq!(claim.lanes.len(), 1);
        let standby = backend.standby();
        backend.set_faults(|f| f.lane_changes_away = true);
        let mut node = node_of(&backend, options(2, BackendCommit::Async));
        node.commit(1, insert(1, 1));
        node.through.claimed(claim);
        let mut health = node.through.health();
        let down = health.wait_for(|h| {
            backend.flush_log();
            matches!(h, BackendHealth::Down { .. })
        });
        let waited = tokio::time::timeout(Duration::from_secs(60), down);
        assert!(waited.await.is_ok(), "{:?}", node.through.marks());
        assert!(node.through.marks().confirmed >= 1, "flushed and confirmed under the old map");
        backend.fail_over(standby);
        backend.set_faults(|f| f.lane_changes_away = false);
        for _ in 0..10_000 {
            backend.flush_log();
            tokio::time::sleep(Duration::from_millis(20)).await;
            if node.through.marks().lanes.len() == 2 {
                break;
            }
        }
        assert_eq!(node.through.marks().lanes.len(), 2);
        node.commit(2, insert(2, 2));
        node.settle(&backend).await;
        assert_eq!(backend.store().tables[ROOT].len(), 2);
        node.stop.cancel();
    });
}

#[test]
fn a_start_given_up_before_its_claim_leaves_nothing_running() {
    run(async {
        let backend = DoubleBackend::new(schema());
        let Node { through, mut events, .. } = node_of(&backend, options(1, BackendCommit::Sync));
        drop(through);
        let ended = tokio::time::timeout(Duration::from_secs(60), events.recv()).await;
        assert!(ended.unwrap().is_none(), "whoever could tell something is gone");
    });
}

#[test]
fn d11_a_batch_that_takes_the_backend_too_long_is_taken_apart() {
    run(async {
        let backend = DoubleBackend::new(schema());
        backend.set_faults(|f| f.rows_in_time = Some(1));
        let mut node = Node::start(&backend, options(1, BackendCommit::Sync)).await;
        for id in 1..=8 {
            node.commit(id, insert(id, id));
        }
        let settled = tokio::time::timeout(Duration::from_secs(600), node.settle(&backend)).await;
        settled.expect("the lane stands still");
        assert_eq!(backend.store().tables[ROOT].len(), 8);
        assert!(backend.list_rejects("g", 10).await.unwrap().is_empty(), "nothing was refused");
        node.stop.cancel();
    });
}

#[test]
fn d11_a_row_that_somebody_keeps_locked_lets_the_others_of_its_lane_pass() {
    run(async {
        let backend = DoubleBackend::new(schema());
        let mut node = Node::start(&backend, options(1, BackendCommit::Async)).await;
        for id in 1..=8 {
            node.commit(id, insert(id, 0));
        }
        node.settle(&backend).await;
        let second = Value::Int(2);
        backend.set_faults(|f| {
            f.locked = Some(Box::new(move |s| s.rows.iter().any(|r| r[0] == second)));
        });
        let update = |id: i64, v| vec![change(ROOT, ChangeKind::Update, row(id, id, v))];
        for id in 1..=8 {
            node.commit(id, update(id, 5));
        }
        let follower = node.commit(2, update(2, 6));
        let last = node.commit(3, update(3, 6));
        let settled = tokio::time::timeout(Duration::from_secs(600), node.settle(&backend)).await;
        let told = settled.expect("the lane stands still");
        let rows = |v| {
            let store = backend.store();
            store.tables[ROOT].values().filter(|r| r[2] == Value::Int(v)).count()
        };
        assert_eq!((rows(0), rows(5), rows(6)), (1, 6, 1), "all but the locked one");
        let flushed =
            |e: &&FlushEvent| matches!(e, FlushEvent::Flushed { upto, .. } if *upto == last);
        assert_eq!(told.iter().filter(flushed).count(), 1);
        let heads = backend.list_rejects("g", 10).await.unwrap();
        assert_eq!((heads.len(), heads[0].sqlstate.as_str()), (1, "55P03"));
        let tail = backend.reject_tail(heads[0].id).await.unwrap();
        assert_eq!(tail.iter().map(|e| e.sequence).collect::<Vec<_>>(), [10, follower]);
        // once the lock is gone it goes in, in order
        backend.set_faults(|f| f.locked = None);
        let fence = node.through.fence(key(2).slot()).unwrap();
        assert_eq!(backend.replay_reject(heads[0].id, &fence).await.unwrap(), 2);
        node.through.release_quarantine(&key(2));
        assert_eq!((rows(0), rows(5), rows(6)), (0, 6, 2));
        node.stop.cancel();
    });
}

#[test]
fn d11_a_backend_that_holds_up_everything_has_nothing_set_aside() {
    run(async {
        let backend = DoubleBackend::new(schema());
        backend.set_faults(|f| f.locked = Some(Box::new(|_| true)));
        let mut node = Node::start(&backend, options(1, BackendCommit::Async)).await;
        for id in 1..=8 {
            node.commit(id, insert(id, id));
        }
        while node.through.counters().retries < 60 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!(backend.list_rejects("g", 10).await.unwrap().is_empty());
        backend.set_faults(|f| f.locked = None);
        node.settle(&backend).await;
        assert_eq!(backend.store().tables[ROOT].len(), 8);
        assert!(backend.list_rejects("g", 10).await.unwrap().is_empty());
        node.stop.cancel();
    });
}

#[test]
fn d11_an_awaited_transaction_on_a_locked_row_is_given_up_and_its_caller_told() {
    run(async {
        let backend = DoubleBackend::new(schema());
        let mut node = Node::start(&backend, options(1, BackendCommit::Async)).await;
        let first = Value::Int(1);
        backend.set_faults(|f| {
            f.locked = Some(Box::new(move |s| s.rows.iter().any(|r| r[0] == first)));
        });
        let awaited = node.commit_as(1, insert(1, 0), true);
        node.commit(2, insert(2, 0));
        let settled = tokio::time::timeout(Duration::from_secs(600), node.settle(&backend)).await;
        let told = settled.expect("the lane stands still");
        let refused = |e: &FlushEvent| matches!(e, FlushEvent::Refused { sequence, .. } if *sequence == awaited);
        assert!(told.iter().any(refused), "{told:?}");
        assert!(backend.list_rejects("g", 10).await.unwrap().is_empty());
        assert_eq!(backend.store().tables[ROOT].len(), 1);
        node.stop.cancel();
    });
}

#[test]
fn d03_a_batch_retried_a_hundred_times_is_the_same_batch() {
    run(async {
        let backend = DoubleBackend::new(schema());
        backend.set_faults(|f| f.breaks.extend([Break::BeforeCommit; 100]));
        let mut node = Node::start(&backend, options(1, BackendCommit::Sync)).await;
        node.commit(1, vec![change(ROOT, ChangeKind::Insert, row(1, 1, 1))]);
        let bytes = node.through.backlog().bytes;
        while node.through.counters().retries < 50 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(node.through.backlog().bytes, bytes, "the queue never grows without writes");
        }
        node.settle(&backend).await;
        assert_eq!(node.through.counters().batches, 1);
        node.stop.cancel();
    });
}

#[test]
fn d14_a_lost_answer_is_decided_by_the_position() {
    run(async {
        let backend = DoubleBackend::new(schema());
        backend.set_faults(|f| f.breaks.push_back(Break::AfterCommit));
        let mut node = Node::start(&backend, options(1, BackendCommit::Sync)).await;
        node.commit(1, vec![change(ROOT, ChangeKind::Insert, row(1, 1, 1))]);
        let told = node.settle(&backend).await;
        assert_eq!(backend.store().tables[ROOT].len(), 1);
        assert_eq!(told.iter().filter(|e| matches!(e, FlushEvent::Flushed { .. })).count(), 1);
        assert!(node.through.counters().retries > 0);
        node.stop.cancel();
    });
}

#[test]
fn d15_of_two_starts_of_one_journal_only_the_later_writes() {
    run(async {
        let backend = DoubleBackend::new(schema());
        let mut old = Node::start(&backend, options(1, BackendCommit::Sync)).await;
        old.commit(1, vec![change(ROOT, ChangeKind::Insert, row(1, 1, 1))]);
        old.settle(&backend).await;
        backend.claim(claim_request(Some(1), "b", 1)).await.unwrap();
        old.commit(1, vec![change(ROOT, ChangeKind::Update, row(1, 1, 2))]);
        loop {
            let event = tokio::time::timeout(Duration::from_secs(60), old.events.recv());
            if matches!(event.await.unwrap().unwrap(), FlushEvent::Fenced { .. }) {
                break;
            }
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        let rows: Vec<Row> = backend.store().tables[ROOT].values().cloned().collect();
        assert_eq!(rows, vec![row(1, 1, 1)]);
        old.stop.cancel();
    });
}

#[test]
fn d11_a_lane_that_dies_is_reported_and_not_forgotten() {
    run(async {
        let backend = DoubleBackend::new(schema());
        backend.set_faults(|f| f.refuse = Some(Box::new(|_| panic!("a bug"))));
        let mut node = Node::start(&backend, options(1, BackendCommit::Sync)).await;
        node.commit(1, vec![change(ROOT, ChangeKind::Insert, row(1, 1, 1))]);
        loop {
            let event = tokio::time::timeout(Duration::from_secs(60), node.events.recv());
            if matches!(event.await.unwrap().unwrap(), FlushEvent::Stopped { .. }) {
                break;
            }
        }
        node.stop.cancel();
    });
}

#[tokio::test]
async fn r8_a_copy_made_while_its_original_claimed_is_refused_afterwards() {
    let backend = DoubleBackend::new(schema());
    let lost = backend.claim(claim_request(None, "a", 1)).await.unwrap();
    // the answer was lost: the same attempt asks again
    let claim = backend.claim(claim_request(None, "a", 1)).await.unwrap();
    assert_eq!(claim.token, lost.token + 1);
    let fenced = backend.settle_claim("g", "n", lost.token).await.unwrap_err();
    assert_eq!(fenced.reason, Reason::Fenced, "{fenced}");
    backend.settle_claim("g", "n", claim.token).await.unwrap();
    // the copy holds the attempt, and no token
    let refused = backend.claim(claim_request(None, "a", 1)).await.unwrap_err();
    assert_eq!(refused.reason, Reason::StaleJournal, "{refused}");
    let next = backend.claim(claim_request(Some(claim.token), "b", 1)).await.unwrap();
    assert_eq!(next.token, claim.token + 1);
}
