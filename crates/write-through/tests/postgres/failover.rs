//! A lagging standby takes the primary's place behind a fixed address, in mid-load.

use crate::support::forwarder::Forwarder;
use crate::support::hlr::{self, FACILITY, SUBSCRIBER};
use crate::support::pooler::Pooler;
use crate::support::server::{Database, Server};
use crate::support::{PATIENCE, Writer, backend, backend_options, claim_request, writer};
use cachetier_model::Value;
use cachetier_model::node_config::BackendCommit;
use cachetier_write_through::{
    Backend, BackendHealth, PostgresBackend, Reason, ScanRequest, WriteThroughOptions,
};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio_postgres::Client;

const SUBSCRIBERS: i64 = 60;

/// What every acknowledged write so far comes to: location and facilities per subscriber.
#[derive(Default)]
struct Expected(BTreeMap<i64, (i64, bool)>);

impl Expected {
    /// One round over all subscribers: moves, comings and goings, facilities given and taken.
    fn round(&mut self, w: &mut Writer, round: i64) {
        for id in 1..=SUBSCRIBERS {
            let (key, number) = (hlr::key(id), hlr::number_of(id));
            let facility = hlr::facility(id, 1, "AB");
            let changes = match self.0.remove(&id) {
                None => {
                    self.0.insert(id, (round, false));
                    vec![hlr::insert(SUBSCRIBER, hlr::subscriber(id, &number, round))]
                }
                Some((_, true)) if (id + round) % 7 == 0 => vec![
                    hlr::delete(FACILITY, facility),
                    hlr::delete(SUBSCRIBER, hlr::subscriber(id, &number, 0)),
                ],
                Some((_, has)) => {
                    let gives = (id + round) % 3 == 0 && !has;
                    self.0.insert(id, (round, has || gives));
                    let mut changes = vec![hlr::locate(id, &number, round)];
                    changes.extend(gives.then(|| hlr::insert(FACILITY, facility)));
                    changes
                }
            };
            w.commit(&key, changes);
        }
    }

    async fn stands_in(&self, client: &Client) {
        let text = "SELECT s_id, vlr_location, EXISTS (SELECT FROM special_facility f \
                    WHERE f.s_id = s.s_id) FROM subscriber s";
        let rows = client.query(text, &[]).await.unwrap();
        let found: BTreeMap<i64, (i64, bool)> =
            rows.iter().map(|r| (r.get(0), (r.get(1), r.get(2)))).collect();
        assert_eq!(found, self.0);
        let orphans = "SELECT count(*) FROM special_facility";
        let facilities: i64 = client.query_one(orphans, &[]).await.unwrap().get(0);
        assert_eq!(facilities, self.0.values().filter(|(_, has)| *has).count() as i64);
    }
}

/// The sum of the positions of all lanes.
async fn positions(client: &Client) -> i64 {
    let text = "SELECT coalesce(sum(position), 0)::int8 FROM cachetier.writer";
    client.query_one(text, &[]).await.unwrap().get(0)
}

async fn until(what: &str, mut reached: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !reached().await {
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "{what}");
}

struct Pair {
    primary: Server,
    standby: Server,
    /// What the standby receives comes through here.
    replication: Forwarder,
    /// The address the node knows.
    address: Forwarder,
    db: Database,
}

impl Pair {
    async fn start() -> Pair {
        let primary = Server::start(&[]);
        let db = primary.database().await;
        hlr::create(&db).await;
        let replication = Forwarder::start(primary.port).await;
        let port = replication.port;
        let made = tokio::task::spawn_blocking(move || Server::standby_behind(port));
        let standby = made.await.unwrap();
        let address = Forwarder::start(primary.port).await;
        db.move_to(address.port);
        Pair { primary, standby, replication, address, db }
    }

    /// The standby has received everything up to now, whether replayed or not.
    async fn received(&self) {
        let upto = "SELECT (pg_current_wal_flush_lsn() - '0/0')::int8";
        let upto: i64 = self.db.number(upto).await;
        let standby = self.standby.connect("postgres").await;
        let text = "SELECT coalesce(pg_last_wal_receive_lsn() - '0/0', 0)::int8";
        until("the standby receives the log", async || {
            standby.query_one(text, &[]).await.unwrap().get::<_, i64>(0) >= upto
        })
        .await;
    }
}

async fn fails_over(commit: BackendCommit) {
    let pair = Pair::start().await;
    let (backend, schema) = backend(&pair.db, &hlr::tables()).await;
    let options = WriteThroughOptions {
        lanes: 2,
        delay_max: Duration::from_millis(5),
        backend_commit: commit,
        idle_position_interval: Duration::from_millis(100),
        ..WriteThroughOptions::new("g", "hlr-0")
    };
    let mut w = writer(backend, schema, options).await;
    let mut rewinds = w.watch_rewinds();
    let mut expected = Expected::default();
    expected.round(&mut w, 1);
    w.all_flushed().await;
    // replay stands still here; the log goes on arriving, and then that stops too
    pair.received().await;
    let standby = pair.standby.connect(&pair.db.name).await;
    let first = positions(&pair.db.client).await;
    until("the standby replays", async || positions(&standby).await >= first).await;
    standby.batch_execute("SELECT pg_wal_replay_pause()").await.unwrap();
    let paused = "SELECT pg_get_wal_replay_pause_state() = 'paused'";
    until("replay pauses", async || standby.query_one(paused, &[]).await.unwrap().get(0)).await;
    expected.round(&mut w, 2);
    w.all_flushed().await;
    pair.received().await;
    let second = positions(&pair.db.client).await;
    pair.replication.point_to(None);
    for round in 3..=5 {
        expected.round(&mut w, round);
    }
    w.all_flushed().await;
    let third = positions(&pair.db.client).await;
    assert!(positions(&standby).await < second && second < third);
    // in mid-load the primary dies, and the address leads to a standby that is none yet
    expected.round(&mut w, 6);
    pair.primary.crash();
    pair.address.point_to(Some(pair.standby.port));
    let before = pair.address.accepted();
    let mut health = w.through.health();
    let refused = health
        .wait_for(|h| matches!(h, BackendHealth::Down { reason: Reason::BackendNotReady, .. }));
    tokio::time::timeout(PATIENCE, refused).await.unwrap().unwrap();
    expected.round(&mut w, 7);
    until("the lanes look at it", async || pair.address.accepted() > before + 4).await;
    pair.standby.promote();
    let lost = tokio::time::timeout(PATIENCE, rewinds.wait_for(|all| all.len() >= 2)).await;
    // every lane once: no position of the standby was believed before it was promoted
    assert!(lost.unwrap().unwrap().iter().all(|(from, to)| to < from));
    expected.round(&mut w, 8);
    w.all_flushed().await;
    let promoted = pair.standby.connect(&pair.db.name).await;
    expected.stands_in(&promoted).await;
    // and it goes on as if nothing had been
    expected.round(&mut w, 9);
    w.all_flushed().await;
    expected.stands_in(&promoted).await;
    w.nothing_waits().await;
    assert_eq!(rewinds.borrow().len(), 2);
    pair.standby.crash();
}

#[tokio::test(flavor = "multi_thread")]
async fn r11_a_lagging_standby_promoted_in_mid_load_is_sent_what_it_missed() {
    fails_over(BackendCommit::Sync).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r11_a_lagging_standby_promoted_under_asynchronous_commits_is_sent_what_it_missed() {
    fails_over(BackendCommit::Async).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_moved_primary_is_found_among_several_hosts_and_a_standby_is_never_used() {
    let pair = Pair::start().await;
    let several = format!(
        "postgresql://127.0.0.1:{},127.0.0.1:{}/{}",
        pair.standby.port, pair.primary.port, pair.db.name
    );
    std::fs::write(pair.db.credentials.path().join("uri"), several).unwrap();
    let (backend, schema) = backend(&pair.db, &hlr::tables()).await;
    let mut w = writer(backend, schema, WriteThroughOptions::new("g", "hlr-0")).await;
    w.ignore_events();
    let mut expected = Expected::default();
    expected.round(&mut w, 1);
    w.all_flushed().await;
    pair.received().await;
    pair.primary.crash();
    let identify = async || {
        let fresh = PostgresBackend::new(backend_options(&pair.db)).unwrap();
        fresh.identify().await.map_err(|error| error.reason)
    };
    // the one that is left takes no writes; alone it is refused by what it is
    expected.round(&mut w, 2);
    let alone = format!("postgresql://127.0.0.1:{}/{}", pair.standby.port, pair.db.name);
    let file = pair.db.credentials.path().join("uri");
    let both = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, alone).unwrap();
    assert_eq!(identify().await.err(), Some(Reason::BackendNotReady));
    std::fs::write(&file, both).unwrap();
    pair.standby.promote();
    w.all_flushed().await;
    assert_eq!(identify().await.unwrap().timeline, 2);
    expected.stands_in(&pair.standby.connect(&pair.db.name).await).await;
    pair.standby.crash();
}

#[tokio::test(flavor = "multi_thread")]
async fn r18_a_standby_that_a_pooler_hides_answers_no_reads() {
    let pair = Pair::start().await;
    hlr::populate(&pair.db, 3).await;
    let pooler = Pooler::start(pair.primary.port).await;
    pair.db.move_to(pooler.port);
    let (backend, _) = backend(&pair.db, &hlr::tables()).await;
    let number = [Value::Text(hlr::number_of(1).into())];
    let key = Some(hlr::key(1));
    assert_eq!(backend.resolve_lookup(0, &number, None).await.unwrap(), key);
    pair.received().await;
    pooler.pause().await;
    pooler.point_to(pair.standby.port).await;
    pooler.resume().await;
    // the sessions of the node are as whole as they were
    let read = backend.read_instances(&[hlr::key(1)], None).await.map(|_| ());
    let lookup = backend.resolve_lookup(0, &number, None).await.map(|_| ());
    let scan = backend.open_scan(ScanRequest { page: 5, ..ScanRequest::default() }).await;
    let claim = backend.claim(claim_request("g", "hlr-0", &["subscriber"])).await.map(|_| ());
    let identity = backend.identify().await.map(|_| ());
    for answer in [read, lookup, scan.map(|_| ()), claim, identity] {
        let error = answer.unwrap_err();
        assert_eq!(error.reason, Reason::BackendNotReady, "{error}");
    }
    pair.standby.promote();
    assert_eq!(backend.resolve_lookup(0, &number, None).await.unwrap(), key);
    assert!(backend.read_instances(&[hlr::key(1)], None).await.unwrap()[0].is_some());
    pair.primary.crash();
    pair.standby.crash();
}
