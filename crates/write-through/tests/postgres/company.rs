//! Lanes that travel in one transaction, and reads that ask for what was confirmed.

use crate::support::hlr::{self, SUBSCRIBER};
use crate::support::{Writer, backend, server, writer};
use cachetier_write_through::{Backend, Reason, WriteThroughOptions, lane_of};
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
    assert!(backend.read_instances(&keys, Some(&as_of)).await.unwrap()[0].is_some());
    // as a standby that was promoted would show them
    db.run("UPDATE cachetier.writer SET position = position - 1 WHERE lane = 3").await;
    let refused = backend.read_instances(&keys, Some(&as_of)).await.unwrap_err();
    assert_eq!(refused.reason, Reason::BackendNotReady);
    db.run("DELETE FROM cachetier.writer WHERE lane = 3").await;
    assert!(backend.read_instances(&keys, Some(&as_of)).await.is_err());
    assert!(backend.read_instances(&keys, None).await.is_ok());
}
