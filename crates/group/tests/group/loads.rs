//! Loads into one node, as the preload Job drives them.

use std::sync::Arc;

use cachetier_group::{BeginLoad, ChunkOutcome, NoPeers, Phase, Status, TableRowsFigure};
use cachetier_model::node_config::PreloadMode;
use cachetier_model::{Instance, Operation, SLOT_COUNT, Value};

use crate::basics::compare;
use crate::scene::{ACCOUNT, Node, Scene, set_place};

fn begin(load_id: &str, chunks_total: u32) -> BeginLoad {
    let expected = ["account", "facility", "forwarding"].map(|table| TableRowsFigure {
        table: table.to_owned(),
        rows: 0,
        expected_rows: 100,
    });
    BeginLoad { load_id: load_id.to_owned(), chunks_total, expected: expected.into() }
}

/// The instance as the population has it.
fn instance(id: i64) -> Instance {
    let facility = |kind: i64| vec![Value::Int(id), Value::Int(kind), Value::Bool(kind == 1)];
    Instance {
        tables: vec![
            vec![vec![
                Value::Int(id),
                Value::Text(format!("{id:015}").into()),
                Value::Int(id * 10),
                Value::Null,
            ]],
            vec![facility(1), facility(2)],
            vec![vec![Value::Int(id), Value::Int(1), Value::Int(8), Value::Text("123".into())]],
        ],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_ready_when_every_chunk_of_its_load_was_counted() {
    let scene = Scene::new(100).await;
    let mut config = scene.config("n-0");
    config.preload.mode = PreloadMode::BeforeReady;
    let node = Node::start(config, "n-0", Arc::new(NoPeers)).await.unwrap();
    let status = node.until("serving", |s| s.phase == Phase::Serving).await;
    assert!(!status.ready, "not before the load");
    let awaited = |s: &Status| s.problems.iter().any(|p| p.reason == "AwaitingLoad");
    assert!(awaited(&status), "{:?}", status.problems);
    for (chunk, ids) in [(0, 1..=50), (1, 51..=100)] {
        let begun = node.group.begin_load(begin("load-1", 2)).await.unwrap();
        assert_eq!(begun.slots_needed.len(), usize::from(SLOT_COUNT));
        let mut load = node.group.load_chunk("load-1", chunk, begun.ticket).unwrap();
        load.install(ids.map(instance).collect()).unwrap();
        let done = load.finish();
        let expected = ChunkOutcome { inserted: 50, chunk_done: true, ..ChunkOutcome::default() };
        assert_eq!(done, expected);
    }
    let status = node.group.status().await;
    assert!(status.ready && !awaited(&status));
    assert_eq!(status.slots_covered, u32::from(SLOT_COUNT));
    let load = status.load.unwrap();
    assert_eq!((load.chunks_done, load.inserted), (2, 100));
    assert_eq!(load.tables.iter().map(|t| t.rows).collect::<Vec<_>>(), [100, 200, 100]);
    let compared = compare(&node).await;
    assert_eq!((compared.differences, compared.not_loaded, compared.instances), (0, 0, 100));
    // the same load again has nothing to do, and says so
    let begun = node.group.begin_load(begin("load-2", 2)).await.unwrap();
    assert!(begun.slots_needed.is_empty());
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r19_a_load_never_overwrites_and_never_resurrects() {
    let scene = Scene::new(10).await;
    let node = scene.serving("n-0").await;
    let begun = node.group.begin_load(begin("load-1", 1)).await.unwrap();
    // between the ticket's snapshot and the install
    node.set_place(1, 4711).await.unwrap();
    let delete = Operation::Delete { table: ACCOUNT, conditions: vec![], expect: Some(1) };
    node.write(2, vec![delete]).await.unwrap();
    node.drained().await;
    let mut load = node.group.load_chunk("load-1", 0, begun.ticket).unwrap();
    load.install((1..=10).map(instance).collect()).unwrap();
    let done = load.finish();
    assert_eq!((done.inserted, done.skipped + done.broken), (8, 2), "{done:?}");
    assert_eq!(node.place(1).await, Some(4711));
    assert!(!node.read(2).await.unwrap().found, "deleted and flushed after the ticket");
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d23_a_load_larger_than_memory_stops_with_a_condition_and_the_node_serves_on() {
    let scene = Scene::new(10).await;
    let mut config = scene.config("n-0");
    config.memory.capacity_bytes = 4 << 20;
    let node = Node::start(config, "n-0", Arc::new(NoPeers)).await.unwrap();
    node.until("serving", |s| s.ready).await;
    let begun = node.group.begin_load(begin("load-1", 1)).await.unwrap();
    let mut load = node.group.load_chunk("load-1", 0, begun.ticket).unwrap();
    load.install((1..=200_000).map(instance).collect()).unwrap();
    let done = load.finish();
    assert!(done.stopped_by_memory && !done.chunk_done, "{done:?}");
    let status = node.group.status().await;
    assert!(status.problems.iter().any(|p| p.reason == "MemoryFull"), "{status:?}");
    assert!(status.memory_bytes <= 4 << 20);
    assert_eq!(node.place(7).await, Some(70));
    node.write(1, vec![set_place(3)]).await.unwrap();
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_condition_of_loads_that_the_backend_refuses_is_a_problem_until_it_is_understood() {
    let scene = Scene::new(3).await;
    let mut config = scene.config("n-0");
    config.preload.mode = PreloadMode::Background;
    config.preload.r#where = "place < 30 AND tier = 'gold'".to_owned();
    let node = Node::start(config, "n-0", Arc::new(NoPeers)).await.unwrap();
    let refused = |s: &Status| {
        let found = s.problems.iter().find(|p| p.reason == "LoadConditionRefused");
        found.map(|p| p.message.clone())
    };
    let status = node.until("a problem", |s| refused(s).is_some()).await;
    let message = refused(&status).unwrap();
    assert!(message.contains("preload.where") && message.contains("\"tier\""), "{message}");
    assert!(status.ready, "it serves all the same");
    scene.postgres.execute("ALTER TABLE account ADD tier text").await;
    node.until("no problem", |s| refused(s).is_none()).await;
    node.close().await;
}
