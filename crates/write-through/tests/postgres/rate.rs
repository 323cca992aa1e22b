//! Figures, not promises: rows per second of the backend's processor. Run by hand.

use crate::support::hlr::{self, FORWARDING};
use crate::support::server::Server;
use crate::support::{backend, writer};
use cachetier_model::node_config::BackendCommit;
use cachetier_write_through::WriteThroughOptions;

const SUBSCRIBERS: i64 = 20_000;
const TRANSACTIONS: i64 = 100_000;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn rows_per_backend_cpu_second() {
    let server = Server::start(&["shared_buffers=512MB"]);
    let db = server.database().await;
    hlr::create(&db).await;
    hlr::populate(&db, SUBSCRIBERS).await;
    db.run("CHECKPOINT").await;
    for (lanes, commit) in [(1, BackendCommit::Sync), (1, BackendCommit::Async)] {
        for batch in [100, 1_000, 3_000] {
            let (backend, schema) = backend(&db, &hlr::tables()).await;
            let uid = format!("rate-{lanes}-{commit:?}-{batch}");
            let options = WriteThroughOptions {
                lanes,
                batch_rows_max: batch,
                backend_commit: commit,
                ..WriteThroughOptions::new(&uid, "n")
            };
            db.run("TRUNCATE cachetier.group_claim").await;
            let mut w = writer(backend, schema, options).await;
            w.ignore_events();
            let (before, started) = (server.cpu_seconds(), std::time::Instant::now());
            for n in 0..TRANSACTIONS {
                // a stride that spreads over the table, as random keys would
                let id = n * 7_919 % SUBSCRIBERS + 1;
                let change = match n % 9 {
                    0 => hlr::update(FORWARDING, hlr::forwarding(id, 1, 8, &n.to_string()), &[3]),
                    _ => hlr::locate(id, &hlr::number_of(id), n),
                };
                w.commit(&hlr::key(id), vec![change]);
            }
            w.all_flushed().await;
            let (cpu, elapsed) = (server.cpu_seconds() - before, started.elapsed().as_secs_f64());
            let c = w.through.counters();
            println!(
                "{uid}: {} rows in {} batches, {:.0} rows per backend CPU s, {:.0} rows/s",
                c.rows,
                c.batches,
                c.rows as f64 / cpu,
                c.rows as f64 / elapsed
            );
        }
    }
    server.crash();
}
