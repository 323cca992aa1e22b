//! A throw-away PostgreSQL per test binary, a database per test, and the schemas of the tests.
//!
//! The server dies with the test process: a thread that never ends is its parent.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod forwarder;
pub mod hlr;
pub mod pooler;
pub mod server;

use cachetier_model::{GroupSchema, RootKey, Row, RowChange, SlotId};
use cachetier_write_through::{
    Backend, Claim, ClaimRequest, Draft, FlushEvent, Pending, PostgresBackend, PostgresOptions,
    Replay, ReplayError, TakeoverRequest, WriteThrough, WriteThroughOptions,
};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn group(uid: &str) -> cachetier_model::node_config::GroupIdentity {
    cachetier_model::node_config::GroupIdentity {
        name: format!("telecom/{uid}"),
        uid: uid.to_owned(),
    }
}

pub fn claim_request(uid: &str, node: &str, tables: &[&str]) -> ClaimRequest {
    ClaimRequest {
        group: group(uid),
        node: node.to_owned(),
        journal: format!("journal-of-{node}"),
        held_token: None,
        attempt: "first".to_owned(),
        lanes: 2,
        epoch: 1,
        tables: tables.iter().map(|t| (*t).to_owned()).collect(),
        accept_lost_journal: None,
    }
}

/// Stands for the node's journal: everything committed, and where it begins by now.
#[derive(Default)]
pub struct Journal {
    pub entries: Mutex<Vec<Pending>>,
    pub trimmed: Mutex<u64>,
}

impl Replay for Journal {
    fn read_after(
        &self,
        after: u64,
        upto: u64,
        _bytes_max: u64,
    ) -> BoxFuture<'_, Result<Vec<Pending>, ReplayError>> {
        let entries = self.entries.lock();
        let range = |p: &&Pending| p.sequence > after && p.sequence <= upto;
        // a few at a time, so that a catch-up takes several rounds
        let found: Vec<Pending> = entries.iter().filter(range).take(7).cloned().collect();
        let answer =
            if after < *self.trimmed.lock() { Err(ReplayError::TooOld) } else { Ok(found) };
        Box::pin(async move { answer })
    }
}

/// A node that writes: its handle, its events, and the watermark it is allowed to send up to.
pub struct Writer {
    pub through: WriteThrough,
    pub events: mpsc::Receiver<FlushEvent>,
    pub synced: watch::Sender<u64>,
    pub next: u64,
    pub token: u64,
    pub stop: CancellationToken,
    pub journal: Arc<Journal>,
}

/// Claims, takes every slot, starts the lanes.
pub async fn writer(
    backend: Arc<dyn Backend>,
    schema: Arc<GroupSchema>,
    options: WriteThroughOptions,
) -> Writer {
    let tables: Vec<&str> = schema.tables.iter().map(|t| t.name.as_str()).collect();
    let mut request = claim_request(&options.group_uid, &options.node, &tables);
    request.lanes = options.lanes;
    let claim = backend.claim(request).await.unwrap();
    let slots = cachetier_model::SlotSet::full();
    let takeover = TakeoverRequest {
        group_uid: options.group_uid.clone(),
        node: options.node.clone(),
        token: claim.token,
        epoch: 1,
        slots: slots.clone(),
        holding: cachetier_model::SlotSet::empty(),
        released: Vec::new(),
    };
    backend.take_slots(takeover).await.unwrap();
    let mut writer = start(backend, schema, options, claim, 0);
    writer.through.slots_gained(&slots, &[]);
    writer.next = 1;
    writer
}

pub fn start(
    backend: Arc<dyn Backend>,
    schema: Arc<GroupSchema>,
    options: WriteThroughOptions,
    claim: Claim,
    staged_after: u64,
) -> Writer {
    let (synced, watching) = watch::channel(0);
    let stop = CancellationToken::new();
    let journal = Arc::<Journal>::default();
    let (through, events) = WriteThrough::start(
        options,
        backend,
        schema,
        watching,
        Some(Arc::clone(&journal) as Arc<dyn Replay>),
        staged_after,
        stop.clone(),
    );
    let token = claim.token;
    through.claimed(claim);
    Writer { through, events, synced, next: staged_after + 1, token, stop, journal }
}

impl Writer {
    /// One committed transaction, synced at once; its sequence.
    pub fn commit(&mut self, key: &RootKey, changes: Vec<RowChange>) -> u64 {
        self.commit_as(key, changes, false)
    }

    pub fn commit_as(&mut self, key: &RootKey, changes: Vec<RowChange>, awaits: bool) -> u64 {
        let sequence = self.next;
        self.next += 1;
        let draft = Draft {
            slot: key.slot(),
            key: key.clone(),
            changes: changes.into(),
            awaits_backend: awaits,
            urgent: false,
        };
        self.journal.entries.lock().push(draft.clone().at(sequence, 1_000));
        let reservation = self.through.reserve(1_000).unwrap();
        reservation.commit(draft, || Ok::<u64, ()>(sequence)).unwrap();
        self.synced.send_replace(sequence);
        sequence
    }

    pub async fn flushed(&self, slot: SlotId, sequence: u64) {
        self.through.wait_flushed(slot, sequence, PATIENCE).await.unwrap();
    }

    pub async fn all_flushed(&self) {
        let upto = self.next - 1;
        let mut marks = self.through.watch();
        let reached = tokio::time::timeout(PATIENCE, marks.wait_for(|m| m.confirmed >= upto));
        let reached = reached.await.is_ok();
        let health = self.through.health().borrow().clone();
        assert!(reached, "{:?} {health:?} {:?}", self.through.marks(), self.through.backlog());
    }

    /// Also no position of an idle lane, moved by a commit that is not confirmed yet.
    pub async fn nothing_waits(&self) {
        let empty = async {
            while !self.through.backlog().is_empty() {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        assert!(
            tokio::time::timeout(PATIENCE, empty).await.is_ok(),
            "{:?}",
            self.through.backlog()
        );
    }

    /// The next event that satisfies `wanted`; others are passed over.
    pub async fn event(&mut self, wanted: impl Fn(&FlushEvent) -> bool) -> FlushEvent {
        let mut passed = Vec::new();
        let found = tokio::time::timeout(PATIENCE, async {
            loop {
                let event = self.events.recv().await.unwrap();
                if wanted(&event) {
                    return event;
                }
                passed.push(format!("{event:?}"));
            }
        });
        match found.await {
            Ok(event) => event,
            Err(_) => panic!("no such event; passed over: {passed:#?}"),
        }
    }

    /// Takes events out of the way of a test that only asks which positions the backend lost: the
    /// positions it went back from and to.
    pub fn watch_rewinds(&mut self) -> watch::Receiver<Vec<(u64, u64)>> {
        let (_, closed) = mpsc::channel(1);
        let mut events = std::mem::replace(&mut self.events, closed);
        let (sender, receiver) = watch::channel(Vec::new());
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                if let FlushEvent::Rewound { from, to, .. } = event {
                    sender.send_modify(|all| all.push((from, to)));
                }
            }
        });
        receiver
    }

    /// Takes events out of the way of a test that does not look at them.
    pub fn ignore_events(&mut self) {
        let (_, closed) = mpsc::channel(1);
        let mut events = std::mem::replace(&mut self.events, closed);
        tokio::spawn(async move { while events.recv().await.is_some() {} });
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub fn backend_options(database: &server::Database) -> PostgresOptions {
    PostgresOptions {
        lanes: 2,
        connections_max: 6,
        ..PostgresOptions::new(database.credentials.path())
    }
}

/// A backend over the database, with its tables discovered and its bookkeeping made.
pub async fn backend(
    database: &server::Database,
    tables: &[cachetier_model::node_config::TableConfig],
) -> (Arc<PostgresBackend>, Arc<GroupSchema>) {
    let backend = Arc::new(PostgresBackend::new(backend_options(database)).unwrap());
    backend.prepare_bookkeeping().await.unwrap();
    let schema = Arc::new(backend.discover(tables).await.unwrap());
    backend.use_schema(Arc::clone(&schema));
    (backend, schema)
}

pub fn table(
    name: &str,
    parent: Option<&str>,
    lookup_keys: &[&[&str]],
) -> cachetier_model::node_config::TableConfig {
    cachetier_model::node_config::TableConfig {
        name: name.to_owned(),
        parent: parent.map(str::to_owned),
        lookup_keys: lookup_keys
            .iter()
            .map(|k| k.iter().map(|c| (*c).to_owned()).collect())
            .collect(),
    }
}

pub fn rows_of(instance: &cachetier_model::Instance, table: usize) -> Vec<Row> {
    instance.tables[table].clone()
}
