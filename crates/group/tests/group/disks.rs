//! Journals on disks that fail, fill up and lose power.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use cachetier_group::{Ended, GroupError, Phase, Status};
use cachetier_journal::file_system::{Fault, FaultyFileSystem, Operation, PowerCut};
use cachetier_model::node_config::{Durability, Medium, NodeConfig};
use cachetier_model::{Operation as Change, Value};

use crate::basics::compare;
use crate::scene::{ACCOUNT, Node, Scene};

fn on_virtual_disk(scene: &Scene) -> NodeConfig {
    let mut config = scene.config("n-0");
    config.journal.directory = PathBuf::from("/journal");
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r06_a_failed_sync_leaves_the_caller_in_doubt_and_ends_the_node() {
    let scene = Scene::new(5).await;
    let disk = FaultyFileSystem::new();
    let node = Node::on_disk(on_virtual_disk(&scene), "n-0", &disk).await.unwrap();
    node.until("serving", |s| s.ready).await;
    node.set_place(1, 11).await.unwrap();
    node.drained().await;
    disk.set_faults(|operation| matches!(operation, Operation::Sync(_)).then_some(Fault::Error(5)));
    let doubt = node.set_place(1, 12).await.unwrap_err();
    assert!(matches!(doubt, GroupError::InDoubt { .. }), "{doubt:?}");
    let refused = node.set_place(2, 12).await.unwrap_err();
    assert!(matches!(refused, GroupError::Latched { .. }), "{refused:?}");
    let status = node.group.status().await;
    assert_eq!((status.phase, status.ready), (Phase::Latched, false));
    assert!(matches!(node.group.ended().await, Ended::Latched(_)));
    node.crash().await;
    disk.clear_faults();
    disk.cut_power(PowerCut::LoseAll);
    let node = Node::on_disk(on_virtual_disk(&scene), "n-0", &disk).await.unwrap();
    node.until("serving", |s| s.ready).await;
    assert_eq!(node.place(1).await, Some(11), "what was in doubt is gone whole");
    assert_eq!(scene.postgres.number("SELECT place FROM account WHERE id = 1").await, 11);
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d25_a_full_volume_refuses_writes_with_the_reason_and_heals_when_space_returns() {
    let scene = Scene::new(5).await;
    let disk = FaultyFileSystem::new();
    let node = Node::on_disk(on_virtual_disk(&scene), "n-0", &disk).await.unwrap();
    node.until("serving", |s| s.ready).await;
    disk.set_capacity(Some(disk.used_bytes()));
    let note = |text: &str| Change::Update {
        table: ACCOUNT,
        conditions: vec![],
        set: vec![(3, Value::Text(text.into()))],
        expect: Some(1),
    };
    let mut letter = 'a';
    let refused = loop {
        let text: String = std::iter::repeat_n(letter, 100_000).collect();
        letter = if letter == 'a' { 'b' } else { 'a' };
        if let Err(refused) = node.write(1, vec![note(&text)]).await {
            break refused;
        }
    };
    assert!(matches!(refused, GroupError::JournalFull { .. }), "{refused:?}");
    let status = node.group.status().await;
    assert!(status.problems.iter().any(|p| p.reason == "JournalFull"), "{status:?}");
    assert_eq!(node.place(1).await, Some(10), "reads go on");
    assert_eq!(status.phase, Phase::Serving);
    disk.set_capacity(None);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while node.set_place(1, 3).await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "never healed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    node.drained().await;
    assert_eq!(scene.postgres.number("SELECT place FROM account WHERE id = 1").await, 3);
    node.close().await;
}

/// Writes counters from several tasks, cuts the power at an unknown moment, starts again; each
/// account must then be between its last acknowledged and its last attempted value.
async fn power_cuts(durability: Durability, rounds: u64) {
    const ACCOUNTS: i64 = 24;
    let scene = Arc::new(Scene::new(ACCOUNTS).await);
    let disk = FaultyFileSystem::new();
    let config = || {
        let mut config = on_virtual_disk(&scene);
        config.journal.durability = durability;
        config.journal.sync_interval_ms = 5;
        config
    };
    let first = || Arc::new((0..=ACCOUNTS).map(|id| AtomicI64::new(id * 10)).collect::<Vec<_>>());
    let (attempted, acknowledged) = (first(), first());
    for round in 0..rounds {
        let node = Node::on_disk(config(), "n-0", &disk).await.unwrap();
        node.until("serving", |s| s.ready).await;
        if round > 0 {
            for id in 1..=ACCOUNTS {
                let (low, high) = (&acknowledged[id as usize], &attempted[id as usize]);
                let place = node.place(id).await.unwrap();
                let range = low.load(Ordering::Relaxed)..=high.load(Ordering::Relaxed);
                assert!(range.contains(&place), "round {round}, account {id}: {place} {range:?}");
                // what is read now was promised to a reader
                low.store(place, Ordering::Relaxed);
                high.store(place, Ordering::Relaxed);
            }
        }
        let node = Arc::new(node);
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let node = node.clone();
                let (attempted, acknowledged) = (attempted.clone(), acknowledged.clone());
                tokio::spawn(async move {
                    for value in (round as i64 + 1) * 100_000.. {
                        for id in (1..=ACCOUNTS).filter(|id| id % 4 == writer) {
                            attempted[id as usize].store(value, Ordering::Relaxed);
                            if node.set_place(id, value).await.is_err() {
                                return;
                            }
                            acknowledged[id as usize].store(value, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        let target = (round as i64 + 1) * 100_000 + 3 + (round as i64 * 7) % 20;
        while acknowledged[1].load(Ordering::Relaxed) < target {
            tokio::task::yield_now().await;
        }
        match durability {
            Durability::Sync => disk.cut_power(PowerCut::Random(round)),
            Durability::Relaxed => disk.kill_process(),
        }
        for writer in writers {
            writer.await.unwrap();
        }
        Arc::into_inner(node).unwrap().crash().await;
    }
    let node = Node::on_disk(config(), "n-0", &disk).await.unwrap();
    node.until("flushed", |s| s.ready && s.backlog.transactions == 0).await;
    for id in 1..=ACCOUNTS {
        let sql = format!("SELECT place FROM account WHERE id = {id}");
        assert_eq!(node.place(id).await, Some(scene.postgres.number(&sql).await));
    }
    assert_eq!(compare(&node).await.differences, 0);
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r01_power_cuts_under_load_take_nothing_back_that_was_acknowledged_or_read() {
    power_cuts(Durability::Sync, 8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relaxed_durability_survives_killed_processes() {
    power_cuts(Durability::Relaxed, 5).await;
}

/// Persistent memory was asked for and the volume is none: said, and the store is not taken from memory that
/// nobody set aside. Where the tests' own folder is on a DAX volume it is used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_is_no_persistent_memory_is_said_and_used_as_an_ordinary_one() {
    let scene = Scene::new(10).await;
    let mut config = scene.config("n-0");
    config.memory.medium = Medium::AppDirect;
    let peers = Arc::new(cachetier_group::NoPeers);
    let node = Node::start(config.clone(), "n-0", peers.clone()).await.unwrap();
    let status = node.until("serving", |s| s.ready).await;
    let said = status.problems.iter().filter(|p| p.reason == "DaxUnavailable").count();
    assert_eq!(said == 0, status.journal_direct && status.store_direct, "{status:?}");
    node.set_place(3, 33).await.unwrap();
    node.crash().await;
    // a store that does not fit the volume is refused, and the writes wait in the journal
    config.memory.capacity_bytes = 1 << 50;
    let node = Node::start(config.clone(), "n-0", peers.clone()).await.unwrap();
    let refused = |s: &Status| s.problems.iter().any(|p| p.reason == "StoreRefused");
    let status = node.until("refused", refused).await;
    assert!(!status.ready, "{status:?}");
    node.crash().await;
    config.memory.capacity_bytes = 256 << 20;
    let node = Node::start(config, "n-0", peers).await.unwrap();
    node.until("serving", |s| s.ready).await;
    assert_eq!(node.place(3).await, Some(33));
    node.close().await;
}
