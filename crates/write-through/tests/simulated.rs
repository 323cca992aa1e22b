//! Lanes against the backend in memory: every fault in every place, decided by a seed.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use cachetier_model::node_config::{BackendCommit, GroupIdentity};
use cachetier_model::schema::{ParentKey, ReferentialAction, TableSchema, UniqueKey};
use cachetier_model::{
    ChangeKind, Column, ColumnType, GroupSchema, RootKey, Row, RowChange, SlotSet, Value,
};
use cachetier_write_through::double::store::Store;
use cachetier_write_through::double::{Break, DoubleBackend};
use cachetier_write_through::{
    Backend, Claim, ClaimRequest, Draft, FlushEvent, Pending, Replay, ReplayError, TakeoverRequest,
    WriteThrough, WriteThroughOptions,
};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

#[path = "simulated/company.rs"]
mod company;
#[path = "simulated/failovers.rs"]
mod failovers;
#[path = "simulated/histories.rs"]
mod histories;

const ROOT: usize = 0;
const CHILD: usize = 1;

fn schema() -> GroupSchema {
    let column = |name: &str| Column {
        name: name.to_owned(),
        column_type: ColumnType::Int8,
        not_null: true,
        has_default: false,
        orders_by_bytes: false,
    };
    let table = |name: &str, key: &[usize]| TableSchema {
        name: name.to_owned(),
        parent: None,
        columns: ["id", "n", "v"].map(column).to_vec(),
        primary_key: key.to_vec(),
        primary_key_constraint: format!("{name}_pkey"),
        root_key: vec![0],
        parent_key: None,
        unique_keys: Vec::new(),
        external_keys: Vec::new(),
    };
    let mut root = table("root", &[0]);
    root.unique_keys = vec![UniqueKey { constraint: "root_n".to_owned(), columns: vec![1] }];
    let mut child = table("child", &[0, 1]);
    child.parent = Some(ROOT);
    child.parent_key = Some(ParentKey {
        constraint: "child_root".to_owned(),
        columns: vec![0],
        parent_columns: vec![0],
        on_delete: ReferentialAction::NoAction,
    });
    GroupSchema {
        backend_schema: "public".to_owned(),
        tables: vec![root, child],
        lookups: Vec::new(),
    }
}

fn key(id: i64) -> RootKey {
    RootKey::encode(&[Value::Int(id)]).unwrap()
}

fn row(id: i64, n: i64, v: i64) -> Row {
    vec![Value::Int(id), Value::Int(n), Value::Int(v)]
}

fn change(table: usize, kind: ChangeKind, row: Row) -> RowChange {
    let changed = if kind == ChangeKind::Update { vec![2] } else { Vec::new() };
    RowChange { table, kind, row, changed }
}

/// The journal, for what the backend lost.
#[derive(Default)]
struct Journal(Mutex<Vec<Pending>>);

impl Replay for Journal {
    fn read_after(
        &self,
        after: u64,
        upto: u64,
        _bytes_max: u64,
    ) -> BoxFuture<'_, Result<Vec<Pending>, ReplayError>> {
        let entries = self.0.lock();
        let found = entries.iter().filter(|p| p.sequence > after && p.sequence <= upto);
        let found: Vec<Pending> = found.take(3).cloned().collect();
        Box::pin(async move { Ok(found) })
    }
}

struct Node {
    through: WriteThrough,
    events: mpsc::Receiver<FlushEvent>,
    synced: watch::Sender<u64>,
    journal: Arc<Journal>,
    next: u64,
    stop: CancellationToken,
}

fn options(lanes: u16, commit: BackendCommit) -> WriteThroughOptions {
    WriteThroughOptions {
        lanes,
        delay_max: Duration::ZERO,
        batch_rows_max: 8,
        backend_commit: commit,
        ..WriteThroughOptions::new("g", "n")
    }
}

fn claim_request(held_token: Option<u64>, attempt: &str, lanes: u16) -> ClaimRequest {
    ClaimRequest {
        group: GroupIdentity { name: "ns/g".to_owned(), uid: "g".to_owned() },
        node: "n".to_owned(),
        journal: "j".to_owned(),
        held_token,
        attempt: attempt.to_owned(),
        lanes,
        epoch: 1,
        tables: vec!["root".to_owned(), "child".to_owned()],
        accept_lost_journal: None,
    }
}

impl Node {
    async fn start(backend: &DoubleBackend, options: WriteThroughOptions) -> Node {
        let claim = backend.claim(claim_request(None, "a", options.lanes)).await.unwrap();
        let slots = SlotSet::full();
        let takeover = TakeoverRequest {
            group_uid: "g".to_owned(),
            node: "n".to_owned(),
            token: claim.token,
            epoch: 1,
            slots: slots.clone(),
            holding: SlotSet::empty(),
            released: Vec::new(),
        };
        let taken = backend.take_slots(takeover).await.unwrap();
        let node = Self::of(backend, options, claim);
        node.through.slots_gained(&slots, &taken.versions);
        node
    }

    /// With a claim and no slots.
    fn of(backend: &DoubleBackend, options: WriteThroughOptions, claim: Claim) -> Node {
        let (synced, watching) = watch::channel(0);
        let journal = Arc::<Journal>::default();
        let stop = CancellationToken::new();
        let (through, events) = WriteThrough::start(
            options,
            Arc::new(backend.clone()),
            Arc::new(schema()),
            watching,
            Some(Arc::clone(&journal) as Arc<dyn Replay>),
            0,
            stop.clone(),
        );
        through.claimed(claim);
        Node { through, events, synced, journal, next: 1, stop }
    }

    fn commit(&mut self, id: i64, changes: Vec<RowChange>) -> u64 {
        self.commit_as(id, changes, false)
    }

    fn commit_as(&mut self, id: i64, changes: Vec<RowChange>, awaits_backend: bool) -> u64 {
        let sequence = self.next;
        self.next += 1;
        let draft = Draft {
            slot: key(id).slot(),
            key: key(id),
            changes: changes.into(),
            awaits_backend,
            urgent: false,
        };
        self.journal.0.lock().push(draft.clone().at(sequence, 10));
        self.through.reserve(10).unwrap().commit(draft, || Ok::<u64, ()>(sequence)).unwrap();
        self.synced.send_replace(sequence);
        sequence
    }

    /// Waits until everything is confirmed, while the log is flushed now and then.
    async fn settle(&mut self, backend: &DoubleBackend) -> Vec<FlushEvent> {
        let mut told = Vec::new();
        let mut marks = self.through.watch();
        let upto = self.next - 1;
        for _ in 0..100_000 {
            while let Ok(event) = self.events.try_recv() {
                told.push(event);
            }
            if marks.borrow_and_update().confirmed >= upto && self.through.backlog().is_empty() {
                while let Ok(event) = self.events.try_recv() {
                    told.push(event);
                }
                return told;
            }
            backend.flush_log();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("never settled: {:?} {:?}", self.through.marks(), self.through.backlog());
    }
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(test)
}

/// What a step of a history does.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Inserts or deletes the instance, or one of its children, or updates it: what fits.
    Write {
        id: i64,
        n: i64,
        v: i64,
    },
    Break(Break),
    Crash,
    /// Somebody locks the rows of this instance, or lets all go.
    Lock(Option<i64>),
    /// Lets the lanes run.
    Yield,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let fault = prop_oneof![Just(Break::Not), Just(Break::BeforeCommit), Just(Break::AfterCommit)];
    let step = prop_oneof![
        8 => (0_i64..6, 0_i64..3, 0_i64..100).prop_map(|(id, n, v)| Step::Write { id, n, v }),
        2 => fault.prop_map(Step::Break),
        1 => Just(Step::Crash),
        4 => Just(Step::Yield),
    ];
    proptest::collection::vec(step, 1..80)
}

/// The transaction that a write stands for, applied to the model.
fn transaction(model: &mut Store, schema: &GroupSchema, id: i64, n: i64, v: i64) -> Vec<RowChange> {
    use ChangeKind::{Delete, Insert, Update};
    let find = |model: &Store, table: usize, wanted: &Row, columns: usize| {
        model.tables[table].values().find(|r| r[..columns] == wanted[..columns]).cloned()
    };
    let changes =
        match (find(model, ROOT, &row(id, 0, 0), 1), find(model, CHILD, &row(id, n, 0), 2)) {
            (None, _) => vec![
                change(CHILD, Insert, row(id, n, v)),
                change(ROOT, Insert, row(id, id + 1_000, v)),
            ],
            (Some(root), _) if v < 10 => {
                let children = model.tables[CHILD].values().filter(|r| r[0] == root[0]);
                let mut all: Vec<_> = children.map(|r| change(CHILD, Delete, r.clone())).collect();
                all.push(change(ROOT, Delete, root));
                all
            }
            (Some(_), None) => vec![change(CHILD, Insert, row(id, n, v))],
            (Some(_), Some(child)) if v < 30 => vec![change(CHILD, Delete, child)],
            (Some(_), Some(_)) => vec![
                change(ROOT, Update, row(id, id + 1_000, v)),
                change(CHILD, Update, row(id, n, v)),
            ],
        };
    for wave in cachetier_write_through::plan::plan(schema, &changes).unwrap() {
        for statement in &wave.statements {
            model.run(schema, statement).unwrap();
        }
    }
    changes
}

async fn history(steps: &[Step], lanes: u16, commit: BackendCommit) -> Result<(), TestCaseError> {
    let schema = schema();
    let backend = DoubleBackend::new(schema.clone());
    let mut node = Node::start(&backend, options(lanes, commit)).await;
    let mut model = Store::of(&schema);
    for step in steps {
        match *step {
            Step::Write { id, n, v } => {
                let changes = transaction(&mut model, &schema, id, n, v);
                node.commit(id, changes);
            }
            Step::Break(fault) => backend.set_faults(|f| f.breaks.push_back(fault)),
            Step::Crash => backend.crash(),
            Step::Lock(id) => lock(&backend, id),
            Step::Yield => tokio::time::sleep(Duration::from_millis(30)).await,
        }
    }
    let told = node.settle(&backend).await;
    prop_assert_eq!(backend.store(), model);
    prop_assert!(backend.list_rejects("g", 10).await.unwrap().is_empty());
    prop_assert_eq!(node.through.backlog().bytes, 0);
    let refused = told.iter().any(|e| {
        matches!(
            e,
            FlushEvent::Rejected { .. } | FlushEvent::Refused { .. } | FlushEvent::Fenced { .. }
        )
    });
    prop_assert!(!refused, "{told:?}");
    node.stop.cancel();
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn d12_whatever_breaks_the_backend_comes_to_the_model_and_nothing_is_applied_twice(
        steps in steps(), lanes in 1_u16..4
    ) {
        run(history(&steps, lanes, BackendCommit::Sync))?;
    }

    #[test]
    fn r11_asynchronous_commits_lost_in_any_crash_are_sent_again(
        steps in steps(), lanes in 1_u16..4
    ) {
        run(history(&steps, lanes, BackendCommit::Async))?;
    }

    #[test]
    fn d11_locks_that_come_and_go_lose_nothing_and_double_nothing(
        steps in steps(), locks_on in proptest::collection::vec((0_usize..80, 0_i64..8), 0..12),
        lanes in 1_u16..4
    ) {
        let mut steps = steps;
        for (at, id) in locks_on {
            let at = at.min(steps.len());
            // above five: all are let go
            steps.insert(at, Step::Lock((id < 6).then_some(id)));
        }
        run(locks(&steps, lanes))?;
    }

    #[test]
    fn d13_bad_rows_anywhere_are_set_aside_and_all_others_arrive_exactly_once(
        steps in steps(), bad in 40_i64..100
    ) {
        run(bad_rows(&steps, bad))?;
    }
}

fn lock(backend: &DoubleBackend, id: Option<i64>) {
    backend.set_faults(|f| {
        f.locked = None;
        if let Some(id) = id {
            f.locked = Some(Box::new(move |s| s.rows.iter().any(|r| r[0] == Value::Int(id))));
        }
    });
}

/// Locks come and go while writes, crashes and broken connections go on; what was set aside for a
/// lock is applied at the end.
async fn locks(steps: &[Step], lanes: u16) -> Result<(), TestCaseError> {
    let schema = schema();
    let backend = DoubleBackend::new(schema.clone());
    let mut node = Node::start(&backend, options(lanes, BackendCommit::Async)).await;
    let mut model = Store::of(&schema);
    for step in steps {
        match *step {
            Step::Write { id, n, v } => {
                let changes = transaction(&mut model, &schema, id, n, v);
                node.commit(id, changes);
            }
            Step::Break(fault) => backend.set_faults(|f| f.breaks.push_back(fault)),
            Step::Crash => backend.crash(),
            Step::Lock(id) => lock(&backend, id),
            Step::Yield => tokio::time::sleep(Duration::from_secs(5)).await,
        }
    }
    lock(&backend, None);
    node.settle(&backend).await;
    for head in backend.list_rejects("g", 100).await.unwrap() {
        prop_assert_eq!(head.sqlstate.as_str(), "55P03");
        let fence = node.through.fence(head.key.slot()).unwrap();
        backend.replay_reject(head.id, &fence).await.unwrap();
    }
    prop_assert_eq!(backend.store(), model);
    node.stop.cancel();
    Ok(())
}

/// A trigger refuses the value `bad`; instances that met it are quarantined, all others complete.
async fn bad_rows(steps: &[Step], bad: i64) -> Result<(), TestCaseError> {
    let schema = schema();
    let backend = DoubleBackend::new(schema.clone());
    backend.set_faults(|f| {
        f.refuse = Some(Box::new(move |s| {
            s.kind != ChangeKind::Delete && s.rows.iter().any(|r| r[2] == Value::Int(bad))
        }));
    });
    let mut node = Node::start(&backend, options(2, BackendCommit::Sync)).await;
    let mut model = Store::of(&schema);
    for step in steps {
        match *step {
            Step::Write { id, n, v } => {
                let v = if v > 90 { bad } else { v };
                let changes = transaction(&mut model, &schema, id, n, v);
                node.commit(id, changes);
            }
            Step::Break(fault) => backend.set_faults(|f| f.breaks.push_back(fault)),
            Step::Crash | Step::Lock(_) | Step::Yield => {
                tokio::time::sleep(Duration::from_millis(30)).await
            }
        }
    }
    let told = node.settle(&backend).await;
    let mut quarantined = std::collections::BTreeMap::<RootKey, Vec<u64>>::new();
    for event in &told {
        if let FlushEvent::Rejected { key, sequences, .. } = event {
            quarantined.entry(key.clone()).or_default().extend(sequences);
        }
    }
    let of_instance = |store: &Store, id: i64| {
        let rows = store.tables.iter().flat_map(|t| t.values());
        rows.filter(|r| r[0] == Value::Int(id)).cloned().collect::<Vec<_>>()
    };
    for id in (0..6).filter(|id| !quarantined.contains_key(&key(*id))) {
        prop_assert_eq!(of_instance(&backend.store(), id), of_instance(&model, id));
    }
    let listed = backend.list_rejects("g", 100).await.unwrap();
    prop_assert_eq!(listed.len(), quarantined.len(), "one head per instance");
    for head in listed {
        // the tail is everything of the instance from the head on, in order
        let tail: Vec<u64> =
            backend.reject_tail(head.id).await.unwrap().iter().map(|e| e.sequence).collect();
        let journal = node.journal.0.lock();
        let later = journal.iter().filter(|p| p.key == head.key && p.sequence >= head.sequence);
        prop_assert_eq!(&tail, &later.map(|p| p.sequence).collect::<Vec<_>>());
        prop_assert_eq!(&quarantined[&head.key], &tail);
    }
    node.stop.cancel();
    Ok(())
}
