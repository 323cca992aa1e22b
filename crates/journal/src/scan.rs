//! Going through the frames of one segment, and judging what stops them.
//!
//! Owns the distinction everything else relies on: bytes that end a segment because a write was
//! never finished (*torn*), and bytes that destroy what was synced (*damage*). Takes a file and
//! its header; gives positions, offsets and a verdict. Never changes a file.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Sequence;
use crate::error::{IoContext, JournalError};
use crate::file_system::File;
use crate::format::frame::{
    Decoded, Mark, RawFrame, Seed, decode_frame, frame_bytes, looks_like_mark,
};
use crate::format::segment::{HeaderError, SegmentHeader, decode_header};
use crate::format::{ALIGNMENT_BYTES, FORMAT_VERSION, FRAME_HEADER_BYTES};
use crate::format::{MARK_BYTES, SEGMENT_HEADER_BYTES};
use crate::options::PAYLOAD_BYTES_MAX;
use crate::window::Window;

/// A segment being read.
#[derive(Debug)]
pub(crate) struct SegmentCursor {
    window: Window,
    path: PathBuf,
    header: SegmentHeader,
    seed: Seed,
    offset: u64,
    /// The next frame must have this sequence.
    expected: Option<Sequence>,
    last: Option<Sequence>,
    frames: u64,
    /// First sequence and offset of each write that no later mark says was synced; oldest first.
    unvouched: VecDeque<(Sequence, u64)>,
}

/// What the cursor met.
pub(crate) enum Step<'a> {
    /// A frame of the caller's.
    Frame(RawFrame<'a>),
    /// The end of the file, right after a frame.
    End,
    /// No valid frame here.
    Hole(Hole),
}

/// Where valid frames stop before the file does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hole {
    pub offset: u64,
    pub verdict: Verdict,
}

/// What a hole means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Only zeros follow: space never written.
    Unwritten,
    /// Something follows, but nothing later says that it was synced.
    Torn,
    /// Synced frames were here.
    Damage(String),
}

/// A valid frame without its bytes.
struct Probe {
    sequence: Sequence,
    kind: u8,
    payload_bytes: usize,
    mark: Option<Mark>,
}

/// Summary of a whole segment.
#[derive(Clone, Debug)]
pub(crate) struct SegmentScan {
    /// Offset after the last valid frame.
    pub end: u64,
    pub last: Option<Sequence>,
    pub frames: u64,
    pub file_bytes: u64,
    /// From here on nothing later in the segment says that it was synced.
    pub unvouched_from: u64,
    /// `None`: frames go exactly to the end of the file.
    pub hole: Option<Hole>,
}

/// Reads and checks the header of the file.
pub(crate) fn read_header(file: &dyn File, path: &Path) -> Result<SegmentHeader, JournalError> {
    let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
    let read = crate::file_system::read_full_at(file, &mut bytes, 0).during("read", path)?;
    decode_header(bytes.get(..read).unwrap_or_default()).map_err(|error| match error {
        HeaderError::Version(version) => {
            JournalError::Version { file: path.to_owned(), version, known: FORMAT_VERSION }
        }
        HeaderError::Invalid(what) => {
            JournalError::Damaged { file: path.to_owned(), offset: 0, what: what.to_owned() }
        }
    })
}

/// Goes through the whole segment.
pub(crate) fn scan_segment(
    mut cursor: SegmentCursor,
    visit: &mut dyn FnMut(RawFrame<'_>) -> ControlFlow<()>,
) -> Result<SegmentScan, JournalError> {
    let hole = loop {
        match cursor.step()? {
            Step::Frame(frame) => {
                if visit(frame).is_break() {
                    break None;
                }
            }
            Step::End => break None,
            Step::Hole(hole) => break Some(hole),
        }
    };
    Ok(SegmentScan {
        end: cursor.offset,
        last: cursor.last,
        frames: cursor.frames,
        file_bytes: cursor.window.size(),
        unvouched_from: cursor.unvouched.front().map_or(cursor.offset, |(_, offset)| *offset),
        hole,
    })
}

impl SegmentCursor {
    /// Begins after the header.
    pub fn new(
        file: Arc<dyn File>,
        path: &Path,
        header: SegmentHeader,
    ) -> Result<Self, JournalError> {
        let window = Window::new(file).during("read the size of", path)?;
        Ok(Self {
            window,
            path: path.to_owned(),
            header,
            seed: Seed::of(header.journal_id),
            offset: SEGMENT_HEADER_BYTES,
            expected: Some(header.first),
            last: None,
            frames: 0,
            unvouched: VecDeque::new(),
        })
    }

    /// Last frame met; before the first, what the header says came before the segment.
    pub fn last(&self) -> Sequence {
        self.last.unwrap_or(self.header.after)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next frame of the caller's, the end, or a hole. After a hole or the end, again that.
    pub fn step(&mut self) -> Result<Step<'_>, JournalError> {
        loop {
            if self.offset >= self.window.size() {
                return Ok(Step::End);
            }
            let Some(probe) = self.probe()? else {
                return Ok(Step::Hole(self.judge()?));
            };
            let sequence = probe.sequence;
            if Some(sequence) != self.expected {
                let expected = self.expected.map_or("none".to_owned(), |s| s.to_string());
                let verdict =
                    Verdict::Damage(format!("frame {sequence} stands where {expected} belongs"));
                return Ok(Step::Hole(Hole { offset: self.offset, verdict }));
            }
            let at = self.offset;
            self.offset += frame_bytes(probe.payload_bytes) as u64;
            if let Some(mark) = probe.mark {
                self.note_write(mark, at);
                continue;
            }
            self.expected = sequence.next();
            self.last = Some(sequence);
            self.frames += 1;
            return self.frame_at(at, &probe);
        }
    }

    /// A write begins; those before it that it vouches for are safe.
    fn note_write(&mut self, mark: Mark, offset: u64) {
        self.unvouched.push_back((mark.first, offset));
        while self.unvouched.get(1).is_some_and(|(next, _)| next.get() <= mark.synced.get() + 1) {
            self.unvouched.pop_front();
        }
    }

    /// Checks the frame at the offset; `None` if there is none.
    fn probe(&mut self) -> Result<Option<Probe>, JournalError> {
        let mut wanted = FRAME_HEADER_BYTES;
        loop {
            let bytes = self.window.bytes(self.offset, wanted).during("read", &self.path)?;
            let held = bytes.len();
            match decode_frame(bytes, self.seed, PAYLOAD_BYTES_MAX) {
                Decoded::Frame(frame) => {
                    return Ok(Some(Probe {
                        sequence: frame.sequence,
                        kind: frame.kind,
                        payload_bytes: frame.payload.len(),
                        mark: frame.mark(),
                    }));
                }
                Decoded::Short(needed) if needed > wanted && needed > held => wanted = needed,
                _ => return Ok(None),
            }
        }
    }

    /// The frame just checked by `probe`, borrowed for the caller.
    fn frame_at(&mut self, offset: u64, probe: &Probe) -> Result<Step<'_>, JournalError> {
        let total = frame_bytes(probe.payload_bytes);
        let bytes = self.window.bytes(offset, total).during("read", &self.path)?;
        let payload = bytes
            .get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + probe.payload_bytes)
            .unwrap_or_default();
        Ok(Step::Frame(RawFrame { sequence: probe.sequence, kind: probe.kind, payload }))
    }

    /// Looks behind the hole for a write that began after the missing frame was synced.
    fn judge(&mut self) -> Result<Hole, JournalError> {
        let offset = self.offset;
        let missing = self.expected.unwrap_or(self.header.first);
        let size = self.window.size();
        let mut zeros = true;
        let mut at = offset;
        while at < size {
            let bytes = self.window.bytes(at, MARK_BYTES).during("read", &self.path)?;
            let held = bytes.len();
            for skip in (0..held).step_by(ALIGNMENT_BYTES) {
                let here = bytes.get(skip..).unwrap_or_default();
                if here.len() < MARK_BYTES && at + (skip + here.len()) as u64 != size {
                    break;
                }
                let word = here.get(..ALIGNMENT_BYTES).unwrap_or(here);
                zeros = zeros && word.iter().all(|byte| *byte == 0);
                if let Some(synced) = vouched(here, self.seed).filter(|synced| *synced >= missing) {
                    let mark_at = at + skip as u64;
                    let what = format!(
                        "frame {missing} is destroyed, and the write at offset {mark_at} says that \
                         everything up to {synced} was synced"
                    );
                    return Ok(Hole { offset, verdict: Verdict::Damage(what) });
                }
            }
            at += next_stride(held);
        }
        let verdict = if zeros { Verdict::Unwritten } else { Verdict::Torn };
        Ok(Hole { offset, verdict })
    }
}

/// How far a pass over `held` bytes may slide so that no mark is cut in two.
fn next_stride(held: usize) -> u64 {
    let whole = held.saturating_sub(MARK_BYTES - ALIGNMENT_BYTES);
    let stride = if whole == 0 { held } else { whole };
    stride.next_multiple_of(ALIGNMENT_BYTES) as u64
}

/// What a valid mark here says was synced.
fn vouched(bytes: &[u8], seed: Seed) -> Option<Sequence> {
    if !looks_like_mark(bytes) {
        return None;
    }
    match decode_frame(bytes, seed, PAYLOAD_BYTES_MAX) {
        Decoded::Frame(frame) => frame.mark().map(|mark| mark.synced),
        _ => None,
    }
}
