//! Opening a journal: lock, look, decide, prepare.
//!
//! Owns the order of a start. Reads the directory through `recover`, then hands over to the
//! writer, which makes the new generation durable at once, or later if the volume is full.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::watch;
use uuid::Uuid;

use crate::buffer::Buffer;
use crate::control_file::ControlFile;
use crate::error::{IoContext, JournalError, is_no_room};
use crate::file_system::{DirectoryLock, FileSystem, read_full_at, write_all_at};
use crate::format::control::Control;
use crate::format::frame::Seed;
use crate::recover::{Survey, Unsure, survey};
use crate::segments::Segments;
use crate::sequence::GENERATION_MAX;
use crate::shared::{Counters, Shared};
use crate::writer::{Preparation, Writer};
use crate::{JournalOptions, Recovery, Sequence, Watermarks};

/// Name of the file that carries the directory lock.
pub(crate) const LOCK_NAME: &str = "lock";
/// How much of the newest segment's end is written again at once.
const REWRITE_BYTES: usize = 1 << 20;

/// Opens the journal without starting its thread.
pub(crate) fn open(
    fs: Arc<dyn FileSystem>,
    dir: &Path,
    options: JournalOptions,
) -> Result<(Writer, Recovery), JournalError> {
    options.validate()?;
    fs.create_dir_all(dir).during("create directory", dir)?;
    let lock = lock_dir(fs.as_ref(), dir)?;
    let survey = survey(fs.as_ref(), dir)?;
    if let Some(unsure) = &survey.unsure {
        settle(fs.as_ref(), unsure)?;
    }
    let created = survey.control.is_none();
    let control = survey
        .control
        .clone()
        .unwrap_or_else(|| Control::new(options.new_journal_id.unwrap_or_else(Uuid::new_v4)));
    if control.generation >= GENERATION_MAX {
        return Err(JournalError::GenerationsExhausted { opened: control.generation });
    }
    let again = cachetier_defects::on("r02-same-generation") && !created;
    let generation = control.generation + u32::from(!again);
    let recovery = recovery(&survey, &control, created, generation);
    let preparation =
        Preparation { generation, leftovers: survey.leftovers, tail: survey.tail.clone() };
    let last = survey.last;
    let segments = Segments::new(survey.segments);
    let shared = shared(fs, dir, options, lock, control, segments, &recovery);
    let mut driver = Writer::new(Arc::new(shared), preparation, last);
    match driver.prepare_now() {
        Err(JournalError::Io { act, path, source })
            if is_no_room(&source) && !act.starts_with("sync") =>
        {
            let path = path.display();
            tracing::warn!(act, %path, error = %source, "journal opened without room to write");
            driver.refuse(&format!("cannot {act} {path}: {source}"));
        }
        result => {
            result?;
            driver.keep_spare(Instant::now());
        }
    }
    Ok((driver, recovery))
}

/// Takes the directory for this process.
pub(crate) fn lock_dir(fs: &dyn FileSystem, dir: &Path) -> Result<DirectoryLock, JournalError> {
    let path = dir.join(LOCK_NAME);
    match fs.lock(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            Err(JournalError::InUse { dir: dir.to_owned() })
        }
        result => result.during("lock", &path),
    }
}

/// Makes what was read last survive a power cut. It is written again before it is synced: after a
/// failed sync the kernel may hold the pages for clean, and a sync alone would do nothing.
fn settle(fs: &dyn FileSystem, unsure: &Unsure) -> Result<(), JournalError> {
    let Unsure { path, from, to } = unsure;
    match rewrite(fs, path, *from, *to) {
        Err(JournalError::Io { source, .. }) if is_no_room(&source) => {
            tracing::warn!(error = %source, "journal tail could only be synced, not written again");
        }
        result => result?,
    }
    let file = fs.open(path, false).during("open", path)?;
    file.sync_data().during("sync", path)
}

fn rewrite(fs: &dyn FileSystem, path: &Path, from: u64, to: u64) -> Result<(), JournalError> {
    let file = fs.open(path, true).during("open", path)?;
    let mut buffer = vec![0; REWRITE_BYTES.min((to - from) as usize)];
    let mut at = from;
    while at < to {
        let wanted = (to - at).min(buffer.len() as u64) as usize;
        let part = buffer.get_mut(..wanted).unwrap_or_default();
        let read = read_full_at(file.as_ref(), part, at).during("read", path)?;
        if read < wanted {
            let what = "the file became shorter while it was read".to_owned();
            return Err(JournalError::Damaged { file: path.to_owned(), offset: at, what });
        }
        write_all_at(file.as_ref(), part, at).during("write", path)?;
        at += wanted as u64;
    }
    Ok(())
}

fn recovery(survey: &Survey, control: &Control, created: bool, generation: u32) -> Recovery {
    let torn = survey.tail.as_ref().filter(|tail| tail.torn);
    Recovery {
        created,
        clean: control.clean && torn.is_none(),
        generation,
        trimmed: control.trimmed,
        last: survey.last,
        frames: survey.frames,
        torn_bytes: torn.map_or(0, |tail| tail.file_bytes - tail.offset),
    }
}

fn shared(
    fs: Arc<dyn FileSystem>,
    dir: &Path,
    options: JournalOptions,
    lock: DirectoryLock,
    control: Control,
    segments: Segments,
    recovery: &Recovery,
) -> Shared {
    let last = recovery.last;
    let seed = Seed::of(control.journal_id);
    let begin = Sequence::new(recovery.generation, 0);
    let again = cachetier_defects::on("r02-same-generation");
    let begin = if again { begin.max(last) } else { begin };
    let marks = Watermarks {
        appended: last,
        written: last,
        durable: last,
        synced: last,
        trimmed: recovery.trimmed,
        stopped: None,
        blocked: None,
    };
    Shared {
        buffer: Buffer::new(seed, &options, begin),
        journal_id: control.journal_id,
        rare_marks: watch::Sender::new(marks.clone()),
        marks: watch::Sender::new(marks),
        durable: AtomicU64::new(last.get()),
        synced: AtomicU64::new(last.get()),
        trim_upto: AtomicU64::new(recovery.trimmed.get()),
        segments: Mutex::new(segments),
        attributes: Mutex::new(Arc::new(control.attributes.clone())),
        control: Mutex::new(ControlFile::new(fs.clone(), dir.to_owned(), control)),
        counters: Counters::default(),
        lock: Mutex::new(Some(lock)),
        fs,
        dir: dir.to_owned(),
        options,
    }
}
