//! Everything around the nodes of one history: disks, database, who is up, the weather.
//!
//! Owns the one generator all chance is drawn from, in the order things happen, so that a seed
//! tells the whole history. Nodes never see it; they see their volume, wire and phones.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cachetier_group::{Ended, Group, GroupOptions, Host, Labour};
use cachetier_journal::file_system::FaultyFileSystem;
use cachetier_model::node_config::{
    BackendCommit, BackendConfig, BypassConfig, Durability, GroupIdentity, IdempotencyConfig,
    JournalConfig, ListenConfig, MemoryConfig, NodeConfig, PreloadConfig, TopologySource,
    WriteThroughConfig,
};
use cachetier_model::{Epoch, NodeEntry, Topology};
use cachetier_write_through::double::{DoubleBackend, Standby};
use parking_lot::Mutex;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::account::{Account, Content};
use crate::history::History;
use crate::images::Images;
use crate::line::{Death, Impostor, Line, tell};
use crate::oracle::Oracle;
use crate::phones::Phones;
use crate::settings::{SEGMENT_BYTES, Settings};
use crate::tables;
use crate::volume::Volume;
use crate::wire::Wire;

pub const GROUP_UID: &str = "uid-1";
pub const JOURNAL_DIR: &str = "/journal";

/// What disturbs all nodes alike.
#[derive(Debug, Default)]
pub struct Weather {
    pub database_away: bool,
    /// Chance of a broken connection, before and after each act.
    pub breaks: f64,
    /// The longest an act takes on its way, each way.
    pub way_max: Duration,
    /// Statements with poisoned rows are refused.
    pub poison: bool,
    /// Nodes that cannot be reached by their peers.
    pub cut: Vec<String>,
    /// What a miss found takes long on its way back.
    pub slow_misses: bool,
    /// Until when a node's way to the database stands still.
    pub held: BTreeMap<String, Instant>,
}

impl Weather {
    /// What an old copy may do is decided by the database, so it always reaches it.
    pub fn is_away(&self, line: &Line) -> bool {
        match line.impostor {
            None => self.database_away,
            Some(Impostor::OldCopy) => false,
            Some(Impostor::OtherGroup) => true,
        }
    }
}

/// A process that is up.
#[derive(Clone)]
pub struct Process {
    pub group: Group,
    pub line: Arc<Line>,
    stop: CancellationToken,
}

pub struct World {
    pub settings: Settings,
    pub history: History,
    pub database: DoubleBackend,
    pub oracle: Mutex<Oracle>,
    pub weather: Mutex<Weather>,
    pub topology: Mutex<Topology>,
    /// What a lagging standby has.
    pub standby: Mutex<Option<Standby>>,
    pub failovers: AtomicU32,
    /// The node whose takeovers the standby lacks: never of two nodes.
    pub takeover_missed: Mutex<Option<String>>,
    /// Takeovers that took nothing, per node: since when, and how many.
    pub takes_in_vain: Mutex<BTreeMap<String, (Instant, u32)>>,
    /// One that took over did.
    pub takeover_lost: AtomicBool,
    /// Lanes asked for at the next start.
    pub lanes: Mutex<u16>,
    /// Copies of volumes, with the token their original had.
    pub copies: Mutex<BTreeMap<String, (FaultyFileSystem, u64)>>,
    /// Since when a killed process's journal may be in the page cache only (Relaxed).
    unsynced: Mutex<BTreeMap<String, Instant>>,
    images: Images,
    /// Cancelled with the first violation.
    pub violated: CancellationToken,
    dice: Mutex<ChaCha8Rng>,
    disks: Mutex<BTreeMap<String, FaultyFileSystem>>,
    processes: Mutex<BTreeMap<String, Process>>,
    lives: AtomicU32,
    me: Weak<World>,
}

impl World {
    /// A database with accounts in it, and no node yet.
    pub fn new(settings: Settings, mut dice: ChaCha8Rng) -> Arc<Self> {
        let schema = tables::schema();
        let database = DoubleBackend::new(schema.clone());
        let mut accounts: Vec<(i64, Content)> = Vec::new();
        for id in 1..=settings.keys {
            let content = dice.random_bool(0.7).then(|| Account {
                number: 1_000 + id,
                version: 0,
                items: (0..dice.random_range(0..3)).map(|name| (name, 0)).collect(),
            });
            if let Some(account) = &content {
                database.edit(|store| {
                    let int = cachetier_model::Value::Int;
                    let row = vec![int(id), int(account.number), int(0), tables::filler(0)];
                    store.put_row(&schema, tables::ACCOUNT, row);
                    for (name, version) in &account.items {
                        let row = vec![int(id), int(*name), int(*version)];
                        store.put_row(&schema, tables::ITEM, row);
                    }
                });
            }
            accounts.push((id, content));
        }
        let first = vec![entry("n-0")];
        let topology = Topology::initial(GROUP_UID, Epoch(1), first);
        let topology = topology.unwrap_or_else(|_| unreachable!("one node is enough"));
        let (lanes, seed) = (settings.lanes, settings.seed);
        Arc::new_cyclic(|me| Self {
            settings,
            history: History::begin(),
            database,
            oracle: Mutex::new(Oracle::new(accounts)),
            weather: Mutex::default(),
            topology: Mutex::new(topology),
            standby: Mutex::default(),
            failovers: AtomicU32::new(0),
            takeover_missed: Mutex::new(None),
            takes_in_vain: Mutex::new(BTreeMap::new()),
            takeover_lost: AtomicBool::new(false),
            lanes: Mutex::new(lanes),
            copies: Mutex::default(),
            unsynced: Mutex::default(),
            images: Images::new(seed),
            violated: CancellationToken::new(),
            dice: Mutex::new(dice),
            disks: Mutex::default(),
            processes: Mutex::default(),
            lives: AtomicU32::new(0),
            me: me.clone(),
        })
    }

    /// Draws from the history's generator.
    pub fn draw<T>(&self, draw: impl FnOnce(&mut ChaCha8Rng) -> T) -> T {
        draw(&mut self.dice.lock())
    }

    pub fn chance(&self, probability: f64) -> bool {
        probability > 0.0 && self.draw(|dice| dice.random_bool(probability))
    }

    /// Sleeps for up to this many milliseconds.
    pub async fn pause(&self, millis_max: u64) {
        let micros = self.draw(|dice| dice.random_range(0..=millis_max * 1_000));
        tokio::time::sleep(Duration::from_micros(micros)).await;
    }

    /// Something that must never happen did.
    pub fn violate(&self, words: impl Into<String>) {
        self.judge(|oracle| oracle.violate(words));
    }

    /// Asks the oracle, and ends the history with its first violation.
    pub fn judge<T>(&self, judge: impl FnOnce(&mut Oracle) -> T) -> T {
        let mut oracle = self.oracle.lock();
        let before = oracle.violation().is_some();
        let answer = judge(&mut oracle);
        if let Some(words) = oracle.violation().filter(|_| !before) {
            self.history.say(format!("VIOLATION: {words}"));
            self.violated.cancel();
        }
        answer
    }

    pub fn process(&self, node: &str) -> Option<Process> {
        self.processes.lock().get(node).cloned()
    }

    pub fn processes(&self) -> Vec<Process> {
        self.processes.lock().values().cloned().collect()
    }

    /// The disk of a node; made where there is none.
    pub fn disk(&self, node: &str) -> FaultyFileSystem {
        self.disks.lock().entry(node.to_owned()).or_default().clone()
    }

    /// Every node that ever had a disk.
    pub fn nodes(&self) -> Vec<String> {
        self.disks.lock().keys().cloned().collect()
    }

    /// Starts a process of the node on its disk; false if it did not come up.
    pub async fn start(&self, node: &str) -> bool {
        let disk = self.disk(node);
        self.images.meddle(node, &disk, &self.history);
        let Some(process) = self.start_on(node, disk, None).await else { return false };
        self.unsynced.lock().remove(node);
        self.processes.lock().insert(node.to_owned(), process);
        true
    }

    /// Starts a process on a volume that is not its own (any more); nobody is sent to it.
    pub async fn start_impostor(
        &self,
        node: &str,
        disk: FaultyFileSystem,
        kind: Impostor,
    ) -> Option<Process> {
        self.start_on(node, disk, Some(kind)).await
    }

    async fn start_on(
        &self,
        node: &str,
        disk: FaultyFileSystem,
        impostor: Option<Impostor>,
    ) -> Option<Process> {
        let world = self.me.upgrade()?;
        let life = self.lives.fetch_add(1, Ordering::Relaxed) + 1;
        let stop = CancellationToken::new();
        let line = self.line((node, life, impostor), &disk, stop.clone());
        self.history.say(format!("{} starts", line.name()));
        let options = GroupOptions {
            config: self.config(impostor),
            node: entry(node),
            peers: Arc::new(Phones::new(&world, &line)),
        };
        let host = Host {
            backend: Arc::new(Wire::new(&world, &line)),
            files: Arc::new(Volume::new(disk, Arc::clone(&line), self.settings.dax)),
            labour: Labour::Turns,
            segment_bytes: Some(SEGMENT_BYTES),
            images_refresh: Some(self.settings.images_refresh),
        };
        let started = tokio::select! {
            biased;
            () = line.died.cancelled() => return None,
            started = Group::start_on(options, host, stop.clone()) => started,
        };
        let group = match started {
            Ok(group) if !line.is_dead() => group,
            Ok(_) => return None,
            Err(error) => {
                self.history.say(format!("{} does not start: {error}", line.name()));
                stop.cancel();
                line.die(Death::Killed);
                return None;
            }
        };
        tokio::spawn(watch_end(Arc::clone(&world), group.clone(), Arc::clone(&line)));
        Some(Process { group, line, stop })
    }

    fn line(
        &self,
        (node, life, impostor): (&str, u32, Option<Impostor>),
        disk: &FaultyFileSystem,
        stop: CancellationToken,
    ) -> Arc<Line> {
        let (world, name) = (self.me.clone(), node.to_owned());
        let on_death = Box::new(move |death| {
            stop.cancel();
            let Some(world) = world.upgrade() else { return };
            tell(&world.history, &format!("{name} (life {life})"), death);
            let mut processes = world.processes.lock();
            let gone = processes.get(&name).is_some_and(|p| p.line.life == life);
            let gone = if gone { processes.remove(&name) } else { None };
            drop(processes);
            let failed = gone.as_ref().and_then(|p| *p.line.disk_failed.lock());
            drop(gone);
            if world.settings.relaxed && impostor.is_none() {
                world.relaxed_end(&name, death, failed);
            }
        });
        Line::new(node, life, disk.clone(), impostor, on_death)
    }

    /// A process with a relaxed journal ended: what it had not synced may go with a power cut, now
    /// or before the next start made it safe.
    fn relaxed_end(&self, node: &str, death: Death, disk_failed: Option<Instant>) {
        let now = Instant::now();
        let interval = self.settings.sync_interval + Duration::from_millis(5);
        let since = disk_failed.unwrap_or(now).checked_sub(interval).unwrap_or(now);
        let mut unsynced = self.unsynced.lock();
        let since = unsynced.get(node).copied().unwrap_or(since).min(since);
        if death == Death::Killed {
            unsynced.insert(node.to_owned(), since);
            return;
        }
        unsynced.remove(node);
        drop(unsynced);
        self.judge(|oracle| oracle.journal_lost(now.duration_since(since)));
    }

    /// Ends a process in order.
    pub async fn stop(&self, process: &Process) {
        self.history.say(format!("{} is asked to stop", process.line.name()));
        let grace = Duration::from_secs(self.draw(|dice| dice.random_range(0..3)));
        tokio::select! {
            biased;
            () = process.line.died.cancelled() => return,
            () = process.group.close(grace) => {}
        }
        process.stop.cancel();
        process.line.die(Death::Killed);
    }

    fn config(&self, impostor: Option<Impostor>) -> NodeConfig {
        let uid = if impostor == Some(Impostor::OtherGroup) { "uid-2" } else { GROUP_UID };
        let settings = &self.settings;
        let durability = if settings.relaxed { Durability::Relaxed } else { Durability::Sync };
        let commit =
            if settings.backend_async { BackendCommit::Async } else { BackendCommit::Sync };
        NodeConfig {
            group: GroupIdentity { name: "sim/group".to_owned(), uid: uid.to_owned() },
            backend: BackendConfig {
                credentials_dir: PathBuf::new(),
                schema: "public".to_owned(),
                max_connections: 4,
            },
            tables: tables::table_configs(),
            journal: JournalConfig {
                directory: PathBuf::from(JOURNAL_DIR),
                capacity_bytes: settings.segments * SEGMENT_BYTES,
                durability,
                sync_interval_ms: settings.sync_interval.as_millis() as u64,
                keep_flushed_seconds: if settings.failover {
                    3_600
                } else {
                    settings.keep_flushed_seconds
                },
            },
            memory: MemoryConfig { capacity_bytes: 64 << 20, ..MemoryConfig::default() },
            write_through: WriteThroughConfig {
                lanes: *self.lanes.lock(),
                max_batch_rows: 8,
                max_delay_ms: 10,
                max_backlog_bytes: 1 << 20,
                backend_commit: commit,
                ..WriteThroughConfig::default()
            },
            idempotency: IdempotencyConfig {
                window_seconds: if settings.repeats { 24 * 3_600 } else { 0 },
                ..IdempotencyConfig::default()
            },
            bypass: BypassConfig { hold_timeout_ms: 1_000, ..BypassConfig::default() },
            preload: PreloadConfig::default(),
            listen: ListenConfig::default(),
            tls: None,
            topology: TopologySource::Operator,
        }
    }
}

/// A process that says that it must be replaced is replaced: it exits.
async fn watch_end(world: Arc<World>, group: Group, line: Arc<Line>) {
    let ended = tokio::select! {
        biased;
        () = line.died.cancelled() => return,
        ended = group.ended() => ended,
    };
    if line.is_dead() || matches!(ended, Ended::Closed) {
        return;
    }
    world.history.say(format!("{} ends: {ended:?}", line.name()));
    if let Ended::TaskEnded(task) = ended {
        world.violate(format!("{}: the task {task} ended", line.name()));
    }
    line.die(Death::Killed);
}

pub fn entry(name: &str) -> NodeEntry {
    NodeEntry { name: name.to_owned(), address: format!("{name}:7070") }
}
