//! The backend crashes, goes back, comes back; the node restarts; lanes change.

use crate::support::hlr;
use crate::support::server::{self, Server};
use crate::support::{PATIENCE, Writer, backend, claim_request, writer};
use cachetier_model::SlotSet;
use cachetier_model::node_config::BackendCommit;
use cachetier_write_through::{
    Backend, BackendHealth, FlushEvent, Pending, Reason, WriteThroughOptions,
};
use std::sync::Arc;
use std::time::Duration;

fn options(uid: &str, lanes: u16) -> WriteThroughOptions {
    WriteThroughOptions {
        lanes,
        delay_max: Duration::from_millis(10),
        ..WriteThroughOptions::new(uid, "hlr-0")
    }
}

fn locate_all(w: &mut Writer, count: i64, vlr: i64) {
    for id in 1..=count {
        w.commit(&hlr::key(id), vec![hlr::locate(id, &hlr::number_of(id), vlr)]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r11_asynchronous_commits_lost_in_a_crash_are_sent_again_from_the_journal() {
    let server = Server::start(&[]);
    let db = server.database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 50).await;
    db.run("CHECKPOINT").await;
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    let mut asynchronous = options("g", 2);
    asynchronous.backend_commit = BackendCommit::Async;
    // none after the first waits for the log
    asynchronous.log_wait_interval = Duration::from_secs(3_600);
    let mut w = writer(backend, schema, asynchronous).await;
    let mut marks = w.through.watch();
    locate_all(&mut w, 50, 1);
    w.all_flushed().await;
    server.freeze_wal_writer();
    for round in 2..=4 {
        locate_all(&mut w, 50, round);
    }
    let upto = w.next - 1;
    let flushed = marks.wait_for(|m| m.flushed >= upto);
    tokio::time::timeout(PATIENCE, flushed).await.unwrap().unwrap();
    assert!(w.through.marks().confirmed < upto, "committed is not confirmed");
    assert!(!w.through.backlog().is_empty(), "and not drained either");
    server.crash();
    server.restart(&[]);
    w.event(|e| matches!(e, FlushEvent::Rewound { .. })).await;
    w.ignore_events();
    w.all_flushed().await;
    let client = server.connect(&db.name).await;
    let row = client
        .query_one("SELECT count(*) FROM subscriber WHERE vlr_location = 4", &[])
        .await
        .unwrap();
    assert_eq!(row.get::<_, i64>(0), 50);
    // and it goes on as if nothing had been
    locate_all(&mut w, 50, 9);
    w.all_flushed().await;
    w.nothing_waits().await;
    server.crash();
}

#[tokio::test(flavor = "multi_thread")]
async fn r11_a_backend_older_than_the_journal_still_holds_stops_the_lanes_and_says_so() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 5).await;
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    let mut w = writer(backend, schema, options("g", 1)).await;
    w.ignore_events();
    locate_all(&mut w, 5, 1);
    w.all_flushed().await;
    *w.journal.trimmed.lock() = 4;
    db.run("UPDATE cachetier.writer SET position = 2").await;
    locate_all(&mut w, 5, 2);
    let mut health = w.through.health();
    let stopped = health
        .wait_for(|h| matches!(h, BackendHealth::Down { reason: Reason::PositionTooOld, .. }));
    tokio::time::timeout(PATIENCE, stopped).await.unwrap().unwrap();
    assert_eq!(db.number("SELECT count(*) FROM subscriber WHERE vlr_location = 2").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn d17_what_a_restart_queues_again_is_applied_once() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 30).await;
    db.run(
        "CREATE TABLE applied (s_id bigint, vlr bigint); \
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
           INSERT INTO applied VALUES (NEW.s_id, NEW.vlr_location); RETURN NULL; END $$; \
         CREATE TRIGGER note AFTER UPDATE ON subscriber FOR EACH ROW EXECUTE FUNCTION note()",
    )
    .await;
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    let first: Vec<Pending>;
    let token;
    {
        let mut w = writer(Arc::clone(&backend) as _, Arc::clone(&schema), options("g", 2)).await;
        w.ignore_events();
        locate_all(&mut w, 30, 1);
        w.all_flushed().await;
        w.through.set_paused(true);
        locate_all(&mut w, 30, 2);
        first = w.journal.entries.lock().clone();
        token = w.token;
    }
    let mut request = claim_request("g", "hlr-0", &["subscriber"]);
    request.held_token = Some(token);
    request.attempt = "second".to_owned();
    let claim = backend.claim(request).await.unwrap();
    assert_eq!(claim.slots().len(), 4_096);
    // everything is queued again before the claim is known, from the very beginning
    let (synced, watching) = tokio::sync::watch::channel(u64::MAX >> 1);
    let stop = tokio_util::sync::CancellationToken::new();
    let (through, mut events) = cachetier_write_through::WriteThrough::start(
        options("g", 2),
        backend,
        schema,
        watching,
        None,
        0,
        stop.clone(),
    );
    for pending in &first {
        through.enqueue(pending.clone()).unwrap();
    }
    assert!(through.enqueue(first[0].clone()).is_err(), "the order is checked");
    assert_eq!(through.backlog().transactions, 60);
    through.claimed(claim);
    let upto = first.last().unwrap().sequence;
    let mut marks = through.watch();
    let reached = marks.wait_for(|m| m.confirmed >= upto);
    tokio::time::timeout(PATIENCE, reached).await.unwrap().unwrap();
    let mut told = 0;
    while let Ok(event) = events.try_recv() {
        if let FlushEvent::Flushed { keys, .. } = event {
            told += keys.len();
        }
    }
    assert_eq!(told, 60, "also what the backend had already is reported as flushed");
    assert_eq!(db.number("SELECT count(*) FROM applied").await, 60);
    assert_eq!(db.number("SELECT count(*) FROM subscriber WHERE vlr_location = 2").await, 30);
    stop.cancel();
    drop(synced);
}

#[tokio::test(flavor = "multi_thread")]
async fn r10_lanes_change_at_a_barrier_and_no_write_is_lost() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 40).await;
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    let token = {
        let mut w = writer(Arc::clone(&backend) as _, Arc::clone(&schema), options("g", 2)).await;
        w.ignore_events();
        locate_all(&mut w, 40, 1);
        w.all_flushed().await;
        w.token
    };
    let mut request = claim_request("g", "hlr-0", &["subscriber"]);
    request.held_token = Some(token);
    request.attempt = "second".to_owned();
    request.lanes = 3;
    let claim = backend.claim(request).await.unwrap();
    assert_eq!(claim.lane_count(), 2, "the lane map in force");
    let mut w = crate::support::start(backend, schema, options("g", 3), claim, 40);
    w.ignore_events();
    locate_all(&mut w, 40, 2);
    w.all_flushed().await;
    let mut marks = w.through.watch();
    let changed = marks.wait_for(|m| m.lanes.len() == 3);
    tokio::time::timeout(PATIENCE, changed).await.unwrap().unwrap();
    locate_all(&mut w, 40, 3);
    w.all_flushed().await;
    assert_eq!(db.number("SELECT count(*) FROM subscriber WHERE vlr_location = 3").await, 40);
    assert_eq!(db.number("SELECT count(*) FROM cachetier.writer WHERE lanes = 3").await, 3);
    assert_eq!(db.number("SELECT count(*) FROM cachetier.writer").await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn d02_a_backend_away_under_load_loses_nothing_and_idle_lanes_follow() {
    let server = Server::start(&[]);
    let db = server.database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 100).await;
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    let mut young = options("g", 2);
    young.idle_position_interval = Duration::from_millis(100);
    let mut w = writer(backend, schema, young).await;
    w.ignore_events();
    locate_all(&mut w, 100, 1);
    w.all_flushed().await;
    server.crash();
    let mut health = w.through.health();
    // also an idle node notices
    let down = health.wait_for(|h| matches!(h, BackendHealth::Down { .. }));
    tokio::time::timeout(PATIENCE, down).await.unwrap().unwrap();
    locate_all(&mut w, 100, 2);
    assert_eq!(w.through.backlog().transactions, 100);
    server.restart(&[]);
    w.all_flushed().await;
    let client = server.connect(&db.name).await;
    let text = "SELECT count(*) FROM subscriber WHERE vlr_location = 2";
    assert_eq!(client.query_one(text, &[]).await.unwrap().get::<_, i64>(0), 100);
    let upto = w.next - 1;
    let mut marks = w.through.watch();
    let follows = marks.wait_for(|m| m.trimmable >= upto);
    tokio::time::timeout(PATIENCE, follows).await.unwrap().unwrap();
    server.crash();
}

#[tokio::test(flavor = "multi_thread")]
async fn r13_a_frozen_transaction_does_not_hold_the_fence_for_ever() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 5).await;
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    let mut w = writer(backend, schema, options("g", 1)).await;
    w.ignore_events();
    // as a frozen owner would leave it: the bounds of our own transactions, and no end
    let frozen = server::shared().connect(&db.name).await;
    frozen
        .batch_execute(
            "BEGIN; SET LOCAL idle_in_transaction_session_timeout = 300; \
             UPDATE cachetier.writer SET updated_at = now()",
        )
        .await
        .unwrap();
    locate_all(&mut w, 5, 1);
    w.all_flushed().await;
    assert_eq!(db.number("SELECT count(*) FROM subscriber WHERE vlr_location = 1").await, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reject_is_replayed_though_other_slots_moved_and_refused_once_its_own_has() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 3).await;
    db.run("ALTER TABLE subscriber ADD CONSTRAINT low CHECK (vlr_location < 666)").await;
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    let mut w = writer(Arc::clone(&backend) as _, schema, options("moved", 1)).await;
    w.commit(&hlr::key(1), vec![hlr::locate(1, &hlr::number_of(1), 666)]);
    w.event(|e| matches!(e, FlushEvent::Rejected { .. })).await;
    w.ignore_events();
    w.all_flushed().await;
    db.run("ALTER TABLE subscriber DROP CONSTRAINT low").await;
    let id = backend.list_rejects("moved", 10).await.unwrap()[0].id;
    let fence = w.through.fence(hlr::key(1).slot()).unwrap();
    // what a takeover does to the row of the loser, of which its lane has not heard yet
    let moved = |slots: &SlotSet| {
        let bytes: String = slots.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        format!(
            "UPDATE cachetier.writer SET slots = '\\x{bytes}', version = version + 1 \
             WHERE group_uid = 'moved'"
        )
    };
    let mut slots = SlotSet::full();
    slots.remove(hlr::key(1).slot());
    db.run(&moved(&slots)).await;
    let refused = backend.replay_reject(id, &fence).await.unwrap_err();
    assert_eq!(refused.reason, Reason::StaleTopology, "{refused}");
    assert!(refused.message.contains("another node"), "{refused}");
    db.run(&moved(&SlotSet::from_iter([hlr::key(1).slot()]))).await;
    assert_eq!(backend.replay_reject(id, &fence).await.unwrap(), 1);
    assert_eq!(db.number("SELECT vlr_location FROM subscriber WHERE s_id = 1").await, 666);
}
