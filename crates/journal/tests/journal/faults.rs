//! Disks that fail: what is refused, what heals, what stops for good.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use cachetier_journal::file_system::{Fault, FaultyFileSystem, Operation, PowerCut};
use cachetier_journal::{AppendError, JournalError, Sequence, Stopped, Turn};

use crate::support::{DIR, Driven, payloads, relaxed, segments, small};

const ENOSPC: i32 = 28;
const EIO: i32 = 5;

fn is_segment(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "segment")
}

fn fail_segment_syncs(fs: &FaultyFileSystem) {
    fs.set_faults(|operation| match operation {
        Operation::Sync(path) if is_segment(path) => Some(Fault::Error(EIO)),
        _ => None,
    });
}

#[tokio::test]
async fn r6_a_failed_sync_is_in_doubt_and_stops_the_journal_for_good() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, small()).unwrap();
    let kept = journal.commit(b"kept");
    fail_segment_syncs(&fs);
    let lost = journal.journal.append(1, b"in doubt").unwrap();
    assert_eq!(journal.run(), Turn::Done);
    fs.clear_faults();
    let doubt = journal.journal.wait_durable(lost).await.unwrap_err();
    assert!(doubt.to_string().contains("in doubt"), "{doubt}");
    journal.journal.wait_durable(kept).await.unwrap();
    assert_eq!(journal.journal.synced(), kept, "the disk works again, and yet");
    let refused = journal.journal.append(1, b"x").unwrap_err();
    assert!(matches!(refused, AppendError::Latched { .. }), "{refused}");
    let refused = journal.journal.set_attribute("a", b"b").unwrap_err();
    assert!(matches!(refused, JournalError::Latched { .. }), "{refused}");
    assert!(journal.journal.stats().latched.is_some());
    // the pages are gone although a later sync would have succeeded
    journal.abandon().cut_power(PowerCut::KeepAll);
    assert_eq!(payloads(&Driven::open(&fs, small()).unwrap().frames()), [b"kept"]);
}

#[test]
fn r6_nobody_writes_what_was_queued_once_the_journal_is_latched() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, relaxed()).unwrap();
    journal.commit(b"kept");
    let (queued, _) = journal.journal.append_quietly(1, b"queued").unwrap();
    fs.set_faults(|operation| match operation {
        Operation::Sync(_) => Some(Fault::Error(EIO)),
        _ => None,
    });
    assert!(journal.journal.set_attribute("a", b"b").is_err());
    fs.clear_faults();
    journal.journal.write_here();
    assert!(journal.journal.durable() < queued, "it would have been acknowledged");
}

#[test]
fn r1_what_a_start_finds_after_a_failed_sync_survives_a_power_cut() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, small()).unwrap();
    journal.commit(b"kept");
    fail_segment_syncs(&fs);
    journal.journal.append(1, b"in doubt").unwrap();
    journal.run();
    fs.clear_faults();
    // the process is replaced, the machine runs on: the page cache still shows the frame
    journal.abandon().kill_process();
    let reopened = Driven::open(&fs, small()).unwrap();
    assert_eq!(payloads(&reopened.frames()), [b"kept".as_slice(), b"in doubt"]);
    assert_eq!(reopened.journal.synced(), reopened.recovery.last);
    reopened.abandon().cut_power(PowerCut::LoseAll);
    let again = Driven::open(&fs, small()).unwrap();
    assert_eq!(payloads(&again.frames()), [b"kept".as_slice(), b"in doubt"]);
}

#[test]
fn r1_what_a_start_finds_after_a_kill_is_synced_before_it_may_leave() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, relaxed()).unwrap();
    journal.commit(b"synced");
    journal.pass(Duration::from_secs(3601));
    let written: Vec<_> = (0..20_u8).map(|n| vec![n; 500]).collect();
    for payload in &written {
        journal.commit(payload);
    }
    journal.abandon().kill_process();
    let reopened = Driven::open(&fs, relaxed()).unwrap();
    assert_eq!(reopened.frames().len(), 21);
    reopened.abandon().cut_power(PowerCut::LoseAll);
    assert_eq!(payloads(&Driven::open(&fs, relaxed()).unwrap().frames())[1..], written);
}

#[test]
fn a_failed_write_stops_the_journal_for_good() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, small()).unwrap();
    journal.commit(b"kept");
    fs.set_faults(|operation| match operation {
        Operation::Write { path, .. } if is_segment(path) => {
            Some(Fault::Torn { bytes: 40, errno: EIO })
        }
        _ => None,
    });
    journal.journal.append(1, b"torn in the middle").unwrap();
    assert_eq!(journal.run(), Turn::Done);
    let marks = journal.journal.watch().borrow().clone();
    assert!(matches!(marks.stopped, Some(Stopped::Latched(_))));
    fs.clear_faults();
    journal.abandon().kill_process();
    let reopened = Driven::open(&fs, small()).unwrap();
    assert_eq!(payloads(&reopened.frames()), [b"kept"]);
    assert!(reopened.recovery.torn_bytes > 0);
}

#[test]
fn short_reads_and_writes_change_nothing() {
    let fs = FaultyFileSystem::new();
    fs.set_faults(|operation| match operation {
        Operation::Write { .. } | Operation::Read { .. } => Some(Fault::Short(7)),
        _ => None,
    });
    let mut journal = Driven::open(&fs, small()).unwrap();
    let sent: Vec<_> = (0..50_u8).map(|n| vec![n; 30]).collect();
    for payload in &sent {
        journal.commit(payload);
    }
    journal.abandon().kill_process();
    assert_eq!(payloads(&Driven::open(&fs, small()).unwrap().frames()), sent);
}

#[test]
fn d25_a_full_volume_refuses_with_the_reason_before_accepting_and_heals_by_itself() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, small()).unwrap();
    journal.commit(&[1; 500]);
    fs.set_capacity(Some(fs.used_bytes()));
    let mut sent = 1;
    let refused = loop {
        match journal.journal.append(1, &[1; 500]) {
            Ok(_) => sent += 1,
            Err(refused) => break refused,
        }
        journal.run();
    };
    let AppendError::Full { reason } = &refused else { panic!("{refused}") };
    assert!(reason.contains("spare"), "{reason}");
    assert!(journal.journal.stats().blocked.is_some());
    assert_eq!(journal.frames().len(), sent, "reads go on, and all accepted frames are there");
    fs.set_capacity(None);
    journal.pass(small().retry_interval);
    journal.commit(&[1; 500]);
    assert_eq!(journal.journal.stats().blocked, None);
    journal.abandon().kill_process();
    assert_eq!(Driven::open(&fs, small()).unwrap().recovery.frames, sent as u64 + 1);
}

#[test]
fn d25_every_accepted_frame_is_written_on_a_full_volume() {
    // fills in bursts of every size, so that the volume gets full at every point of a burst
    for burst in 1..40 {
        let fs = FaultyFileSystem::new();
        let mut journal = Driven::open(&fs, small()).unwrap();
        fs.set_capacity(Some(40 << 10));
        let mut accepted = Sequence::ZERO;
        for round in 0..200 {
            for n in 0..burst {
                if let Ok(sequence) = journal.journal.append(1, &vec![1; (n * 97 + round) % 900]) {
                    accepted = sequence;
                }
            }
            journal.run();
            assert_eq!(journal.journal.durable(), accepted, "burst {burst} round {round}");
        }
        assert!(journal.journal.stats().latched.is_none());
    }
}

#[test]
fn d25_the_capacity_is_never_exceeded_and_trimming_makes_room() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, small()).unwrap();
    let mut last = Sequence::ZERO;
    while let Ok(sequence) = journal.journal.append(1, &[1; 500]) {
        last = sequence;
        journal.run();
        assert!(journal.journal.stats().bytes <= small().capacity_bytes);
    }
    let refused = journal.journal.append(1, &[1; 500]).unwrap_err();
    let AppendError::Full { reason } = &refused else { panic!("{refused}") };
    assert!(reason.contains("trimmed"), "{reason}");
    journal.journal.trim(last);
    journal.run();
    journal.commit(&[1; 500]);
}

#[test]
fn d25_trimming_works_on_a_volume_that_is_full_to_the_last_byte() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, small()).unwrap();
    let last = journal.commits(150, &[1; 500]);
    let before = fs.used_bytes();
    fs.set_capacity(Some(before));
    journal.journal.trim(last);
    journal.run();
    assert!(fs.used_bytes() < before);
}

#[test]
fn a_volume_that_turns_read_only_refuses_and_heals() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, small()).unwrap();
    journal.commit(b"a");
    fs.set_read_only(true);
    let waiting = journal.journal.append(1, b"b").unwrap();
    assert!(matches!(journal.run(), Turn::Idle { for_frames: false, .. }));
    assert!(journal.journal.durable() < waiting);
    let refused = journal.journal.append(1, b"c").unwrap_err();
    assert!(matches!(refused, AppendError::Full { .. }), "{refused}");
    fs.set_read_only(false);
    journal.pass(small().retry_interval);
    assert_eq!(journal.journal.durable(), waiting);
    journal.commit(b"d");
    assert_eq!(payloads(&journal.frames()), [b"a", b"b", b"d"]);
}

#[test]
fn a_start_on_a_full_volume_serves_reads_and_takes_writes_when_space_returns() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, small()).unwrap();
    journal.commit(b"a");
    journal.abandon().kill_process();
    fs.set_faults(|operation| match operation {
        Operation::Write { .. } | Operation::Allocate { .. } => Some(Fault::Error(ENOSPC)),
        _ => None,
    });
    let mut journal = Driven::open(&fs, small()).unwrap();
    assert_eq!(payloads(&journal.frames()), [b"a"]);
    let refused = journal.journal.append(1, b"b").unwrap_err();
    assert!(matches!(refused, AppendError::Full { .. }), "{refused}");
    fs.clear_faults();
    journal.pass(small().retry_interval);
    assert_eq!(journal.commit(b"b").generation(), 2);
    assert_eq!(payloads(&journal.frames()), [b"a", b"b"]);
}

#[test]
fn closing_while_the_volume_refuses_leaves_no_one_waiting() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, small()).unwrap();
    fs.set_read_only(true);
    journal.journal.append(1, b"a").unwrap();
    journal.run();
    let mut closing = std::pin::pin!(journal.journal.clone().close());
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    assert!(closing.as_mut().poll(&mut context).is_pending());
    assert_eq!(journal.run(), Turn::Done);
    let std::task::Poll::Ready(closed) = closing.as_mut().poll(&mut context) else { panic!() };
    assert!(matches!(closed, Err(JournalError::Latched { .. })));
}

#[test]
fn a_slow_disk_delays_and_loses_nothing() {
    let fs = FaultyFileSystem::new();
    let slow = Arc::new(AtomicU32::new(0));
    let counted = slow.clone();
    fs.set_faults(move |operation| {
        let Operation::Sync(_) = operation else { return None };
        counted.fetch_add(1, Ordering::Relaxed);
        Some(Fault::Slow(Duration::from_millis(1)))
    });
    let mut journal = Driven::open(&fs, small()).unwrap();
    let last = journal.commits(10, b"a");
    assert_eq!(journal.journal.synced(), last);
    assert!(slow.load(Ordering::Relaxed) >= 10);
    assert!(journal.journal.stats().sync_nanos >= 10_000_000);
}

#[test]
fn d26_a_torn_tail_is_cut_and_the_journal_goes_on() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, relaxed()).unwrap();
    journal.commit(b"a");
    journal.pass(Duration::from_secs(3601));
    journal.commit(&[5; 1500]);
    journal.commit(&[6; 1500]);
    let path = segments(&fs).pop().unwrap();
    let whole = fs.content(&path).unwrap();
    journal.abandon().kill_process();
    // the first unsynced write is torn, the second survived: reordered by a power cut
    let torn_at = whole.windows(8).position(|window| window == [5; 8]).unwrap();
    let mut torn = whole;
    torn[torn_at..torn_at + 1024].fill(0);
    fs.plant(&path, torn);
    let mut reopened = Driven::open(&fs, relaxed()).unwrap();
    assert_eq!(payloads(&reopened.frames()), [b"a"]);
    assert!(reopened.recovery.torn_bytes > 0);
    reopened.commit(b"b");
    reopened.pass(Duration::from_secs(3601));
    reopened.abandon().kill_process();
    assert_eq!(payloads(&Driven::open(&fs, relaxed()).unwrap().frames()), [b"a", b"b"]);
}

#[test]
fn d26_damage_before_synced_data_refuses_to_open_with_file_and_offset() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, small()).unwrap();
    for n in 0..100_u8 {
        journal.commit(&[n; 400]);
    }
    journal.abandon().kill_process();
    for path in segments(&fs) {
        let whole = fs.content(&path).unwrap();
        let used = whole.iter().rposition(|byte| *byte != 0).unwrap();
        // every sector but those of the last commit, which nothing later vouches for
        for at in (0..used.saturating_sub(1024)).step_by(512) {
            let mut damaged = whole.clone();
            damaged[at..at + 512].fill(0xee);
            fs.plant(&path, damaged);
            let refused = Driven::open(&fs, small()).err().expect("damage is refused");
            let JournalError::Damaged { file, offset, .. } = &refused else { panic!("{refused}") };
            assert_eq!(file, &path);
            assert!(*offset <= at as u64 && at as u64 <= offset + 1024, "{offset} {at}");
            assert!(refused.to_string().contains("cut"), "{refused}");
            fs.plant(&path, whole.clone());
        }
    }
    assert_eq!(Driven::open(&fs, small()).unwrap().recovery.frames, 100);
}

#[test]
fn d26_a_missing_segment_refuses_to_open() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, small()).unwrap();
    for _ in 0..200 {
        journal.commit(&[9; 400]);
    }
    // as an open or an attribute does, so that the end is noted
    journal.journal.set_attribute("a", b"b").unwrap();
    journal.abandon().kill_process();
    for path in segments(&fs) {
        let content = fs.content(&path).unwrap();
        let copy = FaultyFileSystem::new();
        for (other, content) in fs.files() {
            if other != path {
                copy.plant(&other, content);
            }
        }
        let refused = Driven::open(&copy, small()).err().expect("a gap is refused");
        assert!(matches!(refused, JournalError::Damaged { .. }), "{refused}");
        copy.plant(&path, content);
        assert_eq!(Driven::open(&copy, small()).unwrap().recovery.frames, 200);
    }
}

#[test]
fn a_segment_of_another_journal_is_refused_by_name() {
    let (fs, other) = (FaultyFileSystem::new(), FaultyFileSystem::new());
    for (fs, id) in [(&fs, 1), (&other, 2)] {
        let options = cachetier_journal::JournalOptions {
            new_journal_id: Some(uuid::Uuid::from_u128(id)),
            ..small()
        };
        let mut journal = Driven::open(fs, options).unwrap();
        journal.commit(b"a");
        journal.abandon().kill_process();
    }
    let path = segments(&other).pop().unwrap();
    fs.plant(&path, other.content(&path).unwrap());
    let refused = Driven::open(&fs, small()).err().expect("a foreign segment");
    assert!(matches!(refused, JournalError::Foreign { .. }), "{refused}");
}

#[test]
fn an_unreadable_sector_is_an_error_and_never_the_end() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, small()).unwrap();
    journal.commit(b"a");
    journal.abandon().kill_process();
    let broken = Arc::new(AtomicBool::new(true));
    let is_broken = broken.clone();
    fs.set_faults(move |operation| match operation {
        Operation::Read { path, .. } if is_segment(path) && is_broken.load(Ordering::Relaxed) => {
            Some(Fault::Error(EIO))
        }
        _ => None,
    });
    let refused = Driven::open(&fs, small()).err().expect("an unreadable segment");
    assert!(matches!(refused, JournalError::Io { act: "read", .. }), "{refused}");
    broken.store(false, Ordering::Relaxed);
    assert_eq!(payloads(&Driven::open(&fs, small()).unwrap().frames()), [b"a"]);
}

#[test]
fn a_control_file_survives_a_power_cut_at_every_step_of_its_replacement() {
    for step in 0..12 {
        for seed in 0..20 {
            let fs = FaultyFileSystem::new();
            let mut journal = Driven::open(&fs, small()).unwrap();
            journal.commit(b"a");
            journal.journal.set_attribute("claim", b"old").unwrap();
            let count = AtomicU32::new(0);
            fs.set_faults(move |_| {
                let stop = count.fetch_add(1, Ordering::Relaxed) >= step;
                stop.then_some(Fault::Error(EIO))
            });
            let set = journal.journal.set_attribute("claim", b"new");
            fs.clear_faults();
            journal.abandon().cut_power(PowerCut::Random(seed));
            let reopened = Driven::open(&fs, small()).unwrap();
            let value = reopened.journal.attribute("claim").unwrap();
            assert!(value == b"new" || set.is_err() && value == b"old", "step {step} seed {seed}");
        }
    }
    assert!(Path::new(DIR).is_absolute());
}
