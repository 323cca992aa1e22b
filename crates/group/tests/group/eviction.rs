//! A memory budget smaller than the population, with `eviction: Clean`.

use std::sync::Arc;

use cachetier_group::{BeginLoad, NoPeers, Phase, Source};
use cachetier_model::node_config::{Eviction, MemoryConfig, PreloadMode};
use cachetier_model::{Instance, Value};

use crate::scene::{Node, Scene, place_of};

/// Accounts that the load brings: more than fit. Those below are asked for later.
const LOADED: std::ops::Range<i64> = 1_000..41_000;
const CAPACITY_BYTES: u64 = 16 << 20;

fn instance(id: i64) -> Instance {
    let nbr = Value::Text(format!("{id:015}").into());
    let row = vec![Value::Int(id), nbr, Value::Int(id * 10), Value::Text("x".repeat(400).into())];
    Instance { tables: vec![vec![row], Vec::new(), Vec::new()] }
}

async fn scene() -> Scene {
    let scene = Scene::new(200).await;
    let (first, last) = (LOADED.start, LOADED.end - 1);
    let more = format!(
        "UPDATE account SET note = repeat('x', 400);
         INSERT INTO account SELECT i, lpad(i::text, 15, '0'), i * 10, repeat('x', 400)
             FROM generate_series({first}, {last}) i;"
    );
    scene.postgres.execute(&more).await;
    scene
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d05_clean_instances_give_way_to_what_is_asked_for_and_changed_ones_never() {
    let scene = scene().await;
    let mut config = scene.config("n-0");
    config.memory = MemoryConfig {
        capacity_bytes: CAPACITY_BYTES,
        eviction: Eviction::Clean,
        ..MemoryConfig::default()
    };
    config.preload.mode = PreloadMode::BeforeReady;
    // what is changed stays unflushed
    config.write_through.paused = true;
    let node = Node::start(config, "n-0", Arc::new(NoPeers)).await.unwrap();
    node.until("serving", |s| s.phase == Phase::Serving).await;
    let begin = BeginLoad { load_id: "load".to_owned(), chunks_total: 1, expected: Vec::new() };
    let begun = node.group.begin_load(begin).await.unwrap();
    node.set_place(1, 77).await.unwrap();
    let mut load = node.group.load_chunk("load", 0, begun.ticket).unwrap();
    load.install(LOADED.map(instance).collect()).unwrap();
    let done = load.finish();
    assert!(done.stopped_by_memory && done.chunk_done, "{done:?}");
    let status = node.until("ready", |s| s.ready).await;
    assert!(!status.problems.iter().any(|p| p.reason == "MemoryFull"), "{:?}", status.problems);
    assert_eq!(node.group.counters().instances_evicted, 0, "a load pushes nothing out");

    for id in 2..=200 {
        assert_eq!(node.place(id).await, Some(id * 10));
    }
    let evicted = node.group.counters().instances_evicted;
    assert!(evicted > 0);
    let mut kept = 0;
    for id in 2..=200 {
        let outcome = node.read(id).await.unwrap();
        assert_eq!(place_of(&outcome), Some(id * 10));
        kept += i32::from(outcome.source == Source::Cache);
    }
    assert!(kept > 150, "{kept} of 199 stayed");
    let changed = node.read(1).await.unwrap();
    assert_eq!((place_of(&changed), changed.source), (Some(77), Source::Cache));
    // what went is asked for again, and is what it was
    for id in LOADED.step_by(400) {
        assert_eq!(node.place(id).await, Some(id * 10));
    }
    let status = node.group.status().await;
    assert!(status.memory_bytes <= CAPACITY_BYTES, "{}", status.memory_bytes);
    node.crash().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d23_without_eviction_a_load_beyond_memory_stops_and_is_not_done() {
    let scene = scene().await;
    let mut config = scene.config("n-0");
    config.memory = MemoryConfig { capacity_bytes: CAPACITY_BYTES, ..MemoryConfig::default() };
    let node = Node::start(config, "n-0", Arc::new(NoPeers)).await.unwrap();
    node.until("serving", |s| s.phase == Phase::Serving).await;
    let begin = BeginLoad { load_id: "load".to_owned(), chunks_total: 1, expected: Vec::new() };
    let begun = node.group.begin_load(begin).await.unwrap();
    let mut load = node.group.load_chunk("load", 0, begun.ticket).unwrap();
    load.install(LOADED.map(instance).collect()).unwrap();
    let done = load.finish();
    assert!(done.stopped_by_memory && !done.chunk_done, "{done:?}");
    let status = node.group.status().await;
    assert!(status.problems.iter().any(|p| p.reason == "MemoryFull"), "{:?}", status.problems);
    assert!(status.memory_bytes <= CAPACITY_BYTES, "{}", status.memory_bytes);
    assert_eq!(node.group.counters().instances_evicted, 0);
    node.close().await;
}
