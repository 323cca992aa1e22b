//! Frozen journals of format version 1, sound and damaged: each must open, or must refuse, as it
//! did when it was frozen, for ever.
//!
//! A fixture is a directory under `tests/fixtures/v1` with the files of a journal and
//! `expected.txt`. `freeze` (ignored) makes those that are missing and never touches one that is
//! there: when the format gets a new version, add `v2` beside it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cachetier_journal::file_system::{FaultyFileSystem, RealFileSystem};
use cachetier_journal::{Journal, JournalError, Sequence};

use crate::support::{DIR, Driven, relaxed, segments, small};

/// Name, whether it must open, and how it is made.
type Fixture = (&'static str, bool, fn(&FaultyFileSystem));

const FIXTURES: [Fixture; 19] = [
    ("killed", true, |fs| write(fs, 60)),
    ("closed_in_order", true, closed),
    ("never_written", true, |fs| write(fs, 0)),
    ("two_generations", true, |fs| {
        write(fs, 30);
        write(fs, 25);
    }),
    ("trimmed", true, trimmed),
    ("interrupted_trim", true, interrupted_trim),
    ("torn_tail", true, |fs| torn(fs, 0x00)),
    ("garbage_tail", true, |fs| torn(fs, 0xa5)),
    ("rotated_and_not_written", true, rotated),
    ("unknown_attributes_and_reserve", true, reserve),
    ("damaged_frame", false, |fs| spoil(fs, 1, 5000, |byte| *byte ^= 4)),
    ("zeroed_sector", false, |fs| spoil(fs, 0, 4096, |byte| *byte = 0)),
    ("damaged_header", false, |fs| spoil(fs, 1, 40, |byte| *byte ^= 1)),
    ("unknown_version", false, |fs| spoil(fs, 0, 8, |byte| *byte = 2)),
    ("shortened_segment", false, |fs| resize(fs, 0, 9000)),
    ("missing_segment", false, |fs| remove(fs, 1)),
    ("missing_end", false, missing_end),
    ("foreign_segment", false, foreign),
    ("damaged_control", false, damaged_control),
];

fn write(fs: &FaultyFileSystem, frames: u8) {
    let mut journal = Driven::open(fs, small()).unwrap();
    for n in 0..frames {
        journal.commit(&vec![n; 600 + usize::from(n)]);
    }
    journal.journal.set_attribute("claim", b"token 7").unwrap();
    journal.abandon().kill_process();
}

fn closed(fs: &FaultyFileSystem) {
    let mut journal = Driven::open(fs, small()).unwrap();
    for n in 0..10 {
        journal.commit(&[n; 100]);
    }
    let mut closing = std::pin::pin!(journal.journal.clone().close());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(closing.as_mut().poll(&mut context).is_pending());
    journal.run();
}

fn trimmed(fs: &FaultyFileSystem) {
    let mut journal = Driven::open(fs, small()).unwrap();
    let last = (0..60).fold(Sequence::ZERO, |_, n| journal.commit(&[n; 600]));
    journal.journal.trim(last);
    journal.run();
    journal.abandon().kill_process();
}

fn interrupted_trim(fs: &FaultyFileSystem) {
    write(fs, 60);
    let first = segments(fs)[0].clone();
    let content = fs.content(&first).unwrap();
    let mut journal = Driven::open(fs, small()).unwrap();
    journal.journal.trim(Sequence::MAX);
    journal.run();
    journal.abandon().kill_process();
    fs.plant(&first, content);
}

/// The last write, never synced, lost its middle.
fn torn(fs: &FaultyFileSystem, with: u8) {
    let mut journal = Driven::open(fs, relaxed()).unwrap();
    journal.commit(&[1; 600]);
    journal.pass(Duration::from_secs(3601));
    journal.commit(&[2; 1900]);
    journal.abandon().kill_process();
    let path = segments(fs).pop().unwrap();
    let mut content = fs.content(&path).unwrap();
    content[1024..2048].fill(with);
    fs.plant(&path, content);
}

/// A new segment got its name, and the power went before its first frame.
fn rotated(fs: &FaultyFileSystem) {
    write(fs, 60);
    let path = segments(fs).pop().unwrap();
    let mut content = fs.content(&path).unwrap();
    content[64..].fill(0);
    fs.plant(&path, content);
    // as it was before the end of that segment was noted
    let journal = FaultyFileSystem::new();
    write(&journal, 0);
    let control = Path::new(DIR).join("control");
    fs.plant(&control, journal.content(&control).unwrap());
}

fn reserve(fs: &FaultyFileSystem) {
    let journal = Driven::open(fs, small()).unwrap();
    journal.journal.set_attribute("future", &[0xff; 300]).unwrap();
    journal.journal.set_attribute("", b"empty key").unwrap();
    journal.abandon().kill_process();
    let control = Path::new(DIR).join("control");
    let mut content = fs.content(&control).unwrap();
    let used = content.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    content[used..].fill(0x77);
    content.truncate(used + 100);
    fs.plant(&control, content);
}

fn spoil(fs: &FaultyFileSystem, segment: usize, at: usize, spoil: fn(&mut u8)) {
    write(fs, 60);
    let path = segments(fs)[segment].clone();
    let mut content = fs.content(&path).unwrap();
    let end = if at < 64 { at + 1 } else { at + 512 };
    content[at..end].iter_mut().for_each(spoil);
    fs.plant(&path, content);
}

fn resize(fs: &FaultyFileSystem, segment: usize, bytes: usize) {
    write(fs, 60);
    let path = segments(fs)[segment].clone();
    let mut content = fs.content(&path).unwrap();
    content.truncate(bytes);
    fs.plant(&path, content);
}

fn remove(fs: &FaultyFileSystem, segment: usize) {
    write(fs, 60);
    let path = segments(fs)[segment].clone();
    cachetier_journal::file_system::FileSystem::remove(fs, &path).unwrap();
}

/// The newest segment is gone, and the control file knows that there was more.
fn missing_end(fs: &FaultyFileSystem) {
    write(fs, 60);
    let newest = segments(fs).len() - 1;
    let path = segments(fs)[newest].clone();
    cachetier_journal::file_system::FileSystem::remove(fs, &path).unwrap();
}

fn foreign(fs: &FaultyFileSystem) {
    write(fs, 60);
    let other = FaultyFileSystem::new();
    let options = cachetier_journal::JournalOptions {
        new_journal_id: Some(uuid::Uuid::from_u128(0xbad)),
        ..small()
    };
    let mut journal = Driven::open(&other, options).unwrap();
    journal.commit(b"of another journal");
    journal.abandon().kill_process();
    let path = segments(&other)[0].clone();
    fs.plant(&path, other.content(&path).unwrap());
}

fn damaged_control(fs: &FaultyFileSystem) {
    write(fs, 3);
    let control = Path::new(DIR).join("control");
    let mut content = fs.content(&control).unwrap();
    content[30] ^= 1;
    fs.plant(&control, content);
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1")
}

/// What the journal says about a directory, in a form that can be frozen.
fn describe(dir: &Path) -> String {
    let (journal, recovery) = match Journal::open(Arc::new(RealFileSystem), dir, small()) {
        Ok(opened) => opened,
        Err(refused) => return describe_refusal(&refused),
    };
    let mut text = String::new();
    let r = recovery;
    writeln!(text, "opens generation={} clean={} frames={}", r.generation, r.clean, r.frames)
        .unwrap();
    writeln!(text, "trimmed={} last={} torn_bytes={}", r.trimmed, r.last, r.torn_bytes).unwrap();
    writeln!(text, "journal={} claim={:?}", journal.id(), journal.attribute("claim")).unwrap();
    for frame in journal.read_from(Sequence::ZERO).unwrap().map(Result::unwrap) {
        let (sequence, kind, length) = (frame.sequence, frame.kind, frame.payload.len());
        let uniform = frame.payload.iter().all(|byte| *byte == frame.payload[0]);
        assert!(uniform, "payloads of fixtures are one byte repeated");
        writeln!(text, "{sequence} kind={kind} {length} x {:02x}", frame.payload[0]).unwrap();
    }
    text
}

fn describe_refusal(refused: &JournalError) -> String {
    let name = |file: &Path| file.file_name().unwrap().to_string_lossy().into_owned();
    match refused {
        JournalError::Damaged { file, offset, what } => {
            format!("refuses: damaged {} at {offset}: {what}\n", name(file))
        }
        JournalError::Version { file, version, .. } => {
            format!("refuses: {} has version {version}\n", name(file))
        }
        JournalError::Foreign { file, found, .. } => {
            format!("refuses: {} is of {found}\n", name(file))
        }
        other => panic!("not a refusal of content: {other}"),
    }
}

/// A copy to open: opening changes a journal.
fn copy_of(fixture: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixture).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "expected.txt" {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
    }
    copy
}

#[test]
fn every_frozen_journal_opens_or_refuses_as_it_did_when_it_was_frozen() {
    for (name, opens, _) in FIXTURES {
        let fixture = root().join(name);
        let expected = std::fs::read_to_string(fixture.join("expected.txt")).expect(name);
        let found = describe(copy_of(&fixture).path());
        assert_eq!(found.starts_with("opens"), opens, "{name}: {found}");
        assert_eq!(found, expected, "{name}");
    }
    let frozen = std::fs::read_dir(root()).unwrap().count();
    assert_eq!(frozen, FIXTURES.len(), "every frozen directory is listed here");
}

#[test]
#[ignore = "makes fixtures that are missing; existing ones are never changed"]
fn freeze() {
    for (name, opens, make) in FIXTURES {
        let fixture = root().join(name);
        if fixture.exists() {
            continue;
        }
        let fs = FaultyFileSystem::new();
        make(&fs);
        std::fs::create_dir_all(&fixture).unwrap();
        for (path, mut content) in fs.files() {
            let file = path.file_name().unwrap().to_str().unwrap().to_owned();
            match file.as_str() {
                "spare" | "control.next" | "lock" => continue,
                "control" if name != "unknown_attributes_and_reserve" => {
                    let used = content.iter().rposition(|byte| *byte != 0).unwrap_or(0) + 1;
                    content.truncate(used.max(61));
                }
                _ => {}
            }
            std::fs::write(fixture.join(file), content).unwrap();
        }
        let text = describe(copy_of(&fixture).path());
        assert_eq!(text.starts_with("opens"), opens, "{name}: {text}");
        std::fs::write(fixture.join("expected.txt"), text).unwrap();
    }
}
