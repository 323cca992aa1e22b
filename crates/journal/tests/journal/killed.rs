//! A real process, a real disk, kill -9.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cachetier_journal::file_system::RealFileSystem;
use cachetier_journal::{Durability, Journal, JournalOptions, Sequence};

use crate::support::{append, small};

const DIR_VARIABLE: &str = "JOURNAL_KILL_TEST_DIR";
const LEVEL_VARIABLE: &str = "JOURNAL_KILL_TEST_RELAXED";
const WRITERS: u32 = 8;

fn options(relaxed: bool) -> JournalOptions {
    let durability = match relaxed {
        true => Durability::Relaxed { interval: Duration::from_secs(3600) },
        false => Durability::Sync,
    };
    JournalOptions { capacity_bytes: 64 << 20, durability, ..small() }
}

/// Not a test of its own: the process that gets killed. Says each acknowledged frame.
#[test]
#[ignore = "run by the test below in a process of its own"]
fn victim() {
    let Some(dir) = std::env::var_os(DIR_VARIABLE).map(PathBuf::from) else { return };
    let relaxed = std::env::var_os(LEVEL_VARIABLE).is_some();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let fs = Arc::new(RealFileSystem);
        let (journal, _) = Journal::open(fs, &dir, options(relaxed)).unwrap();
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| tokio::spawn(write_for_ever(journal.clone(), writer)))
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
    });
}

async fn write_for_ever(journal: Journal, writer: u32) {
    for n in 0_u32.. {
        let mut payload = [writer.to_le_bytes(), n.to_le_bytes()].concat();
        payload.resize(8 + (n as usize * 37) % 700, writer as u8);
        let sequence = append(&journal, &payload).await;
        journal.wait_durable(sequence).await.unwrap();
        // one write call per line: a line that is there is whole
        println!("\nacknowledged {}", sequence.get());
    }
}

fn spawn(dir: &Path, relaxed: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "killed::victim", "--ignored", "--nocapture"]);
    command.env(DIR_VARIABLE, dir).stdout(Stdio::piped()).stderr(Stdio::null());
    if relaxed {
        command.env(LEVEL_VARIABLE, "1");
    }
    command.spawn().unwrap()
}

/// Reads acknowledgements, kills the process after `count` of them, reads what it still said.
fn run_and_kill(dir: &Path, relaxed: bool, count: usize) -> Vec<Sequence> {
    let mut child = spawn(dir, relaxed);
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut acknowledged = Vec::new();
    for line in lines {
        let Ok(line) = line else { break };
        let Some(number) = line.strip_prefix("acknowledged ") else { continue };
        let Ok(number) = number.parse() else { continue };
        acknowledged.push(Sequence::from_stored(number).unwrap());
        if acknowledged.len() == count {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(acknowledged.len() >= count, "the victim ended by itself");
    acknowledged
}

fn a_killed_process_loses_nothing(relaxed: bool) {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = Vec::new();
    for round in 0..5 {
        acknowledged.extend(run_and_kill(dir.path(), relaxed, 150 + round * 70));
        let (journal, recovery) =
            Journal::open(Arc::new(RealFileSystem), dir.path(), options(relaxed)).unwrap();
        assert_eq!(recovery.generation as usize, 2 * round + 2);
        let reader = journal.read_from(Sequence::ZERO).unwrap();
        let found: Vec<_> = reader.map(Result::unwrap).collect();
        assert!(found.windows(2).all(|pair| pair[0].sequence < pair[1].sequence));
        let lost = acknowledged
            .iter()
            .filter(|sequence| found.binary_search_by_key(sequence, |f| &f.sequence).is_err())
            .count();
        assert_eq!(lost, 0, "of {} acknowledged in round {round}", acknowledged.len());
        in_order_per_writer(&found);
    }
}

fn in_order_per_writer(found: &[cachetier_journal::Frame]) {
    let mut expected = [0_u32; WRITERS as usize];
    let mut generation = 0;
    for frame in found {
        if frame.sequence.generation() != generation {
            generation = frame.sequence.generation();
            expected.fill(0);
        }
        let word = |at: usize| u32::from_le_bytes(frame.payload[at..at + 4].try_into().unwrap());
        let (writer, n) = (word(0) as usize, word(4));
        assert_eq!(n, expected[writer], "writer {writer}");
        expected[writer] += 1;
    }
}

#[test]
fn at_sync_a_killed_process_loses_no_acknowledged_frame() {
    a_killed_process_loses_nothing(false);
}

#[test]
fn at_relaxed_a_killed_process_loses_no_acknowledged_frame() {
    a_killed_process_loses_nothing(true);
}
