//! What a group runs on: backend, disk, and who does the work that blocks.
//!
//! Owns the one choice between threads (a process) and turns (a simulator, which needs every step
//! of every node in one thread). Must never change what is done, only where.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cachetier_journal::file_system::FileSystem;
use cachetier_journal::{Journal, JournalError, JournalOptions, Recovery};
use cachetier_write_through::Backend;
use tokio::task::JoinError;

/// What a group is started on.
pub struct Host {
    pub backend: Arc<dyn Backend>,
    pub files: Arc<dyn FileSystem>,
    pub labour: Labour,
    /// Size of a journal segment; `None`: by the journal's capacity.
    pub segment_bytes: Option<u64>,
    /// After which time images are looked at again; `None`: some minutes.
    pub images_refresh: Option<Duration>,
}

/// Who does what blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labour {
    /// The journal's own writer thread, and the runtime's pool.
    Threads,
    /// Tasks of the calling runtime; only for disks that answer at once.
    Turns,
}

impl Labour {
    /// Runs an act that may block.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        match self {
            Self::Threads => tokio::task::spawn_blocking(act).await,
            Self::Turns => tokio::spawn(async move { act() }).await,
        }
    }

    pub(crate) async fn open_journal(
        self,
        files: Arc<dyn FileSystem>,
        directory: PathBuf,
        options: JournalOptions,
    ) -> Result<Result<(Journal, Recovery), JournalError>, JoinError> {
        self.run(move || match self {
            Self::Threads => Journal::open(files, &directory, options),
            Self::Turns => {
                let (journal, recovery, driver) = Journal::open_driven(files, &directory, options)?;
                tokio::spawn(driver.run_as_task());
                Ok((journal, recovery))
            }
        })
        .await
    }
}
