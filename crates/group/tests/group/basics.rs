//! One node: reads, writes, misses, keys, restart, comparison.

use cachetier_group::{
    AnswerWhen, CompareCall, GroupError, InstanceDifference, KeySelector, ReadCall, RefusalReason,
    Source, TransactCall,
};
use cachetier_model::{Guard, Operation, ReadPlan, TableRead, Transaction, Value};
use std::time::Duration;

use crate::scene::{
    ACCOUNT, FACILITY, Node, Scene, equal, eventually, insert_account, lookup, root, set_place,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_is_answered_then_reaches_the_backend_with_its_position() {
    let scene = Scene::new(10).await;
    let node = scene.serving("n-0").await;
    assert_eq!(node.place(3).await, Some(30));
    let done = node.set_place(3, 77).await.unwrap();
    assert_eq!(done.rows, [1]);
    assert_eq!(node.place(3).await, Some(77), "a writer reads its own write");
    assert!(node.group.wait_flushed(done.position, Duration::from_secs(30)).await.unwrap());
    assert_eq!(scene.postgres.number("SELECT place FROM account WHERE id = 3").await, 77);
    let sql = "SELECT max(position) FROM cachetier.writer";
    assert!(scene.postgres.number(sql).await as u64 >= done.position.sequence);
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_changes_nothing_is_flushed_when_what_it_saw_is() {
    let scene = Scene::new(10).await;
    let mut config = scene.config("n-0");
    config.write_through.max_delay_ms = 1_500;
    let node = Node::start(config, "n-0", std::sync::Arc::new(cachetier_group::NoPeers)).await;
    let node = node.unwrap();
    node.until("serving", |s| s.ready).await;
    node.set_place(3, 77).await.unwrap();
    let call = TransactCall {
        key: KeySelector::Root(root(3)),
        transaction: Transaction { guards: Vec::new(), operations: vec![set_place(77)] },
        answer: AnswerWhen::Flushed,
        idempotency_key: None,
    };
    let done = node.group.transact(call).await.unwrap();
    assert_eq!(done.position.sequence, 0, "nothing is left to change");
    assert_eq!(scene.postgres.number("SELECT place FROM account WHERE id = 3").await, 77);
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d21_a_row_that_is_not_loaded_is_read_through_and_never_called_absent() {
    let scene = Scene::new(10).await;
    let node = scene.serving("n-0").await;
    let first = node.read(5).await.unwrap();
    assert_eq!((first.found, first.source), (true, Source::ReadThrough));
    assert_eq!(first.tables.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2, 1]);
    assert_eq!(node.read(5).await.unwrap().source, Source::Cache);
    assert!(!node.read(999).await.unwrap().found);
    // a row that others insert later is seen
    scene.postgres.execute("INSERT INTO account VALUES (999, '999', 9, NULL)").await;
    assert_eq!(node.place(999).await, Some(9));
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r15_an_insert_over_an_unloaded_instance_is_refused_by_its_primary_key() {
    let scene = Scene::new(10).await;
    let node = scene.serving("n-0").await;
    let refused = node.write(4, vec![insert_account(4, "x4")]).await.unwrap_err();
    let GroupError::Refused(refusal) = refused else { panic!("{refused:?}") };
    assert_eq!(refusal.reason, RefusalReason::PrimaryKey);
    assert_eq!(refusal.table.as_deref(), Some("account"));
    node.write(100, vec![insert_account(100, "x100")]).await.unwrap();
    assert_eq!(node.place(100).await, Some(1));
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r16_a_unique_key_is_decided_by_the_backend_before_the_answer() {
    let scene = Scene::new(10).await;
    let node = scene.serving("n-0").await;
    // taken by an account that is not loaded here
    let taken = "000000000000007";
    let refused = node.write(200, vec![insert_account(200, taken)]).await.unwrap_err();
    let GroupError::Refused(refusal) = refused else { panic!("{refused:?}") };
    assert_eq!(refusal.reason, RefusalReason::Unique, "{refusal:?}");
    assert!(!node.read(200).await.unwrap().found);
    node.write(200, vec![insert_account(200, "fresh")]).await.unwrap();
    let there = "SELECT count(*) FROM account WHERE id = 200 AND nbr = 'fresh'";
    assert_eq!(scene.postgres.number(there).await, 1, "answered after the backend accepted it");
    // and again after a restart nothing of the refused one comes back
    node.crash().await;
    let node = scene.serving("n-0").await;
    node.drained().await;
    assert_eq!(node.group.status().await.rejects, 0);
    assert_eq!(node.place(200).await, Some(1));
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d06_a_deleted_instance_stays_deleted_before_and_after_its_flush() {
    let scene = Scene::new(10).await;
    let node = scene.serving("n-0").await;
    let delete = Operation::Delete { table: ACCOUNT, conditions: vec![], expect: Some(1) };
    node.write(6, vec![delete]).await.unwrap();
    assert!(!node.read(6).await.unwrap().found);
    node.drained().await;
    assert!(!node.read(6).await.unwrap().found);
    let left = "SELECT (SELECT count(*) FROM account WHERE id = 6)
        + (SELECT count(*) FROM facility WHERE id = 6)
        + (SELECT count(*) FROM forwarding WHERE id = 6)";
    assert_eq!(scene.postgres.number(left).await, 0, "children went with it");
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_is_found_and_written_by_its_lookup_key_until_it_changes() {
    let scene = Scene::new(10).await;
    let node = scene.serving("n-0").await;
    let read = async |nbr: &str| {
        let plan = ReadPlan {
            tables: vec![TableRead { table: FACILITY, columns: vec![1], conditions: vec![] }],
        };
        let call = ReadCall::new(lookup(nbr), plan);
        node.group.read(call).await.unwrap()
    };
    let found = read("000000000000002").await;
    assert_eq!(found.tables, [[vec![Value::Int(1)], vec![Value::Int(2)]]]);
    let rename = Operation::Update {
        table: ACCOUNT,
        conditions: vec![],
        set: vec![(1, Value::Text("moved".into()))],
        expect: Some(1),
    };
    let transact = async |nbr: &str, operation: Operation| {
        let transaction = Transaction { guards: vec![], operations: vec![operation] };
        let (key, answer) = (lookup(nbr), AnswerWhen::Durable);
        let call = TransactCall { key, transaction, answer, idempotency_key: None };
        node.group.transact(call).await
    };
    transact("000000000000002", rename).await.unwrap();
    assert!(read("moved").await.found);
    assert!(!read("000000000000002").await.found);
    let gone = transact("000000000000002", set_place(5)).await.unwrap_err();
    assert!(matches!(gone, GroupError::NotFound), "{gone:?}");
    transact("moved", set_place(5)).await.unwrap();
    assert_eq!(node.place(2).await, Some(5));
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guards_and_row_counts_refuse_the_whole_transaction() {
    let scene = Scene::new(10).await;
    let node = scene.serving("n-0").await;
    let transaction = Transaction {
        guards: vec![Guard::Exists { table: FACILITY, conditions: vec![equal(1, Value::Int(9))] }],
        operations: vec![set_place(1)],
    };
    let key = KeySelector::Root(root(1));
    let answer = AnswerWhen::Durable;
    let call = TransactCall { key, transaction, answer, idempotency_key: None };
    let refused = node.group.transact(call).await.unwrap_err();
    assert_eq!(refused.facts().reason, "GUARD_FAILED");
    assert_eq!(refused.facts().operation, Some(0));
    let nothing = Operation::Delete {
        table: FACILITY,
        conditions: vec![equal(1, Value::Int(9))],
        expect: Some(1),
    };
    let refused = node.write(1, vec![set_place(1), nothing]).await.unwrap_err();
    assert_eq!(refused.facts().reason, "ROW_COUNT");
    assert_eq!(node.place(1).await, Some(10));
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d16_what_was_not_flushed_at_a_stop_is_replayed_at_the_next_start() {
    let scene = Scene::new(10).await;
    let mut config = scene.config("n-0");
    config.write_through.paused = true;
    let peers = std::sync::Arc::new(cachetier_group::NoPeers);
    let node = Node::start(config, "n-0", peers).await.unwrap();
    node.until("serving", |s| s.ready).await;
    for id in 1..=10 {
        node.set_place(id, 1000 + id).await.unwrap();
    }
    node.set_place(1, 2001).await.unwrap();
    node.crash().await;
    assert_eq!(scene.postgres.number("SELECT place FROM account WHERE id = 1").await, 10);
    let node = scene.serving("n-0").await;
    assert_eq!(node.place(1).await, Some(2001));
    node.drained().await;
    let sum = scene.postgres.number("SELECT sum(place)::bigint FROM account").await;
    assert_eq!(sum, 2001 + (2..=10).map(|id| 1000 + id).sum::<i64>());
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compare_proves_equality_and_finds_planted_differences() {
    let scene = Scene::new(300).await;
    let node = scene.serving("n-0").await;
    for id in 1..=200 {
        node.read(id).await.unwrap();
        node.set_place(id, id).await.unwrap();
    }
    let clean = compare(&node).await;
    assert_eq!((clean.differences, clean.not_loaded, clean.instances), (0, 100, 200));
    assert_eq!(clean.rows, 200 * 4);
    node.drained().await;
    scene.postgres.execute("UPDATE account SET place = -1 WHERE id = 10").await;
    scene.postgres.execute("DELETE FROM forwarding WHERE id = 20").await;
    scene.postgres.execute("INSERT INTO facility VALUES (30, 7, true)").await;
    scene.postgres.execute("DELETE FROM account WHERE id = 40").await;
    let found = compare(&node).await;
    let tables: Vec<_> =
        found.tables.iter().map(|t| (t.only_in_cache, t.only_in_backend, t.different)).collect();
    assert_eq!(tables, [(1, 0, 1), (2, 1, 0), (2, 0, 0)]);
    assert_eq!(found.differences, 7);
    node.close().await;
}

pub async fn compare(node: &Node) -> cachetier_group::CompareProgress {
    compare_with(node, CompareCall::default()).await.0
}

/// The last word, and all instances found to differ.
pub async fn compare_with(
    node: &Node,
    call: CompareCall,
) -> (cachetier_group::CompareProgress, Vec<InstanceDifference>) {
    let mut found = Vec::new();
    let mut progress = node.group.compare(call).await.unwrap();
    while let Some(step) = progress.recv().await {
        let mut step = step.unwrap();
        found.append(&mut step.found);
        if step.done {
            return (step, found);
        }
    }
    panic!("the comparison ended without a result");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_table_and_missing_credentials_are_problems_that_heal_by_themselves() {
    let scene = Scene::new(1).await;
    scene.postgres.execute("ALTER TABLE facility RENAME TO hidden").await;
    let uri = scene.dir.path().join("credentials/uri");
    let kept = std::fs::read(&uri).unwrap();
    std::fs::remove_file(&uri).unwrap();
    let node = scene.node("n-0").await;
    let has = |reason: &'static str| {
        move |s: &cachetier_group::Status| s.problems.iter().any(|p| p.reason == reason)
    };
    node.until("without credentials", has("CredentialsMissing")).await;
    let early = node.read(1).await.unwrap_err();
    assert!(matches!(early, GroupError::Starting { .. }), "{early:?}");
    std::fs::write(&uri, kept).unwrap();
    let status = node.until("without a table", has("TableMissing")).await;
    assert!(status.problems.iter().any(|p| p.message.contains("facility")), "{status:?}");
    scene.postgres.execute("ALTER TABLE hidden RENAME TO facility").await;
    let status = node.until("serving", |s| s.ready).await;
    assert_eq!(status.problems, []);
    assert_eq!(node.place(1).await, Some(10));
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_node_refuses_writes_answers_reads_and_takes_writes_again() {
    let scene = Scene::new(3).await;
    let node = scene.serving("n-0").await;
    node.set_place(1, 5).await.unwrap();
    assert!(node.group.drain(true).await.unwrap().writes_stopped);
    let refused = node.set_place(1, 6).await.unwrap_err();
    assert!(matches!(refused, GroupError::Draining), "{refused:?}");
    assert_eq!(node.place(1).await, Some(5));
    eventually("drained", async || node.group.drain(true).await.unwrap().backlog.transactions == 0)
        .await;
    node.group.drain(false).await.unwrap();
    node.set_place(1, 6).await.unwrap();
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_holds_the_flushing_back_until_it_is_resumed_or_the_node_restarts() {
    let scene = Scene::new(10).await;
    let node = scene.serving("n-0").await;
    node.read(3).await.unwrap();
    node.group.pause_flushing(true).await.unwrap();
    node.set_place(3, 77).await.unwrap();
    let status = node.group.status().await;
    assert!(status.flushing_paused);
    let paused = status.problems.iter().find(|p| p.reason == "WriteThroughPaused").unwrap();
    assert!(paused.message.contains("cachectl resume"), "{}", paused.message);
    // longer than the longest delay of a batch
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(node.group.status().await.backlog.transactions, 1);
    assert_eq!(scene.postgres.number("SELECT place FROM account WHERE id = 3").await, 30);
    node.group.pause_flushing(false).await.unwrap();
    node.drained().await;
    assert_eq!(scene.postgres.number("SELECT place FROM account WHERE id = 3").await, 77);
    node.group.pause_flushing(true).await.unwrap();
    node.set_place(3, 78).await.unwrap();
    node.crash().await;
    let node = scene.serving("n-0").await;
    node.drained().await;
    assert_eq!(scene.postgres.number("SELECT place FROM account WHERE id = 3").await, 78);
    node.close().await;
    // the configuration's pause is ended in the configuration
    let mut config = scene.config("n-0");
    config.write_through.paused = true;
    let peers = std::sync::Arc::new(cachetier_group::NoPeers);
    let node = Node::start(config, "n-0", peers).await.unwrap();
    node.group.started().await.unwrap();
    let refused = node.group.pause_flushing(false).await.unwrap_err().to_string();
    assert!(refused.contains("writeThrough.paused is set"), "{refused}");
    node.crash().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d10_writers_are_slowed_before_they_are_refused_and_as_fast_as_before_afterwards() {
    let scene = Scene::new(10).await;
    let mut config = scene.config("n-0");
    config.write_through.max_backlog_bytes = 64 << 10;
    let peers = std::sync::Arc::new(cachetier_group::NoPeers);
    let node = Node::start(config, "n-0", peers).await.unwrap();
    node.until("serving", |s| s.ready).await;
    node.read(3).await.unwrap();
    node.group.pause_flushing(true).await.unwrap();
    let mut slowed_from = None;
    for place in 1.. {
        let bytes = node.group.status().await.backlog.bytes;
        let refused = node.set_place(3, place).await.err();
        if node.group.counters().writes_slowed > 0 {
            slowed_from.get_or_insert(bytes);
        }
        match refused {
            None => assert!(place < 10_000, "the queue has a bound"),
            Some(GroupError::BacklogFull { .. }) => break,
            Some(other) => panic!("{other:?}"),
        }
    }
    let slowed_from = slowed_from.unwrap();
    assert!(
        (52_428..60_000).contains(&slowed_from),
        "80 % of the bound is the mark: {slowed_from}"
    );
    let before = node.group.counters();
    assert!(before.writes_slowed > 1 && before.write_slowdown_seconds < 60.0);
    node.group.pause_flushing(false).await.unwrap();
    node.drained().await;
    node.set_place(3, 5).await.unwrap();
    assert_eq!(node.group.counters().writes_slowed, before.writes_slowed);
    node.close().await;
}
