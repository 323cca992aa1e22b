//! Comparisons that say what differs, and mend it.

use std::time::{Duration, Instant};

use cachetier_group::{CompareCall, CompareProgress, InstanceDifference, Refreshed, Repair};
use cachetier_model::{Operation, Value};

use crate::basics::compare_with;
use crate::scene::{ACCOUNT, FACILITY, Node, Scene, eventually, insert_account, population, root};

async fn loaded(scene: &Scene, accounts: i64) -> Node {
    let node = scene.serving("n-0").await;
    for id in 1..=accounts {
        node.read(id).await.unwrap();
    }
    node
}

/// What others did to the backend: a column, a missing child, a child too many, a missing root.
async fn disturb(scene: &Scene) {
    scene.postgres.execute("UPDATE account SET place = -1, note = 'x' WHERE id = 10").await;
    scene.postgres.execute("DELETE FROM forwarding WHERE id = 20").await;
    scene.postgres.execute("INSERT INTO facility VALUES (30, 7, true)").await;
    scene.postgres.execute("DELETE FROM account WHERE id = 40").await;
}

async fn run(node: &Node, repair: Option<Repair>) -> (CompareProgress, Vec<InstanceDifference>) {
    compare_with(node, CompareCall { repair, ..CompareCall::default() }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_comparison_names_the_columns_that_differ_by_a_hash_of_the_key() {
    let scene = Scene::new(50).await;
    let node = loaded(&scene, 50).await;
    disturb(&scene).await;
    let (last, found) = run(&node, None).await;
    assert_eq!((found.len(), last.repaired), (4, 0));
    let mut shown: Vec<String> = Vec::new();
    for instance in &found {
        assert!(instance.key_hash.len() == 16 && !instance.repaired && instance.left.is_empty());
        let tables = instance.tables.iter().map(|t| {
            let counts = (t.only_in_cache, t.only_in_backend, t.different);
            format!("{} {counts:?} {}", t.table, t.columns.join(" "))
        });
        shown.push(tables.collect::<Vec<_>>().join("; "));
    }
    shown.sort();
    let expected = [
        "account (0, 0, 1) place note",
        "account (1, 0, 0) ; facility (2, 0, 0) ; forwarding (1, 0, 0) ",
        "facility (0, 1, 0) ",
        "forwarding (1, 0, 0) ",
    ];
    assert_eq!(shown, expected);
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repair_from_the_backend_reads_what_differs_again() {
    let scene = Scene::new(50).await;
    let node = loaded(&scene, 50).await;
    disturb(&scene).await;
    let (last, found) = run(&node, Some(Repair::FromBackend)).await;
    assert_eq!((last.repaired, found.iter().filter(|f| f.repaired).count()), (4, 4));
    assert_eq!(node.place(10).await, Some(-1));
    assert_eq!(node.place(40).await, None);
    let (last, found) = run(&node, None).await;
    assert_eq!((last.differences, found.len()), (0, 0));
    assert_eq!(scene.postgres.number("SELECT place FROM account WHERE id = 10").await, -1);
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repair_from_the_cache_writes_its_rows_through() {
    let scene = Scene::new(50).await;
    let node = loaded(&scene, 50).await;
    disturb(&scene).await;
    let (last, found) = run(&node, Some(Repair::FromCache)).await;
    assert_eq!(last.repaired, 4, "{found:?}");
    let same =
        "SELECT count(*) FROM account WHERE id IN (10, 40) AND place = id * 10 AND note IS NULL";
    assert_eq!(scene.postgres.number(same).await, 2);
    assert_eq!(scene.postgres.number("SELECT count(*) FROM facility WHERE kind = 7").await, 0);
    assert_eq!(scene.postgres.number("SELECT count(*) FROM forwarding").await, 50);
    let (last, _) = run(&node, None).await;
    assert_eq!((last.differences, last.instances), (0, 50));
    // an ordinary transaction: it is in the journal, and writes go on
    node.set_place(40, 41).await.unwrap();
    node.drained().await;
    assert_eq!(scene.postgres.number("SELECT place FROM account WHERE id = 40").await, 41);
    assert_eq!(node.group.status().await.rejects, 0);
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_throttled_comparison_reads_no_more_rows_than_it_may() {
    let scene = Scene::new(50).await;
    let node = loaded(&scene, 50).await;
    let begun = Instant::now();
    let call = CompareCall { rows_per_second: 100, ..CompareCall::default() };
    let (last, _) = compare_with(&node, call).await;
    assert_eq!(last.rows, 200);
    assert!(begun.elapsed() >= Duration::from_secs(2), "200 rows at 100 per second");
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refresh_reads_clean_instances_again_and_leaves_what_waits() {
    let scene = Scene::new(10).await;
    let node = loaded(&scene, 9).await;
    scene.postgres.execute("UPDATE account SET place = -1 WHERE id IN (3, 4)").await;
    scene.postgres.execute("DELETE FROM account WHERE id = 5").await;
    assert_eq!(node.place(3).await, Some(30), "others' changes are not seen by themselves");
    // a row that somebody keeps locked holds the flush back
    let locked = scene.postgres.client().await;
    locked.batch_execute("BEGIN; UPDATE account SET note = 'mine' WHERE id = 4").await.unwrap();
    node.set_place(4, 44).await.unwrap();
    let keys = [3, 4, 5, 10].map(root);
    let answers = node.group.refresh(&keys).await.unwrap();
    let expected = [Refreshed::Done, Refreshed::Pending, Refreshed::Done, Refreshed::NotLoaded];
    assert_eq!(answers, expected);
    assert_eq!(node.place(3).await, Some(-1));
    assert_eq!(node.place(4).await, Some(44), "an acknowledged write is not taken back");
    assert_eq!(node.place(5).await, None);
    locked.batch_execute("ROLLBACK").await.unwrap();
    let later = || async { node.group.refresh(&keys[1..2]).await.unwrap() == [Refreshed::Done] };
    eventually("read again once it is flushed", later).await;
    assert_eq!(node.place(4).await, Some(44));
    let many: Vec<_> = (0..1_001).map(root).collect();
    let refused = node.group.refresh(&many).await.unwrap_err().to_string();
    assert!(refused.contains("keys: 1001 in one request; at most 1000"), "{refused}");
    node.close().await;
}

/// A root in ranges of its key and a child in ranges of another column of its key.
const PARTITIONED: &str = "
    DROP TABLE forwarding, facility, account;
    CREATE TABLE account (
        id bigint PRIMARY KEY, nbr varchar(15) NOT NULL, place bigint NOT NULL, note text)
        PARTITION BY RANGE (id);
    CREATE TABLE account_low PARTITION OF account FOR VALUES FROM (0) TO (20);
    CREATE TABLE account_high PARTITION OF account FOR VALUES FROM (20) TO (1000);
    CREATE TABLE facility (
        id bigint NOT NULL REFERENCES account ON DELETE CASCADE,
        kind smallint NOT NULL, active boolean NOT NULL, PRIMARY KEY (id, kind))
        PARTITION BY RANGE (kind);
    CREATE TABLE facility_1 PARTITION OF facility FOR VALUES FROM (0) TO (2);
    CREATE TABLE facility_2 PARTITION OF facility FOR VALUES FROM (2) TO (100);
    CREATE TABLE forwarding (
        id bigint NOT NULL, kind smallint NOT NULL, start smallint NOT NULL, number varchar(15),
        PRIMARY KEY (id, kind, start),
        FOREIGN KEY (id, kind) REFERENCES facility ON DELETE CASCADE);";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d31_range_partitioned_tables_are_loaded_written_through_and_compared() {
    let scene = Scene::new(0).await;
    scene.postgres.execute(PARTITIONED).await;
    scene.postgres.execute(&population(40)).await;
    let mut config = scene.config("n-0");
    // a unique key of a partitioned table contains the columns it is partitioned by
    config.tables[0].lookup_keys.clear();
    let peers = std::sync::Arc::new(cachetier_group::NoPeers);
    let node = Node::start(config, "n-0", peers).await.unwrap();
    node.until("serving", |s| s.ready).await;
    for id in 1..=40 {
        assert_eq!(node.read(id).await.unwrap().tables.iter().map(Vec::len).sum::<usize>(), 4);
        node.set_place(id, 1_000 + id).await.unwrap();
    }
    let row = |kind| vec![Value::Int(7), Value::Int(kind), Value::Bool(true)];
    let insert = |kind| Operation::Insert { table: FACILITY, row: row(kind) };
    node.write(7, vec![insert(0), insert(50)]).await.unwrap();
    node.write(100, vec![insert_account(100, "x100")]).await.unwrap();
    let delete = |table| Operation::Delete { table, conditions: Vec::new(), expect: None };
    node.write(30, vec![delete(ACCOUNT)]).await.unwrap();
    node.drained().await;
    let sums = "SELECT count(*) FROM account_high WHERE place > 1000 OR id = 100";
    assert_eq!(scene.postgres.number(sums).await, 21);
    let both = "SELECT count(*) FROM facility_1 WHERE id = 7 AND kind = 0";
    assert_eq!(scene.postgres.number(both).await, 1);
    assert_eq!(scene.postgres.number("SELECT count(*) FROM facility_2 WHERE id = 7").await, 2);
    let (last, found) = run(&node, None).await;
    assert_eq!((last.differences, last.instances, found.len()), (0, 40, 0));
    assert_eq!(node.group.status().await.rejects, 0);
    node.close().await;
}
