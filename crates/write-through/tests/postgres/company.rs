//! Lanes that travel in one transaction, and reads that ask for what was confirmed.

use crate::support::hlr::{self, SUBSCRIBER};
use crate::support::{Writer, backend, server, writer};
use cachetier_model::Value;
use cachetier_write_through::{AsOf, Backend, Reason, ScanRequest, WriteThroughOptions, lane_of};
use std::sync::Arc;
use std::time::Duration;

const LANES: u16 = 4;

fn options(uid: &str) -> WriteThroughOptions {
    WriteThroughOptions {
        lanes: LANES,
        delay_max: Duration::from_millis(100),
        ..WriteThroughOptions::new(uid, "hlr-0")
    }
}

/// One subscriber of each lane.
fn ids() -> Vec<i64> {
    let of_lane = |lane: &u16| (1..).find(|id| lane_of(hlr::key(*id).slot(), LANES) == *lane);
    (0..LANES).filter_map(|lane| of_lane(&lane)).collect()
}

async fn locate_all(w: &mut Writer, vlr: i64) {
    for id in ids() {
        w.commit(&hlr::key(id), vec![hlr::locate(id, &hlr::number_of(id), vlr)]);
    }
    w.all_flushed().await;
}

/// A node that wrote every subscriber once: the first batch of a lane opens its session.
async fn started(uid: &str) -> (server::Database, Arc<dyn Backend>, Writer) {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    let backend: Arc<dyn Backend> = backend;
    let mut w = writer(Arc::clone(&backend), schema, options(uid)).await;
    w.ignore_events();
    for id in ids() {
        let row = hlr::subscriber(id, &hlr::number_of(id), 0);
        w.commit(&hlr::key(id), vec![hlr::insert(SUBSCRIBER, row)]);
    }
    w.all_flushed().await;
    (db, backend, w)
}

#[tokio::test(flavor = "multi_thread")]
async fn small_batches_of_all_lanes_are_one_backend_transaction() {
    let (db, _backend, mut w) = started("company").await;
    // more than once, as a lane may miss a call on a busy machine
    for vlr in 1..=20 {
        locate_all(&mut w, vlr).await;
        let located = format!("SELECT count(*) FROM subscriber WHERE vlr_location = {vlr}");
        assert_eq!(db.number(&located).await, i64::from(LANES));
        let writers = "SELECT count(DISTINCT xmin::text) FROM cachetier.writer";
        if db.number(writers).await == 1 {
            return;
        }
    }
    panic!("the lanes never travelled together");
}

#[tokio::test(flavor = "multi_thread")]
async fn r09_where_one_lanes_fence_is_missed_nothing_of_the_company_moves_and_all_arrive_alone() {
    let (db, _backend, mut w) = started("company-fence").await;
    for vlr in 1..=5 {
        db.run("UPDATE cachetier.writer SET version = version + 1 WHERE lane = 2").await;
        locate_all(&mut w, vlr).await;
        let located = format!("SELECT count(*) FROM subscriber WHERE vlr_location = {vlr}");
        assert_eq!(db.number(&located).await, i64::from(LANES));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r11_a_snapshot_without_the_confirmed_positions_is_refused() {
    let (db, backend, w) = started("company-read").await;
    let as_of = w.through.as_of().unwrap();
    assert_eq!(as_of.positions.len(), usize::from(LANES));
    let keys = [hlr::key(ids()[0])];
    let number = [Value::Text(hlr::number_of(ids()[0]).into())];
    let reads = async |as_of: Option<&AsOf>| {
        let read = backend.read_instances(&keys, as_of).await.map(|found| found[0].is_some());
        let lookup = backend.resolve_lookup(0, &number, as_of).await.map(|found| found.is_some());
        let as_of = as_of.cloned().into_iter().collect();
        let scan = backend.open_scan(ScanRequest { page: 5, as_of, ..ScanRequest::default() });
        [read, lookup, scan.await.map(|_| true)].map(|answer| answer.map_err(|e| e.reason))
    };
    let (found, refused) = ([Ok(true); 3], [Err(Reason::BackendNotReady); 3]);
    assert_eq!(reads(Some(&as_of)).await, found);
    // as a standby that was promoted would show them
    db.run("UPDATE cachetier.writer SET position = position - 1 WHERE lane = 3").await;
    assert_eq!(reads(Some(&as_of)).await, refused);
    db.run("UPDATE cachetier.writer SET position = position + 1, version = version - 1").await;
    assert_eq!(reads(Some(&as_of)).await, refused, "a takeover is missing");
    db.run("UPDATE cachetier.writer SET position = position + 1, version = version + 1").await;
    assert_eq!(reads(Some(&as_of)).await, found);
    db.run("DELETE FROM cachetier.writer WHERE lane = 3").await;
    assert_eq!(reads(Some(&as_of)).await, refused);
    assert_eq!(reads(None).await, found);
}

#[tokio::test(flavor = "multi_thread")]
async fn r25_a_read_past_the_store_tells_whose_slot_it_is_and_how_far_its_owner_came() {
    let (db, backend, w) = started("company-past").await;
    let key = hlr::key(ids()[2]);
    let past = backend.read_past(&key, "company-past").await.unwrap();
    assert!(past.instance.is_some());
    assert_eq!(past.writers.len(), 1, "of each node the row of the slot's lane");
    assert!(!past.set_aside);
    let owner = past.owner().unwrap().clone();
    let lane = usize::from(lane_of(key.slot(), LANES));
    assert_eq!(owner.position, w.through.marks().lanes[lane].position);
    assert_eq!(past.holds(&owner.journal, owner.position), Some(true));
    assert_eq!(past.holds(&owner.journal, owner.position + 1), Some(false));
    db.run("UPDATE cachetier.writer SET slots = decode(repeat('00', 512), 'hex')").await;
    let past = backend.read_past(&key, "company-past").await.unwrap();
    assert!(past.owner().is_none());
    assert_eq!(past.holds(&owner.journal, owner.position), Some(true), "flushed before it let go");
    assert_eq!(past.holds(&owner.journal, owner.position + 1), Some(false), "and lost since");
    let nobody = backend.read_past(&hlr::key(-1), "another group").await.unwrap();
    assert!(nobody.instance.is_none() && nobody.writers.is_empty());
}
