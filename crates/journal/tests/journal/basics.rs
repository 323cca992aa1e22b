//! The ordinary life of a journal.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cachetier_journal::file_system::{
    Fault, FaultyFileSystem, Gate, Operation, PowerCut, RealFileSystem,
};
use cachetier_journal::{
    AppendError, Disposition, Durability, Journal, JournalError, JournalOptions, Sequence,
};

use crate::support::{DIR, Driven, append, payloads, relaxed, segments, small};

#[test]
fn frames_come_back_in_order_after_a_restart() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, small()).unwrap();
    assert!(journal.recovery.created);
    let sent: Vec<Vec<u8>> = (0..500_u32).map(|n| n.to_le_bytes().repeat(20)).collect();
    for payload in &sent {
        journal.commit(payload);
    }
    assert!(journal.journal.stats().segments > 2);
    assert_eq!(payloads(&journal.frames()), sent);
    journal.abandon().kill_process();

    let reopened = Driven::open(&fs, small()).unwrap();
    assert!(!reopened.recovery.created && !reopened.recovery.clean);
    assert_eq!(reopened.recovery.frames, 500);
    assert_eq!(reopened.recovery.generation, 2);
    assert_eq!(reopened.recovery.last, Sequence::new(1, 500));
    assert_eq!(payloads(&reopened.frames()), sent);
}

#[test]
fn r2_a_lost_tail_and_what_replaced_it_never_share_a_sequence() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, relaxed()).unwrap();
    let lost = journal.commit(b"lost");
    assert_eq!(journal.journal.durable(), lost);
    assert_eq!(journal.journal.synced(), Sequence::ZERO);
    journal.abandon().cut_power(PowerCut::LoseAll);
    let mut reopened = Driven::open(&fs, relaxed()).unwrap();
    assert!(reopened.frames().is_empty());
    let replacement = reopened.commit(b"replacement");
    assert!(replacement > lost);
    assert_ne!(replacement, lost);
}

#[test]
fn a_journal_that_never_wrote_keeps_its_generations_apart_too() {
    let fs = FaultyFileSystem::new();
    for generation in 1..=5 {
        let journal = Driven::open(&fs, small()).unwrap();
        assert_eq!(journal.recovery.generation, generation);
        assert_eq!(journal.journal.stats().segments, 0, "idle starts leave no segments");
        journal.abandon().cut_power(PowerCut::LoseAll);
    }
}

#[test]
fn frames_committed_together_cost_one_sync() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, small()).unwrap();
    journal.commit(b"first");
    let before = journal.journal.stats().syncs;
    let together: Vec<_> = (0..20).map(|_| journal.journal.append(1, &[7; 50]).unwrap()).collect();
    let last = together[19];
    assert!(journal.journal.durable() < last);
    journal.run();
    assert_eq!(journal.journal.durable(), last);
    assert_eq!(journal.journal.stats().syncs, before + 1);
}

#[test]
fn relaxed_frames_are_durable_when_written_and_synced_at_the_interval() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, relaxed()).unwrap();
    let sequence = journal.commit(b"a");
    assert_eq!(journal.journal.durable(), sequence);
    assert_eq!(journal.journal.synced(), Sequence::ZERO);
    journal.pass(Duration::from_secs(3599));
    assert_eq!(journal.journal.synced(), Sequence::ZERO);
    journal.pass(Duration::from_secs(2));
    assert_eq!(journal.journal.synced(), sequence);
    journal.abandon().cut_power(PowerCut::LoseAll);
    assert_eq!(payloads(&Driven::open(&fs, relaxed()).unwrap().frames()), [b"a"]);
}

#[test]
fn at_relaxed_whoever_appends_can_write_and_a_turn_does_what_takes_longer() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, relaxed()).unwrap();
    journal.commit(b"a segment is there");
    let mut last = Sequence::ZERO;
    for payload in 0..200_u8 {
        (last, _) = journal.journal.append_quietly(1, &[payload; 100]).unwrap();
        journal.journal.write_here();
        if journal.journal.durable() < last {
            break;
        }
    }
    assert!(last.counter() > 50, "most were written without a turn: {last:?}");
    assert!(journal.journal.durable() < last, "a new segment takes a turn");
    journal.run();
    assert_eq!(journal.journal.durable(), last);
    journal.pass(Duration::from_secs(3602));
    assert_eq!(journal.journal.synced(), last, "the interval counts from the first of them");
    let frames = journal.frames().len() as u64;
    assert_eq!(frames, last.counter());
}

#[test]
fn at_sync_nobody_writes_but_the_writer() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, small()).unwrap();
    journal.commit(b"a segment is there");
    let (sequence, must_write) = journal.journal.append_quietly(1, b"a").unwrap();
    assert!(!must_write, "the writer was woken");
    journal.journal.write_here();
    assert!(journal.journal.durable() < sequence);
    journal.run();
    assert_eq!(journal.journal.durable(), sequence);
}

#[test]
fn r1_only_synced_frames_can_be_read_for_sending() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, relaxed()).unwrap();
    journal.commit(b"a");
    assert!(journal.frames().is_empty());
    journal.pass(Duration::from_secs(3601));
    journal.commit(b"b");
    assert_eq!(payloads(&journal.frames()), [b"a"]);
}

#[test]
fn trim_drops_whole_segments_and_says_what_is_gone() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, small()).unwrap();
    let sequences: Vec<_> = (0..400).map(|_| journal.commit(&[3; 200])).collect();
    let before = journal.journal.stats();
    journal.journal.trim(sequences[200]);
    journal.run();
    let after = journal.journal.stats();
    assert!(after.segments < before.segments && after.bytes < before.bytes);
    assert!(after.trimmed > Sequence::ZERO && after.trimmed <= sequences[200]);
    let gone = journal.journal.read_from(sequences[0]).unwrap_err();
    assert!(matches!(gone, JournalError::Trimmed { .. }), "{gone}");
    let rest = journal.journal.read_from(sequences[201]).unwrap();
    assert_eq!(rest.count(), 199);
    journal.journal.trim(Sequence::MAX);
    journal.run();
    assert_eq!(journal.journal.stats().segments, 1, "the active segment stays");
    journal.abandon().kill_process();
    let reopened = Driven::open(&fs, small()).unwrap();
    assert_eq!(reopened.recovery.last, sequences[399]);
    assert_eq!(reopened.recovery.trimmed, reopened.journal.stats().trimmed);
}

#[test]
fn a_reader_keeps_what_is_trimmed_while_it_reads() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, small()).unwrap();
    for _ in 0..300 {
        journal.commit(&[3; 200]);
    }
    let mut reader = journal.journal.read_from(Sequence::ZERO).unwrap();
    reader.next().unwrap().unwrap();
    journal.journal.trim(Sequence::MAX);
    journal.run();
    assert_eq!(reader.map(Result::unwrap).count(), 299);
}

#[test]
fn attributes_are_durable_when_set_and_change_together() {
    let fs = FaultyFileSystem::new();
    let journal = Driven::open(&fs, small()).unwrap();
    journal.journal.set_attribute("claim", b"7").unwrap();
    journal.journal.set_attribute("old", b"x").unwrap();
    journal.journal.set_attributes(&[("claim", Some(b"8")), ("old", None)]).unwrap();
    let id = journal.journal.id();
    journal.abandon().cut_power(PowerCut::LoseAll);
    let reopened = Driven::open(&fs, small()).unwrap();
    assert_eq!(reopened.journal.id(), id);
    assert_eq!(reopened.journal.attribute("claim").as_deref(), Some(b"8".as_slice()));
    assert_eq!(reopened.journal.attribute("old"), None);
    let large = vec![0; 5 << 20];
    let refused = reopened.journal.set_attribute("large", &large).unwrap_err();
    assert_eq!(refused.disposition(), Disposition::Reject);
}

#[test]
fn what_can_never_fit_is_refused_and_what_does_not_fit_now_is_busy() {
    let fs = FaultyFileSystem::new();
    let journal = Driven::open(&fs, small()).unwrap();
    let largest = small().payload_bytes_max();
    let refused = journal.journal.append(1, &vec![0; largest + 1]).unwrap_err();
    assert_eq!(refused.disposition(), Disposition::Reject);
    journal.journal.append(1, &vec![0; largest]).unwrap();
    let busy = journal.journal.append(1, b"x").unwrap_err();
    assert!(matches!(busy, AppendError::Busy { .. }), "{busy}");
}

#[test]
fn options_out_of_bounds_are_refused_by_name() {
    let fs = FaultyFileSystem::new();
    let wrong = [
        ("segment_bytes", JournalOptions { segment_bytes: 1, ..small() }),
        ("capacity_bytes", JournalOptions { capacity_bytes: 20 << 10, ..small() }),
        ("queue_bytes", JournalOptions { queue_bytes: 1 << 20, ..small() }),
        ("group_commit_bytes", JournalOptions { group_commit_bytes: 9 << 10, ..small() }),
    ];
    for (field, options) in wrong {
        let refused = Driven::open(&fs, options).err().expect(field);
        assert!(refused.to_string().contains(field), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_real_disk_writers_are_acknowledged_and_everything_is_there_after_close() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Journal::open(Arc::new(RealFileSystem), dir.path(), small());
    let (journal, _) = open().unwrap();
    let refused = open().unwrap_err();
    assert!(matches!(refused, JournalError::InUse { .. }), "{refused}");
    let writers: Vec<_> = (0..16_u32)
        .map(|writer| {
            let journal = journal.clone();
            tokio::spawn(async move {
                for n in 0..20_u32 {
                    let payload = [writer.to_le_bytes(), n.to_le_bytes()].concat();
                    let sequence = append(&journal, &payload).await;
                    journal.wait_durable(sequence).await.unwrap();
                    assert!(journal.synced() >= sequence);
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let other = journal.clone();
    journal.close().await.unwrap();
    assert!(matches!(other.append(1, b"x"), Err(AppendError::Closed)));
    let (journal, recovery) = open().unwrap();
    assert!(recovery.clean);
    assert_eq!(recovery.frames, 320);
    drop(journal);
    let (_, recovery) = open().unwrap();
    assert!(recovery.clean, "dropping the last handle closes in order");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_relaxed_commits_do_not_wait_for_the_sync_that_runs_beside_them() {
    let fs = FaultyFileSystem::new();
    let durability = Durability::Relaxed { interval: Duration::from_millis(1) };
    let options =
        JournalOptions { durability, segment_bytes: 1 << 20, capacity_bytes: 4 << 20, ..small() };
    let (journal, _) = Journal::open(Arc::new(fs.clone()), Path::new(DIR), options).unwrap();
    let first = journal.append(1, b"makes the segment").unwrap();
    journal.wait_synced(first).await.unwrap();
    let gate = Gate::default();
    let held = gate.clone();
    fs.set_faults(move |operation| {
        matches!(operation, Operation::Sync(_)).then(|| Fault::Held(held.clone()))
    });
    for n in 0..50_u8 {
        let sequence = journal.append(1, &[n; 100]).unwrap();
        journal.wait_durable(sequence).await.unwrap();
    }
    assert_eq!(journal.synced(), first);
    gate.open();
    journal.wait_synced(journal.durable()).await.unwrap();
    journal.close().await.unwrap();
}

#[test]
fn a_second_life_of_the_directory_is_recognised_by_its_files() {
    let fs = FaultyFileSystem::new();
    let mut journal = Driven::open(&fs, small()).unwrap();
    journal.commit(b"a");
    journal.abandon().kill_process();
    let control = Path::new("/journal/control");
    let content = fs.content(control).unwrap();
    let other = FaultyFileSystem::new();
    for path in segments(&fs) {
        other.plant(&path, fs.content(&path).unwrap());
    }
    let refused = Driven::open(&other, small()).err().expect("a journal without control file");
    assert!(matches!(refused, JournalError::Damaged { .. }), "{refused}");
    other.plant(control, content);
    assert_eq!(payloads(&Driven::open(&other, small()).unwrap().frames()), [b"a"]);
}
