//! Comparisons that say what differs, and mend it.

use std::time::{Duration, Instant};

use cachetier_group::{CompareCall, CompareProgress, InstanceDifference, Refreshed, Repair};

use crate::basics::compare_with;
use crate::scene::{Node, Scene, eventually, root};

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
