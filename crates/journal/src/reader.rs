//! Reading frames back, in order, across segments.
//!
//! Owns open files of the segments it was made for, so that a trim in between takes nothing away.
//! Yields only what was synced when it was made. Never repairs: an invalid byte is an error.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use crate::error::{IoContext, JournalError};
use crate::file_system::FileSystem;
use crate::scan::{SegmentCursor, Step, Verdict, read_header};
use crate::segments::Segment;
use crate::{Frame, Sequence};

/// Frames in order, read from the files. Blocks on I/O; ends after the first error.
#[derive(Debug)]
pub struct FrameReader {
    cursors: VecDeque<SegmentCursor>,
    from: Sequence,
    upto: Sequence,
}

impl FrameReader {
    pub(crate) fn open(
        fs: &dyn FileSystem,
        segments: &[Segment],
        from: Sequence,
        upto: Sequence,
    ) -> Result<Self, JournalError> {
        let mut cursors = VecDeque::with_capacity(segments.len());
        for Segment { path, .. } in segments {
            let file = fs.open(path, false).during("open", path)?;
            let header = read_header(file.as_ref(), path)?;
            cursors.push_back(SegmentCursor::new(Arc::clone(&file), path, header)?);
        }
        Ok(Self { cursors, from, upto })
    }

    /// Hands each frame to `visit` without copying it; stops at the first error of either.
    pub fn for_each<E: From<JournalError>>(
        mut self,
        mut visit: impl FnMut(Sequence, u8, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(cursor) = self.cursors.front_mut() {
            match cursor.step()? {
                Step::Frame(frame) if frame.sequence > self.upto => break,
                Step::Frame(frame) if frame.sequence >= self.from => {
                    visit(frame.sequence, frame.kind, frame.payload)?;
                }
                Step::Frame(_) => {}
                Step::End => {
                    self.cursors.pop_front();
                }
                Step::Hole(hole) => {
                    let hole = damage(cursor, hole.offset, hole.verdict, self.upto);
                    self.cursors.pop_front();
                    hole?;
                }
            }
        }
        Ok(())
    }

    fn read_next(&mut self) -> Result<Option<Frame>, JournalError> {
        while let Some(cursor) = self.cursors.front_mut() {
            match cursor.step()? {
                Step::Frame(frame) if frame.sequence > self.upto => return Ok(None),
                Step::Frame(frame) if frame.sequence >= self.from => {
                    let payload = Bytes::copy_from_slice(frame.payload);
                    let (sequence, kind) = (frame.sequence, frame.kind);
                    return Ok(Some(Frame { sequence, kind, payload }));
                }
                Step::Frame(_) => continue,
                Step::End => {}
                Step::Hole(hole) => damage(cursor, hole.offset, hole.verdict, self.upto)?,
            }
            self.cursors.pop_front();
        }
        Ok(None)
    }
}

/// A hole is the end of what was written when it lies behind `upto`, and damage otherwise.
fn damage(
    cursor: &SegmentCursor,
    offset: u64,
    verdict: Verdict,
    upto: Sequence,
) -> Result<(), JournalError> {
    if cursor.last() >= upto {
        return Ok(());
    }
    let what = match verdict {
        Verdict::Damage(what) => what,
        _ => format!("frames end before {upto}, which was synced"),
    };
    Err(JournalError::Damaged { file: cursor.path().to_owned(), offset, what })
}

impl Iterator for FrameReader {
    type Item = Result<Frame, JournalError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.read_next();
        if !matches!(next, Ok(Some(_))) {
            self.cursors.clear();
        }
        next.transpose()
    }
}
