//! What the catalogs say, and what is refused by name.

use crate::support::server::{self, Database};
use crate::support::{backend_options, hlr, table};
use cachetier_model::ColumnType;
use cachetier_model::node_config::TableConfig;
use cachetier_model::schema::ReferentialAction;
use cachetier_write_through::{
    Backend, BackendError, FlushEvent, LoadSpec, PostgresBackend, Reason, ScanRequest,
};
use std::sync::Arc;

async fn discover(
    db: &Database,
    tables: &[TableConfig],
) -> Result<cachetier_model::GroupSchema, BackendError> {
    PostgresBackend::new(backend_options(db)).unwrap().discover(tables).await
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_types_and_parents_are_what_the_catalogs_say() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    db.run(
        "CREATE UNIQUE INDEX part ON call_forwarding (numberx) WHERE start_time = 0; \
            ALTER TABLE subscriber ADD dropped int; ALTER TABLE subscriber DROP dropped; \
            ALTER TABLE subscriber ADD late text DEFAULT 'x' COLLATE \"C\"",
    )
    .await;
    // children may be declared before their parents
    let mut tables = hlr::tables();
    tables.reverse();
    let schema = discover(&db, &tables).await.unwrap();
    let names: Vec<&str> = schema.tables.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["subscriber", "special_facility", "call_forwarding"]);
    let root = &schema.tables[0];
    assert_eq!((root.primary_key.clone(), root.root_key.clone()), (vec![0], vec![0]));
    assert_eq!(root.columns[1].column_type, ColumnType::Varchar { length: Some(15) });
    assert!(root.columns[1].not_null && !root.columns[2].not_null);
    let late = root.columns.last().unwrap();
    assert!(late.name == "late" && late.has_default && late.orders_by_bytes);
    assert_eq!(schema.lookups[0].columns, vec![1]);
    assert_eq!(root.unique_keys[0].constraint, schema.lookups[0].constraint);
    let leaf = &schema.tables[2];
    assert_eq!((leaf.root_key.clone(), leaf.parent), (vec![0], Some(1)));
    let key = leaf.parent_key.as_ref().unwrap();
    assert_eq!((key.columns.clone(), key.parent_columns.clone()), (vec![0, 1], vec![0, 1]));
    assert_eq!(key.on_delete, ReferentialAction::NoAction);
    assert_eq!(leaf.unique_keys[0].columns, vec![2, 3], "a partial index and its predicate");
}

#[tokio::test(flavor = "multi_thread")]
async fn d31_composite_text_and_uuid_keys_are_accepted_and_foreign_keys_outside_are_known() {
    let db = server::shared().database().await;
    db.run(
        "CREATE TABLE country (code char(2) PRIMARY KEY); \
         CREATE DOMAIN tenant AS varchar(20) NOT NULL; \
         CREATE TABLE customer (tenant tenant, id uuid, home char(2) REFERENCES country, \
           PRIMARY KEY (tenant, id)); \
         CREATE TABLE line (n int PRIMARY KEY, id uuid NOT NULL, tenant tenant, \
           FOREIGN KEY (id, tenant) REFERENCES customer (id, tenant) ON DELETE CASCADE)"
            .replace(
                "PRIMARY KEY (tenant, id));",
                "PRIMARY KEY (tenant, id), UNIQUE (id, tenant));",
            )
            .as_str(),
    )
    .await;
    let tables = [table("customer", None, &[]), table("line", Some("customer"), &[])];
    let schema = discover(&db, &tables).await.unwrap();
    assert_eq!(schema.tables[0].columns[0].column_type, ColumnType::Varchar { length: Some(20) });
    assert_eq!(schema.tables[0].external_keys[0].references, "country");
    let line = &schema.tables[1];
    assert_eq!(line.root_key, vec![2, 1], "in the order of the root's key");
    assert_eq!(line.parent_key.as_ref().unwrap().on_delete, ReferentialAction::Cascade);
    assert!(
        line.unique_keys.iter().any(|k| k.columns == vec![0]),
        "a key without the root key is unique beyond its instance"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn d29_d30_what_cannot_be_cached_is_refused_by_table_and_column_with_the_fix() {
    let db = server::shared().database().await;
    db.run(
        "CREATE TABLE ok (id int PRIMARY KEY, v int); \
         CREATE TABLE nokey (id int); \
         CREATE TABLE span (id int PRIMARY KEY, place point); \
         CREATE TABLE made (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED); \
         CREATE TABLE counted (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY); \
         CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false); \
         CREATE TABLE vague (id text COLLATE loose PRIMARY KEY); \
         CREATE VIEW seen AS SELECT * FROM ok; \
         CREATE TABLE orphan (id int PRIMARY KEY); \
         CREATE TABLE bare (id int PRIMARY KEY, v int REFERENCES ok); \
         CREATE TABLE mid (m int PRIMARY KEY, id int NOT NULL REFERENCES ok); \
         CREATE TABLE leaf (l int PRIMARY KEY, m int NOT NULL REFERENCES mid); \
         CREATE TABLE hidden (id int PRIMARY KEY); ALTER TABLE hidden ENABLE ROW LEVEL SECURITY; \
         CREATE TABLE ruled (id int PRIMARY KEY); \
         CREATE RULE r AS ON DELETE TO ruled DO INSTEAD NOTHING",
    )
    .await;
    let alone = |name: &str| vec![table(name, None, &[])];
    let under = |name: &str| vec![table("ok", None, &[]), table(name, Some("ok"), &[])];
    let deep = vec![
        table("ok", None, &[]),
        table("mid", Some("ok"), &[]),
        table("leaf", Some("mid"), &[]),
    ];
    let cases = [
        (alone("nowhere"), Reason::TableMissing, "\"nowhere\" does not exist"),
        (alone("nokey"), Reason::SchemaRefused, "no primary key"),
        (alone("span"), Reason::SchemaRefused, "column place has the unsupported type point"),
        (alone("made"), Reason::SchemaRefused, "column twice is generated"),
        (alone("counted"), Reason::SchemaRefused, "SET GENERATED BY DEFAULT"),
        (alone("vague"), Reason::SchemaRefused, "column id has a nondeterministic collation"),
        (alone("seen"), Reason::SchemaRefused, "it is a view"),
        (alone("ruled"), Reason::SchemaRefused, "rewrite rule"),
        (under("orphan"), Reason::SchemaRefused, "no foreign key to its parent ok"),
        (under("bare"), Reason::SchemaRefused, "ALTER v SET NOT NULL"),
        (deep, Reason::SchemaRefused, "does not carry the root key column id"),
        (
            vec![table("ok", None, &[&["v"]])],
            Reason::SchemaRefused,
            "lookup key (v) has no unique constraint",
        ),
        (vec![table("ok", None, &[&["w"]])], Reason::ColumnMissing, "column w does not exist"),
        (
            vec![table("ok", None, &[]), table("mid", None, &[])],
            Reason::Configuration,
            "both have no `parent`",
        ),
    ];
    for (tables, reason, words) in cases {
        let error = discover(&db, &tables).await.unwrap_err();
        assert_eq!(error.reason, reason, "{error}");
        assert!(error.message.contains(words), "{error}");
    }
    db.run(
        "CREATE ROLE poor LOGIN PASSWORD 'p'; GRANT SELECT ON ok TO poor; \
            GRANT ALL ON hidden TO poor",
    )
    .await;
    for (file, text) in [("username", "poor"), ("password", "p")] {
        std::fs::write(db.credentials.path().join(file), text).unwrap();
    }
    let error = discover(&db, &alone("ok")).await.unwrap_err();
    assert_eq!(error.reason, Reason::PrivilegeMissing);
    assert!(error.message.contains("INSERT, UPDATE, DELETE"), "{error}");
    let error = discover(&db, &alone("hidden")).await.unwrap_err();
    assert!(error.message.contains("row security"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_least_privileges_are_enough_and_a_missing_bookkeeping_says_how_to_make_it() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    db.run("CREATE ROLE least LOGIN PASSWORD 'p'").await;
    for (file, text) in [("username", "least"), ("password", "p")] {
        std::fs::write(db.credentials.path().join(file), text).unwrap();
    }
    let backend = PostgresBackend::new(backend_options(&db)).unwrap();
    let error = backend.prepare_bookkeeping().await.unwrap_err();
    assert_eq!(error.reason, Reason::BookkeepingMissing);
    assert!(error.message.contains("cachectl ddl"), "{error}");
    db.run(cachetier_write_through::postgres::ddl()).await;
    let names = ["subscriber", "special_facility", "call_forwarding"];
    db.run(&cachetier_write_through::postgres::grants("least", "public", &names)).await;
    let (backend, schema) = crate::support::backend(&db, &hlr::tables()).await;
    let options = cachetier_write_through::WriteThroughOptions {
        lanes: 2,
        backend_commit: cachetier_model::node_config::BackendCommit::Async,
        ..cachetier_write_through::WriteThroughOptions::new("least", "n")
    };
    let mut w = crate::support::writer(Arc::clone(&backend) as _, schema, options).await;
    db.run("ALTER TABLE subscriber ADD CONSTRAINT low CHECK (vlr_location < 666)").await;
    for (id, vlr) in [(1, 0), (2, 666)] {
        let row = hlr::subscriber(id, &hlr::number_of(id), vlr);
        w.commit(&hlr::key(id), vec![hlr::insert(hlr::SUBSCRIBER, row)]);
    }
    w.event(|e| matches!(e, FlushEvent::Rejected { .. })).await;
    w.ignore_events();
    w.all_flushed().await;
    assert_eq!(db.number("SELECT count(*) FROM subscriber").await, 1);
    // everything else that a group does there
    let id = backend.list_rejects("least", 10).await.unwrap()[0].id;
    assert_eq!(backend.reject_tail(id).await.unwrap().len(), 1);
    let fence = w.through.fence(hlr::key(2).slot()).unwrap();
    assert_eq!(backend.discard_reject(id, &fence).await.unwrap(), 1);
    assert!(backend.read_instances(&[hlr::key(1)], None).await.unwrap()[0].is_some());
    backend.check_filter("vlr_location < 5").await.unwrap();
    let refused = backend.check_filter("no_such_column < 5").await.unwrap_err();
    assert!(refused.reason == Reason::Configuration && refused.message.contains("no_such_column"));
    let chunks = backend.plan_chunks(2, "").await.unwrap();
    let (group_uid, load_id) = ("least".to_owned(), "l".to_owned());
    backend
        .create_load(LoadSpec { group_uid, load_id, filter: String::new(), chunks })
        .await
        .unwrap();
    let lease = std::time::Duration::from_secs(60);
    let chunk = backend.take_chunk("least", "l", "w", lease).await.unwrap().unwrap();
    let request = ScanRequest { range: chunk.range.clone(), page: 5, ..ScanRequest::default() };
    assert!(backend.open_scan(request).await.unwrap().next().await.unwrap().is_some());
    assert!(backend.finish_chunk(&chunk, 1).await.unwrap());
    assert_eq!(backend.holders("least").await.unwrap().len(), 1);
    backend.forget_group("least").await.unwrap();
    assert_eq!(db.number("SELECT count(*) FROM cachetier.writer").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_host_database_or_password_each_has_its_own_reason() {
    let db = server::shared().database().await;
    let file = |name: &str, text: &str| {
        std::fs::write(db.credentials.path().join(name), text).unwrap();
    };
    let backend = PostgresBackend::new(backend_options(&db)).unwrap();
    let identity = backend.identify().await.unwrap();
    assert_eq!((identity.database.as_str(), identity.timeline), (db.name.as_str(), 1));
    assert!(!identity.system_identifier.is_empty());
    let reason = async || {
        // a new backend: pooled connections outlive a change of the files
        let backend = PostgresBackend::new(backend_options(&db)).unwrap();
        backend.identify().await.unwrap_err().reason
    };
    file("password", "wrong");
    assert_eq!(reason().await, Reason::AuthenticationFailed);
    file("password", "correct horse");
    file("dbname", "elsewhere");
    assert_eq!(reason().await, Reason::DatabaseMissing);
    file("dbname", &db.name);
    file("port", "1");
    assert_eq!(reason().await, Reason::BackendUnreachable);
    std::fs::remove_file(db.credentials.path().join("host")).unwrap();
    assert_eq!(reason().await, Reason::CredentialsMissing);
    let mut few = backend_options(&db);
    few.connections_max = 2;
    assert!(PostgresBackend::new(few).is_err(), "lanes must leave room for reads");
}
