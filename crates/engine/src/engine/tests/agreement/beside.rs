//! A reader beside the work, which must never see a row of another instance.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// Reads while the work goes on; returns how many instances were there.
pub(super) fn read_while(
    schema: &GroupSchema,
    keys: &[(RootKey, Row)],
    shown: &Mutex<Arc<Engine>>,
    work: impl FnOnce(),
) -> u32 {
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let reader = threads.spawn(|| read_until(schema, keys, shown, &stop));
        let stopped = StopAtEnd(&stop);
        work();
        drop(stopped);
        reader.join().unwrap()
    })
}

/// Reads until told to stop; returns how many instances were there.
fn read_until(
    schema: &GroupSchema,
    keys: &[(RootKey, Row)],
    shown: &Mutex<Arc<Engine>>,
    stop: &AtomicBool,
) -> u32 {
    let mut found = 0;
    while !stop.load(Ordering::Relaxed) {
        let engine = shown.lock().clone();
        for (key, _) in keys {
            let ReadAnswer::Found { tables, .. } = whole(&engine, key) else { continue };
            found += 1;
            assert_eq!(tables[0].len(), 1, "an instance has one root row");
            for (table, rows) in tables.iter().enumerate() {
                let own = |row: &Row| schema.root_key_of_row(table, row).unwrap() == *key;
                assert!(rows.iter().all(own), "a row of another instance");
            }
        }
        std::thread::yield_now();
    }
    found
}

/// Also when the work panics: the scope waits for the reader.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
