//! A second thread that syncs at `Relaxed`, so that commits do not wait for it.
//!
//! Owns one sync at a time, from its request to its outcome. Never two at once: the kernel reports
//! a failed write-back to one of two concurrent syncs only, and the other would be believed.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::Sequence;
use crate::file_system::File;

/// What to sync, and what is synced once it succeeded.
#[derive(Debug)]
pub(crate) struct SyncJob {
    pub file: Arc<dyn File>,
    pub path: PathBuf,
    pub upto: Sequence,
}

/// How it went.
#[derive(Debug)]
pub(crate) struct SyncOutcome {
    pub path: PathBuf,
    pub upto: Sequence,
    pub result: io::Result<()>,
    pub took: Duration,
}

#[derive(Debug)]
enum Stage {
    Idle,
    Wanted(SyncJob),
    Running,
    Done(SyncOutcome),
    Ended,
}

#[derive(Debug)]
struct Desk {
    stage: Mutex<Stage>,
    changed: Condvar,
}

/// See the module. Ends with its owner.
#[derive(Debug)]
pub(crate) struct Syncer {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    /// Starts the thread; `on_done` is called after each sync.
    pub fn start(on_done: impl Fn() + Send + 'static) -> io::Result<Self> {
        let desk = Arc::new(Desk { stage: Mutex::new(Stage::Idle), changed: Condvar::new() });
        let thread = std::thread::Builder::new().name("journal-syncer".to_owned()).spawn({
            let desk = desk.clone();
            move || run(&desk, &on_done)
        })?;
        Ok(Self { desk, thread: Some(thread) })
    }

    /// Hands a sync over. Only when none is outstanding.
    pub fn begin(&self, job: SyncJob) {
        let mut stage = self.desk.stage.lock();
        debug_assert!(matches!(*stage, Stage::Idle), "one sync at a time");
        *stage = Stage::Wanted(job);
        self.desk.changed.notify_all();
    }

    /// The outcome, if it is there.
    pub fn poll(&self) -> Option<SyncOutcome> {
        let mut stage = self.desk.stage.lock();
        match std::mem::replace(&mut *stage, Stage::Idle) {
            Stage::Done(outcome) => Some(outcome),
            other => {
                *stage = other;
                None
            }
        }
    }

    /// Waits for the outcome of the outstanding sync; `None` if there is none.
    pub fn wait(&self) -> Option<SyncOutcome> {
        let mut stage = self.desk.stage.lock();
        while matches!(*stage, Stage::Wanted(_) | Stage::Running) {
            self.desk.changed.wait(&mut stage);
        }
        drop(stage);
        self.poll()
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        let _ = self.wait();
        *self.desk.stage.lock() = Stage::Ended;
        self.desk.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("journal syncer thread ended unexpectedly");
        }
    }
}

fn run(desk: &Desk, on_done: &impl Fn()) {
    while let Some(job) = next(desk) {
        // replaced by the outcome; stays should the sync unwind
        let mut report = Report { desk, outcome: Some(lost(&job)) };
        let begun = Instant::now();
        let result = job.file.sync_data();
        let took = begun.elapsed();
        report.outcome = Some(SyncOutcome { path: job.path, upto: job.upto, result, took });
        drop(report);
        on_done();
    }
}

fn next(desk: &Desk) -> Option<SyncJob> {
    let mut stage = desk.stage.lock();
    loop {
        match std::mem::replace(&mut *stage, Stage::Running) {
            Stage::Wanted(job) => return Some(job),
            Stage::Ended => return None,
            other => *stage = other,
        }
        desk.changed.wait(&mut stage);
    }
}

fn lost(job: &SyncJob) -> SyncOutcome {
    SyncOutcome {
        path: job.path.clone(),
        upto: job.upto,
        result: Err(io::Error::other("the sync ended unexpectedly")),
        took: Duration::ZERO,
    }
}

/// Leaves an outcome whatever happens.
struct Report<'a> {
    desk: &'a Desk,
    outcome: Option<SyncOutcome>,
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        if let Some(outcome) = self.outcome.take() {
            *self.desk.stage.lock() = Stage::Done(outcome);
            self.desk.changed.notify_all();
        }
    }
}
