//! A journal on a volume of a machine that is killed: `cargo xtask dax` runs it in a small guest.
//!
//! `write DIR` commits frames to a journal in persistent memory and says on its output how far it is
//! safe, until it is killed; `relaxed DIR` does the same without any sync, and must lose; `check DIR`
//! opens what is left and compares every frame with what was written. Exit codes: 0 good, 1 damage, 3 the
//! volume is no persistent memory.

// a program for a test: its output is its purpose
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use cachetier_journal::file_system::dax::PersistentMemory;
use cachetier_journal::file_system::{DaxFileSystem, FileSystem, RealFileSystem};
use cachetier_journal::{Durability, Journal, JournalOptions, Sequence};

/// Frames between two lines of output.
const SAY_EVERY: u64 = 50;

/// What frame `number` holds: its number, and bytes that follow from it, of a length that varies.
fn payload(number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend((0..number % 700).map(|at| (number ^ (at * 31)) as u8));
    bytes
}

fn options(durability: Durability) -> JournalOptions {
    // small segments, so that they are changed often; a change syncs, so that not where nothing may be
    let segment_bytes = if durability == Durability::Sync { 1 << 20 } else { 32 << 20 };
    JournalOptions {
        segment_bytes,
        capacity_bytes: 128 << 20,
        queue_bytes: 256 << 10,
        group_commit_bytes: 128 << 10,
        durability,
        ..JournalOptions::default()
    }
}

fn persistent(dir: &Path) -> std::io::Result<Arc<dyn FileSystem>> {
    let files: Arc<dyn FileSystem> = Arc::new(RealFileSystem);
    files.create_dir_all(dir)?;
    let memory = PersistentMemory::detect()?;
    println!("FLUSH {}", memory.flush_by().as_str());
    let dax = DaxFileSystem::new(files, Arc::new(memory));
    dax.probe(dir)?;
    Ok(Arc::new(dax))
}

async fn write(files: Arc<dyn FileSystem>, dir: &Path, durability: Durability) -> ExitCode {
    let (journal, _) = Journal::open(files, dir, options(durability)).unwrap();
    for number in 1_u64.. {
        let sequence = journal.append(1, &payload(number)).unwrap();
        journal.wait_durable(sequence).await.unwrap();
        if number % SAY_EVERY == 0 {
            println!("ACK {number}");
        }
    }
    ExitCode::SUCCESS
}

fn check(dir: &Path) -> ExitCode {
    let options = options(Durability::Sync);
    let opened = Journal::open(Arc::new(RealFileSystem), dir, options);
    let (journal, _) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            println!("DAMAGED {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut last = 0;
    for frame in journal.read_from(Sequence::ZERO).unwrap() {
        let frame = frame.unwrap();
        last += 1;
        if frame.payload != payload(last) {
            println!("DAMAGED frame {last} is not what was written");
            return ExitCode::FAILURE;
        }
    }
    println!("LAST {last}");
    ExitCode::SUCCESS
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [act, dir] = arguments.as_slice() else {
        println!("usage: dax_guest write|relaxed|check DIR");
        return ExitCode::from(2);
    };
    let dir = Path::new(dir);
    match act.as_str() {
        "write" => match persistent(dir) {
            Ok(files) => write(files, dir, Durability::Sync).await,
            Err(error) => {
                println!("REFUSED {error}");
                ExitCode::from(3)
            }
        },
        "relaxed" => {
            let never = Durability::Relaxed { interval: Duration::from_secs(86_400) };
            write(Arc::new(RealFileSystem), dir, never).await
        }
        _ => check(dir),
    }
}
