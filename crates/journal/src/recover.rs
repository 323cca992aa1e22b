//! What a directory holds, judged as a whole.
//!
//! Owns the rules by which segments form one journal: identity, unbroken chain, nothing missing
//! that was synced. Reads everything, changes nothing; `open` acts on the result, `offline` shows
//! it. Any doubt about synced frames is an error, with file and offset.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Sequence;
use crate::control_file::{self, CONTROL_NAME};
use crate::error::{IoContext, JournalError};
use crate::file_system::{File, FileSystem};
use crate::format::control::Control;
use crate::format::segment::{SegmentHeader, segment_name, sequence_of_name};
use crate::scan::{Hole, SegmentCursor, SegmentScan, Verdict, read_header, scan_segment};
use crate::segments::Segment;

/// What was found, all of it valid.
#[derive(Debug)]
pub(crate) struct Survey {
    /// `None`: no journal here yet.
    pub control: Option<Control>,
    /// The chain, oldest first.
    pub segments: Vec<Segment>,
    /// Segments no longer needed: trimmed, or without a frame.
    pub leftovers: Vec<PathBuf>,
    /// An unfinished write, or unused space, behind the last valid frame.
    pub tail: Option<Tail>,
    /// The end of the newest segment, as far as it may be in the page cache only.
    pub unsure: Option<Unsure>,
    /// Last frame, or where the trim stands if there is none after it.
    pub last: Sequence,
    pub frames: u64,
}

/// Frames that were read and may never have reached the disk: a killed process left them to the
/// kernel, or an earlier sync failed and the kernel holds them for clean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unsure {
    pub path: PathBuf,
    pub from: u64,
    pub to: u64,
}

/// What to cut off the newest segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    pub path: PathBuf,
    /// The file is cut to this length.
    pub offset: u64,
    /// True if there was something other than unused space.
    pub torn: bool,
    pub file_bytes: u64,
}

/// A segment with a valid header.
pub(crate) struct Opened {
    pub path: PathBuf,
    pub file: Arc<dyn File>,
    pub header: SegmentHeader,
}

/// Looks at everything in `dir`.
pub(crate) fn survey(fs: &dyn FileSystem, dir: &Path) -> Result<Survey, JournalError> {
    let paths = segment_paths(fs, dir)?;
    let Some(control) = control_file::load(fs, dir)? else {
        return survey_without_control(dir, &paths);
    };
    let mut opened = Vec::with_capacity(paths.len());
    for path in paths {
        opened.push(open_segment(fs, path, &control)?);
    }
    let (trimmed, kept) = split_trimmed(opened, control.trimmed);
    let mut survey = Survey {
        segments: Vec::with_capacity(kept.len()),
        leftovers: trimmed,
        tail: None,
        unsure: None,
        last: control.trimmed,
        frames: 0,
        control: None,
    };
    let mut rest = kept.into_iter().peekable();
    let mut is_first = true;
    while let Some(opened) = rest.next() {
        check_chain(&opened, survey.last, is_first)?;
        is_first = false;
        let newest = rest.peek().is_none();
        let scan = scan_opened(&opened)?;
        take_segment(&mut survey, opened, &scan, newest, control.trimmed)?;
    }
    check_synced(dir, &survey, &control)?;
    survey.control = Some(control);
    Ok(survey)
}

fn segment_paths(fs: &dyn FileSystem, dir: &Path) -> Result<Vec<PathBuf>, JournalError> {
    let mut paths = fs.list(dir).during("list", dir)?;
    paths.retain(|path| sequence_of_name(path).is_some());
    Ok(paths)
}

fn survey_without_control(dir: &Path, paths: &[PathBuf]) -> Result<Survey, JournalError> {
    if !paths.is_empty() {
        return Err(JournalError::Damaged {
            file: dir.join(CONTROL_NAME),
            offset: 0,
            what: format!("it is missing, and {} segments are there", paths.len()),
        });
    }
    Ok(Survey {
        control: None,
        segments: Vec::new(),
        leftovers: Vec::new(),
        tail: None,
        unsure: None,
        last: Sequence::ZERO,
        frames: 0,
    })
}

/// Opens a segment and checks that it is this journal's and under its own name.
pub(crate) fn open_segment(
    fs: &dyn FileSystem,
    path: PathBuf,
    control: &Control,
) -> Result<Opened, JournalError> {
    let file = fs.open(&path, false).during("open", &path)?;
    let header = read_header(file.as_ref(), &path)?;
    if header.journal_id != control.journal_id {
        let (found, expected) = (header.journal_id, control.journal_id);
        return Err(JournalError::Foreign { file: path, found, expected });
    }
    let name = segment_name(header.first);
    if path.file_name().and_then(|name| name.to_str()) != Some(name.as_str()) {
        let what = format!("the file was renamed; its header belongs to {name}");
        return Err(JournalError::Damaged { file: path, offset: 0, what });
    }
    Ok(Opened { path, file, header })
}

/// Separates segments that an interrupted trim left behind. Everything before a segment that
/// itself begins within the trimmed range is trimmed.
fn split_trimmed(opened: Vec<Opened>, trimmed: Sequence) -> (Vec<PathBuf>, Vec<Opened>) {
    let first_kept = opened.iter().rposition(|opened| opened.header.after <= trimmed).unwrap_or(0);
    let mut kept = opened;
    let rest = kept.split_off(first_kept);
    (kept.into_iter().map(|opened| opened.path).collect(), rest)
}

/// A segment must begin where the one before it ended; the oldest within the trimmed range.
fn check_chain(opened: &Opened, last: Sequence, is_first: bool) -> Result<(), JournalError> {
    let after = opened.header.after;
    let unbroken = if is_first { after <= last } else { after == last };
    if unbroken {
        return Ok(());
    }
    Err(JournalError::Damaged {
        file: opened.path.clone(),
        offset: 0,
        what: format!(
            "it follows frame {after}, but what is there ends at {last}: segments are missing"
        ),
    })
}

pub(crate) fn scan_opened(opened: &Opened) -> Result<SegmentScan, JournalError> {
    let cursor = SegmentCursor::new(opened.file.clone(), &opened.path, opened.header)?;
    scan_segment(cursor, &mut |_| ControlFlow::Continue(()))
}

fn take_segment(
    survey: &mut Survey,
    opened: Opened,
    scan: &SegmentScan,
    newest: bool,
    trimmed: Sequence,
) -> Result<(), JournalError> {
    if let Some(hole) = &scan.hole {
        check_hole(&opened, hole, newest)?;
    }
    // a newest segment without a frame that is needed was never begun, or was being trimmed
    if newest && scan.last.is_none_or(|last| last <= trimmed) {
        survey.leftovers.push(opened.path);
        return Ok(());
    }
    survey.last = survey.last.max(scan.last.unwrap_or(opened.header.after));
    survey.frames += scan.frames;
    let mut bytes = scan.file_bytes;
    if let Some(hole) = &scan.hole {
        bytes = hole.offset;
        survey.tail = Some(Tail {
            path: opened.path.clone(),
            offset: hole.offset,
            torn: hole.verdict == Verdict::Torn,
            file_bytes: scan.file_bytes,
        });
    }
    if newest {
        let (from, to) = (scan.unvouched_from, scan.end);
        survey.unsure = Some(Unsure { path: opened.path.clone(), from, to });
    }
    let first = opened.header.first;
    survey.segments.push(Segment { path: opened.path, first, last: survey.last, bytes });
    Ok(())
}

/// Only the newest segment may stop short, and only where nothing synced was.
fn check_hole(opened: &Opened, hole: &Hole, newest: bool) -> Result<(), JournalError> {
    let what = match &hole.verdict {
        Verdict::Damage(what) => what.clone(),
        _ if !newest => "frames end before the segment does, and later segments exist".to_owned(),
        Verdict::Unwritten | Verdict::Torn => return Ok(()),
    };
    Err(JournalError::Damaged { file: opened.path.clone(), offset: hole.offset, what })
}

/// The control file's word: up to there frames were synced.
fn check_synced(dir: &Path, survey: &Survey, control: &Control) -> Result<(), JournalError> {
    if survey.last >= control.synced {
        return Ok(());
    }
    let (file, offset) = match (&survey.tail, survey.segments.last()) {
        (Some(tail), _) => (tail.path.clone(), tail.offset),
        (None, Some(segment)) => (segment.path.clone(), segment.bytes),
        (None, None) => (dir.to_owned(), 0),
    };
    let what = format!(
        "frames end at {}, but {} was synced: the end of the journal is missing",
        survey.last, control.synced
    );
    Err(JournalError::Damaged { file, offset, what })
}
