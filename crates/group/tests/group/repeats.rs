//! Transactions with an idempotency key, repeated: at once, later, after a restart, after a move.

use cachetier_group::{
    AnswerWhen, GroupError, KeySelector, RefusalReason, TransactCall, Transacted,
};
use cachetier_model::node_config::NodeConfig;
use cachetier_model::{IdempotencyKey, Operation, Transaction};

use crate::moves::Cluster;
use crate::scene::{Node, Scene, entries, insert_account, lookup, root, set_place};

fn keeping(mut config: NodeConfig) -> NodeConfig {
    config.idempotency.window_seconds = 600;
    // only the window keeps what was flushed
    config.journal.keep_flushed_seconds = 0;
    config
}

async fn start(scene: &Scene) -> Node {
    let peers = std::sync::Arc::new(cachetier_group::NoPeers);
    let node = Node::start(keeping(scene.config("n-0")), "n-0", peers).await.unwrap();
    node.until("serving", |s| s.ready).await;
    node
}

fn call(key: &str, id: i64, operation: Operation) -> TransactCall {
    TransactCall {
        key: KeySelector::Root(root(id)),
        transaction: Transaction { guards: Vec::new(), operations: vec![operation] },
        answer: AnswerWhen::Durable,
        idempotency_key: Some(IdempotencyKey::new(key.to_owned()).unwrap()),
    }
}

async fn keyed(
    node: &Node,
    key: &str,
    id: i64,
    operation: Operation,
) -> Result<Transacted, GroupError> {
    node.group.transact(call(key, id, operation)).await
}

fn refused(outcome: Result<Transacted, GroupError>) -> RefusalReason {
    match outcome {
        Err(GroupError::Refused(refusal)) => refusal.reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r26_a_repeated_request_is_answered_as_the_first_and_applied_once_also_after_a_restart() {
    let scene = Scene::new(10).await;
    let node = start(&scene).await;
    let first = keyed(&node, "a", 3, set_place(77)).await.unwrap();
    let nothing = keyed(&node, "n", 4, set_place(40)).await.unwrap();
    assert_eq!((nothing.position.sequence, &nothing.rows[..]), (0, &[1][..]), "it is 40 already");
    let opened = keyed(&node, "o", 100, insert_account(100, "x100")).await.unwrap();
    node.set_place(3, 78).await.unwrap();
    node.set_place(4, 41).await.unwrap();
    node.set_place(100, 9).await.unwrap();
    node.drained().await;
    same(&node, (&first, &nothing, &opened)).await;
    assert_eq!(node.group.counters().idempotent_repeats, 3);
    node.crash().await;
    let node = start(&scene).await;
    same(&node, (&first, &nothing, &opened)).await;
    node.close().await;
}

/// The three requests once more: answered as they were, and nothing is applied.
async fn same(node: &Node, (first, nothing, opened): (&Transacted, &Transacted, &Transacted)) {
    assert_eq!(keyed(node, "a", 3, set_place(77)).await.unwrap(), *first);
    assert_eq!(keyed(node, "n", 4, set_place(40)).await.unwrap(), *nothing);
    let again = keyed(node, "o", 100, insert_account(100, "x100")).await.unwrap();
    assert_eq!(again, *opened);
    assert_eq!(refused(keyed(node, "a", 3, set_place(79)).await), RefusalReason::KeyReused);
    for (id, place) in [(3, 78), (4, 41), (100, 9)] {
        assert_eq!(node.place(id).await, Some(place));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r07_r26_calls_of_one_key_at_once_are_one_transaction() {
    let scene = Scene::new(10).await;
    let node = start(&scene).await;
    let before = node.group.status().await.appended;
    let calls = (0..40).map(|_| node.group.transact(call("k", 5, set_place(500))));
    let answers = futures::future::join_all(calls).await;
    let first = answers[0].as_ref().unwrap();
    for answer in &answers {
        assert_eq!(answer.as_ref().unwrap(), first);
    }
    let status = node.group.status().await;
    assert_eq!(status.appended, before + 1, "one frame");
    assert!(status.durable >= first.position.sequence, "nobody was answered before the sync");
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r16_r26_a_refused_transaction_leaves_its_key_free() {
    let scene = Scene::new(10).await;
    let node = start(&scene).await;
    // the backend decides: taken by an account that is not loaded here
    let taken = || insert_account(200, "000000000000007");
    assert_eq!(refused(keyed(&node, "k", 200, taken()).await), RefusalReason::Unique);
    scene.postgres.execute("UPDATE account SET nbr = 'moved' WHERE id = 7").await;
    let done = keyed(&node, "k", 200, taken()).await.unwrap();
    assert_eq!(keyed(&node, "k", 200, taken()).await.unwrap(), done);
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r26_keys_are_refused_by_name_where_they_cannot_be_kept() {
    let scene = Scene::new(10).await;
    let node = scene.serving("n-0").await;
    let refusal = keyed(&node, "k", 3, set_place(1)).await.unwrap_err().to_string();
    assert!(refusal.contains("idempotency_key: this group keeps no answers"), "{refusal}");
    node.close().await;
    let node = start(&scene).await;
    let by_lookup = TransactCall { key: lookup("000000000000003"), ..call("k", 3, set_place(1)) };
    let refusal = node.group.transact(by_lookup).await.unwrap_err().to_string();
    assert!(refusal.contains("name the instance by its root key"), "{refusal}");
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r23_r26_answers_move_with_their_slots_and_outlive_a_restart_of_the_taker() {
    let mut cluster = Cluster::new(20).await;
    let config = keeping(cluster.scene.config("n-0"));
    cluster.add_with(config, "n-0").await;
    let one = cluster.scene.topology(1, &["n-0"]);
    cluster.push(&one).await;
    cluster.settled(&one).await;
    let mut firsts = Vec::new();
    for id in 1..=20 {
        let done = keyed(&cluster.nodes[0].0, "k", id, set_place(1_000 + id)).await.unwrap();
        cluster.nodes[0].0.set_place(id, 2_000 + id).await.unwrap();
        firsts.push(done);
    }
    let config = keeping(cluster.scene.config("n-1"));
    cluster.add_with(config.clone(), "n-1").await;
    // half of the slots move
    let two = one.rebalanced(entries(&["n-0", "n-1"])).unwrap();
    cluster.push(&two).await;
    cluster.settled(&two).await;
    let moved = |id: i64| two.owner(root(id).slot()).is_some_and(|node| node.name == "n-1");
    assert!((1..=20).any(moved));
    for round in 0..2 {
        for (id, first) in (1..=20).zip(&firsts) {
            let owner = &cluster.nodes[usize::from(moved(id))].0;
            let again = keyed(owner, "k", id, set_place(1_000 + id)).await.unwrap();
            assert_eq!(again, *first, "account {id}, round {round}");
            assert_eq!(owner.place(id).await, Some(2_000 + id));
        }
        if round == 0 {
            let (taker, _) = cluster.nodes.pop().unwrap();
            taker.crash().await;
            cluster.add_with(config.clone(), "n-1").await;
            cluster.push(&two).await;
            cluster.settled(&two).await;
        }
    }
    let mut kept = 0;
    for (node, _) in &cluster.nodes {
        kept += node.group.status().await.idempotency_answers;
    }
    assert_eq!(kept, 20, "the loser let go what moved");
    for (node, _) in cluster.nodes {
        node.close().await;
    }
}
