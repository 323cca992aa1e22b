//! Lanes against a real server: order, exactly once, fence, rejects.

use crate::support::hlr::{self, FACILITY, FORWARDING, SUBSCRIBER};
use crate::support::server;
use crate::support::{PATIENCE, backend, writer};
use cachetier_write_through::{
    Backend, BackendHealth, FlushEvent, Reason, Release, TakeoverRequest, WriteThroughOptions,
};
use std::sync::Arc;

fn options(uid: &str) -> WriteThroughOptions {
    WriteThroughOptions {
        lanes: 2,
        delay_max: std::time::Duration::from_millis(20),
        ..WriteThroughOptions::new(uid, "hlr-0")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d07_d08_d12_a_family_reaches_the_backend_in_order_and_with_its_position() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    let mut w = writer(backend, schema, options("g1")).await;
    w.ignore_events();
    let mut last = 0;
    for id in 1..=50 {
        let number = hlr::number_of(id);
        // children before parents in the list: the plan must sort them
        w.commit(
            &hlr::key(id),
            vec![
                hlr::insert(SUBSCRIBER, hlr::subscriber(id, &number, 0)),
                hlr::insert(FACILITY, hlr::facility(id, 1, "AB")),
                hlr::insert(FORWARDING, hlr::forwarding(id, 1, 8, "123")),
            ],
        );
        // delete and insert again in one batch: the row stays
        w.commit(
            &hlr::key(id),
            vec![
                hlr::delete(FORWARDING, hlr::forwarding(id, 1, 8, "123")),
                hlr::insert(FORWARDING, hlr::forwarding(id, 1, 8, "456")),
            ],
        );
        if id % 2 == 0 {
            w.commit(
                &hlr::key(id),
                vec![
                    hlr::delete(FORWARDING, hlr::forwarding(id, 1, 8, "456")),
                    hlr::delete(FACILITY, hlr::facility(id, 1, "AB")),
                    hlr::delete(SUBSCRIBER, hlr::subscriber(id, &number, 0)),
                ],
            );
        }
        last = w.commit(&hlr::key(1), vec![hlr::locate(1, &hlr::number_of(1), id)]);
    }
    w.all_flushed().await;
    assert_eq!(db.number("SELECT count(*) FROM subscriber").await, 25);
    assert_eq!(db.number("SELECT count(*) FROM call_forwarding WHERE numberx = '456'").await, 25);
    assert_eq!(db.number("SELECT vlr_location FROM subscriber WHERE s_id = 1").await, 50);
    let lane = i32::from(hlr::key(1).slot().number() % 2);
    let position = format!("SELECT position FROM cachetier.writer WHERE lane = {lane}");
    assert_eq!(db.number(&position).await, last as i64);
    assert!(w.through.backlog().is_empty());
    let counters = w.through.counters();
    assert!(counters.rows < 200, "a batch sends the net effect: {counters:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn d01_d13_one_bad_row_is_set_aside_with_its_tail_and_all_else_arrives_once() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 200).await;
    db.run(
        "CREATE TABLE seen (s_id bigint, vlr bigint); \
         CREATE FUNCTION check_vlr() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
           IF NEW.vlr_location = 666 THEN RAISE EXCEPTION 'no % here', NEW.s_id; END IF; \
           INSERT INTO seen VALUES (NEW.s_id, NEW.vlr_location); RETURN NULL; END $$; \
         CREATE TRIGGER check_vlr AFTER UPDATE ON subscriber FOR EACH ROW \
           EXECUTE FUNCTION check_vlr()",
    )
    .await;
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    let mut w = writer(Arc::clone(&backend) as _, schema, options("g2")).await;
    for id in 1..=200 {
        let vlr = if id == 77 { 666 } else { 1_000 + id };
        w.commit(&hlr::key(id), vec![hlr::locate(id, &hlr::number_of(id), vlr)]);
    }
    // acknowledged on top of what will be refused
    let mut later = hlr::subscriber(77, &hlr::number_of(77), 666);
    later[2] = cachetier_model::Value::Int(0);
    let later = hlr::update(SUBSCRIBER, later, &[2]);
    w.commit(&hlr::key(77), vec![later.clone()]);
    let rejected = w.event(|e| matches!(e, FlushEvent::Rejected { cause: Some(_), .. })).await;
    let FlushEvent::Rejected { key, cause: Some(cause), .. } = rejected else { panic!() };
    assert_eq!(key, hlr::key(77));
    assert_eq!((cause.sqlstate.as_str(), cause.reason), ("P0001", Reason::TriggerRefused));
    w.ignore_events();
    w.all_flushed().await;
    assert_eq!(db.number("SELECT count(*) FROM subscriber WHERE vlr_location >= 1000").await, 199);
    assert_eq!(db.number("SELECT count(*) FROM seen").await, 199, "no row was applied twice");
    let listed = backend.list_rejects("g2", 10).await.unwrap();
    assert_eq!((listed.len(), listed[0].following, listed[0].sqlstate.as_str()), (1, 1, "P0001"));
    assert!(!listed[0].message.contains("77"), "no subscriber data in our own words");
    assert!(listed[0].detail.contains("77"));
    let tail = backend.reject_tail(listed[0].id).await.unwrap();
    assert_eq!(tail.len(), 2);
    assert_eq!(tail[1].changes, vec![later]);

    // a replay goes in order and is refused as a whole while its cause is there
    let fence = w.through.fence(hlr::key(77).slot()).unwrap();
    let refused = backend.replay_reject(listed[0].id, &fence).await.unwrap_err();
    assert_eq!(refused.reason, Reason::TriggerRefused);
    db.run("DROP TRIGGER check_vlr ON subscriber").await;
    assert_eq!(backend.replay_reject(listed[0].id, &fence).await.unwrap(), 2);
    let replayed = "SELECT vlr_location FROM subscriber WHERE s_id = 77 AND bit_1 = 0";
    assert_eq!(db.number(replayed).await, 666);
    assert!(backend.list_rejects("g2", 10).await.unwrap().is_empty());
    w.through.release_quarantine(&hlr::key(77));
    w.commit(&hlr::key(77), vec![hlr::locate(77, &hlr::number_of(77), 1)]);
    w.all_flushed().await;
    assert_eq!(db.number("SELECT vlr_location FROM subscriber WHERE s_id = 77").await, 1);
}

/// Counted, not timed: what one refusal in a thousand costs is backend transactions, each a commit.
#[tokio::test(flavor = "multi_thread")]
async fn d13_one_refusal_in_a_thousand_leaves_more_than_a_third_of_the_clean_rate() {
    const TRANSACTIONS: i64 = 4_000;
    let db = server::shared().database().await;
    hlr::create(&db).await;
    hlr::populate(&db, TRANSACTIONS).await;
    db.run(
        "CREATE FUNCTION check_vlr() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
           IF NEW.vlr_location = 666 THEN RAISE EXCEPTION 'refused' USING ERRCODE = '23514'; \
           END IF; RETURN NULL; END $$; \
         CREATE TRIGGER check_vlr AFTER UPDATE ON subscriber FOR EACH ROW \
           EXECUTE FUNCTION check_vlr()",
    )
    .await;
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    let one_lane = WriteThroughOptions { lanes: 1, batch_rows_max: 100, ..options("g21") };
    let mut w = writer(Arc::clone(&backend) as _, schema, one_lane).await;
    w.ignore_events();
    let mut batches = Vec::new();
    for refused_every in [0, 1_000] {
        let before = w.through.counters().batches;
        w.through.set_paused(true);
        for id in 1..=TRANSACTIONS {
            let refused = refused_every > 0 && id % refused_every == refused_every / 2;
            let vlr = if refused { 666 } else { 1_000 * (1 + refused_every) + id };
            w.commit(&hlr::key(id), vec![hlr::locate(id, &hlr::number_of(id), vlr)]);
        }
        w.through.set_paused(false);
        w.all_flushed().await;
        batches.push(w.through.counters().batches - before);
    }
    let [clean, with_refusals] = batches[..] else { panic!("{batches:?}") };
    assert!(clean >= 40, "{batches:?}");
    // each part that is refused is halved: as many attempts fail as there are commits more than
    // clean ones, at most
    let attempts = with_refusals + (with_refusals - clean);
    assert!(attempts < 3 * clean, "{batches:?}");
    let arrived = "SELECT count(*) FROM subscriber WHERE vlr_location > 1000000";
    assert_eq!(db.number(arrived).await, TRANSACTIONS - 4);
    let listed = backend.list_rejects("g21", 10).await.unwrap();
    assert_eq!(listed.len(), 4);
    assert!(listed.iter().all(|r| r.sqlstate == "23514" && r.following == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn r12_an_update_of_a_row_deleted_by_others_is_a_reject_and_not_a_silent_success() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 20).await;
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    let mut w = writer(Arc::clone(&backend) as _, schema, options("g3")).await;
    w.ignore_events();
    db.run(
        "DELETE FROM call_forwarding; DELETE FROM special_facility WHERE s_id = 5; \
            DELETE FROM subscriber WHERE s_id = 5",
    )
    .await;
    for id in 1..=20 {
        w.commit(&hlr::key(id), vec![hlr::locate(id, &hlr::number_of(id), 9)]);
    }
    w.all_flushed().await;
    assert_eq!(db.number("SELECT count(*) FROM subscriber WHERE vlr_location = 9").await, 19);
    let listed = backend.list_rejects("g3", 10).await.unwrap();
    assert_eq!((listed.len(), listed[0].key.clone()), (1, hlr::key(5)));
}

#[tokio::test(flavor = "multi_thread")]
async fn d13_a_reject_from_a_journal_that_is_gone_does_not_stop_the_lanes_of_the_next() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 2).await;
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    let mut w = writer(Arc::clone(&backend) as _, schema, options("g20")).await;
    w.ignore_events();
    // left by an earlier volume of this node, under the number that comes next
    db.run(
        "INSERT INTO cachetier.reject (group_uid, node, sequence, root_key, slot, head, sqlstate, \
         table_name, constraint_name, message, detail, changes) \
         SELECT group_uid, node, 1, '', 0, true, '', '', '', '', '', '' \
         FROM cachetier.writer WHERE lane = 0",
    )
    .await;
    // the backend does not have it
    w.commit(&hlr::key(3), vec![hlr::locate(3, &hlr::number_of(3), 5)]);
    w.commit(&hlr::key(2), vec![hlr::locate(2, &hlr::number_of(2), 5)]);
    w.all_flushed().await;
    assert_eq!(db.number("SELECT count(*) FROM cachetier.reject WHERE sequence = 1").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn r16_an_awaited_transaction_is_answered_by_the_backend_and_leaves_no_reject() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 3).await;
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    let mut slow = options("g4");
    slow.delay_max = PATIENCE;
    let mut w = writer(Arc::clone(&backend) as _, schema, slow).await;
    let taken = hlr::subscriber(9, &hlr::number_of(2), 0);
    let refused = w.commit_as(&hlr::key(9), vec![hlr::insert(SUBSCRIBER, taken)], true);
    let event = w.event(|e| matches!(e, FlushEvent::Refused { .. })).await;
    let FlushEvent::Refused { sequence, cause, .. } = event else { panic!() };
    assert_eq!((sequence, cause.sqlstate.as_str()), (refused, "23505"));
    let fine = hlr::subscriber(9, &hlr::number_of(9), 0);
    let wanted = w.commit_as(&hlr::key(9), vec![hlr::insert(SUBSCRIBER, fine)], true);
    w.event(|e| {
        matches!(e, FlushEvent::Flushed { accepted, .. }
            if accepted.iter().any(|(_, s)| *s == wanted))
    })
    .await;
    assert!(backend.list_rejects("g4", 10).await.unwrap().is_empty());
    assert_eq!(db.number("SELECT count(*) FROM subscriber").await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn d32_lookup_keys_swapped_between_two_subscribers_in_one_batch_arrive() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 4).await;
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    let mut one_lane = options("g5");
    one_lane.lanes = 1;
    let mut w = writer(Arc::clone(&backend) as _, schema, one_lane).await;
    w.ignore_events();
    w.through.set_paused(true);
    let renumber = |id, number: &str| hlr::update(SUBSCRIBER, hlr::subscriber(id, number, 0), &[1]);
    let (one, two) = (hlr::number_of(1), hlr::number_of(2));
    w.commit(&hlr::key(1), vec![renumber(1, "free")]);
    w.commit(&hlr::key(2), vec![renumber(2, &one)]);
    w.commit(&hlr::key(1), vec![renumber(1, &two)]);
    w.through.set_paused(false);
    w.all_flushed().await;
    let numbers = db.texts("SELECT sub_nbr FROM subscriber WHERE s_id IN (1, 2) ORDER BY s_id");
    assert_eq!(numbers.await, vec![two, one]);
    assert!(backend.list_rejects("g5", 10).await.unwrap().is_empty());
    assert_eq!(w.through.counters().batches, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn d15_a_second_claim_fences_the_first_for_good() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 10).await;
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    let mut old = writer(Arc::clone(&backend) as _, Arc::clone(&schema), options("g6")).await;
    old.commit(&hlr::key(1), vec![hlr::locate(1, &hlr::number_of(1), 1)]);
    old.all_flushed().await;
    // the journal was copied while it held the first claim
    let mut request = crate::support::claim_request("g6", "hlr-0", &["subscriber"]);
    request.held_token = Some(old.token);
    request.attempt = "second".to_owned();
    let claim = backend.claim(request.clone()).await.unwrap();
    let mut new =
        crate::support::start(Arc::clone(&backend) as _, schema, options("g6"), claim, 100);
    new.commit(&hlr::key(1), vec![hlr::locate(1, &hlr::number_of(1), 2)]);
    new.all_flushed().await;
    for _ in 0..2 {
        old.commit(&hlr::key(1), vec![hlr::locate(1, &hlr::number_of(1), 3)]);
    }
    old.event(|e| matches!(e, FlushEvent::Fenced { reason: Reason::Fenced, .. })).await;
    assert_eq!(db.number("SELECT vlr_location FROM subscriber WHERE s_id = 1").await, 2);
    // and the copy cannot be started again
    request.attempt = "third".to_owned();
    let refused = backend.claim(request).await.unwrap_err();
    assert_eq!(refused.reason, Reason::StaleJournal, "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn r9_a_taker_learns_the_position_and_the_loser_drops_only_what_it_lost() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 60).await;
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    let mut w = writer(Arc::clone(&backend) as _, schema, options("g7")).await;
    w.commit(&hlr::key(1), vec![hlr::locate(1, &hlr::number_of(1), 1)]);
    w.all_flushed().await;
    let other =
        backend.claim(crate::support::claim_request("g7", "hlr-1", &["subscriber"])).await.unwrap();
    let lost: cachetier_model::SlotSet = (31..=60).map(|id| hlr::key(id).slot()).collect();
    let mut request = TakeoverRequest {
        group_uid: "g7".to_owned(),
        node: "hlr-1".to_owned(),
        token: other.token,
        epoch: 2,
        slots: lost.clone(),
        holding: cachetier_model::SlotSet::empty(),
        released: Vec::new(),
    };
    let refused = backend.take_slots(request.clone()).await.unwrap();
    assert!(refused.owned.is_empty(), "nobody gets slots that their owner has not let go");
    assert_eq!((refused.held.len(), refused.held[0].slots.len()), (1, lost.len()));
    w.through.set_paused(true);
    for id in 1..=60 {
        w.commit(&hlr::key(id), vec![hlr::locate(id, &hlr::number_of(id), 5)]);
    }
    request.released =
        vec![Release { node: "hlr-0".to_owned(), slots: lost.clone(), ..Release::default() }];
    let taken = backend.take_slots(request.clone()).await.unwrap();
    assert_eq!(taken.owned, lost);
    w.through.set_paused(false);
    w.event(|e| matches!(e, FlushEvent::Dropped { .. })).await;
    w.ignore_events();
    w.all_flushed().await;
    let kept = (1..=60).filter(|id| !lost.contains(hlr::key(*id).slot())).count() as i64;
    assert_eq!(db.number("SELECT count(*) FROM subscriber WHERE vlr_location = 5").await, kept);
    assert!(w.through.counters().dropped_transactions as i64 == 60 - kept);
    // an older topology takes nothing
    request.epoch = 1;
    assert_eq!(backend.take_slots(request).await.unwrap_err().reason, Reason::StaleTopology);
}

#[tokio::test(flavor = "multi_thread")]
async fn d03_d14_a_connection_killed_at_any_moment_applies_nothing_twice() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 40).await;
    db.run(
        "CREATE TABLE applied (s_id bigint, vlr bigint); \
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
           INSERT INTO applied VALUES (NEW.s_id, NEW.vlr_location); RETURN NULL; END $$; \
         CREATE TRIGGER note AFTER UPDATE ON subscriber FOR EACH ROW EXECUTE FUNCTION note()",
    )
    .await;
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    let mut eager = options("g8");
    eager.delay_max = std::time::Duration::ZERO;
    eager.batch_rows_max = 3;
    let mut w = writer(backend, schema, eager).await;
    w.ignore_events();
    let kill = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{}' \
         AND application_name = 'cachetier'",
        db.name
    );
    for round in 1..=40 {
        for id in 1..=40 {
            w.commit(&hlr::key(id), vec![hlr::locate(id, &hlr::number_of(id), round)]);
        }
        db.number(&kill).await;
    }
    w.all_flushed().await;
    assert_eq!(db.number("SELECT count(*) FROM subscriber WHERE vlr_location = 40").await, 40);
    let twice =
        "SELECT count(*) FROM (SELECT FROM applied GROUP BY s_id, vlr HAVING count(*) > 1) d";
    assert_eq!(db.number(twice).await, 0);
    assert_eq!(w.through.backlog().bytes, 0, "a retried batch is the same batch");
    assert!(w.through.counters().retries > 0, "the test must have broken something");
}

#[tokio::test(flavor = "multi_thread")]
async fn r14_a_second_group_is_refused_by_name() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    let (backend, _) = backend(&db, &hlr::tables()).await;
    backend.claim(crate::support::claim_request("one", "n", &["subscriber"])).await.unwrap();
    let refused = backend.claim(crate::support::claim_request("two", "n", &["subscriber"])).await;
    let error = refused.unwrap_err();
    assert_eq!(error.reason, Reason::TablesClaimed);
    assert!(error.message.contains("telecom/one"), "{error}");
    backend.forget_group("one").await.unwrap();
    backend.claim(crate::support::claim_request("two", "n", &["subscriber"])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn o63_a_changed_password_stops_the_lanes_visibly_and_fixing_the_secret_heals() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 1).await;
    db.run("CREATE ROLE rotating LOGIN SUPERUSER PASSWORD 'one'").await;
    let file = |name: &str, text: &str| {
        std::fs::write(db.credentials.path().join(name), text).unwrap();
    };
    file("username", "rotating");
    file("password", "one");
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    let mut w = writer(backend, schema, options("g9")).await;
    w.ignore_events();
    w.commit(&hlr::key(1), vec![hlr::locate(1, &hlr::number_of(1), 1)]);
    w.all_flushed().await;
    db.run(
        "ALTER ROLE rotating PASSWORD 'two'; SELECT pg_terminate_backend(pid) \
            FROM pg_stat_activity WHERE usename = 'rotating'",
    )
    .await;
    w.commit(&hlr::key(1), vec![hlr::locate(1, &hlr::number_of(1), 2)]);
    let mut health = w.through.health();
    let down = |h: &BackendHealth| {
        matches!(h, BackendHealth::Down { reason: Reason::AuthenticationFailed, .. })
    };
    tokio::time::timeout(PATIENCE, health.wait_for(down)).await.unwrap().unwrap();
    file("password", "two\n");
    w.all_flushed().await;
    assert_eq!(*health.borrow(), BackendHealth::Up);
    assert_eq!(db.number("SELECT vlr_location FROM subscriber").await, 2);
}
