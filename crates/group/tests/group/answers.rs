//! What callers hear of transactions that the backend did not simply take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cachetier_group::{GroupError, KeySelector, NoPeers, Position, ReadCall};
use cachetier_journal::file_system::{Fault, FaultyFileSystem, Operation};
use cachetier_model::ReadPlan;
use cachetier_model::node_config::TopologySource;
use uuid::Uuid;

use crate::basics::compare;
use crate::scene::{Node, Scene, eventually, root};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_position_of_a_transaction_that_was_set_aside_is_never_called_flushed() {
    let scene = Scene::new(5).await;
    let node = scene.serving("n-0").await;
    let taken = node.set_place(1, 7).await.unwrap().position;
    let refused = node.set_place(2, 666).await.unwrap().position;
    let wait = async |node: &Node, position| {
        node.group.wait_flushed(position, Duration::from_secs(30)).await
    };
    assert!(wait(&node, taken).await.unwrap());
    let error = wait(&node, refused).await.unwrap_err();
    assert!(matches!(error, GroupError::SetAside), "{error:?}");
    // nor by the next process
    node.close().await;
    let node = scene.serving("n-0").await;
    assert!(wait(&node, taken).await.unwrap());
    let error = wait(&node, refused).await.unwrap_err();
    assert!(matches!(error, GroupError::SetAside), "{error:?}");
    scene.postgres.execute("ALTER TABLE account DROP CONSTRAINT account_place_check").await;
    let id = node.group.rejects(10).await.unwrap()[0].id;
    assert_eq!(node.group.resolve_reject(id, false).await.unwrap(), 1);
    assert!(wait(&node, refused).await.unwrap(), "replayed, so it is there");
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d11_a_locked_row_lets_the_others_pass_and_gets_its_change_when_the_lock_is_gone() {
    let scene = Scene::new(5).await;
    let mut config = scene.config("n-0");
    config.write_through.lanes = 1;
    let node = Node::impatient(config, "n-0", Duration::from_millis(100)).await;
    node.until("serving", |s| s.ready).await;
    let holder = scene.postgres.client().await;
    holder.batch_execute("BEGIN; SELECT 1 FROM account WHERE id = 2 FOR UPDATE").await.unwrap();
    for id in 1..=5 {
        node.set_place(id, 7).await.unwrap();
    }
    let sql = "SELECT count(*) FROM account WHERE place = 7";
    eventually("the others pass", async || scene.postgres.number(sql).await == 4).await;
    node.until("told", |s| s.problems.iter().any(|p| p.reason == "Rejects")).await;
    assert!(matches!(node.read(2).await, Err(GroupError::Quarantined)));
    holder.batch_execute("ROLLBACK").await.unwrap();
    node.until("applied", |s| s.rejects == 0 && s.problems.is_empty()).await;
    assert_eq!(scene.postgres.number(sql).await, 5);
    assert_eq!(node.place(2).await, Some(7));
    node.set_place(2, 8).await.unwrap();
    node.drained().await;
    assert_eq!(compare(&node).await.differences, 0);
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compare_wants_no_second_connection_while_its_scan_has_the_last_one() {
    let scene = Scene::new(150).await;
    let mut config = scene.config("n-0");
    config.backend.max_connections = u32::from(config.write_through.lanes) + 1;
    let node = Node::start(config, "n-0", Arc::new(NoPeers)).await.unwrap();
    node.until("serving", |s| s.ready).await;
    for id in 1..=150 {
        node.read(id).await.unwrap();
    }
    // more than are looked at again together
    scene.postgres.execute("UPDATE account SET place = -1 WHERE id <= 100").await;
    scene.postgres.execute("DELETE FROM account WHERE id = 120").await;
    let found = tokio::time::timeout(Duration::from_secs(30), compare(&node)).await;
    let found = found.expect("it waits for itself");
    assert_eq!(found.tables[0].different, 100);
    assert_eq!(found.tables[0].only_in_cache, 1, "loaded here and in no page of the backend");
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_past_the_store_wait_for_their_turn_only_as_long_as_is_said() {
    let scene = Scene::new(20).await;
    let mut config = scene.config("n-0");
    config.topology = TopologySource::Operator;
    config.bypass.max_concurrent = 1;
    config.bypass.hold_timeout_ms = 300;
    let node = Node::start(config, "n-0", Arc::new(NoPeers)).await.unwrap();
    node.group.started().await.unwrap();
    let two = scene.topology(1, &["n-0", "n-1"]);
    node.group.apply_topology(two.clone()).await.unwrap();
    let theirs = (1..=20).find(|id| two.slots_of("n-1").contains(root(*id).slot())).unwrap();
    let call = || {
        let key = KeySelector::Root(root(theirs));
        ReadCall::new(key, ReadPlan::default())
    };
    assert!(node.group.bypass_read(&call()).await.unwrap().found);
    let holder = scene.postgres.client().await;
    holder.batch_execute("BEGIN; LOCK TABLE account IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let calls = [call(), call()].map(|call| {
        let group = node.group.clone();
        tokio::spawn(async move { group.bypass_read(&call).await })
    });
    // one has the only place, and waits for the table; the other one hears that there is no room
    let heard = tokio::time::timeout(Duration::from_secs(8), futures::future::select_all(calls));
    let (refused, _, mut others) = heard.await.expect("it waits on and on");
    let refused = refused.unwrap().unwrap_err();
    assert!(matches!(refused, GroupError::Busy { .. }), "{refused:?}");
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert!(others.remove(0).await.unwrap().unwrap().found);
    node.crash().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r25_a_read_past_the_store_does_not_hide_a_change_that_is_set_aside_nor_one_flushed_elsewhere()
 {
    let scene = Scene::new(20).await;
    let mut config = scene.config("n-0");
    config.topology = TopologySource::Operator;
    let uid = config.group.uid.clone();
    let node = Node::start(config, "n-0", Arc::new(NoPeers)).await.unwrap();
    node.group.started().await.unwrap();
    let two = scene.topology(1, &["n-0", "n-1"]);
    node.group.apply_topology(two.clone()).await.unwrap();
    let theirs = root((1..=20).find(|id| two.slots_of("n-1").contains(root(*id).slot())).unwrap());
    let journal = Uuid::from_u128(7);
    let lane = theirs.slot().number() % 2;
    for (each, position) in [(lane, 50), (1 - lane, 90)] {
        let row = format!(
            "INSERT INTO cachetier.writer (group_uid, node, lanes, lane, journal, attempt, token, \
             version, epoch, slots, position) VALUES ('{uid}', 'n-1', 2, {each}, '{journal}', '', 1, \
             1, 1, decode(repeat('00', 512), 'hex'), {position})"
        );
        scene.postgres.execute(&row).await;
    }
    let read = |sequence| {
        let mut call = ReadCall::new(KeySelector::Root(theirs.clone()), ReadPlan::default());
        call.min_position = Some(Position { journal, sequence });
        let group = node.group.clone();
        async move { group.bypass_read(&call).await }
    };
    assert!(read(50).await.unwrap().found);
    let lacking = read(51).await.unwrap_err();
    assert!(matches!(lacking, GroupError::PositionNotReached { .. }), "{lacking:?}");
    let key: String = theirs.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let reject = format!(
        "INSERT INTO cachetier.reject (group_uid, node, sequence, root_key, slot, head, sqlstate, \
         table_name, constraint_name, message, detail, changes) VALUES ('{uid}', 'n-1', 40, \
         '\\x{key}', {}, true, '23514', '', '', '', '', '')",
        theirs.slot().number()
    );
    scene.postgres.execute(&reject).await;
    let set_aside = read(50).await.unwrap_err();
    assert!(matches!(set_aside, GroupError::Quarantined), "{set_aside:?}");
    node.crash().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_fails_at_any_of_its_notes_is_tried_again_and_fences_nobody() {
    let scene = Scene::new(3).await;
    for failing in 1..=12 {
        let disk = FaultyFileSystem::new();
        let mut config = scene.config("n-0");
        config.journal.directory = "/journal".into();
        config.group.uid = format!("uid-{failing}");
        let noted = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&noted);
        disk.set_faults(move |operation| {
            let Operation::Rename { .. } = operation else { return None };
            let nth = count.fetch_add(1, Ordering::Relaxed) + 1;
            (nth == failing).then_some(Fault::Error(28))
        });
        let Ok(node) = Node::on_disk(config, "n-0", &disk).await else {
            // the journal's own first notes: nothing was started
            continue;
        };
        node.until("serving", |s| s.ready).await;
        node.set_place(1, i64::from(failing)).await.unwrap();
        node.drained().await;
        assert_eq!(node.place(1).await, Some(i64::from(failing)));
        node.group.drain(true).await.unwrap();
        node.group.forget_group(false).await.unwrap();
        node.crash().await;
    }
}
