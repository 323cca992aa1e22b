//! Long-lived processes of the cluster: started in their own session with a log file and a recorded
//! process id, found again after a crash of the starter, and stopped by that id only.
//!
//! A record holds the id and the start time of the process, so an id that the system has given to
//! somebody else is never signalled.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::layout::RunDir;
use crate::process::{self, wait_until};

/// How long a process may take to obey a polite signal before it is killed.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// How long a port may stay taken by a process that is ending.
const PORT_GRACE: Duration = Duration::from_secs(5);

/// A process as recorded: its id and when the kernel says that it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    pub pid: i32,
    started: u64,
}

/// The start of a daemon's command line. Where the run folder is tied to this process, the kernel
/// ends the daemon with it: a test run that is killed leaves none behind.
pub fn program(run: &RunDir, path: impl AsRef<OsStr>) -> Command {
    if run.is_tied() { process::tied(path, "KILL") } else { Command::new(path) }
}

/// Starts `command` as the daemon `name` unless it runs already; tells whether it was started.
pub fn start(run: &RunDir, name: &str, command: &mut Command) -> Result<bool> {
    if running(run, name).is_some() {
        return Ok(false);
    }
    fs::create_dir_all(run.join("log"))?;
    fs::create_dir_all(run.join("pid"))?;
    let path = run.join(&format!("log/{name}.log"));
    let log = OpenOptions::new().create(true).append(true).open(&path)?;
    let child = command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .with_context(|| format!("starting {name}"))?;
    let pid = i32::try_from(child.id())?;
    let started = start_time(pid).unwrap_or_default();
    fs::write(run.join(&format!("pid/{name}")), format!("{pid} {started}\n"))?;
    Ok(true)
}

/// Waits until a port that the daemon `name` is about to use is free: its predecessor may be on its
/// way out, or a stranger sits there and must be named before anything half starts.
pub fn port_free(run: &RunDir, name: &str, port: u16) -> Result<()> {
    if running(run, name).is_some() {
        return Ok(());
    }
    let free = || TcpListener::bind(("127.0.0.1", port)).is_ok();
    wait_until(&format!("port {port}"), PORT_GRACE, free).with_context(|| {
        format!("port {port} ({name}) is used by another program; choose another --port-base")
    })
}

/// The daemon's process, if it is alive and still the one that was recorded.
pub fn running(run: &RunDir, name: &str) -> Option<Recorded> {
    let recorded = recorded(run, name)?;
    (start_time(recorded.pid) == Some(recorded.started)).then_some(recorded)
}

/// Names of all daemons ever recorded in this run folder and not removed since.
pub fn names(run: &RunDir) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(run.join("pid"))
        .map(|entries| {
            entries
                .flatten()
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect()
        })
        .unwrap_or_default();
    names.sort();
    names
}

/// Asks a daemon to end, waits, and kills it if it does not.
pub fn stop(run: &RunDir, name: &str, signal: Signal) -> Result<()> {
    if let Some(process) = running(run, name) {
        send(process.pid, signal);
        // a stopped process does not see a polite signal
        send(process.pid, Signal::CONT);
        let gone = || running(run, name).is_none();
        if wait_until(name, STOP_GRACE, gone).is_err() {
            send(process.pid, Signal::KILL);
            wait_until(name, STOP_GRACE, gone)?;
        }
    }
    match fs::remove_file(run.join(&format!("pid/{name}"))) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Sends a signal; a process that is gone already is no error.
pub fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

/// Fails with the last lines of a daemon's log when it is no longer alive.
pub fn check(run: &RunDir, name: &str) -> Result<()> {
    if running(run, name).is_some() {
        return Ok(());
    }
    bail!("{name} ended; the end of its log:\n{}", log_end(run, name));
}

/// The last lines of a daemon's log.
pub fn log_end(run: &RunDir, name: &str) -> String {
    let path = run.join(&format!("log/{name}.log"));
    let text = fs::read_to_string(&path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(12);
    format!("{}\n(whole log: {})", lines.get(from..).unwrap_or_default().join("\n"), path.display())
}

/// Start time in clock ticks since boot; nothing for a process that is gone or waits to be reaped.
fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // the second field may hold spaces and brackets; what follows the last bracket is regular
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if matches!(fields.first(), Some(&"Z" | &"X")) {
        return None;
    }
    fields.get(19)?.parse().ok()
}

fn recorded(run: &RunDir, name: &str) -> Option<Recorded> {
    let text = fs::read_to_string(run.join(&format!("pid/{name}"))).ok()?;
    let mut words = text.split_whitespace();
    Some(Recorded { pid: words.next()?.parse().ok()?, started: words.next()?.parse().ok()? })
}

/// Holds the run folder for one command at a time; released when dropped. The lock is kept in the
/// tool cache, so that a removed cluster leaves nothing where it was.
pub fn lock(run: &RunDir) -> Result<File> {
    take_lock(run, "")
}

/// Holds the run folder for a whole test run, beside the lock of single commands.
pub fn lock_for_tests(run: &RunDir) -> Result<File> {
    take_lock(run, "-tests")
}

fn take_lock(run: &RunDir, suffix: &str) -> Result<File> {
    let folder = crate::workspace::cache_dir().join("locks");
    fs::create_dir_all(&folder)?;
    let name = run.root().to_string_lossy().trim_start_matches('/').replace('/', "-");
    let path = folder.join(name + suffix);
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => {
            println!("waiting for another command's {}", path.display())
        }
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("locking {}", path.display()));
        }
    }
    file.lock().with_context(|| format!("locking {}", path.display()))?;
    Ok(file)
}
