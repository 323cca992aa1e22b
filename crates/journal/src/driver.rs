//! Who takes the writer's turns: a thread, a task of a simulator, and between its turns whoever just
//! appended and would wait for it.
//!
//! Owns the writer. Must never hold it while waiting for anything but the disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::shared::Shared;
use crate::writer::{Turn, Writer};

/// The writer thread looks for frames so often, told or not.
const LOOK: Duration = Duration::from_millis(100);

/// Drives one journal. See [`crate::Journal::open_driven`].
#[derive(Clone, Debug)]
pub struct JournalDriver {
    shared: Arc<Shared>,
    writer: Arc<Mutex<Writer>>,
}

impl JournalDriver {
    pub(crate) fn new(writer: Writer) -> Self {
        let shared = writer.shared().clone();
        Self { shared, writer: Arc::new(Mutex::new(writer)) }
    }

    /// One commit, or one piece of housekeeping. Blocks only on I/O.
    pub fn turn(&self, now: Instant) -> Turn {
        self.writer.lock().turn(now)
    }

    /// Takes turns until the journal is closed or latched, as a task on tokio's clock: no thread,
    /// so that a simulator has every step in its hands.
    pub async fn run_as_task(self) {
        loop {
            match self.turn(now()) {
                Turn::Again => tokio::task::yield_now().await,
                Turn::Idle { for_frames, until } => {
                    self.shared.buffer.wait_as_task(for_frames, until).await;
                }
                Turn::Done => return,
            }
        }
    }

    /// The same on a thread of its own.
    pub(crate) fn run(self) {
        let _guard = LatchOnUnwind(&self.shared);
        loop {
            match self.turn(Instant::now()) {
                Turn::Again => {}
                Turn::Idle { for_frames, until } => {
                    // whoever appended without a word and promised to write may never come to it
                    let look = Instant::now() + LOOK;
                    let until = until.map_or(look, |until| until.min(look));
                    self.shared.buffer.wait(for_frames, Some(until));
                }
                Turn::Done => return,
            }
        }
    }

    /// Writes what is queued beside the turns; false if a turn is needed.
    pub(crate) fn write_queued(&self) -> bool {
        let _guard = LatchOnUnwind(&self.shared);
        self.writer.try_lock().is_some_and(|mut writer| writer.write_queued(now))
    }

    /// Syncs beside the commits from now on.
    pub(crate) fn use_syncer(&self) -> std::io::Result<()> {
        self.writer.lock().use_syncer()
    }
}

/// Tokio's clock, which a simulator can hold.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Latches the journal should whoever writes unwind: what it had taken to write is gone.
struct LatchOnUnwind<'a>(&'a Shared);

impl Drop for LatchOnUnwind<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.latch("a thread that wrote to the journal ended unexpectedly");
        }
    }
}
