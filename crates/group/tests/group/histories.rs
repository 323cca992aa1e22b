//! Histories that broke a promise once, each for the promise it broke.

use std::sync::Arc;

use cachetier_group::{BacklogFigures, Ended, GroupError, NoPeers, Phase};

use crate::moves::Cluster;
use crate::scene::{Node, Scene, entries, root};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_cannot_start_reports_what_its_journal_holds_and_is_not_called_drained() {
    let scene = Scene::new(5).await;
    let mut config = scene.config("n-0");
    config.write_through.paused = true;
    let node = Node::start(config.clone(), "n-0", Arc::new(NoPeers)).await.unwrap();
    node.until("serving", |s| s.ready).await;
    for id in 1..=3 {
        node.set_place(id, 7).await.unwrap();
    }
    node.crash().await;
    scene.postgres.execute("ALTER TABLE facility RENAME TO hidden").await;
    let node = Node::start(config.clone(), "n-0", Arc::new(NoPeers)).await.unwrap();
    assert_ne!(node.group.status().await.backlog, BacklogFigures::NONE, "from the first moment");
    let drained = node.group.drain(true).await.unwrap();
    assert_ne!(drained.backlog, BacklogFigures::NONE);
    let status = node.until("counted", |s| s.backlog.transactions == 3).await;
    assert_eq!((status.phase, status.writes_stopped), (Phase::Starting, true));
    assert!(node.group.forget_group(false).await.is_err());
    node.crash().await;
    // nor when the journal is refused
    let mut other = config.clone();
    other.group.uid = "uid-2".to_owned();
    let node = Node::start(other, "n-0", Arc::new(NoPeers)).await.unwrap();
    let status = node.group.status().await;
    assert_eq!((status.phase, status.backlog.transactions), (Phase::Fenced, 3));
    node.crash().await;
    // a journal that never took anything holds up nobody
    let fresh = Node::start(scene.config("n-9"), "n-9", Arc::new(NoPeers)).await.unwrap();
    assert_eq!(fresh.group.drain(true).await.unwrap().backlog, BacklogFigures::NONE);
    fresh.crash().await;
    scene.postgres.execute("ALTER TABLE hidden RENAME TO facility").await;
    config.write_through.paused = false;
    let node = Node::start(config, "n-0", Arc::new(NoPeers)).await.unwrap();
    node.until("flushed", |s| s.ready && s.backlog.transactions == 0).await;
    assert_eq!(scene.postgres.number("SELECT count(*) FROM account WHERE place = 7").await, 3);
    node.close().await;
    // all is flushed and that is known without the backend
    scene.postgres.execute("ALTER TABLE facility RENAME TO hidden").await;
    let node = scene.node("n-0").await;
    let waits = |s: &cachetier_group::Status| s.problems.iter().any(|p| p.reason == "TableMissing");
    node.until("counted", |s| waits(s) && s.backlog == BacklogFigures::NONE).await;
    node.crash().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_ends_its_group_forgets_no_other_node_that_still_has_writes_to_flush() {
    let mut cluster = Cluster::new(20).await;
    cluster.add("n-0").await;
    let mut config = cluster.scene.config("n-1");
    config.write_through.paused = true;
    cluster.add_with(config, "n-1").await;
    let two = cluster.scene.topology(1, &["n-0", "n-1"]);
    cluster.push(&two).await;
    cluster.settled(&two).await;
    let theirs = (1..=20).find(|id| two.slots_of("n-1").contains(root(*id).slot())).unwrap();
    cluster.nodes[1].0.set_place(theirs, 77).await.unwrap();
    let first = &cluster.nodes[0].0.group;
    first.drain(true).await.unwrap();
    first.forget_group(false).await.unwrap();
    first.forget_group(false).await.unwrap();
    let refused = cluster.nodes[0].0.read(1).await.unwrap_err();
    assert!(matches!(refused, GroupError::Fenced { .. }), "{refused:?}");
    let claims = "SELECT count(*) FROM cachetier.group_claim";
    assert_eq!(cluster.scene.postgres.number(claims).await, 3, "the tables are still in use");
    assert!(cluster.nodes[1].0.group.forget_group(false).await.is_err(), "it has a write to flush");
    // the one left behind still comes through, also after a restart
    let (node, _) = cluster.nodes.pop().unwrap();
    node.crash().await;
    cluster.add("n-1").await;
    let second = &cluster.nodes[1].0;
    second.until("flushed", |s| s.slots_serving > 0 && s.backlog.transactions == 0).await;
    let sql = format!("SELECT place FROM account WHERE id = {theirs}");
    assert_eq!(cluster.scene.postgres.number(&sql).await, 77);
    second.group.drain(true).await.unwrap();
    second.group.forget_group(false).await.unwrap();
    assert_eq!(cluster.scene.postgres.number(claims).await, 0);
    let writers = "SELECT count(*) FROM cachetier.writer";
    assert_eq!(cluster.scene.postgres.number(writers).await, 0);
    // a node that left does not come back
    let (node, _) = cluster.nodes.remove(0);
    node.crash().await;
    let node = Node::start(cluster.scene.config("n-0"), "n-0", Arc::new(NoPeers)).await.unwrap();
    assert_eq!(node.group.status().await.phase, Phase::Fenced);
    node.crash().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r24_a_node_that_let_slots_go_does_not_serve_them_on_its_journals_word() {
    let mut cluster = Cluster::new(20).await;
    cluster.add("n-0").await;
    let one = cluster.scene.topology(1, &["n-0"]);
    cluster.push(&one).await;
    cluster.settled(&one).await;
    let two = one.rebalanced(entries(&["n-0", "n-1"])).unwrap();
    let given = two.slots_of("n-1");
    let asked = cluster.nodes[0].0.group.release_slots(two.clone(), "n-1", &given).await.unwrap();
    assert_eq!(asked.slots, given);
    assert_eq!(asked.positions.len(), 2, "what the taker must find in both lanes' rows");
    let (node, _) = cluster.nodes.pop().unwrap();
    node.crash().await;
    // n-1 has them; n-0 hears that they come back, and cannot ask the backend
    cluster.scene.postgres.down();
    cluster.add("n-0").await;
    let back = two.rebalanced(entries(&["n-0"])).unwrap();
    cluster.push(&back).await;
    let (node, _) = cluster.nodes.pop().unwrap();
    node.crash().await;
    cluster.add("n-0").await;
    let node = &cluster.nodes[0].0;
    node.until("resumed", |s| s.slots_serving > 0).await;
    assert_eq!(node.group.status().await.slots_serving, 4096 - given.len() as u32);
    let moved = (1..=20).find(|id| given.contains(root(*id).slot())).unwrap();
    let refused = node.set_place(moved, 1).await.unwrap_err();
    assert!(matches!(refused, GroupError::SlotMoving { .. }), "{refused:?}");
    cluster.scene.postgres.up().await;
    cluster.settled(&back).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r17_a_resolved_reject_in_the_journal_takes_nothing_back_of_what_came_after_it() {
    let scene = Scene::new(5).await;
    let mut config = scene.config("n-0");
    config.write_through.lanes = 1;
    let node = Node::start(config.clone(), "n-0", Arc::new(NoPeers)).await.unwrap();
    node.until("serving", |s| s.ready).await;
    node.set_place(5, 666).await.unwrap();
    node.until("rejected", |s| s.rejects > 0).await;
    let id = node.group.rejects(10).await.unwrap()[0].id;
    node.group.resolve_reject(id, true).await.unwrap();
    assert_eq!(node.place(5).await, Some(50));
    // what comes after it stays in the queue
    let holder = scene.postgres.client().await;
    holder.batch_execute("BEGIN; SELECT 1 FROM account WHERE id = 5 FOR UPDATE").await.unwrap();
    node.set_place(5, 8).await.unwrap();
    node.crash().await;
    scene.postgres.down();
    let node = Node::start(config, "n-0", Arc::new(NoPeers)).await.unwrap();
    node.until("resumed", |s| s.slots_serving == 4096).await;
    assert_eq!(node.place(5).await, Some(8), "from the journal");
    scene.postgres.up().await;
    node.until("flushed", |s| s.problems.is_empty() && s.backlog.transactions == 0).await;
    assert_eq!(scene.postgres.number("SELECT place FROM account WHERE id = 5").await, 8);
    assert_eq!(node.place(5).await, Some(8), "the cache has what the backend has");
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r11_a_transaction_set_aside_in_a_backend_that_lost_it_is_sent_again_after_a_restart() {
    let scene = Scene::new(5).await;
    let node = scene.serving("n-0").await;
    node.set_place(5, 666).await.unwrap();
    node.until("rejected", |s| s.rejects > 0).await;
    node.crash().await;
    // a standby takes over that never heard of the reject, nor of the position written with it
    let lost = "DELETE FROM cachetier.reject; UPDATE cachetier.writer SET position = 0;
        ALTER TABLE account DROP CONSTRAINT account_place_check";
    scene.postgres.execute(lost).await;
    let node = scene.serving("n-0").await;
    node.drained().await;
    assert_eq!(scene.postgres.number("SELECT place FROM account WHERE id = 5").await, 666);
    assert_eq!(node.place(5).await, Some(666));
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r24_slots_of_a_lost_journal_are_taken_up_only_by_a_word_that_names_it() {
    let scene = Scene::new(5).await;
    let mut config = scene.config("n-0");
    config.write_through.paused = true;
    let node = Node::start(config.clone(), "n-0", Arc::new(NoPeers)).await.unwrap();
    node.until("serving", |s| s.ready).await;
    node.set_place(1, 7).await.unwrap();
    let refused = node.group.accept_lost_journal("any").await.unwrap_err();
    assert!(matches!(refused, GroupError::Refused(_)), "nothing is lost here: {refused:?}");
    let lost = node.group.status().await.journal.to_string();
    node.crash().await;
    // its host is gone; it comes back with an empty volume
    config.journal.directory = scene.journal("anew");
    let fenced = async || {
        let node = Node::start(config.clone(), "n-0", Arc::new(NoPeers)).await.unwrap();
        let status = node.until("refused", |s| s.phase == Phase::Fenced).await;
        let names = |p: &cachetier_group::Problem| {
            p.reason == "ForeignJournal" && p.message.contains(&lost) && p.message.contains("4096")
        };
        assert!(status.problems.iter().any(names), "what may be lost is said: {status:?}");
        node
    };
    let node = fenced().await;
    let wrong = "00000000-0000-0000-0000-000000000000";
    node.group.accept_lost_journal(wrong).await.unwrap();
    assert!(matches!(node.group.ended().await, Ended::RestartNeeded(_)));
    node.crash().await;
    let node = fenced().await;
    node.group.accept_lost_journal(&lost).await.unwrap();
    node.crash().await;
    let node = Node::start(config.clone(), "n-0", Arc::new(NoPeers)).await.unwrap();
    node.until("serving", |s| s.ready && s.slots_serving == 4096).await;
    assert_eq!(node.place(1).await, Some(10), "as the backend has it");
    // and the lost one stays lost
    let back = scene.node("n-0").await;
    back.until("refused", |s| s.phase == Phase::Fenced).await;
    back.crash().await;
    node.crash().await;
}
