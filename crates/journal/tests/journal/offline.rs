//! What an administrator can do with a damaged journal.

use std::path::Path;
use std::sync::Arc;

use cachetier_journal::file_system::{Fault, FaultyFileSystem, FileSystem, Operation};
use cachetier_journal::{JournalError, offline};

use crate::support::{DIR, Driven, segments, small};

/// A journal of 200 frames with its third segment destroyed in the middle.
fn damaged() -> (FaultyFileSystem, std::path::PathBuf, u64) {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, small()).unwrap();
    for n in 0..200_u8 {
        journal.commit(&[n; 400]);
    }
    journal.journal.set_attribute("claim", b"7").unwrap();
    journal.abandon().kill_process();
    let path = segments(&fs)[2].clone();
    let mut content = fs.content(&path).unwrap();
    content[8000..8100].fill(0xee);
    fs.plant(&path, content);
    let Err(JournalError::Damaged { file, offset, .. }) = offline::verify(&fs, Path::new(DIR))
    else {
        panic!("the damage is found");
    };
    (fs, file, offset)
}

#[test]
fn d26_inspect_shows_everything_of_a_damaged_journal() {
    let (fs, file, offset) = damaged();
    let inspection = offline::inspect(&fs, Path::new(DIR)).unwrap();
    assert!(!inspection.verdict.opens);
    assert!(inspection.verdict.refusal.unwrap().contains(&offset.to_string()));
    assert_eq!(inspection.segments.len(), segments(&fs).len());
    for (index, segment) in inspection.segments.iter().enumerate() {
        assert_eq!(segment.ending.contains("damage"), segment.file == file, "{segment:?}");
        assert_eq!(segment.first.is_some(), segment.frames > 0, "segment {index}");
    }
    assert_eq!(inspection.control.unwrap().attributes, [("claim".to_owned(), 1)]);
}

#[test]
fn d26_cut_gives_up_from_the_damage_on_keeps_the_bytes_aside_and_the_journal_opens() {
    let (fs, file, offset) = damaged();
    let dyn_fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let report = offline::cut(&dyn_fs, Path::new(DIR), &file, offset).unwrap();
    assert!(report.kept_aside.iter().all(|path| fs.content(path).is_some()));
    assert!(report.kept_aside.len() >= 2, "{report:?}");
    let mut reopened = Driven::open(&fs, small()).unwrap();
    let frames = reopened.frames();
    assert!(!frames.is_empty() && frames.len() < 200);
    assert_eq!(frames.last().unwrap().sequence.to_string(), report.last);
    assert!((0..).zip(&frames).all(|(n, frame)| frame.payload[0] == n));
    assert_eq!(reopened.journal.attribute("claim").as_deref(), Some(b"7".as_slice()));
    let next = reopened.commit(b"goes on");
    assert!(next > frames.last().unwrap().sequence);
}

#[test]
fn d26_cut_refuses_any_place_but_that_of_the_damage() {
    let (fs, file, offset) = damaged();
    let before = fs.files();
    let dyn_fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let dir = Path::new(DIR);
    let wrong = offline::cut(&dyn_fs, dir, &file, offset + 8).unwrap_err();
    assert!(wrong.to_string().contains(&offset.to_string()), "{wrong}");
    let wrong = offline::cut(&dyn_fs, dir, &segments(&fs)[0], offset).unwrap_err();
    assert!(wrong.to_string().contains("first damage"), "{wrong}");
    assert_eq!(fs.files(), before);
}

#[test]
fn d26_cut_refuses_a_sound_journal_and_one_that_is_open() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, small()).unwrap();
    journal.commit(b"a");
    let path = segments(&fs)[0].clone();
    let dyn_fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let refused = offline::cut(&dyn_fs, Path::new(DIR), &path, 64).unwrap_err();
    assert!(matches!(refused, JournalError::InUse { .. }), "{refused}");
    journal.abandon().kill_process();
    let refused = offline::cut(&dyn_fs, Path::new(DIR), &path, 64).unwrap_err();
    assert!(refused.to_string().contains("not damaged"), "{refused}");
}

#[test]
fn d26_an_interrupted_cut_can_be_run_again() {
    for step in 0..40 {
        let (fs, file, offset) = damaged();
        let dyn_fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
        let mut count = 0;
        fs.set_faults(move |operation| {
            let changes = !matches!(operation, Operation::Read { .. } | Operation::Open(_));
            count += u32::from(changes);
            (changes && count > step).then_some(Fault::Error(5))
        });
        let first = offline::cut(&dyn_fs, Path::new(DIR), &file, offset);
        fs.clear_faults();
        fs.kill_process();
        if first.is_err() {
            let again = match offline::verify(&fs, Path::new(DIR)) {
                Ok(_) => continue,
                Err(JournalError::Damaged { file, offset, .. }) => {
                    offline::cut(&dyn_fs, Path::new(DIR), &file, offset)
                }
                Err(other) => panic!("{other}"),
            };
            again.unwrap();
        }
        let reopened = Driven::open(&fs, small()).unwrap();
        assert!(reopened.frames().len() < 200);
    }
}
