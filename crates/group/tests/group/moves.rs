//! Slots changing hands between nodes of one group, with traffic.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use cachetier_group::{
    AnswerWhen, Group, GroupError, KeySelector, Peers, Phase, ReadCall, Status, TransactCall,
};
use cachetier_model::node_config::{NodeConfig, TopologySource};
use cachetier_model::{ReadPlan, Topology, Transaction};

use crate::basics::compare;
use crate::scene::{InProcess, Node, Scene, entries, lookup, place_of, root, set_place};

pub struct Cluster {
    pub scene: Scene,
    pub peers: Arc<InProcess>,
    pub nodes: Vec<(Node, Arc<Group>)>,
}

impl Cluster {
    pub async fn new(accounts: i64) -> Self {
        Self { scene: Scene::new(accounts).await, peers: Arc::default(), nodes: Vec::new() }
    }

    pub async fn add(&mut self, name: &str) -> usize {
        self.add_with(self.scene.config(name), name).await
    }

    pub async fn add_with(&mut self, mut config: NodeConfig, name: &str) -> usize {
        config.topology = TopologySource::Operator;
        let peers: Arc<dyn Peers> = self.peers.clone();
        let node = Node::start(config, name, peers).await.unwrap();
        node.group.started().await.unwrap();
        let group = Arc::new(node.group.clone());
        self.peers.add(name, &group);
        self.nodes.push((node, group));
        self.nodes.len() - 1
    }

    pub async fn push(&self, topology: &Topology) {
        for (node, _) in &self.nodes {
            node.group.apply_topology(topology.clone()).await.unwrap();
        }
    }

    pub async fn settled(&self, topology: &Topology) {
        for (node, _) in &self.nodes {
            let assigned = topology.slots_of(&node.group.node().name).len() as u32;
            let settled = |s: &Status| s.slots_serving == assigned && s.slots_leaving == 0;
            node.until("settled", settled).await;
        }
    }

    /// As a client would: asks each node in turn until the owner answers.
    async fn set_place(&self, id: i64, place: i64) -> bool {
        for _ in 0..200 {
            for (node, _) in &self.nodes {
                match node.write(id, vec![set_place(place)]).await {
                    Ok(_) => return true,
                    Err(GroupError::NotOwner { .. } | GroupError::SlotMoving { .. }) => {}
                    Err(other) => panic!("account {id}: {other:?}"),
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }

    async fn place(&self, id: i64) -> Option<i64> {
        let key = KeySelector::Root(root(id));
        for (node, _) in &self.nodes {
            let located = node.group.locate(&key).await.unwrap();
            if located.here {
                return node.place(id).await;
            }
        }
        panic!("nobody has account {id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scaling_out_and_in_under_writes_loses_nothing_and_every_slot_has_one_owner() {
    let mut cluster = Cluster::new(60).await;
    cluster.add("n-0").await;
    let one = cluster.scene.topology(1, &["n-0"]);
    cluster.push(&one).await;
    cluster.settled(&one).await;
    cluster.add("n-1").await;
    cluster.add("n-2").await;
    let cluster = Arc::new(cluster);
    let stop = Arc::new(AtomicBool::new(false));
    let written: Arc<Vec<AtomicI64>> = Arc::new((0..=60).map(|_| 0.into()).collect());
    let writers: Vec<_> = (0..3)
        .map(|writer| {
            let (cluster, stop, written) = (cluster.clone(), stop.clone(), written.clone());
            tokio::spawn(async move {
                let mut value = 1_000;
                while !stop.load(Ordering::Relaxed) {
                    for id in (1..=60).filter(|id| id % 3 == writer) {
                        assert!(cluster.set_place(id, value).await, "account {id} has no owner");
                        written[id as usize].store(value, Ordering::Relaxed);
                    }
                    value += 1;
                }
            })
        })
        .collect();
    let three = one.rebalanced(entries(&["n-0", "n-1", "n-2"])).unwrap();
    cluster.push(&three).await;
    cluster.settled(&three).await;
    let back = three.rebalanced(entries(&["n-1"])).unwrap();
    cluster.push(&back).await;
    cluster.settled(&back).await;
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    for (node, _) in &cluster.nodes {
        node.drained().await;
    }
    for id in 1..=60 {
        let value = written[id as usize].load(Ordering::Relaxed);
        assert_eq!(cluster.place(id).await, Some(value), "account {id}");
        let sql = format!("SELECT place FROM account WHERE id = {id}");
        assert_eq!(cluster.scene.postgres.number(&sql).await, value, "account {id}");
    }
    assert_eq!(compare(&cluster.nodes[1].0).await.differences, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r24_slots_of_an_owner_that_does_not_answer_are_waited_for_and_never_taken() {
    let mut cluster = Cluster::new(20).await;
    cluster.add("n-0").await;
    let one = cluster.scene.topology(1, &["n-0"]);
    cluster.push(&one).await;
    cluster.settled(&one).await;
    cluster.nodes[0].0.set_place(1, 99).await.unwrap();
    cluster.add("n-1").await;
    let two = one.rebalanced(entries(&["n-0", "n-1"])).unwrap();
    cluster.peers.cut("n-0");
    cluster.nodes[1].0.group.apply_topology(two.clone()).await.unwrap();
    let waiting = |s: &Status| {
        s.problems
            .iter()
            .any(|p| p.reason == "PreviousOwnerUnreachable" && p.message.contains("n-0"))
    };
    let status = cluster.nodes[1].0.until("waiting", waiting).await;
    assert_eq!(status.slots_serving, 0);
    // the owner knows nothing of it and serves on
    for id in 1..=20 {
        cluster.nodes[0].0.set_place(id, 100 + id).await.unwrap();
    }
    cluster.peers.heal();
    cluster.push(&two).await;
    cluster.settled(&two).await;
    for id in 1..=20 {
        assert_eq!(cluster.place(id).await, Some(100 + id));
    }
    assert!(cluster.nodes[1].0.group.status().await.problems.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loser_restarted_in_mid_move_does_not_serve_what_it_let_go() {
    let mut cluster = Cluster::new(20).await;
    cluster.add("n-0").await;
    let one = cluster.scene.topology(1, &["n-0"]);
    cluster.push(&one).await;
    cluster.settled(&one).await;
    let two = one.rebalanced(entries(&["n-0", "n-1"])).unwrap();
    let given = two.slots_of("n-1");
    // n-1 asked, was answered, and has not taken anything yet
    let asked = cluster.nodes[0].0.group.release_slots(two.clone(), "n-1", &given).await.unwrap();
    assert_eq!(asked.slots, given);
    let (node, _) = cluster.nodes.pop().unwrap();
    node.crash().await;
    cluster.add("n-0").await;
    let moved = (1..=20).find(|id| given.contains(root(*id).slot())).unwrap();
    let refused = cluster.nodes[0].0.set_place(moved, 1).await.unwrap_err();
    assert!(matches!(refused, GroupError::NotOwner { .. }), "{refused:?}");
    cluster.add("n-1").await;
    cluster.push(&two).await;
    cluster.settled(&two).await;
    assert!(cluster.set_place(moved, 5).await);
    assert_eq!(cluster.place(moved).await, Some(5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lookup_key_is_found_from_every_node() {
    let mut cluster = Cluster::new(10).await;
    cluster.add("n-0").await;
    cluster.add("n-1").await;
    let two = cluster.scene.topology(1, &["n-0", "n-1"]);
    cluster.push(&two).await;
    cluster.settled(&two).await;
    for id in 1..=10 {
        let key = lookup(&format!("{id:015}"));
        for (node, _) in &cluster.nodes {
            let located = node.group.locate(&key).await.unwrap();
            assert_eq!(located.root, Some(root(id)));
            let owner = located.owner.unwrap().name;
            assert_eq!(located.here, owner == node.group.node().name);
            if located.here {
                let plan = ReadPlan::default();
                let call = ReadCall::new(key.clone(), plan);
                assert_eq!(place_of(&node.group.read(call).await.unwrap()), Some(id * 10));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topology_that_turns_back_in_mid_move_serves_released_slots_again() {
    let mut cluster = Cluster::new(20).await;
    cluster.add("n-0").await;
    let one = cluster.scene.topology(1, &["n-0"]);
    cluster.push(&one).await;
    cluster.settled(&one).await;
    let two = one.rebalanced(entries(&["n-0", "n-1"])).unwrap();
    let given = two.slots_of("n-1");
    cluster.nodes[0].0.group.release_slots(two.clone(), "n-1", &given).await.unwrap();
    let back = two.rebalanced(entries(&["n-0"])).unwrap();
    cluster.push(&back).await;
    cluster.settled(&back).await;
    for id in 1..=20 {
        assert!(cluster.set_place(id, 7).await);
    }
    // the taker of the older topology comes late, and takes nothing
    cluster.add("n-1").await;
    let refused = cluster.nodes[1].0.group.apply_topology(two.clone()).await;
    assert!(refused.is_ok(), "it knows no newer one");
    cluster.nodes[1].0.until("asking", |s| s.phase == Phase::TakingSlots).await;
    for id in 1..=20 {
        cluster.nodes[0].0.set_place(id, 8).await.unwrap();
    }
    let asked = two.slots_of("n-1");
    let answer = cluster.nodes[0].0.group.release_slots(two, "n-1", &asked).await.unwrap();
    assert!(answer.slots.is_empty());
    assert_eq!(cluster.nodes[1].0.group.status().await.slots_serving, 0);
    cluster.nodes[0].0.drained().await;
    let sql = "SELECT count(*) FROM account WHERE place = 8";
    assert_eq!(cluster.scene.postgres.number(sql).await, 20);
}

/// Writes growing values to its accounts through whichever node takes them, until told to stop.
async fn write_through_anyone(
    peers: Arc<InProcess>,
    ids: Vec<i64>,
    stop: Arc<AtomicBool>,
    attempted: Arc<Vec<AtomicI64>>,
    acknowledged: Arc<Vec<AtomicI64>>,
) {
    let mut value = 1_000;
    while !stop.load(Ordering::Relaxed) {
        for id in &ids {
            value += 1;
            attempted[*id as usize].store(value, Ordering::Relaxed);
            for group in peers.all() {
                let transaction =
                    Transaction { guards: vec![], operations: vec![set_place(value)] };
                let key = KeySelector::Root(root(*id));
                let answer = AnswerWhen::Durable;
                let call = TransactCall { key, transaction, answer, idempotency_key: None };
                if group.transact(call).await.is_ok() {
                    acknowledged[*id as usize].store(value, Ordering::Relaxed);
                    break;
                }
            }
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_crashing_in_mid_scale_lose_nothing_and_the_move_completes() {
    const ACCOUNTS: i64 = 30;
    let mut cluster = Cluster::new(ACCOUNTS).await;
    cluster.add("n-0").await;
    let mut topology = cluster.scene.topology(1, &["n-0"]);
    cluster.push(&topology).await;
    cluster.settled(&topology).await;
    cluster.add("n-1").await;
    cluster.add("n-2").await;
    let first = || Arc::new((0..=ACCOUNTS).map(|id| AtomicI64::new(id * 10)).collect::<Vec<_>>());
    let (attempted, acknowledged) = (first(), first());
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..3)
        .map(|writer| {
            let ids = (1..=ACCOUNTS).filter(|id| id % 3 == writer).collect();
            let (attempted, acknowledged) = (attempted.clone(), acknowledged.clone());
            let (peers, stop) = (cluster.peers.clone(), stop.clone());
            tokio::spawn(write_through_anyone(peers, ids, stop, attempted, acknowledged))
        })
        .collect();
    let shapes: [&[&str]; 5] =
        [&["n-0", "n-1", "n-2"], &["n-1"], &["n-0", "n-1"], &["n-2", "n-0"], &["n-0"]];
    for (round, names) in shapes.iter().enumerate() {
        topology = topology.rebalanced(entries(names)).unwrap();
        cluster.push(&topology).await;
        // one node goes down while slots are on their way, another one each round
        let victim = round % 3;
        let (node, group) = cluster.nodes.remove(0);
        let name = node.group.node().name.clone();
        drop(group);
        tokio::time::sleep(Duration::from_millis(30 * (victim as u64 + 1))).await;
        node.crash().await;
        let again = cluster.add(&name).await;
        assert_eq!(cluster.nodes[again].0.group.node().name, name);
        cluster.push(&topology).await;
        cluster.settled(&topology).await;
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    for (node, _) in &cluster.nodes {
        node.drained().await;
    }
    for id in 1..=ACCOUNTS {
        let place = cluster.place(id).await.unwrap();
        let (low, high) = (&acknowledged[id as usize], &attempted[id as usize]);
        let range = low.load(Ordering::Relaxed)..=high.load(Ordering::Relaxed);
        assert!(range.contains(&place), "account {id}: {place} {range:?}");
        let sql = format!("SELECT place FROM account WHERE id = {id}");
        assert_eq!(cluster.scene.postgres.number(&sql).await, place, "account {id}");
    }
    let written = acknowledged.iter().filter(|a| a.load(Ordering::Relaxed) > 1_000).count();
    assert_eq!(written, ACCOUNTS as usize, "every account was written");
}
