//! Triggers of the backend that change or skip the rows they are given.

use crate::support::hlr::{self, SUBSCRIBER};
use crate::support::{backend, server, writer};
use cachetier_write_through::{Backend, WriteThroughOptions};
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_that_stores_something_else_is_refused_by_name_and_a_harmless_one_is_not() {
    let db = server::shared().database().await;
    hlr::create(&db).await;
    hlr::populate(&db, 10).await;
    db.run(
        "CREATE FUNCTION shift() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
           IF NEW.s_id = 3 THEN NEW.vlr_location := NEW.vlr_location + 1; END IF; \
           IF NEW.s_id = 4 THEN RETURN NULL; END IF; RETURN NEW; END $$; \
         CREATE TRIGGER shift BEFORE INSERT OR UPDATE ON subscriber FOR EACH ROW \
           EXECUTE FUNCTION shift()",
    )
    .await;
    let (backend, schema) = backend(&db, &hlr::tables()).await;
    let options = WriteThroughOptions { lanes: 2, ..WriteThroughOptions::new("g10", "hlr-0") };
    let mut w = writer(Arc::clone(&backend) as _, schema, options).await;
    w.ignore_events();
    for id in 1..=10 {
        w.commit(&hlr::key(id), vec![hlr::locate(id, &hlr::number_of(id), 5)]);
    }
    let row = hlr::subscriber(11, &hlr::number_of(11), 5);
    w.commit(&hlr::key(11), vec![hlr::insert(SUBSCRIBER, row)]);
    w.all_flushed().await;
    assert_eq!(db.number("SELECT count(*) FROM subscriber WHERE vlr_location = 5").await, 9);
    let rejects = backend.list_rejects("g10", 10).await.unwrap();
    let of = |id: i64| rejects.iter().find(|r| r.key == hlr::key(id)).unwrap();
    assert_eq!(rejects.len(), 2);
    assert!(of(3).message.contains("vlr_location"), "{}", of(3).message);
    assert!(of(4).message.contains("trigger"), "{}", of(4).message);
}
