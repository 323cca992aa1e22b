//! A journal on a volume of a machine that is killed: `cargo xtask dax` runs it in a small guest.
//!
//! `write DIR` commits frames to a journal in persistent memory and says on its output how far it is
//! safe, until it is killed; `relaxed DIR` does the same without any sync, and must lose; `check DIR`
//! opens what is left and compares every frame with what was written. Exit codes: 0 good, 1 damage, 3 the
//! volume is no persistent memory.
//!
//! `mapped DIR` and `plain DIR` leave the journal out, whose own syncs would hide what a mapping is for:
//! they store records into one new file that nothing syncs, and differ in `MAP_SYNC` alone. The first
//! must keep all, the second must lose.

// a program for a test: its output is its purpose
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use cachetier_journal::file_system::dax::{LINE_BYTES, Lines, Medium, PersistentMemory};
use cachetier_journal::file_system::{DaxFileSystem, FileSystem, RealFileSystem};
use cachetier_journal::{Durability, Journal, JournalOptions, Sequence};
use rustix::mm::{MapFlags, ProtFlags, mmap};

/// Frames between two lines of output.
const SAY_EVERY: u64 = 50;
/// The file without a journal, and its length: more records than are waited for.
const RECORDS_NAME: &str = "records";
const RECORDS_BYTES: u64 = 64 << 20;

/// What frame `number` holds: its number, and bytes that follow from it, of a length that varies.
fn payload(number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend((0..number % 700).map(|at| (number ^ (at * 31)) as u8));
    bytes
}

/// A cache line that follows from its number.
fn record(number: u64) -> Vec<u8> {
    (1..=LINE_BYTES / 8).flat_map(|at| number.wrapping_mul(at).to_le_bytes()).collect()
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

fn detect() -> io::Result<PersistentMemory> {
    let memory = PersistentMemory::detect()?;
    println!("FLUSH {}", memory.flush_by().as_str());
    Ok(memory)
}

fn persistent(dir: &Path) -> io::Result<Arc<dyn FileSystem>> {
    let files: Arc<dyn FileSystem> = Arc::new(RealFileSystem);
    files.create_dir_all(dir)?;
    let memory = detect()?;
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

/// Ordinary shared mappings: a store arrives, the file system's records of the file need not.
#[derive(Debug)]
struct Plain;

impl Medium for Plain {
    fn map(&self, path: &Path, bytes: u64) -> io::Result<Arc<dyn Lines>> {
        let length = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let file = std::fs::File::options().read(true).write(true).open(path)?;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing one.
        let start =
            unsafe { mmap(std::ptr::null_mut(), length, both, MapFlags::SHARED, &file, 0)? };
        Ok(Arc::new(PlainLines { start: start.expose_provenance(), length }))
    }
}

/// Never unmapped: the program is killed.
#[derive(Debug)]
struct PlainLines {
    /// Address of the first byte.
    start: usize,
    length: usize,
}

impl Lines for PlainLines {
    fn store(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let offset = usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let end = offset.checked_add(bytes.len()).filter(|end| *end <= self.length);
        end.ok_or(io::ErrorKind::InvalidInput)?;
        let to = std::ptr::with_exposed_provenance_mut::<u8>(self.start + offset);
        // SAFETY: within the mapping, as just checked, which nobody has a reference to.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    // the emulator has no caches: what this control loses, it loses by the missing flag
    fn flush(&self, _: u64) {}

    fn fence(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Stores records into a new file that is allocated and never synced, until it is killed.
fn store(medium: &dyn Medium, dir: &Path) -> io::Result<()> {
    RealFileSystem.create_dir_all(dir)?;
    let path = dir.join(RECORDS_NAME);
    RealFileSystem.create(&path)?.allocate(RECORDS_BYTES)?;
    let lines = medium.map(&path, RECORDS_BYTES)?;
    for number in 1..=RECORDS_BYTES / LINE_BYTES {
        let offset = (number - 1) * LINE_BYTES;
        lines.store(&record(number), offset)?;
        lines.flush(offset);
        lines.fence()?;
        if number % SAY_EVERY == 0 {
            println!("ACK {number}");
        }
    }
    loop {
        std::thread::park();
    }
}

/// How many records from the first on are what was stored.
fn stored(path: &Path) -> io::Result<u64> {
    let bytes = std::fs::read(path)?;
    let records = (1..).zip(bytes.chunks(LINE_BYTES as usize));
    Ok(records.take_while(|(number, bytes)| *bytes == record(*number)).count() as u64)
}

fn check(dir: &Path) -> ExitCode {
    if let Ok(last) = stored(&dir.join(RECORDS_NAME)) {
        println!("LAST {last}");
        return ExitCode::SUCCESS;
    }
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

fn refused(error: &io::Error) -> ExitCode {
    println!("REFUSED {error}");
    ExitCode::from(3)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [act, dir] = arguments.as_slice() else {
        println!("usage: dax_guest write|relaxed|mapped|plain|check DIR");
        return ExitCode::from(2);
    };
    let dir = Path::new(dir);
    match act.as_str() {
        "write" => match persistent(dir) {
            Ok(files) => write(files, dir, Durability::Sync).await,
            Err(error) => refused(&error),
        },
        "mapped" => match detect().and_then(|memory| store(&memory, dir)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => refused(&error),
        },
        "plain" => match store(&Plain, dir) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => refused(&error),
        },
        "relaxed" => {
            let never = Durability::Relaxed { interval: Duration::from_secs(86_400) };
            write(Arc::new(RealFileSystem), dir, never).await
        }
        _ => check(dir),
    }
}
