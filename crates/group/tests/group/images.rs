//! Starts from images: warm without the backend, never with anything that is not so.

use std::path::{Path, PathBuf};

use cachetier_group::{GroupError, Source};
use cachetier_model::node_config::Images;
use cachetier_model::{Operation, RootKey};

use crate::scene::{ACCOUNT, Node, Scene, insert_account, place_of, root};

const ACCOUNTS: i64 = 60;
/// Before each packed slot of an image file.
const DIRECTORY_BYTES: usize = 2_624;

async fn filled(scene: &Scene) -> Node {
    let node = scene.serving("n-0").await;
    for id in 1..=ACCOUNTS {
        node.read(id).await.unwrap();
    }
    node
}

async fn with_policy(scene: &Scene, images: Images) -> Node {
    let mut config = scene.config("n-0");
    config.memory.images = images;
    let peers = std::sync::Arc::new(cachetier_group::NoPeers);
    Node::start(config, "n-0", peers).await.unwrap()
}

/// What a read finds without asking the backend; `None` when it would have to.
async fn held(node: &Node, id: i64) -> Option<i64> {
    match node.read(id).await {
        Ok(outcome) if outcome.source == Source::Cache => place_of(&outcome),
        Ok(_) | Err(GroupError::BackendAway { .. }) => None,
        Err(error) => panic!("account {id}: {error}"),
    }
}

fn delete_account() -> Operation {
    Operation::Delete { table: ACCOUNT, conditions: Vec::new(), expect: Some(1) }
}

fn images(scene: &Scene) -> Vec<PathBuf> {
    let folder = scene.journal("n-0").join("images");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// The file that holds the account's slot.
fn image_of(scene: &Scene, key: &RootKey) -> PathBuf {
    let first = key.slot().number() / 64 * 64;
    scene.journal("n-0").join("images").join(format!("slots-{first:04}.image"))
}

fn flip(file: &Path, at: usize) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[at] ^= 1;
    std::fs::write(file, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_stopped_in_order_has_its_memory_back_without_the_backend() {
    let scene = Scene::new(ACCOUNTS).await;
    let node = filled(&scene).await;
    node.set_place(7, 77).await.unwrap();
    node.close().await;
    scene.postgres.down();
    let node = scene.serving("n-0").await;
    for id in 1..=ACCOUNTS {
        let place = if id == 7 { 77 } else { id * 10 };
        assert_eq!(held(&node, id).await, Some(place), "account {id}");
    }
    let counters = node.group.counters();
    assert_eq!(counters.image_instances_restored, ACCOUNTS as u64);
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r03_r04_what_was_flushed_after_the_image_comes_from_the_journal() {
    let scene = Scene::new(ACCOUNTS).await;
    filled(&scene).await.close().await;
    let node = scene.serving("n-0").await;
    for id in 1..=20 {
        node.set_place(id, id + 1_000).await.unwrap();
    }
    node.write(30, vec![delete_account()]).await.unwrap();
    node.write(ACCOUNTS + 1, vec![insert_account(ACCOUNTS + 1, "+new")]).await.unwrap();
    node.drained().await;
    scene.postgres.down();
    node.set_place(21, 2_100).await.unwrap();
    node.crash().await;
    let node = scene.serving("n-0").await;
    for id in 1..=20 {
        assert_eq!(held(&node, id).await, Some(id + 1_000), "account {id}");
    }
    assert_eq!(held(&node, 21).await, Some(2_100), "not flushed");
    assert_eq!(held(&node, 30).await, None, "deleted after the image");
    assert_eq!(held(&node, 40).await, Some(400), "as in the image");
    scene.postgres.up().await;
    node.until("backend back", |s| s.backend_reachable).await;
    assert_eq!(node.place(30).await, None);
    assert_eq!(node.place(ACCOUNTS + 1).await, Some(1));
    node.drained().await;
    assert_eq!(crate::basics::compare(&node).await.differences, 0);
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_image_costs_its_slot_and_a_damaged_directory_its_file() {
    let scene = Scene::new(ACCOUNTS).await;
    filled(&scene).await.close().await;
    let slot_damaged = image_of(&scene, &root(1));
    flip(&slot_damaged, DIRECTORY_BYTES + 9);
    let file_damaged = image_of(&scene, &root(2));
    assert_ne!(slot_damaged, file_damaged, "the test needs two files");
    flip(&file_damaged, 100);
    scene.postgres.down();
    let node = scene.serving("n-0").await;
    let status = node.until("told", |s| !s.problems.is_empty()).await;
    assert!(status.problems.iter().any(|p| p.reason == "ImagesDropped"), "{status:?}");
    let mut lost_with_slot = 0;
    for id in 1..=ACCOUNTS {
        let place = held(&node, id).await;
        let file = image_of(&scene, &root(id));
        if file == file_damaged {
            assert_eq!(place, None, "account {id}");
        } else if place.is_none() {
            assert_eq!(file, slot_damaged, "account {id}");
            lost_with_slot += 1;
        } else {
            assert_eq!(place, Some(id * 10));
        }
    }
    assert!(lost_with_slot > 0);
    // what is loaded again is in an image again, with the same bytes as before the damage
    scene.postgres.up().await;
    for id in 1..=ACCOUNTS {
        node.until("the backend to be back", |s| s.backend_reachable).await;
        node.read(id).await.unwrap();
    }
    node.close().await;
    let node = scene.serving("n-0").await;
    for id in 1..=ACCOUNTS {
        assert_eq!(held(&node, id).await, Some(id * 10), "account {id}");
    }
    let status = node.group.status().await;
    assert!(!status.problems.iter().any(|p| p.reason == "ImagesDropped"), "{status:?}");
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_are_neither_written_nor_kept_where_the_policy_says_reload() {
    let scene = Scene::new(ACCOUNTS).await;
    filled(&scene).await.close().await;
    assert!(!images(&scene).is_empty());
    let node = with_policy(&scene, Images::Reload).await;
    node.until("serving", |s| s.ready).await;
    assert!(images(&scene).is_empty());
    let read = node.read(1).await.unwrap();
    assert_eq!(read.source, Source::ReadThrough);
    node.close().await;
    assert!(images(&scene).is_empty());
}

async fn verified(scene: &Scene) -> Node {
    let node = with_policy(scene, Images::Verify).await;
    node.until("serving", |s| s.ready).await;
    node
}

fn has(status: &cachetier_group::Status, reason: &str) -> bool {
    status.problems.iter().any(|problem| problem.reason == reason)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r04_images_that_are_verified_are_served_when_nobody_changed_the_rows() {
    let scene = Scene::new(ACCOUNTS).await;
    let node = filled(&scene).await;
    node.set_place(7, 77).await.unwrap();
    node.close().await;
    let node = verified(&scene).await;
    for id in 1..=ACCOUNTS {
        let place = if id == 7 { 77 } else { id * 10 };
        assert_eq!(held(&node, id).await, Some(place), "account {id}");
    }
    assert!(!has(&node.group.status().await, "ImagesDropped"));
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r04_images_are_dropped_when_a_sample_differs_and_unflushed_changes_stay() {
    let changes = [
        "UPDATE account SET place = 4000 WHERE id = 4",
        "DELETE FROM account WHERE id = 4",
        "UPDATE account SET place = 4000",
    ];
    for change in changes {
        let scene = Scene::new(ACCOUNTS).await;
        filled(&scene).await.close().await;
        let node = verified(&scene).await;
        scene.postgres.down();
        node.set_place(9, 90_000).await.unwrap();
        node.crash().await;
        scene.postgres.up().await;
        scene.postgres.execute(change).await;
        let node = verified(&scene).await;
        let expected = if change.starts_with("DELETE") { None } else { Some(4_000) };
        assert_eq!(node.place(4).await, expected, "{change}");
        assert_eq!(node.place(9).await, Some(90_000), "{change}: acknowledged");
        node.until("told", |s| has(s, "ImagesDropped")).await;
        node.drained().await;
        // a start that samples nothing must not use them either
        node.crash().await;
        let node = scene.serving("n-0").await;
        assert_eq!(held(&node, 5).await, None, "{change}: the images are of no use any more");
        node.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r15_images_that_are_to_be_verified_wait_for_the_backend() {
    let scene = Scene::new(ACCOUNTS).await;
    filled(&scene).await.close().await;
    scene.postgres.down();
    let node = with_policy(&scene, Images::Verify).await;
    node.until("waits", |s| has(s, "ImagesUnverified")).await;
    assert!(node.read(1).await.is_err(), "not verified");
    // what waits is not in use, and not lost by a stop in order
    node.close().await;
    let node = with_policy(&scene, Images::Verify).await;
    node.until("waits again", |s| has(s, "ImagesUnverified")).await;
    scene.postgres.up().await;
    node.until("verified", |s| s.ready && !has(s, "ImagesUnverified")).await;
    assert_eq!(held(&node, 1).await, Some(10));
    node.close().await;
}
