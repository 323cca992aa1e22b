//! A database with a small three-level schema, and nodes on it.

use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cachetier_group::{
    AnswerWhen, Group, GroupError, GroupOptions, KeySelector, PeerError, Peers, ReadCall,
    ReadOutcome, Released, Status, TransactCall, Transacted,
};
use cachetier_journal::file_system::{FaultyFileSystem, RealFileSystem};
use cachetier_model::node_config::{
    BackendConfig, BypassConfig, Durability, GroupIdentity, IdempotencyConfig, JournalConfig,
    ListenConfig, MemoryConfig, NodeConfig, PreloadConfig, TableConfig, TopologySource,
    WriteThroughConfig,
};
use cachetier_model::{
    Comparison, Condition, Epoch, LookupId, LookupKey, NodeEntry, Operation, ReadPlan, RootKey,
    SlotSet, Topology, Transaction, Value,
};
use cachetier_write_through::{PostgresBackend, PostgresOptions};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::postgres::Postgres;

pub const ACCOUNT: usize = 0;
pub const FACILITY: usize = 1;

pub const TABLES: &str = "
    CREATE TABLE account (
        id bigint PRIMARY KEY,
        nbr varchar(15) NOT NULL UNIQUE,
        place bigint NOT NULL,
        note text,
        CHECK (place <> 666));
    CREATE TABLE facility (
        id bigint NOT NULL REFERENCES account ON DELETE CASCADE,
        kind smallint NOT NULL,
        active boolean NOT NULL,
        PRIMARY KEY (id, kind));
    CREATE TABLE forwarding (
        id bigint NOT NULL,
        kind smallint NOT NULL,
        start smallint NOT NULL,
        number varchar(15),
        PRIMARY KEY (id, kind, start),
        FOREIGN KEY (id, kind) REFERENCES facility ON DELETE CASCADE);";

/// Accounts 1..=`count` with two facilities and one forwarding each.
pub fn population(count: i64) -> String {
    format!(
        "INSERT INTO account SELECT i, lpad(i::text, 15, '0'), i * 10, NULL
             FROM generate_series(1, {count}) i;
         INSERT INTO facility SELECT i, k, k = 1 FROM generate_series(1, {count}) i, generate_series(1, 2) k;
         INSERT INTO forwarding SELECT i, 1, 8, '123' FROM generate_series(1, {count}) i;"
    )
}

pub struct Scene {
    pub postgres: Postgres,
    pub dir: tempfile::TempDir,
    pub uid: String,
}

impl Scene {
    pub async fn new(accounts: i64) -> Self {
        let postgres = Postgres::start().await;
        postgres.execute(TABLES).await;
        postgres.execute(&population(accounts)).await;
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("credentials")).unwrap();
        std::fs::write(dir.path().join("credentials/uri"), postgres.uri()).unwrap();
        Self { postgres, dir, uid: "uid-1".to_owned() }
    }

    pub fn journal(&self, node: &str) -> PathBuf {
        self.dir.path().join("journal").join(node)
    }

    pub fn config(&self, node: &str) -> NodeConfig {
        let table = |name: &str, parent: Option<&str>| TableConfig {
            name: name.to_owned(),
            parent: parent.map(str::to_owned),
            lookup_keys: if parent.is_none() { vec![vec!["nbr".to_owned()]] } else { vec![] },
        };
        NodeConfig {
            group: GroupIdentity { name: "telecom/hlr".to_owned(), uid: self.uid.clone() },
            backend: BackendConfig {
                credentials_dir: self.dir.path().join("credentials"),
                schema: "public".to_owned(),
                max_connections: 8,
            },
            tables: vec![
                table("account", None),
                table("facility", Some("account")),
                table("forwarding", Some("facility")),
            ],
            journal: JournalConfig {
                directory: self.journal(node),
                capacity_bytes: 64 << 20,
                durability: Durability::Sync,
                sync_interval_ms: 100,
                keep_flushed_seconds: 600,
            },
            memory: MemoryConfig { capacity_bytes: 256 << 20, ..MemoryConfig::default() },
            write_through: WriteThroughConfig {
                lanes: 2,
                max_delay_ms: 20,
                max_backlog_bytes: 64 << 20,
                ..WriteThroughConfig::default()
            },
            idempotency: IdempotencyConfig::default(),
            bypass: BypassConfig { hold_timeout_ms: 10_000, ..BypassConfig::default() },
            preload: PreloadConfig::default(),
            listen: ListenConfig::default(),
            tls: None,
            topology: TopologySource::Standalone,
        }
    }

    /// A node that owns everything.
    pub async fn node(&self, name: &str) -> Node {
        Node::start(self.config(name), name, Arc::new(cachetier_group::NoPeers)).await.unwrap()
    }

    /// The same, once it serves.
    pub async fn serving(&self, name: &str) -> Node {
        let node = self.node(name).await;
        node.until("serving", |s| s.ready).await;
        node
    }

    pub fn topology(&self, epoch: u64, names: &[&str]) -> Topology {
        Topology::initial(&self.uid, Epoch(epoch), entries(names)).unwrap()
    }
}

pub fn entries(names: &[&str]) -> Vec<NodeEntry> {
    names.iter().map(|n| entry(n)).collect()
}

pub fn entry(name: &str) -> NodeEntry {
    NodeEntry { name: name.to_owned(), address: format!("{name}:7070") }
}

/// A running group and what stops it.
pub struct Node {
    pub group: Group,
    stop: CancellationToken,
}

impl Node {
    pub async fn start(
        config: NodeConfig,
        name: &str,
        peers: Arc<dyn Peers>,
    ) -> Result<Self, GroupError> {
        let stop = CancellationToken::new();
        let options = GroupOptions { config, node: entry(name), peers };
        let group = Group::start(options, stop.clone()).await?;
        Ok(Self { group, stop })
    }

    /// A node whose journal is on this disk.
    pub async fn on_disk(
        config: NodeConfig,
        name: &str,
        disk: &FaultyFileSystem,
    ) -> Result<Self, GroupError> {
        let stop = CancellationToken::new();
        let backend = PostgresBackend::new(PostgresOptions::from_config(&config, name)).unwrap();
        let options =
            GroupOptions { config, node: entry(name), peers: Arc::new(cachetier_group::NoPeers) };
        let disk = Arc::new(disk.clone());
        let group = Group::start_with(options, Arc::new(backend), disk, stop.clone()).await?;
        Ok(Self { group, stop })
    }

    /// A node whose lanes and reads wait only so long for a locked row.
    pub async fn impatient(config: NodeConfig, name: &str, lock_timeout: Duration) -> Self {
        let stop = CancellationToken::new();
        let options =
            PostgresOptions { lock_timeout, ..PostgresOptions::from_config(&config, name) };
        let backend = Arc::new(PostgresBackend::new(options).unwrap());
        let options =
            GroupOptions { config, node: entry(name), peers: Arc::new(cachetier_group::NoPeers) };
        let disk = Arc::new(RealFileSystem);
        let group = Group::start_with(options, backend, disk, stop.clone()).await.unwrap();
        Self { group, stop }
    }

    /// Waits for a condition of the status; fails with the status after a minute.
    pub async fn until(&self, what: &str, condition: impl Fn(&Status) -> bool) -> Status {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let status = self.group.status().await;
            if condition(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "not {what}: {status:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub async fn drained(&self) {
        self.until("drained", |s| s.backlog.transactions == 0).await;
    }

    /// Stops without flushing, as a crash of the process would for everything but the journal.
    pub async fn crash(self) {
        self.stop.cancel();
        self.group.close(Duration::ZERO).await;
    }

    pub async fn close(self) {
        self.group.close(Duration::from_secs(30)).await;
        self.stop.cancel();
    }

    pub async fn read(&self, id: i64) -> Result<ReadOutcome, GroupError> {
        let key = KeySelector::Root(root(id));
        self.group.read(ReadCall::new(key, ReadPlan::default())).await
    }

    /// The account's place, `None` when there is no such account.
    pub async fn place(&self, id: i64) -> Option<i64> {
        place_of(&self.read(id).await.unwrap())
    }

    pub async fn write(
        &self,
        id: i64,
        operations: Vec<Operation>,
    ) -> Result<Transacted, GroupError> {
        let key = KeySelector::Root(root(id));
        let transaction = Transaction { guards: Vec::new(), operations };
        let answer = AnswerWhen::Durable;
        let call = TransactCall { key, transaction, answer, idempotency_key: None };
        self.group.transact(call).await
    }

    pub async fn set_place(&self, id: i64, place: i64) -> Result<Transacted, GroupError> {
        self.write(id, vec![set_place(place)]).await
    }
}

pub fn place_of(outcome: &ReadOutcome) -> Option<i64> {
    match outcome.tables.first()?.first()?.get(2)? {
        Value::Int(place) => Some(*place),
        other => panic!("place is {other:?}"),
    }
}

pub fn root(id: i64) -> RootKey {
    RootKey::encode(&[Value::Int(id)]).unwrap()
}

pub fn lookup(nbr: &str) -> KeySelector {
    KeySelector::Lookup { lookup: 0, key: LookupKey::encode(&[Value::Text(nbr.into())]).unwrap() }
}

pub fn set_place(place: i64) -> Operation {
    let set = vec![(2, Value::Int(place))];
    Operation::Update { table: ACCOUNT, conditions: Vec::new(), set, expect: Some(1) }
}

pub fn insert_account(id: i64, nbr: &str) -> Operation {
    let row = vec![Value::Int(id), Value::Text(nbr.into()), Value::Int(1), Value::Null];
    Operation::Insert { table: ACCOUNT, row }
}

pub fn equal(column: usize, value: Value) -> Condition {
    Condition { column, comparison: Comparison::Equal, values: vec![value] }
}

/// Peers in this process.
#[derive(Default)]
pub struct InProcess {
    groups: Mutex<Vec<(String, Weak<Group>)>>,
    /// Nodes that cannot be reached.
    cut: Mutex<Vec<String>>,
}

impl InProcess {
    pub fn add(&self, name: &str, group: &Arc<Group>) {
        let mut groups = self.groups.lock();
        groups.retain(|(known, _)| known != name);
        groups.push((name.to_owned(), Arc::downgrade(group)));
    }

    /// Every group that is up.
    pub fn all(&self) -> Vec<Arc<Group>> {
        self.groups.lock().iter().filter_map(|(_, group)| group.upgrade()).collect()
    }

    pub fn cut(&self, name: &str) {
        self.cut.lock().push(name.to_owned());
    }

    pub fn heal(&self) {
        self.cut.lock().clear();
    }

    fn find(&self, name: &str) -> Result<Arc<Group>, PeerError> {
        if self.cut.lock().iter().any(|n| n == name) {
            return Err(PeerError::new("connection refused"));
        }
        let groups = self.groups.lock();
        let found = groups.iter().find(|(n, _)| n == name).and_then(|(_, g)| g.upgrade());
        found.ok_or_else(|| PeerError::new("no such node"))
    }
}

impl Peers for InProcess {
    fn release_slots<'a>(
        &'a self,
        node: &'a NodeEntry,
        topology: &'a Topology,
        taker: &'a str,
        slots: &'a SlotSet,
    ) -> BoxFuture<'a, Result<Released, PeerError>> {
        Box::pin(async move {
            let group = self.find(&node.name)?;
            let released = group.release_slots(topology.clone(), taker, slots).await;
            released.map_err(PeerError::new)
        })
    }

    fn resolve<'a>(
        &'a self,
        node: &'a NodeEntry,
        lookup: LookupId,
        key: &'a LookupKey,
    ) -> BoxFuture<'a, Result<Option<RootKey>, PeerError>> {
        Box::pin(async move {
            self.find(&node.name)?.resolve(lookup, key).await.map_err(PeerError::new)
        })
    }
}

/// Polls a condition for a minute.
pub async fn eventually<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition().await {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
