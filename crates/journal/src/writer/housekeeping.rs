//! Changes to the directory: preparing at start, rotating, keeping a spare, trimming, closing.
//!
//! Owns the order of file operations that recovery relies on: cut before new, sealed before
//! next, header and name durable before the first frame, trim noted before files go.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Active, Failure, Writer};
use crate::Sequence;
use crate::Stopped;
use crate::error::{IoContext, JournalError};
use crate::file_system::{File, write_all_at};
use crate::format::SEGMENT_HEADER_BYTES;
use crate::format::segment::{SegmentHeader, encode_header, segment_name};
use crate::recover::Tail;
use crate::segments::Segment;

/// Name of the allocated file that becomes the next segment.
pub(crate) const SPARE_NAME: &str = "spare";

/// How long a trim waits when another thread is changing the control file.
const CONTROL_BUSY_WAIT: Duration = Duration::from_millis(1);

impl Writer {
    /// Does what `open` left to do. Until it succeeded no frame is accepted.
    pub(crate) fn prepare_now(&mut self) -> Result<(), JournalError> {
        let Some(preparation) = &self.preparation else { return Ok(()) };
        let fs = &self.shared.fs;
        for path in &preparation.leftovers {
            match fs.remove(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).during("remove", path);
                }
                _ => {}
            }
        }
        if let Some(Tail { path, offset, .. }) = &preparation.tail {
            let file = fs.open(path, true).during("open", path)?;
            file.set_size(*offset).during("cut", path)?;
        }
        let mut control = self.shared.control.lock();
        let mut next = control.current().clone();
        next.generation = preparation.generation;
        next.clean = false;
        next.synced = next.synced.max(self.synced);
        control.store(next)?;
        drop(control);
        self.preparation = None;
        Ok(())
    }

    pub(super) fn prepare(&mut self) -> Result<(), Failure> {
        if self.preparation.is_some() {
            self.prepare_now().map_err(|error| Failure::of(&error))?;
            self.unblock();
        }
        Ok(())
    }

    /// Seals the active segment and makes the spare the active one, beginning with `first`.
    pub(super) fn rotate(&mut self, first: Sequence) -> Result<(), Failure> {
        self.seal()?;
        if self.spare.is_none() {
            self.make_spare().map_err(|error| Failure::of(&error))?;
        }
        self.adopt_spare(first).map_err(|error| Failure::of(&error))
    }

    /// Syncs the active segment, gives back its unused space and lets go of it.
    fn seal(&mut self) -> Result<(), Failure> {
        self.sync()?;
        let Some(active) = &self.active else { return Ok(()) };
        active
            .file
            .set_size(active.offset)
            .during("cut", &active.path)
            .map_err(|error| Failure::of(&error))?;
        if let Some(segment) = self.shared.segments.lock().newest_mut() {
            segment.bytes = active.offset;
        }
        self.active = None;
        Ok(())
    }

    fn adopt_spare(&mut self, first: Sequence) -> Result<(), JournalError> {
        let Some(file) = self.spare.clone() else {
            return Err(JournalError::Closed);
        };
        let shared = &self.shared;
        let segment_bytes = shared.options.segment_bytes;
        let journal_id = shared.journal_id;
        let header = SegmentHeader { journal_id, first, after: self.written, segment_bytes };
        let spare_path = shared.dir.join(SPARE_NAME);
        let path = shared.dir.join(segment_name(first));
        write_all_at(file.as_ref(), &encode_header(&header), 0).during("write", &spare_path)?;
        file.sync_data().during("sync", &spare_path)?;
        shared.fs.rename(&spare_path, &path).during("rename to", &path)?;
        shared.fs.sync_dir(&shared.dir).during("sync", &shared.dir)?;
        let segment =
            Segment { path: path.clone(), first, last: self.written, bytes: segment_bytes };
        shared.segments.lock().push(segment);
        shared.buffer.rotated(segment_bytes - SEGMENT_HEADER_BYTES);
        self.spare = None;
        self.active = Some(Active { file, path, offset: SEGMENT_HEADER_BYTES });
        Ok(())
    }

    /// What keeps space ready and gives unneeded space back; cheap when there is nothing to do.
    pub(super) fn housekeep(&mut self, now: Instant) -> Result<(), Failure> {
        self.trim(now)?;
        let due = self.housekeep_at.is_none_or(|at| now >= at);
        if self.spare.is_none() && due {
            self.keep_spare(now);
        }
        Ok(())
    }

    /// Prepares a spare segment; not being able to is no failure while the active one has room.
    pub(crate) fn keep_spare(&mut self, now: Instant) {
        let options = &self.shared.options;
        let (needed, capacity) = (options.segment_bytes, options.capacity_bytes);
        let retry_interval = options.retry_interval;
        let used = self.shared.segments.lock().bytes();
        let spare = if used + needed > capacity {
            Err(format!("{used} of {capacity} bytes are used and nothing can be trimmed yet"))
        } else {
            self.make_spare().map_err(|error| match Failure::of(&error) {
                Failure::NoRoom(reason) | Failure::Fatal(reason) => reason,
            })
        };
        match spare {
            Ok(()) => {
                self.shared.buffer.set_spare(Ok(()));
                self.housekeep_at = None;
            }
            Err(reason) => {
                tracing::debug!(reason, "no spare segment");
                self.shared.buffer.set_spare(Err(reason.into()));
                self.housekeep_at = Some(now + retry_interval);
            }
        }
        self.shared.publish(|_| {});
    }

    fn make_spare(&mut self) -> Result<(), JournalError> {
        let shared = &self.shared;
        let path = shared.dir.join(SPARE_NAME);
        let file: Arc<dyn File> = match shared.fs.create(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                shared.fs.remove(&path).during("remove", &path)?;
                shared.fs.create(&path).during("create", &path)?
            }
            result => result.during("create", &path)?,
        };
        if let Err(error) = file.allocate(shared.options.segment_bytes) {
            // half a spare is no use to us and its space may be what others need
            if let Err(error) = shared.fs.remove(&path) {
                tracing::debug!(%error, "could not remove an unfinished spare segment");
            }
            return Err(error).during("allocate", &path);
        }
        self.spare = Some(file);
        Ok(())
    }

    /// Notes the trim in the control file, then removes whole old segments.
    pub(super) fn trim(&mut self, now: Instant) -> Result<(), Failure> {
        if self.shared.trim_upto() <= self.trimmed {
            return Ok(());
        }
        let upto = self.shared.trim_upto().min(self.synced);
        let all = self.active.is_none();
        let old = self.shared.segments.lock().droppable(upto, all);
        let Some(newest) = old.last() else {
            return Ok(());
        };
        let trimmed = newest.last;
        let Some(mut control) = self.shared.control.try_lock() else {
            self.housekeep_at = Some(now + CONTROL_BUSY_WAIT);
            return Ok(());
        };
        let mut next = control.current().clone();
        next.trimmed = trimmed;
        next.synced = self.synced;
        let noted = control.store(next);
        drop(control);
        match noted.map_err(|error| Failure::of(&error)) {
            Err(Failure::NoRoom(reason)) => {
                tracing::warn!(reason, "journal could not note a trim, will try again");
                self.housekeep_at = Some(now + self.shared.options.retry_interval);
                return Ok(());
            }
            result => result?,
        }
        for segment in &old {
            // the trim is noted: a file that stays behind is removed at the next start
            if let Err(error) = self.shared.fs.remove(&segment.path) {
                tracing::warn!(%error, "could not remove a trimmed segment");
            }
            self.shared.segments.lock().drop_oldest();
        }
        self.trimmed = trimmed;
        self.housekeep_at = None;
        self.blocked_until = self.blocked_until.map(|_| now);
        self.shared.publish(|marks| marks.trimmed = trimmed);
        Ok(())
    }

    /// Seals, marks the journal clean and lets go of the directory.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        self.seal()?;
        if self.preparation.is_none() {
            let mut control = self.shared.control.lock();
            let mut next = control.current().clone();
            next.clean = true;
            next.synced = self.synced;
            match control.store(next).map_err(|error| Failure::of(&error)) {
                Err(Failure::NoRoom(reason)) => {
                    tracing::warn!(reason, "journal closed without being marked clean");
                }
                result => result?,
            }
        }
        let lock = self.shared.lock.lock().take();
        drop(lock);
        self.shared.stop(Stopped::Closed);
        Ok(())
    }
}
