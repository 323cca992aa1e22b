//! Read-through, snapshot scans, the load ledger, and every type at its edges.

use crate::support::hlr::{self, FORWARDING};
use crate::support::server;
use crate::support::{backend, rows_of, table, writer};
use cachetier_model::{Instance, RootKey, RowChange, Value};
use cachetier_write_through::{
    Backend, KeyRange, LoadSpec, PostgresBackend, PostgresOptions, Reason, ScanRequest,
    WriteThroughOptions,
};
use std::sync::Arc;
use std::time::Duration;

async fn scan_all(backend: &dyn Backend, request: ScanRequest) -> Vec<(RootKey, Instance)> {
    let mut scan = backend.open_scan(request).await.unwrap();
    let mut all = Vec::new();
    while let Some(page) = scan.next().await.unwrap() {
        all.extend(page);
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn d21_r18_instances_come_whole_from_one_snapshot_and_absent_is_said() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 5).await;
    let (backend, _) = backend(&db, &hlr::tables()).await;
    let keys = [hlr::key(4), hlr::key(99), hlr::key(1)];
    let found = backend.read_instances(&keys, None).await.unwrap();
    let first = found[0].as_ref().unwrap();
    assert_eq!(rows_of(first, 0), vec![hlr::subscriber(4, &hlr::number_of(4), 0)]);
    assert_eq!(rows_of(first, 1), vec![hlr::facility(4, 1, "AAAAA"), hlr::facility(4, 2, "AAAAA")]);
    assert_eq!(rows_of(first, FORWARDING), vec![hlr::forwarding(4, 1, 8, "5")]);
    assert!(found[1].is_none() && found[2].is_some());
    let number = |n: &str| vec![Value::Text(n.into())];
    let known = backend.resolve_lookup(0, &number(&hlr::number_of(3)), None).await.unwrap();
    assert_eq!(known, Some(hlr::key(3)));
    assert_eq!(backend.resolve_lookup(0, &number("nobody"), None).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_cover_every_key_once_and_a_filter_selects_whole_instances() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 1_000).await;
    let (backend, _) = backend(&db, &hlr::tables()).await;
    let chunks = backend.plan_chunks(7, "").await.unwrap();
    assert_eq!(chunks.len(), 7);
    let mut seen = Vec::new();
    for range in chunks {
        let request = ScanRequest { range, page: 33, ..ScanRequest::default() };
        let instances = scan_all(&*backend, request).await;
        assert!((100..=200).contains(&instances.len()), "{}", instances.len());
        assert!(instances.iter().all(|(_, i)| rows_of(i, 1).len() == 2));
        seen.extend(instances.into_iter().map(|(key, _)| key));
    }
    let expected: Vec<RootKey> = (1..=1_000).map(hlr::key).collect();
    assert_eq!(seen, expected, "each once, in key order");
    let filter = "s_id % 10 = 0 AND sub_nbr > ''".to_owned();
    let request = ScanRequest { filter: filter.clone(), page: 64, ..ScanRequest::default() };
    let some = scan_all(&*backend, request).await;
    assert_eq!(some.len(), 100);
    assert!(some.iter().all(|(_, i)| i.row_count() == 4));
    assert_eq!(backend.plan_chunks(4, &filter).await.unwrap().len(), 4);
    assert_eq!(backend.expected_rows().await.unwrap(), vec![1_000, 2_000, 1_000]);
    let empty = ScanRequest { filter: "s_id < 0".to_owned(), page: 10, ..ScanRequest::default() };
    assert!(scan_all(&*backend, empty).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn r18_a_scan_sees_the_database_as_it_was_when_it_was_opened() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 20).await;
    let (backend, _) = backend(&db, &hlr::tables()).await;
    let request = ScanRequest { page: 5, ..ScanRequest::default() };
    let mut scan = backend.open_scan(request).await.unwrap();
    db.run("DELETE FROM call_forwarding; UPDATE subscriber SET vlr_location = 1").await;
    let mut count = 0;
    while let Some(page) = scan.next().await.unwrap() {
        for (key, instance) in page {
            count += 1;
            assert_eq!(rows_of(&instance, FORWARDING).len(), 1, "{key:?}");
            assert_eq!(rows_of(&instance, 0)[0][3], Value::Int(0));
        }
    }
    assert_eq!(count, 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_costs_one_chunk_and_no_chunk_is_done_twice() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    let (backend, _) = backend(&db, &hlr::tables()).await;
    let spec = LoadSpec {
        group_uid: "g".to_owned(),
        load_id: "l1".to_owned(),
        filter: String::new(),
        chunks: vec![
            KeyRange { from: None, to: Some(hlr::key(5)) },
            KeyRange { from: Some(hlr::key(5)), to: None },
        ],
    };
    let info = backend.create_load(spec.clone()).await.unwrap();
    assert_eq!((info.chunks_total, info.chunks_done), (2, 0));
    let other = LoadSpec { chunks: vec![KeyRange::default()], ..spec };
    assert_eq!(backend.create_load(other).await.unwrap().chunks_total, 2, "the first plan counts");
    let lease = Duration::from_secs(600);
    let take =
        async |worker: &str, lease| backend.take_chunk("g", "l1", worker, lease).await.unwrap();
    let dead = take("dead", Duration::ZERO).await.unwrap();
    assert_eq!(dead.range.to, Some(hlr::key(5)));
    let again = take("alive", lease).await.unwrap();
    assert_eq!((again.number, again.attempt), (dead.number, 2), "its lease ran out");
    assert!(!backend.renew_chunk(&dead, lease).await.unwrap());
    assert!(
        !backend.finish_chunk(&dead, 7).await.unwrap(),
        "the dead worker's word counts no more"
    );
    let second = take("alive", lease).await.unwrap();
    assert!(take("idle", lease).await.is_none());
    backend.give_back_chunk(&second).await.unwrap();
    let second = take("idle", lease).await.unwrap();
    assert!(backend.renew_chunk(&second, lease).await.unwrap());
    assert!(backend.finish_chunk(&again, 4).await.unwrap());
    assert!(backend.finish_chunk(&second, 6).await.unwrap());
    let info = backend.load_info("g", "l1").await.unwrap().unwrap();
    assert_eq!((info.chunks_done, info.instances), (2, 10));
    assert_eq!(backend.load_info("g", "other").await.unwrap(), None);
}

const TYPES: &str = "
CREATE TYPE mood AS ENUM ('sad', 'it''s \"ok\"', 'happy');
CREATE TABLE everything (
  id text PRIMARY KEY, b boolean, i2 smallint, i4 integer, i8 bigint, f4 real, f8 double precision,
  n numeric, n2 numeric(10,2), c char(6), v varchar(15), t text, y bytea, d date, ti time,
  ts timestamp, tz timestamptz, u uuid, j json, jb jsonb, m mood,
  iv interval, ip inet, ai integer[], at text[], az timestamptz[]);
";

#[tokio::test(flavor = "multi_thread")]
async fn d30_every_type_round_trips_at_its_edges_through_scan_read_and_write() {
    let db = server::shared().database().await;
    db.run(TYPES).await;
    let long = "9".repeat(1_000);
    db.run(&format!(
        "INSERT INTO everything VALUES \
         ('', false, -32768, -2147483648, -9223372036854775808, '-Infinity', 'NaN', {long}.00{long}, \
          0.00, '', '', '', '', '-infinity', '00:00', '-infinity', 'infinity', \
          '00000000-0000-0000-0000-000000000000', '{{}}', '{{}}', 'sad', \
          '-178000000 years', '::', '{{}}', '{{}}', '{{}}'), \
         ('a\\b''c', true, 32767, 2147483647, 9223372036854775807, '1e-45', '5e-324', 'NaN', \
          -12345678.90, 'ab', '000000000000001', 'äöü 漢字 🦀', '\\x00ff', '0001-01-01', '24:00', \
          '0001-01-01 00:00:00.000001', '4713-01-01 00:00:00+00 BC', \
          'ffffffff-ffff-ffff-ffff-ffffffffffff', '{{\"a\" :  [1, null]}}', '{{\"b\": 1.50, \"a\": 2}}', \
          'it''s \"ok\"', '1 year 2 mons -3 days 04:05:06.789', '10.1.0.0/16', \
          '[0:1][1:2]={{{{1,NULL}},{{-3,4}}}}', '{{\"a b\",\"\",\"NULL\",NULL,\"q\\\"\\\\\",é}}', \
          '{{\"2026-11-30 10:11:12.5+00\",infinity}}'), \
         ('nulls', {})",
        vec!["NULL"; 25].join(", ")
    ))
    .await;
    let (backend, schema) = backend(&db, &[table("everything", None, &[])]).await;
    let request = ScanRequest { page: 2, ..ScanRequest::default() };
    let scanned = scan_all(&*backend, request).await;
    assert_eq!(scanned.len(), 3);
    let keys: Vec<RootKey> = scanned.iter().map(|(key, _)| key.clone()).collect();
    let read = backend.read_instances(&keys, None).await.unwrap();
    let whole = |i: &Option<Instance>| i.clone().unwrap();
    // NaN is not equal to itself: compare what would be printed
    let print = |i: &Instance| format!("{i:?}");
    for ((_, scanned), read) in scanned.iter().zip(&read) {
        assert_eq!(print(scanned), print(&whole(read)));
    }
    // what the cache would print is what the backend prints
    for (_, instance) in &scanned {
        let row = &instance.tables[0][0];
        let Value::Text(id) = &row[0] else { panic!() };
        for (column, value) in schema.tables[0].columns.iter().zip(row) {
            let printed = format!(
                "SELECT CASE WHEN \"{0}\" IS NOT NULL THEN format('%s', \"{0}\") END \
                 FROM everything WHERE id = $1",
                column.name
            );
            let text: Option<String> =
                db.client.query_one(&printed, &[&id.as_ref()]).await.unwrap().get(0);
            let ours = (!value.is_null()).then(|| column.column_type.format(value));
            assert_eq!(ours, text, "column {} of {id:?}", column.name);
        }
    }
    let digest = "SELECT md5(string_agg(e::text, '|' ORDER BY id COLLATE \"C\")) FROM everything e";
    let before = db.texts(digest).await;
    db.run("DELETE FROM everything").await;
    let mut w = writer(backend, Arc::clone(&schema), WriteThroughOptions::new("types", "n")).await;
    w.ignore_events();
    let change = |kind, row: &cachetier_model::Row, changed| RowChange {
        table: 0,
        kind,
        row: row.clone(),
        changed,
    };
    for (key, instance) in &scanned {
        let row = &instance.tables[0][0];
        w.commit(key, vec![change(cachetier_model::ChangeKind::Insert, row, Vec::new())]);
    }
    w.all_flushed().await;
    assert_eq!(db.texts(digest).await, before, "inserts are byte-exact");
    db.run(
        "UPDATE everything SET b = NULL, n = NULL, t = 'x', y = NULL, m = NULL, jb = NULL, \
         iv = NULL, ip = NULL, ai = NULL, az = NULL",
    )
    .await;
    for (key, instance) in &scanned {
        let row = &instance.tables[0][0];
        let all = (1..row.len()).collect();
        w.commit(key, vec![change(cachetier_model::ChangeKind::Update, row, all)]);
    }
    w.all_flushed().await;
    assert_eq!(db.texts(digest).await, before, "updates are byte-exact");
    assert_eq!(w.through.counters().rejected_transactions, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn d31_composite_keys_of_text_uuid_numeric_and_enum_are_scanned_read_and_written() {
    let db = server::shared().database().await;
    db.run(
        "CREATE TYPE kind AS ENUM ('z', 'a'); \
         CREATE TABLE account (tenant text, k kind, n numeric(10,2), c char(4), u uuid, v int, \
           PRIMARY KEY (tenant, k, n, c, u)); \
         CREATE TABLE entry (tenant text, k kind, n numeric(10,2), c char(4), u uuid, at date, \
           PRIMARY KEY (tenant, k, n, c, u, at), \
           FOREIGN KEY (tenant, k, n, c, u) REFERENCES account ON DELETE CASCADE); \
         INSERT INTO account SELECT t, k, n, c, md5(t || k || n || c)::uuid, 0 \
           FROM unnest(ARRAY['', 'B', 'a', 'Ä', E'q''\\\\x']) t, unnest(enum_range(NULL::kind)) k, \
           unnest(ARRAY[-1.5, 0, 2.10]) n, unnest(ARRAY['x', 'y  ']) c; \
         INSERT INTO entry SELECT tenant, k, n, c, u, '2026-01-01' FROM account",
    )
    .await;
    let tables = [table("account", None, &[]), table("entry", Some("account"), &[])];
    let (backend, schema) = backend(&db, &tables).await;
    let mut all = Vec::new();
    for range in backend.plan_chunks(5, "").await.unwrap() {
        let request = ScanRequest { range, page: 7, ..ScanRequest::default() };
        all.extend(scan_all(&*backend, request).await);
    }
    assert_eq!(all.len(), 60);
    let distinct: std::collections::HashSet<_> = all.iter().map(|(key, _)| key).collect();
    assert_eq!(distinct.len(), 60);
    assert!(all.iter().all(|(_, i)| i.tables[1].len() == 1));
    let keys: Vec<RootKey> = all.iter().map(|(key, _)| key.clone()).collect();
    let read = backend.read_instances(&keys, None).await.unwrap();
    assert!(read.iter().zip(&all).all(|(read, (_, scanned))| read.as_ref() == Some(scanned)));
    let mut w = writer(backend, schema, WriteThroughOptions::new("keys", "n")).await;
    w.ignore_events();
    for (key, instance) in &all {
        let mut row = instance.tables[0][0].clone();
        row[5] = Value::Int(1);
        let child = instance.tables[1][0].clone();
        w.commit(key, vec![hlr::update(0, row, &[5]), hlr::delete(1, child)]);
    }
    w.all_flushed().await;
    assert_eq!(db.number("SELECT sum(v) FROM account").await, 60);
    assert_eq!(db.number("SELECT count(*) FROM entry").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn d29_a_column_dropped_under_the_cache_stops_the_lanes_and_is_named() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 2).await;
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    let mut w = writer(Arc::clone(&backend) as _, schema, WriteThroughOptions::new("d", "n")).await;
    w.ignore_events();
    db.run("ALTER TABLE subscriber RENAME vlr_location TO moved").await;
    w.commit(&hlr::key(1), vec![hlr::locate(1, &hlr::number_of(1), 1)]);
    let mut health = w.through.health();
    let named = health.wait_for(|h| {
        matches!(h, cachetier_write_through::BackendHealth::Down { reason, message, .. }
            if *reason == Reason::ColumnMissing && message.contains("vlr_location"))
    });
    tokio::time::timeout(crate::support::PATIENCE, named).await.unwrap().unwrap();
    let error = backend.read_instances(&[hlr::key(1)], None).await.unwrap_err();
    assert_eq!(error.reason, Reason::ColumnMissing);
    assert!(backend.list_rejects("d", 10).await.unwrap().is_empty(), "nobody's row is at fault");
    db.run("ALTER TABLE subscriber RENAME moved TO vlr_location").await;
    w.all_flushed().await;
    assert_eq!(db.number("SELECT vlr_location FROM subscriber WHERE s_id = 1").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_finds_no_free_connection_fails_in_time_instead_of_waiting_for_ever() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 10).await;
    let (_, schema) = backend(&db, &hlr::tables()).await;
    let options = PostgresOptions {
        connections_max: 3,
        statement_timeout: Duration::from_secs(1),
        ..crate::support::backend_options(&db)
    };
    let backend = PostgresBackend::new(options).unwrap();
    backend.use_schema(schema);
    let request = ScanRequest { page: 5, ..ScanRequest::default() };
    let scan = backend.open_scan(request).await.unwrap();
    let key = [hlr::key(1)];
    let read =
        tokio::time::timeout(Duration::from_secs(30), backend.read_instances(&key, None)).await;
    let error = read.expect("it waits for ever").unwrap_err();
    assert_eq!(error.reason, Reason::BackendBusy);
    drop(scan);
    let read = tokio::time::timeout(Duration::from_secs(30), async {
        while backend.read_instances(&key, None).await.is_err() {}
    });
    read.await.expect("the scan's connection is free again");
}
