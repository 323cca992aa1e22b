//! Backends that go away, volumes that come back from the dead, rows the backend refuses.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use cachetier_group::{
    AnswerWhen, GroupError, KeySelector, NoPeers, Phase, ReadCall, TransactCall, Transacted,
};
use cachetier_model::node_config::TopologySource;
use cachetier_model::{ReadPlan, Transaction};

use crate::basics::compare;
use crate::scene::{Node, Scene, entries, insert_account, root, set_place};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_stops_under_load_loses_nothing() {
    let scene = Arc::new(Scene::new(50).await);
    let node = Arc::new(scene.serving("n-0").await);
    for id in 1..=50 {
        node.read(id).await.unwrap();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let acknowledged: Arc<Vec<AtomicI64>> = Arc::new((0..=50).map(|_| 0.into()).collect());
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (node, stop, acknowledged) = (node.clone(), stop.clone(), acknowledged.clone());
            tokio::spawn(async move {
                let mut value = 1;
                while !stop.load(Ordering::Relaxed) {
                    for id in (1..=50).filter(|id| id % 4 == writer) {
                        node.set_place(id, value).await.unwrap();
                        acknowledged[id as usize].store(value, Ordering::Relaxed);
                    }
                    value += if value == 665 { 2 } else { 1 };
                }
            })
        })
        .collect();
    let written = || acknowledged.iter().map(|a| a.load(Ordering::Relaxed)).sum::<i64>();
    let until = async |target: i64| {
        while written() < target {
            tokio::task::yield_now().await;
        }
    };
    until(200).await;
    scene.postgres.down();
    node.until("backend away", |s| s.problems.iter().any(|p| p.degraded)).await;
    until(written() + 500).await;
    scene.postgres.up().await;
    until(written() + 200).await;
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    node.drained().await;
    node.until("healed", |s| s.problems.is_empty() && s.backend_reachable).await;
    let client = scene.postgres.client().await;
    for row in client.query("SELECT id, place FROM account", &[]).await.unwrap() {
        let (id, place): (i64, i64) = (row.get(0), row.get(1));
        assert_eq!(place, acknowledged[id as usize].load(Ordering::Relaxed), "account {id}");
    }
    assert_eq!(compare(&node).await.differences, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d17_a_node_restarted_while_the_backend_is_away_serves_its_journal_and_flushes_later() {
    let scene = Scene::new(10).await;
    let node = scene.serving("n-0").await;
    node.set_place(1, 11).await.unwrap();
    node.drained().await;
    node.read(2).await.unwrap();
    node.read(3).await.unwrap();
    scene.postgres.down();
    node.set_place(2, 22).await.unwrap();
    node.crash().await;
    let node = scene.node("n-0").await;
    node.until("resumed", |s| s.slots_serving == 4096).await;
    assert_eq!(node.place(2).await, Some(22), "from the journal");
    node.set_place(2, 23).await.unwrap();
    let missing = node.read(3).await.unwrap_err();
    assert!(matches!(missing, GroupError::BackendAway { .. }), "{missing:?}");
    scene.postgres.up().await;
    node.until("healed", |s| s.problems.is_empty() && s.backlog.transactions == 0).await;
    assert_eq!(scene.postgres.number("SELECT place FROM account WHERE id = 1").await, 11);
    assert_eq!(scene.postgres.number("SELECT place FROM account WHERE id = 2").await, 23);
    assert_eq!(node.place(3).await, Some(30));
    node.close().await;
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d18_a_volume_copied_earlier_is_refused_and_overwrites_nothing() {
    let scene = Scene::new(10).await;
    let node = scene.serving("n-0").await;
    node.set_place(1, 11).await.unwrap();
    node.drained().await;
    scene.postgres.down();
    node.set_place(1, 12).await.unwrap();
    node.crash().await;
    // the copy holds an unflushed 12
    copy(&scene.journal("n-0"), &scene.journal("copy"));
    scene.postgres.up().await;
    let node = scene.serving("n-0").await;
    node.set_place(1, 13).await.unwrap();
    node.drained().await;
    node.close().await;
    let mut config = scene.config("n-0");
    config.journal.directory = scene.journal("copy");
    let stale = Node::start(config, "n-0", Arc::new(NoPeers)).await.unwrap();
    let status = stale.until("fenced", |s| s.phase == Phase::Fenced).await;
    assert!(status.problems.iter().any(|p| p.reason == "StaleJournal"), "{status:?}");
    let refused = stale.read(1).await.unwrap_err();
    assert!(matches!(refused, GroupError::Fenced { .. }), "{refused:?}");
    stale.crash().await;
    assert_eq!(scene.postgres.number("SELECT place FROM account WHERE id = 1").await, 13);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d15_of_two_processes_on_copies_of_one_volume_the_earlier_is_fenced_for_good() {
    let scene = Scene::new(10).await;
    let node = scene.serving("n-0").await;
    node.close().await;
    copy(&scene.journal("n-0"), &scene.journal("copy"));
    let first = scene.serving("n-0").await;
    first.set_place(1, 11).await.unwrap();
    first.drained().await;
    let mut config = scene.config("n-0");
    config.journal.directory = scene.journal("copy");
    let second = Node::start(config, "n-0", Arc::new(NoPeers)).await.unwrap();
    second.until("fenced", |s| s.phase == Phase::Fenced).await;
    first.set_place(1, 12).await.unwrap();
    first.drained().await;
    assert_eq!(scene.postgres.number("SELECT place FROM account WHERE id = 1").await, 12);
    second.crash().await;
    first.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r14_a_second_group_on_the_same_tables_is_refused_by_name() {
    let scene = Scene::new(1).await;
    let node = scene.serving("n-0").await;
    let mut config = scene.config("other");
    config.group.name = "telecom/second".to_owned();
    config.group.uid = "uid-2".to_owned();
    let other = Node::start(config, "other", Arc::new(NoPeers)).await.unwrap();
    let claimed = |s: &cachetier_group::Status| {
        s.problems.iter().any(|p| p.reason == "TablesClaimed" && p.message.contains("telecom/hlr"))
    };
    other.until("refused", claimed).await;
    other.crash().await;
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_of_another_incarnation_is_refused_at_start() {
    let scene = Scene::new(1).await;
    let node = scene.serving("n-0").await;
    node.close().await;
    let mut config = scene.config("n-0");
    config.group.uid = "uid-2".to_owned();
    let node = Node::start(config, "n-0", Arc::new(NoPeers)).await.unwrap();
    let status = node.group.status().await;
    assert_eq!(status.phase, Phase::Fenced);
    assert!(status.problems.iter().any(|p| p.reason == "ForeignJournal"), "{status:?}");
    node.crash().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d01_one_refused_row_quarantines_its_instance_and_everything_else_flows() {
    let scene = Scene::new(20).await;
    let node = scene.serving("n-0").await;
    node.set_place(5, 666).await.unwrap();
    for id in (1..=20).filter(|id| *id != 5) {
        node.set_place(id, 7).await.unwrap();
    }
    let status = node.until("rejected", |s| s.rejects > 0 && s.backlog.transactions == 0).await;
    assert!(status.problems.iter().any(|p| p.reason == "Rejects"), "{status:?}");
    assert_eq!(scene.postgres.number("SELECT count(*) FROM account WHERE place = 7").await, 19);
    let quarantined = node.read(5).await.unwrap_err();
    assert!(matches!(quarantined, GroupError::Quarantined), "{quarantined:?}");
    let refused = node.set_place(5, 8).await.unwrap_err();
    assert!(matches!(refused, GroupError::Quarantined), "{refused:?}");
    let rejects = node.group.rejects(10).await.unwrap();
    assert_eq!((rejects.len(), rejects[0].sqlstate.as_str()), (1, "23514"));
    assert_eq!(rejects[0].table, "account");
    // it stays quarantined over a restart
    node.crash().await;
    let node = scene.serving("n-0").await;
    assert!(matches!(node.read(5).await, Err(GroupError::Quarantined)));
    assert_eq!(node.group.resolve_reject(rejects[0].id, true).await.unwrap(), 1);
    assert_eq!(node.place(5).await, Some(50), "as the backend has it");
    node.set_place(5, 8).await.unwrap();
    node.until("resolved", |s| s.rejects == 0 && s.backlog.transactions == 0).await;
    assert_eq!(scene.postgres.number("SELECT place FROM account WHERE id = 5").await, 8);
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replayed_reject_is_applied_once_its_cause_is_gone() {
    let scene = Scene::new(5).await;
    let node = scene.serving("n-0").await;
    node.set_place(2, 666).await.unwrap();
    node.until("rejected", |s| s.rejects > 0).await;
    let id = node.group.rejects(10).await.unwrap()[0].id;
    assert!(node.group.resolve_reject(id, false).await.is_err(), "the cause is still there");
    scene.postgres.execute("ALTER TABLE account DROP CONSTRAINT account_place_check").await;
    assert_eq!(node.group.resolve_reject(id, false).await.unwrap(), 1);
    assert_eq!(scene.postgres.number("SELECT place FROM account WHERE id = 2").await, 666);
    assert_eq!(node.place(2).await, Some(666));
    node.close().await;
}

/// Writes, and waits until the backend has it.
async fn flush_place(node: &Node, id: i64, place: i64) -> Result<Transacted, GroupError> {
    let transaction = Transaction { guards: Vec::new(), operations: vec![set_place(place)] };
    let (key, answer) = (KeySelector::Root(root(id)), AnswerWhen::Flushed);
    let call = TransactCall { key, transaction, answer, idempotency_key: None };
    node.group.transact(call).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_waits_for_the_flush_hears_of_its_refusal_and_never_of_success() {
    let scene = Scene::new(5).await;
    let node = scene.serving("n-0").await;
    flush_place(&node, 1, 7).await.unwrap();
    assert_eq!(scene.postgres.number("SELECT place FROM account WHERE id = 1").await, 7);
    let refused = flush_place(&node, 2, 666).await.unwrap_err();
    assert!(matches!(refused, GroupError::InDoubt { .. }), "{refused:?}");
    assert!(refused.to_string().contains("23514"), "{refused}");
    assert!(matches!(node.read(2).await, Err(GroupError::Quarantined)));
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r17_a_reject_is_not_decided_before_everything_behind_it_was_set_aside() {
    let scene = Scene::new(5).await;
    let mut config = scene.config("n-0");
    config.write_through.lanes = 1;
    config.write_through.max_delay_ms = 1_000;
    let node = Node::start(config, "n-0", Arc::new(NoPeers)).await.unwrap();
    node.until("serving", |s| s.ready).await;
    for id in 1..=2 {
        node.read(id).await.unwrap();
    }
    // somebody holds the row of account 2, so that what comes behind it waits
    let holder = scene.postgres.client().await;
    holder.batch_execute("BEGIN; SELECT 1 FROM account WHERE id = 2 FOR UPDATE").await.unwrap();
    node.set_place(1, 666).await.unwrap();
    node.set_place(2, 5).await.unwrap();
    node.set_place(1, 8).await.unwrap();
    node.until("rejected", |s| s.rejects > 0).await;
    let id = node.group.rejects(10).await.unwrap()[0].id;
    let early = node.group.resolve_reject(id, true).await.unwrap_err();
    assert!(matches!(early, GroupError::Busy { .. }), "{early:?}");
    holder.batch_execute("ROLLBACK").await.unwrap();
    node.drained().await;
    assert_eq!(node.group.resolve_reject(id, true).await.unwrap(), 2, "both, in one decision");
    assert_eq!(node.place(1).await, Some(10), "as the backend has it");
    assert_eq!(scene.postgres.number("SELECT place FROM account WHERE id = 1").await, 10);
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r25_a_node_that_leaves_a_slot_neither_bypasses_its_own_changes_nor_calls_it_free_unclaimed()
 {
    let scene = Scene::new(20).await;
    let mut config = scene.config("n-0");
    config.topology = TopologySource::Operator;
    config.write_through.paused = true;
    let node = Node::start(config.clone(), "n-0", Arc::new(NoPeers)).await.unwrap();
    node.group.started().await.unwrap();
    let one = scene.topology(1, &["n-0"]);
    node.group.apply_topology(one.clone()).await.unwrap();
    node.until("serving", |s| s.ready).await;
    let two = one.rebalanced(entries(&["n-0", "n-1"])).unwrap();
    let given = two.slots_of("n-1");
    let moved = (1..=20).find(|id| given.contains(root(*id).slot())).unwrap();
    node.set_place(moved, 5).await.unwrap();
    let released = node.group.release_slots(two.clone(), "n-1", &given).await.unwrap();
    assert!(!released.slots.contains(root(moved).slot()), "its change is not flushed");
    let key = KeySelector::Root(root(moved));
    let call = ReadCall::new(key, ReadPlan::default());
    let refused = node.group.bypass_read(&call).await.unwrap_err();
    assert!(matches!(refused, GroupError::SlotMoving { .. }), "{refused:?}");
    node.crash().await;
    // a start without the backend does not know what its writer row says
    scene.postgres.down();
    let node = Node::start(config, "n-0", Arc::new(NoPeers)).await.unwrap();
    node.group.started().await.unwrap();
    let refused = node.group.release_slots(two, "n-1", &given).await.unwrap_err();
    assert!(matches!(refused, GroupError::Starting { .. }), "{refused:?}");
    scene.postgres.up().await;
    node.crash().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d09_a_full_queue_refuses_writes_with_a_hint_and_reads_go_on() {
    let scene = Scene::new(3).await;
    let mut config = scene.config("n-0");
    config.write_through.paused = true;
    config.write_through.max_backlog_bytes = 20_000;
    let node = Node::start(config, "n-0", Arc::new(NoPeers)).await.unwrap();
    node.until("serving", |s| s.ready).await;
    let refused = loop {
        match node.set_place(1, 5).await.and(node.set_place(1, 6).await) {
            Ok(_) => {}
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused, GroupError::BacklogFull { .. }), "{refused:?}");
    assert!(refused.facts().retry_after.is_some() && refused.facts().backlog_bytes > 10_000);
    assert!(node.read(1).await.unwrap().found);
    node.crash().await;
}

/// Names the configuration for the victim of the kill test.
const VICTIM_CONFIG: &str = "GROUP_TEST_VICTIM_CONFIG";
/// The first value it writes.
const VICTIM_FIRST: &str = "GROUP_TEST_VICTIM_FIRST";

/// Not a test: the process that is killed. Writes without pause and prints each write after it was
/// acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the victim of a_killed_node_loses_no_acknowledged_write"]
async fn victim() {
    let Ok(path) = std::env::var(VICTIM_CONFIG) else { return };
    let config = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let first: i64 = std::env::var(VICTIM_FIRST).unwrap().parse().unwrap();
    let node = Arc::new(Node::start(config, "n-0", Arc::new(NoPeers)).await.unwrap());
    node.until("serving", |s| s.ready).await;
    let writers = (0..4).map(|writer| {
        let node = node.clone();
        tokio::spawn(async move {
            // each writer has its own accounts: the last line of an account is its last value
            for value in first.. {
                for id in (1..=40).filter(|id| id % 4 == writer) {
                    node.set_place(id, value).await.unwrap();
                    println!("\nacknowledged {id} {value}");
                }
            }
        })
    });
    futures::future::join_all(writers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_loses_no_acknowledged_write() {
    let scene = Scene::new(40).await;
    std::fs::write(
        scene.dir.path().join("config.json"),
        serde_json::to_vec(&scene.config("n-0")).unwrap(),
    )
    .unwrap();
    let mut highest = vec![0_i64; 41];
    for round in 1..=4 {
        let mut child = tokio::process::Command::new(std::env::current_exe().unwrap())
            .args(["faults::victim", "--exact", "--ignored", "--nocapture"])
            .env(VICTIM_CONFIG, scene.dir.path().join("config.json"))
            .env(VICTIM_FIRST, (round * 1_000_000).to_string())
            .stdout(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = tokio::io::BufReader::new(child.stdout.take().unwrap());
        let mut lines = tokio::io::AsyncBufReadExt::lines(lines);
        let mut seen = 0;
        while let Ok(Some(line)) = lines.next_line().await {
            let Some(line) = line.strip_prefix("acknowledged ") else { continue };
            let Some((id, value)) = line.split_once(' ') else { continue };
            highest[id.parse::<usize>().unwrap()] = value.parse().unwrap();
            seen += 1;
            if seen == 400 + round * 57 {
                child.start_kill().unwrap();
            }
        }
        child.wait().await.unwrap();
        assert!(seen >= 400, "round {round} wrote {seen}");
    }
    let node = scene.serving("n-0").await;
    for id in 1..=40_i64 {
        let place = node.place(id).await.unwrap();
        assert!(place >= highest[id as usize], "account {id}: {place} < {}", highest[id as usize]);
    }
    node.drained().await;
    assert_eq!(compare(&node).await.differences, 0);
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_topology_says_so_and_serves_nothing() {
    let scene = Scene::new(3).await;
    let mut config = scene.config("n-0");
    config.topology = TopologySource::Operator;
    let node = Node::start(config, "n-0", Arc::new(NoPeers)).await.unwrap();
    node.until("waiting", |s| s.phase == Phase::AwaitingTopology).await;
    let early = node.write(1, vec![set_place(1)]).await.unwrap_err();
    assert!(matches!(early, GroupError::Starting { .. }), "{early:?}");
    node.group.apply_topology(scene.topology(1, &["n-0"])).await.unwrap();
    node.until("serving", |s| s.ready && s.slots_serving == 4096).await;
    node.write(500, vec![insert_account(500, "500")]).await.unwrap();
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_group_that_ends_frees_its_tables_for_the_next() {
    let scene = Scene::new(3).await;
    let node = scene.serving("n-0").await;
    node.set_place(1, 2).await.unwrap();
    assert!(node.group.forget_group(false).await.is_err(), "writes are still taken");
    node.group.drain(true).await.unwrap();
    node.drained().await;
    node.group.forget_group(false).await.unwrap();
    assert!(matches!(node.read(1).await, Err(GroupError::Fenced { .. })));
    node.crash().await;
    let mut config = scene.config("next");
    config.group.name = "telecom/next".to_owned();
    config.group.uid = "uid-2".to_owned();
    let next = Node::start(config, "next", Arc::new(NoPeers)).await.unwrap();
    next.until("serving", |s| s.ready).await;
    assert_eq!(next.place(1).await, Some(2));
    next.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d29_a_changed_table_is_adopted_when_nothing_waits_and_named_when_something_does() {
    let scene = Scene::new(3).await;
    let mut config = scene.config("n-0");
    config.write_through.paused = true;
    let node = Node::start(config, "n-0", Arc::new(NoPeers)).await.unwrap();
    node.until("serving", |s| s.ready).await;
    node.set_place(1, 11).await.unwrap();
    node.crash().await;
    scene.postgres.execute("ALTER TABLE account ADD COLUMN extra int").await;
    let node = scene.node("n-0").await;
    let drift = |s: &cachetier_group::Status| s.problems.iter().any(|p| p.reason == "SchemaDrift");
    let status = node.until("drifted", drift).await;
    assert_eq!(status.phase, Phase::Starting);
    scene.postgres.execute("ALTER TABLE account DROP COLUMN extra").await;
    node.until("flushed", |s| s.ready && s.backlog.transactions == 0).await;
    assert_eq!(scene.postgres.number("SELECT place FROM account WHERE id = 1").await, 11);
    node.close().await;
    scene.postgres.execute("ALTER TABLE account ADD COLUMN extra int").await;
    let node = scene.serving("n-0").await;
    let row = node.read(1).await.unwrap().tables[0][0].clone();
    assert_eq!(row.len(), 5, "nothing waited: the new layout is in force");
    node.close().await;
}
