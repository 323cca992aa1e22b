//! What the process says about the load while it runs.

use crate::chunk::ChunkFigures;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Sums of this process. Written by the chunk workers, read at the end and for the log.
#[derive(Debug)]
pub(crate) struct Progress {
    started: Instant,
    read: AtomicU64,
    inserted: AtomicU64,
    skipped: AtomicU64,
    chunks: AtomicU64,
}

impl Progress {
    pub fn new() -> Self {
        Self {
            started: Instant::now(),
            read: AtomicU64::new(0),
            inserted: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            chunks: AtomicU64::new(0),
        }
    }

    pub fn add(&self, chunk: u32, chunks_total: u32, figures: ChunkFigures) {
        let read = self.read.fetch_add(figures.read, Ordering::Relaxed) + figures.read;
        self.inserted.fetch_add(figures.inserted, Ordering::Relaxed);
        self.skipped.fetch_add(figures.skipped, Ordering::Relaxed);
        self.chunks.fetch_add(1, Ordering::Relaxed);
        let seconds = self.started.elapsed().as_secs_f64().max(0.001);
        tracing::info!(
            chunk,
            chunks_total,
            inserted = figures.inserted,
            skipped = figures.skipped,
            instances_per_second = (read as f64 / seconds) as u64,
            "chunk loaded"
        );
    }

    pub fn sums(&self) -> (u64, ChunkFigures) {
        let figures = ChunkFigures {
            read: self.read.load(Ordering::Relaxed),
            inserted: self.inserted.load(Ordering::Relaxed),
            skipped: self.skipped.load(Ordering::Relaxed),
        };
        (self.chunks.load(Ordering::Relaxed), figures)
    }
}
