//! The bounded group-commit buffer: frames accepted and not yet written.
//!
//! Owns the next sequence, the queued chunks and the account of reserved space. Appenders fill
//! it under one short lock and never wait for I/O; the writer takes one chunk per commit. Never
//! accepts a frame that has no place reserved on the volume: with a spare segment ready the whole
//! queue fits there; without one it must fit what is left of the active segment.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use crate::format::MARK_BYTES;
use crate::format::frame::{KIND_MARK, Seed, encode_frame, frame_bytes};
use crate::{AppendError, JournalOptions, Sequence, Stopped};

/// Emptied chunk buffers kept for reuse.
const RECYCLED_MAX: usize = 4;

/// Frames written together; begins with room for the mark.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub bytes: Vec<u8>,
    pub first: Sequence,
    pub last: Sequence,
    pub frames: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Buffer {
    seed: Seed,
    group_commit_bytes: usize,
    queue_bytes: usize,
    payload_bytes_max: usize,
    state: Mutex<State>,
    woken: Condvar,
    /// The same for a writer that is a task.
    woken_task: Notify,
}

/// Everything under the one lock. Appenders and the writer read and write it.
#[derive(Debug)]
struct State {
    /// Last sequence given out.
    appended: Sequence,
    chunks: VecDeque<Chunk>,
    recycled: Vec<Vec<u8>>,
    /// Bytes of all chunks and of the one being written.
    queued_bytes: usize,
    /// Bytes left in the active segment, not counting what is queued.
    room_bytes: u64,
    /// An empty, allocated segment is there.
    spare_ready: bool,
    /// Why there is no spare, once preparing one failed.
    spare_missing: Option<Arc<str>>,
    /// The volume refuses even reserved space.
    blocked: Option<Arc<str>>,
    stopped: Option<Stopped>,
    /// Something other than a frame waits for the writer: trim, close.
    signalled: bool,
    writer_waits: bool,
}

/// Figures of the buffer.
#[derive(Clone, Debug)]
pub(crate) struct BufferFigures {
    pub appended: Sequence,
    pub queued_bytes: usize,
    pub stopped: Option<Stopped>,
    /// Why the next frame of any size would be refused.
    pub refusing: Option<Arc<str>>,
}

impl Buffer {
    /// A buffer that gives out what follows `appended`; refuses everything until space is there.
    pub fn new(seed: Seed, options: &JournalOptions, appended: Sequence) -> Self {
        Self {
            seed,
            group_commit_bytes: options.group_commit_bytes,
            queue_bytes: options.queue_bytes,
            payload_bytes_max: options.payload_bytes_max(),
            state: Mutex::new(State {
                appended,
                chunks: VecDeque::new(),
                recycled: Vec::new(),
                queued_bytes: 0,
                room_bytes: 0,
                spare_ready: false,
                spare_missing: None,
                blocked: None,
                stopped: None,
                signalled: false,
                writer_waits: false,
            }),
            woken: Condvar::new(),
            woken_task: Notify::new(),
        }
    }

    /// Accepts a frame or says why not; nothing is kept of a refused one. The writer is woken.
    pub fn append(&self, kind: u8, payload: &[u8]) -> Result<Sequence, AppendError> {
        let (sequence, writer_waits) = self.accept(kind, payload)?;
        if writer_waits {
            self.wake();
        }
        Ok(sequence)
    }

    /// The same, without waking the writer; true if that would have been needed.
    pub fn accept(&self, kind: u8, payload: &[u8]) -> Result<(Sequence, bool), AppendError> {
        if kind == KIND_MARK {
            return Err(AppendError::ReservedKind);
        }
        if payload.len() > self.payload_bytes_max {
            let bytes_max = self.payload_bytes_max;
            return Err(AppendError::TooLarge { bytes: payload.len(), bytes_max });
        }
        let mut state = self.state.lock();
        state.check_open()?;
        let frame = frame_bytes(payload.len());
        let fits_last =
            state.chunks.back().is_some_and(|last| last.bytes.len() + frame <= self.chunk_max());
        let needed = if fits_last { frame } else { frame + MARK_BYTES };
        self.check_room(&state, needed)?;
        let Some(sequence) = state.appended.next() else {
            return Err(AppendError::Full {
                reason: "sequence counter is used up; restart".into(),
            });
        };
        state.appended = sequence;
        state.queued_bytes += needed;
        if !fits_last {
            let chunk = self.new_chunk(&mut state, sequence);
            state.chunks.push_back(chunk);
        }
        if let Some(chunk) = state.chunks.back_mut() {
            encode_frame(&mut chunk.bytes, self.seed, sequence, kind, payload);
            chunk.last = sequence;
            chunk.frames += 1;
        }
        Ok((sequence, state.writer_waits))
    }

    fn chunk_max(&self) -> usize {
        self.group_commit_bytes + MARK_BYTES
    }

    fn new_chunk(&self, state: &mut State, first: Sequence) -> Chunk {
        let mut bytes = state.recycled.pop().unwrap_or_default();
        bytes.clear();
        bytes.resize(MARK_BYTES, 0);
        Chunk { bytes, first, last: first, frames: 0 }
    }

    fn check_room(&self, state: &State, needed: usize) -> Result<(), AppendError> {
        let queued_bytes = state.queued_bytes;
        if queued_bytes + needed > self.queue_bytes {
            return Err(AppendError::Busy { queued_bytes, queue_bytes: self.queue_bytes });
        }
        if state.spare_ready || (queued_bytes + needed) as u64 <= state.room_bytes {
            return Ok(());
        }
        match &state.spare_missing {
            Some(reason) => Err(AppendError::Full { reason: reason.clone() }),
            None => Err(AppendError::Busy { queued_bytes, queue_bytes: self.queue_bytes }),
        }
    }

    /// Takes the oldest chunk, to be written in one commit.
    pub fn take(&self) -> Option<Chunk> {
        self.state.lock().chunks.pop_front()
    }

    /// The same, if it is no longer than `room` bytes.
    pub fn take_within(&self, room: u64) -> Option<Chunk> {
        let chunks = &mut self.state.lock().chunks;
        let fits = chunks.front().is_some_and(|chunk| chunk.bytes.len() as u64 <= room);
        if fits { chunks.pop_front() } else { None }
    }

    pub fn is_empty(&self) -> bool {
        self.state.lock().chunks.is_empty()
    }

    /// The chunk was written: its bytes left the queue and the active segment's room.
    pub fn written(&self, mut bytes: Vec<u8>) {
        let mut state = self.state.lock();
        state.queued_bytes = state.queued_bytes.saturating_sub(bytes.len());
        state.room_bytes = state.room_bytes.saturating_sub(bytes.len() as u64);
        if state.recycled.len() < RECYCLED_MAX {
            bytes.clear();
            bytes.shrink_to(self.chunk_max());
            state.recycled.push(bytes);
        }
    }

    /// The spare became the active segment, with this much room.
    pub fn rotated(&self, room_bytes: u64) {
        let mut state = self.state.lock();
        state.room_bytes = room_bytes;
        state.spare_ready = false;
    }

    /// A spare segment is ready, or why not.
    pub fn set_spare(&self, spare: Result<(), Arc<str>>) {
        let mut state = self.state.lock();
        state.spare_ready = spare.is_ok();
        state.spare_missing = spare.err();
    }

    /// The volume refuses writes into reserved space, or takes them again.
    pub fn set_blocked(&self, blocked: Option<Arc<str>>) {
        self.state.lock().blocked = blocked;
    }

    /// Nothing more is accepted; the first reason stays.
    pub fn stop(&self, stopped: Stopped) {
        let mut state = self.state.lock();
        state.stopped.get_or_insert(stopped);
        state.signalled = true;
        drop(state);
        self.wake();
    }

    /// Wakes the writer for something other than a frame.
    pub fn signal(&self) {
        self.state.lock().signalled = true;
        self.wake();
    }

    fn wake(&self) {
        self.woken.notify_one();
        self.woken_task.notify_one();
    }

    /// Waits for a signal, for frames where `for_frames` says so, or until `until`.
    pub fn wait(&self, for_frames: bool, until: Option<Instant>) {
        let mut state = self.state.lock();
        while !(state.signalled || for_frames && !state.chunks.is_empty()) {
            state.writer_waits = for_frames;
            let timed_out = match until {
                Some(until) => self.woken.wait_until(&mut state, until).timed_out(),
                None => {
                    self.woken.wait(&mut state);
                    false
                }
            };
            if timed_out {
                break;
            }
        }
        state.writer_waits = false;
        state.signalled = false;
    }

    /// As [`Buffer::wait`], for a writer that is a task and lives by tokio's clock.
    pub async fn wait_as_task(&self, for_frames: bool, until: Option<Instant>) {
        loop {
            {
                let mut state = self.state.lock();
                if state.signalled || for_frames && !state.chunks.is_empty() {
                    break;
                }
                state.writer_waits = for_frames;
            }
            let woken = self.woken_task.notified();
            let Some(until) = until.map(tokio::time::Instant::from_std) else {
                woken.await;
                continue;
            };
            if tokio::time::timeout_at(until, woken).await.is_err() {
                break;
            }
        }
        let mut state = self.state.lock();
        state.writer_waits = false;
        state.signalled = false;
    }

    /// Figures now.
    pub fn figures(&self) -> BufferFigures {
        let state = self.state.lock();
        let tight = state.room_bytes < (state.queued_bytes + self.group_commit_bytes) as u64;
        let spare = state.spare_missing.clone().filter(|_| tight && !state.spare_ready);
        BufferFigures {
            appended: state.appended,
            queued_bytes: state.queued_bytes,
            stopped: state.stopped.clone(),
            refusing: state.blocked.clone().or(spare),
        }
    }
}

impl State {
    fn check_open(&self) -> Result<(), AppendError> {
        match (&self.stopped, &self.blocked) {
            (Some(Stopped::Latched(reason)), _) => {
                Err(AppendError::Latched { reason: reason.clone() })
            }
            (Some(Stopped::Closed), _) => Err(AppendError::Closed),
            (None, Some(reason)) => Err(AppendError::Full { reason: reason.clone() }),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn buffer(queue_bytes: usize) -> Buffer {
        let options =
            JournalOptions { queue_bytes, group_commit_bytes: 1024, ..JournalOptions::default() };
        Buffer::new(Seed::of(Uuid::nil()), &options, Sequence::new(1, 0))
    }

    #[test]
    fn nothing_is_accepted_without_reserved_space() {
        let buffer = buffer(8192);
        assert!(matches!(buffer.append(1, b"a"), Err(AppendError::Busy { .. })));
        buffer.set_spare(Err("no space left".into()));
        assert!(matches!(buffer.append(1, b"a"), Err(AppendError::Full { .. })));
        buffer.set_spare(Ok(()));
        assert_eq!(buffer.append(1, b"a"), Ok(Sequence::new(1, 1)));
    }

    #[test]
    fn without_a_spare_only_what_fits_the_active_segment_is_accepted() {
        let buffer = buffer(8192);
        let frame = frame_bytes(100);
        buffer.rotated((MARK_BYTES + 2 * frame) as u64);
        assert!(buffer.append(1, &[0; 100]).is_ok());
        assert!(buffer.append(1, &[0; 100]).is_ok());
        assert!(buffer.append(1, &[0; 100]).is_err());
        let chunk = buffer.take().expect("two frames are queued");
        assert_eq!((chunk.frames, chunk.bytes.len()), (2, MARK_BYTES + 2 * frame));
        buffer.written(chunk.bytes);
        assert!(buffer.append(1, &[0; 100]).is_err());
        buffer.set_spare(Ok(()));
        assert!(buffer.append(1, &[0; 100]).is_ok());
    }

    #[test]
    fn the_queue_is_bounded_in_bytes_and_in_flight_bytes_count() {
        let buffer = buffer(4096);
        buffer.set_spare(Ok(()));
        let mut accepted = 0;
        while buffer.append(1, &[0; 500]).is_ok() {
            accepted += 1;
        }
        assert!(accepted >= 6, "{accepted}");
        let chunk = buffer.take().expect("chunks are queued");
        assert!(matches!(buffer.append(1, &[0; 500]), Err(AppendError::Busy { .. })));
        buffer.written(chunk.bytes);
        assert!(buffer.append(1, &[0; 500]).is_ok());
    }

    #[test]
    fn the_first_reason_to_stop_stays() {
        let buffer = buffer(4096);
        buffer.stop(Stopped::Latched("sync failed".into()));
        buffer.stop(Stopped::Closed);
        assert!(matches!(buffer.append(1, b"a"), Err(AppendError::Latched { .. })));
        assert!(matches!(buffer.append(0, b"a"), Err(AppendError::ReservedKind)));
    }
}
