//! Reading a file front to back through one bounded buffer.
//!
//! Owns the buffer. Never decides what bytes mean.

use std::io;
use std::sync::Arc;

use crate::file_system::{File, read_full_at};

/// Bytes read at once; longer frames are read whole.
const WINDOW_BYTES: usize = 1 << 20;

/// A view of a file that slides forward.
#[derive(Debug)]
pub(crate) struct Window {
    file: Arc<dyn File>,
    size: u64,
    buffer: Vec<u8>,
    /// File offset of the buffer's first byte.
    start: u64,
}

impl Window {
    /// A view of the whole file as long as it is now.
    pub fn new(file: Arc<dyn File>) -> io::Result<Self> {
        let size = file.size()?;
        Ok(Self { file, size, buffer: Vec::new(), start: 0 })
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes from `offset`, at least `wanted` where the file is that long, usually more.
    pub fn bytes(&mut self, offset: u64, wanted: usize) -> io::Result<&[u8]> {
        let end = (offset + wanted as u64).min(self.size);
        let held = self.start..self.start + self.buffer.len() as u64;
        if offset < held.start || end > held.end {
            self.fill(offset, wanted)?;
        }
        let from = (offset - self.start) as usize;
        Ok(self.buffer.get(from..).unwrap_or_default())
    }

    fn fill(&mut self, offset: u64, wanted: usize) -> io::Result<()> {
        let left = self.size.saturating_sub(offset);
        let bytes = left.min(wanted.max(WINDOW_BYTES) as u64) as usize;
        self.start = offset;
        self.buffer.resize(bytes, 0);
        let filled = read_full_at(self.file.as_ref(), &mut self.buffer, offset)?;
        self.buffer.truncate(filled);
        Ok(())
    }
}
