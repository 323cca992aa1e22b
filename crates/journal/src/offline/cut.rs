//! Giving up everything from the first damage on.
//!
//! Owns the order that makes a cut safe to interrupt: first the bytes are copied aside, then
//! later segments are set aside newest first, then the damaged one is shortened, last the control
//! file admits that less is synced. Run again after an interruption it finishes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::{belongs, verify};
use crate::Sequence;
use crate::control_file::{self, ControlFile};
use crate::error::{IoContext, JournalError};
use crate::file_system::{File, FileSystem, read_full_at, write_all_at};
use crate::format::SEGMENT_HEADER_BYTES;
use crate::format::control::Control;
use crate::format::segment::sequence_of_name;
use crate::open::lock_dir;
use crate::recover::survey;

/// What a cut did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CutReport {
    /// Last frame that is left.
    pub last: String,
    /// Position that was known to be synced before; frames between the two are lost.
    pub synced_before: String,
    /// Where the bytes that were taken away are kept.
    pub kept_aside: Vec<PathBuf>,
}

/// Cuts the journal at its first damage, which must be in `file` at `offset`: what `verify`
/// reports and the administrator agreed to lose. Refuses any other place.
pub fn cut(
    fs: &Arc<dyn FileSystem>,
    dir: &Path,
    file: &Path,
    offset: u64,
) -> Result<CutReport, JournalError> {
    let _lock = lock_dir(fs.as_ref(), dir)?;
    let refuse = |fix: String| Err(JournalError::Options { field: "cut position", fix });
    match verify(fs.as_ref(), dir) {
        Err(JournalError::Damaged { file: found, offset: at, .. }) if found == file => {
            if at != offset {
                return refuse(format!("the damage is at offset {at}, not {offset}"));
            }
        }
        Err(JournalError::Damaged { file: found, offset: at, .. }) => {
            return refuse(format!("the first damage is in {} at {at}", found.display()));
        }
        Err(other) => return Err(other),
        Ok(_) => return refuse("the journal is not damaged; nothing is cut".to_owned()),
    }
    let Some(control) = control_file::load(fs.as_ref(), dir)? else {
        return refuse("there is no control file; restore it or discard the journal".to_owned());
    };
    let kept_aside = set_aside(fs.as_ref(), dir, file, offset, &control)?;
    let synced_before = control.synced;
    let last = admit(fs, dir, control)?;
    Ok(CutReport { last: last.to_string(), synced_before: synced_before.to_string(), kept_aside })
}

/// Takes everything from the damage on out of the journal.
fn set_aside(
    fs: &dyn FileSystem,
    dir: &Path,
    file: &Path,
    offset: u64,
    control: &Control,
) -> Result<Vec<PathBuf>, JournalError> {
    let mut later: Vec<PathBuf> = fs.list(dir).during("list", dir)?;
    later.retain(|path| sequence_of_name(path).is_some() && path.as_path() > file);
    let whole = offset < SEGMENT_HEADER_BYTES || !belongs(fs, file, control);
    let is_segment = sequence_of_name(file).is_some();
    let mut kept_aside = Vec::new();
    if is_segment && !whole {
        kept_aside.push(copy_tail(fs, file, offset)?);
        fs.sync_dir(dir).during("sync directory", dir)?;
    }
    if is_segment && whole {
        later.insert(0, file.to_owned());
    }
    for path in later.iter().rev() {
        let aside = aside_name(path);
        fs.rename(path, &aside).during("rename", path)?;
        fs.sync_dir(dir).during("sync directory", dir)?;
        kept_aside.push(aside);
    }
    if is_segment && !whole {
        let damaged = fs.open(file, true).during("open", file)?;
        damaged.set_size(offset).during("cut", file)?;
    }
    Ok(kept_aside)
}

fn aside_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".cut");
    PathBuf::from(name)
}

fn copy_tail(fs: &dyn FileSystem, path: &Path, offset: u64) -> Result<PathBuf, JournalError> {
    let aside = aside_name(path);
    let from = fs.open(path, false).during("open", path)?;
    let to: Arc<dyn File> = match fs.create(&aside) {
        // an earlier attempt was interrupted: its copy is made again
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            fs.open(&aside, true).during("open", &aside)?
        }
        result => result.during("create", &aside)?,
    };
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let read = read_full_at(from.as_ref(), &mut buffer, offset + at).during("read", path)?;
        if read == 0 {
            break;
        }
        let part = buffer.get(..read).unwrap_or_default();
        write_all_at(to.as_ref(), part, at).during("write", &aside)?;
        at += read as u64;
    }
    to.sync_data().during("sync", &aside)?;
    Ok(aside)
}

/// Lowers what the control file promises to what is left.
fn admit(
    fs: &Arc<dyn FileSystem>,
    dir: &Path,
    mut control: Control,
) -> Result<Sequence, JournalError> {
    let synced = control.synced;
    control.synced = Sequence::ZERO;
    control.clean = false;
    let mut file = ControlFile::new(fs.clone(), dir.to_owned(), control.clone());
    file.store(control.clone())?;
    let last = survey(fs.as_ref(), dir)?.last;
    control.synced = synced.min(last);
    file.store(control)?;
    Ok(last)
}
