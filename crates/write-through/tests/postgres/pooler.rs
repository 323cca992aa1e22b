//! Behind a pooler that hands out sessions by transaction.

use crate::support::hlr;
use crate::support::pooler::Pooler;
use crate::support::server::{self, Server};
use crate::support::{PATIENCE, Writer, backend, writer};
use cachetier_model::Value;
use cachetier_model::node_config::BackendCommit;
use cachetier_write_through::{
    Backend, FlushEvent, LoadSpec, Reason, ScanRequest, WriteThroughOptions,
};
use std::sync::Arc;
use std::time::Duration;

fn options(uid: &str, commit: BackendCommit) -> WriteThroughOptions {
    WriteThroughOptions {
        lanes: 2,
        delay_max: Duration::from_millis(5),
        backend_commit: commit,
        ..WriteThroughOptions::new(uid, "hlr-0")
    }
}

fn locate_all(w: &mut Writer, count: i64, vlr: i64) {
    for id in 1..=count {
        w.commit(&hlr::key(id), vec![hlr::locate(id, &hlr::number_of(id), vlr)]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_act_works_behind_a_pooler_that_hands_out_sessions_by_transaction() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 50).await;
    db.run("ALTER TABLE subscriber ADD CONSTRAINT low CHECK (vlr_location < 666)").await;
    let pooler = Pooler::start(server::shared().port).await;
    db.move_to(pooler.port);
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    assert_eq!(backend.identify().await.unwrap().database, db.name);
    let mut w = writer(
        Arc::clone(&backend) as _,
        Arc::clone(&schema),
        options("pooled", BackendCommit::Async),
    )
    .await;
    locate_all(&mut w, 50, 1);
    w.commit(&hlr::key(7), vec![hlr::locate(7, &hlr::number_of(7), 666)]);
    let cause = w.event(|e| matches!(e, FlushEvent::Rejected { cause: Some(_), .. })).await;
    let FlushEvent::Rejected { cause: Some(cause), .. } = cause else { unreachable!() };
    assert_eq!((cause.reason, cause.sqlstate.as_str()), (Reason::ConstraintViolated, "23514"));
    w.ignore_events();
    // four readers more than there are sessions, while the lanes write
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let backend = Arc::clone(&backend);
            tokio::spawn(async move {
                for id in 1..=50 {
                    let found = backend.read_instances(&[hlr::key(id)], None).await.unwrap();
                    assert_eq!(found[0].as_ref().unwrap().row_count(), 4);
                    let number = [Value::Text(hlr::number_of(id).into())];
                    let known = backend.resolve_lookup(0, &number, None).await.unwrap();
                    assert_eq!(known, Some(hlr::key(id)));
                }
            })
        })
        .collect();
    for round in 2..=10 {
        locate_all(&mut w, 50, round);
    }
    for reader in readers {
        reader.await.unwrap();
    }
    w.all_flushed().await;
    assert_eq!(db.number("SELECT count(*) FROM subscriber WHERE vlr_location = 10").await, 49);
    // loads: chunks, the ledger, snapshot scans
    let chunks = backend.plan_chunks(3, "").await.unwrap();
    let spec = LoadSpec {
        group_uid: "pooled".to_owned(),
        load_id: "l".to_owned(),
        filter: String::new(),
        chunks,
    };
    assert_eq!(backend.create_load(spec).await.unwrap().chunks_total, 3);
    let lease = Duration::from_secs(60);
    let mut instances = 0;
    while let Some(chunk) = backend.take_chunk("pooled", "l", "w", lease).await.unwrap() {
        let request = ScanRequest { range: chunk.range.clone(), page: 7, ..ScanRequest::default() };
        let mut scan = backend.open_scan(request).await.unwrap();
        while let Some(page) = scan.next().await.unwrap() {
            instances += page.len();
        }
        assert!(backend.finish_chunk(&chunk, 1).await.unwrap());
    }
    assert_eq!(instances, 50);
    // rejects
    db.run("ALTER TABLE subscriber DROP CONSTRAINT low").await;
    let open = backend.list_rejects("pooled", 10).await.unwrap();
    let fence = w.through.fence(hlr::key(7).slot()).unwrap();
    assert_eq!(backend.replay_reject(open[0].id, &fence).await.unwrap(), 10);
    assert_eq!(db.number("SELECT count(*) FROM subscriber WHERE vlr_location = 10").await, 50);
    // nothing of ours stays on the sessions that others get next
    for _ in 0..4 {
        let client = pooler.client(&db.name).await;
        let text = "SELECT count(*)::text FROM pg_prepared_statements";
        let left = client.simple_query(text).await.unwrap();
        let count = left.iter().find_map(|m| match m {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        assert_eq!(count.as_deref(), Some("0"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r11_commits_lost_behind_a_pooler_whose_sessions_stay_whole_are_never_called_confirmed() {
    let server = Server::start(&[]);
    let db = server.database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 20).await;
    db.run("CHECKPOINT").await;
    let pooler = Pooler::start(server.port).await;
    db.move_to(pooler.port);
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    // none after the first waits for the log
    let patient = WriteThroughOptions {
        log_wait_interval: Duration::from_secs(3_600),
        ..options("pooled", BackendCommit::Async)
    };
    let mut w = writer(backend, schema, patient).await;
    let mut rewinds = w.watch_rewinds();
    locate_all(&mut w, 20, 1);
    w.all_flushed().await;
    server.freeze_wal_writer();
    locate_all(&mut w, 20, 2);
    let upto = w.next - 1;
    let mut marks = w.through.watch();
    let flushed = marks.wait_for(|m| m.flushed >= upto);
    tokio::time::timeout(PATIENCE, flushed).await.unwrap().unwrap();
    let confirmed_before = w.through.marks().confirmed;
    assert!(confirmed_before < upto);
    pooler.pause().await;
    server.crash();
    server.restart(&[]);
    // others write: the new log is soon longer than the lost one was
    let others = server.connect(&db.name).await;
    others
        .batch_execute(
            "CREATE TABLE others AS SELECT n, repeat('x', 500) t FROM generate_series(1, 5000) n",
        )
        .await
        .unwrap();
    pooler.resume().await;
    let first = tokio::select! {
        lost = rewinds.wait_for(|all| !all.is_empty()) => lost.map(|_| "lost"),
        said = marks.wait_for(|m| m.confirmed > confirmed_before) => said.map(|_| "confirmed"),
    };
    assert_eq!(first.unwrap(), "lost");
    w.all_flushed().await;
    let text = "SELECT count(*) FROM subscriber WHERE vlr_location = 2";
    assert_eq!(others.query_one(text, &[]).await.unwrap().get::<_, i64>(0), 20);
    server.crash();
}
