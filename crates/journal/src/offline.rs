//! What an administrator can do with a journal no process has open.
//!
//! Owns looking (`inspect`: everything, however broken), judging (`verify`: as a start would) and
//! the one repair there is (`cut`: give up everything from the first damage on). Looking changes
//! nothing. Cutting takes the directory lock, needs the exact place of the damage as consent, and
//! keeps what it takes away beside the journal under names ending in `.cut`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::control_file;
use crate::error::{IoContext, JournalError};
use crate::file_system::FileSystem;
use crate::format::control::Control;
use crate::format::segment::sequence_of_name;
use crate::recover::{open_segment, survey};
use crate::scan::{SegmentCursor, Verdict, read_header, scan_segment};

mod cut;

pub use cut::{CutReport, cut};

/// Everything that can be said about a directory.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    pub dir: PathBuf,
    /// `None` with a reason in `verdict` if there is none or it is unreadable.
    pub control: Option<ControlReport>,
    pub segments: Vec<SegmentReport>,
    /// What a start would say.
    pub verdict: VerifyReport,
}

/// The control file, values of attributes left out.
#[derive(Clone, Debug, Serialize)]
pub struct ControlReport {
    pub journal_id: String,
    pub generation: u32,
    pub clean: bool,
    pub trimmed: String,
    pub synced: String,
    /// Key and length of each attribute.
    pub attributes: Vec<(String, usize)>,
}

/// One segment file.
#[derive(Clone, Debug, Serialize)]
pub struct SegmentReport {
    pub file: PathBuf,
    pub file_bytes: u64,
    /// First and last frame, `None` if there is no frame.
    pub frames: u64,
    pub first: Option<String>,
    pub last: Option<String>,
    /// Offset behind the last valid frame.
    pub valid_bytes: u64,
    /// What follows it.
    pub ending: String,
}

/// What a start would make of the directory.
#[derive(Clone, Debug, Serialize)]
pub struct VerifyReport {
    /// True if a start would open it.
    pub opens: bool,
    pub frames: u64,
    pub last: Option<String>,
    /// Bytes of an unfinished write that a start would cut off.
    pub torn_bytes: u64,
    /// Why it would not open, with file, offset and choices.
    pub refusal: Option<String>,
}

/// Looks at everything; only a directory that cannot be listed is an error. The journal may be
/// open elsewhere, the newest segment is then seen in passing.
pub fn inspect(fs: &dyn FileSystem, dir: &Path) -> Result<Inspection, JournalError> {
    let mut segments = Vec::new();
    for path in fs.list(dir).during("list", dir)? {
        if sequence_of_name(&path).is_some() {
            segments.push(inspect_segment(fs, path));
        }
    }
    let control = control_file::load(fs, dir).ok().flatten();
    let control = control.as_ref().map(ControlReport::of);
    let verdict = match verify(fs, dir) {
        Ok(report) => report,
        Err(error) => VerifyReport {
            opens: false,
            frames: 0,
            last: None,
            torn_bytes: 0,
            refusal: Some(error.to_string()),
        },
    };
    Ok(Inspection { dir: dir.to_owned(), control, segments, verdict })
}

/// Judges the directory as a start would; the error is the one a start would give.
pub fn verify(fs: &dyn FileSystem, dir: &Path) -> Result<VerifyReport, JournalError> {
    let survey = survey(fs, dir)?;
    let torn = survey.tail.as_ref().filter(|tail| tail.torn);
    Ok(VerifyReport {
        opens: true,
        frames: survey.frames,
        last: Some(survey.last.to_string()),
        torn_bytes: torn.map_or(0, |tail| tail.file_bytes - tail.offset),
        refusal: None,
    })
}

impl ControlReport {
    fn of(control: &Control) -> Self {
        let attributes = control.attributes.iter();
        Self {
            journal_id: control.journal_id.to_string(),
            generation: control.generation,
            clean: control.clean,
            trimmed: control.trimmed.to_string(),
            synced: control.synced.to_string(),
            attributes: attributes.map(|(key, value)| (key.clone(), value.len())).collect(),
        }
    }
}

fn inspect_segment(fs: &dyn FileSystem, path: PathBuf) -> SegmentReport {
    let mut report = SegmentReport {
        file: path,
        file_bytes: 0,
        frames: 0,
        first: None,
        last: None,
        valid_bytes: 0,
        ending: String::new(),
    };
    if let Err(error) = fill_segment(fs, &mut report) {
        report.ending = error.to_string();
    }
    report
}

fn fill_segment(fs: &dyn FileSystem, report: &mut SegmentReport) -> Result<(), JournalError> {
    let path = report.file.clone();
    let file = fs.open(&path, false).during("open", &path)?;
    report.file_bytes = file.size().during("read the size of", &path)?;
    let header = read_header(file.as_ref(), &path)?;
    let cursor = SegmentCursor::new(file, &path, header)?;
    let mut first = None;
    let scan = scan_segment(cursor, &mut |frame| {
        first.get_or_insert(frame.sequence);
        ControlFlow::Continue(())
    })?;
    report.frames = scan.frames;
    report.first = first.map(|sequence| sequence.to_string());
    report.last = scan.last.map(|sequence| sequence.to_string());
    report.valid_bytes = scan.end;
    report.ending = match scan.hole.map(|hole| hole.verdict) {
        None => "sealed".to_owned(),
        Some(Verdict::Unwritten) => "unused space".to_owned(),
        Some(Verdict::Torn) => "an unfinished write".to_owned(),
        Some(Verdict::Damage(what)) => format!("damage: {what}"),
    };
    Ok(())
}

/// True if the segment opens as part of this journal.
fn belongs(fs: &dyn FileSystem, path: &Path, control: &Control) -> bool {
    open_segment(fs, path.to_owned(), control).is_ok()
}
