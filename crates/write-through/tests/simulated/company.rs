//! Lanes that travel in one backend transaction.

use super::histories::{id_of_lane, insert};
use super::*;

const LANES: u16 = 4;

/// One transaction in each lane, queued within the time that company is waited for.
async fn one_in_each_lane(backend: &DoubleBackend, node: &mut Node, v: i64) -> Vec<i64> {
    let ids: Vec<i64> = (0..LANES).map(|lane| id_of_lane(1, lane, LANES)).collect();
    let is_new = backend.store().tables[ROOT].is_empty();
    for id in &ids {
        let changes = match is_new {
            true => insert(*id, v),
            false => vec![change(ROOT, ChangeKind::Update, row(*id, *id, v))],
        };
        node.commit(*id, changes);
    }
    ids
}

fn patient(commit: BackendCommit) -> WriteThroughOptions {
    WriteThroughOptions {
        delay_max: Duration::from_millis(100),
        batch_rows_max: 1_024,
        // never by itself
        log_wait_interval: Duration::from_secs(3_600),
        ..options(LANES, commit)
    }
}

async fn values(backend: &DoubleBackend, ids: &[i64]) -> Vec<Value> {
    let store = backend.store();
    let of = |id: &i64| store.tables[ROOT].values().find(|r| r[0] == Value::Int(*id)).cloned();
    ids.iter().filter_map(of).map(|row| row[2].clone()).collect()
}

/// With sessions that are open: the first batch of each lane opens its own.
async fn started(backend: &DoubleBackend, commit: BackendCommit) -> Node {
    let mut node = Node::start(backend, patient(commit)).await;
    one_in_each_lane(backend, &mut node, 1).await;
    node.settle(backend).await;
    node
}

#[test]
fn small_batches_of_all_lanes_are_one_backend_transaction() {
    run(async {
        let backend = DoubleBackend::new(schema());
        let mut node = started(&backend, BackendCommit::Sync).await;
        let before = backend.commits();
        let ids = one_in_each_lane(&backend, &mut node, 2).await;
        node.settle(&backend).await;
        assert_eq!(backend.commits() - before, 1);
        assert_eq!(values(&backend, &ids).await, vec![Value::Int(2); 4]);
        let marks = node.through.marks();
        assert_eq!(marks.confirmed, node.next - 1);
        node.stop.cancel();
    });
}

#[test]
fn d14_after_an_unknown_outcome_each_lane_asks_its_own_row() {
    for (broken, commit) in [
        (Break::BeforeCommit, BackendCommit::Sync),
        (Break::AfterCommit, BackendCommit::Sync),
        (Break::BeforeCommit, BackendCommit::Async),
        (Break::AfterCommit, BackendCommit::Async),
    ] {
        run(async {
            let backend = DoubleBackend::new(schema());
            let mut node = started(&backend, commit).await;
            let before = backend.commits();
            backend.set_faults(|f| f.breaks.push_back(broken));
            let ids = one_in_each_lane(&backend, &mut node, 2).await;
            let told = node.settle(&backend).await;
            assert_eq!(values(&backend, &ids).await, vec![Value::Int(2); 4], "{broken:?}");
            // updates of the same rows twice would pass unseen; the commits would not
            let commits = if broken == Break::AfterCommit { 1 } else { 4 };
            assert_eq!(backend.commits() - before, commits, "{broken:?} {commit:?}");
            assert!(!told.iter().any(|e| matches!(e, FlushEvent::Rejected { .. })));
            node.stop.cancel();
        });
    }
}

#[test]
fn r11_commits_of_several_lanes_that_a_crash_took_back_are_sent_again_by_each() {
    run(async {
        let backend = DoubleBackend::new(schema());
        let mut node = started(&backend, BackendCommit::Async).await;
        // the answer is lost, and then the commit: no lane may have called it confirmed
        backend.set_faults(|f| f.breaks.push_back(Break::AfterCommit));
        let mut marks = node.through.watch();
        let confirmed = marks.borrow_and_update().confirmed;
        let ids = one_in_each_lane(&backend, &mut node, 2).await;
        marks.wait_for(|m| m.lanes.iter().all(|l| l.position > confirmed)).await.unwrap();
        assert_eq!(marks.borrow().confirmed, confirmed);
        backend.crash();
        assert_eq!(values(&backend, &ids).await, vec![Value::Int(1); 4], "taken back");
        node.settle(&backend).await;
        assert_eq!(values(&backend, &ids).await, vec![Value::Int(2); 4]);
        node.stop.cancel();
    });
}

#[test]
fn d12_one_refused_transaction_keeps_no_other_lane() {
    run(async {
        let backend = DoubleBackend::new(schema());
        let mut node = started(&backend, BackendCommit::Sync).await;
        let bad = Value::Int(66);
        backend.set_faults(|f| {
            f.refuse = Some(Box::new(move |s| s.rows.iter().any(|r| r[2] == bad)));
        });
        let ids: Vec<i64> = (0..LANES).map(|lane| id_of_lane(1, lane, LANES)).collect();
        for (n, id) in ids.iter().enumerate() {
            let v = if n == 1 { 66 } else { 3 };
            node.commit(*id, vec![change(ROOT, ChangeKind::Update, row(*id, *id, v))]);
        }
        let told = node.settle(&backend).await;
        let rejected = told.iter().filter(|e| matches!(e, FlushEvent::Rejected { .. })).count();
        assert_eq!(rejected, 1, "{told:?}");
        let v = |v| Value::Int(v);
        assert_eq!(values(&backend, &ids).await, vec![v(3), v(1), v(3), v(3)]);
        node.stop.cancel();
    });
}
