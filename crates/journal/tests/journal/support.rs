//! Journals to test: small ones, driven by hand or by their thread.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cachetier_journal::file_system::{DaxFileSystem, FaultyFileSystem, FileSystem};
use cachetier_journal::{
    AppendError, Durability, Frame, Journal, JournalDriver, JournalError, JournalOptions, Recovery,
    Sequence, Turn,
};
use uuid::Uuid;

pub const DIR: &str = "/journal";

/// Small enough that a few frames fill a segment.
pub fn small() -> JournalOptions {
    JournalOptions {
        segment_bytes: 16 << 10,
        capacity_bytes: 160 << 10,
        queue_bytes: 8 << 10,
        group_commit_bytes: 2 << 10,
        new_journal_id: Some(Uuid::from_u128(0x1f)),
        ..JournalOptions::default()
    }
}

pub fn relaxed() -> JournalOptions {
    let durability = Durability::Relaxed { interval: Duration::from_secs(3600) };
    JournalOptions { durability, ..small() }
}

/// A journal on a disk in memory whose writer runs only when told.
pub struct Driven {
    pub fs: FaultyFileSystem,
    pub journal: Journal,
    pub recovery: Recovery,
    pub driver: JournalDriver,
    pub now: Instant,
}

impl Driven {
    pub fn open(fs: &FaultyFileSystem, options: JournalOptions) -> Result<Self, JournalError> {
        Self::open_through(Arc::new(fs.clone()), fs, options)
    }

    /// The same disk as persistent memory.
    pub fn open_dax(fs: &FaultyFileSystem, options: JournalOptions) -> Result<Self, JournalError> {
        let dax = DaxFileSystem::new(Arc::new(fs.clone()), Arc::new(fs.clone()));
        Self::open_through(Arc::new(dax), fs, options)
    }

    fn open_through(
        dyn_fs: Arc<dyn FileSystem>,
        fs: &FaultyFileSystem,
        options: JournalOptions,
    ) -> Result<Self, JournalError> {
        let (journal, recovery, driver) = Journal::open_driven(dyn_fs, Path::new(DIR), options)?;
        let mut opened = Self { fs: fs.clone(), journal, recovery, driver, now: Instant::now() };
        opened.run();
        Ok(opened)
    }

    /// Turns until nothing is left to do.
    pub fn run(&mut self) -> Turn {
        loop {
            match self.driver.turn(self.now) {
                Turn::Again => {}
                turn => return turn,
            }
        }
    }

    pub fn pass(&mut self, time: Duration) -> Turn {
        self.now += time;
        self.run()
    }

    /// Appends and commits one frame.
    pub fn commit(&mut self, payload: &[u8]) -> Sequence {
        let sequence = self.journal.append(1, payload).expect("the journal takes a frame");
        self.run();
        sequence
    }

    /// Commits this many frames, one by one; the sequence of the last.
    pub fn commits(&mut self, count: u32, payload: &[u8]) -> Sequence {
        (0..count).fold(Sequence::ZERO, |_, _| self.commit(payload))
    }

    pub fn frames(&self) -> Vec<Frame> {
        let reader = self.journal.read_from(Sequence::ZERO).expect("the journal can be read");
        reader.collect::<Result<_, _>>().expect("every frame is readable")
    }

    /// Lets go of everything without finishing anything.
    pub fn abandon(self) -> FaultyFileSystem {
        self.fs
    }
}

/// Appends as callers do: a busy journal is tried again after its next commit.
pub async fn append(journal: &Journal, payload: &[u8]) -> Sequence {
    let mut marks = journal.watch();
    loop {
        marks.mark_unchanged();
        match journal.append(1, payload) {
            Ok(sequence) => return sequence,
            Err(AppendError::Busy { .. }) => marks.changed().await.expect("the journal is open"),
            Err(refused) => panic!("{refused}"),
        }
    }
}

/// Paths of the segments, oldest first.
pub fn segments(fs: &FaultyFileSystem) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs.files().into_keys().collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "segment"));
    paths
}

pub fn payloads(frames: &[Frame]) -> Vec<Vec<u8>> {
    frames.iter().map(|frame| frame.payload.to_vec()).collect()
}
