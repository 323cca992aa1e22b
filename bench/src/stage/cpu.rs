//! Processor time of processes, from `/proc`.

use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// Linux counts the times of ended children in hundredths of a second on every architecture we run.
const TICK: Duration = Duration::from_millis(10);

/// Time that a server and all its processes, ended ones included, have run so far; processes in
/// `without` (our own observers) are left out while they live.
pub fn of_server(postmaster: u32, without: &BTreeSet<u32>) -> Result<Duration> {
    let mut total = run_time(postmaster)? + ended_children(postmaster)?;
    for child in children(postmaster)? {
        if !without.contains(&child) {
            // It may end between the listing and the look; its time is then the postmaster's.
            total += run_time(child).unwrap_or_default();
        }
    }
    Ok(total)
}

/// Time that all threads of a process have run so far.
pub fn of_process(pid: u32) -> Result<Duration> {
    let tasks = format!("/proc/{pid}/task");
    let mut total = Duration::ZERO;
    for task in std::fs::read_dir(&tasks).with_context(|| format!("reading {tasks}"))? {
        // A thread may end meanwhile.
        total += schedstat(&task?.path()).unwrap_or_default();
    }
    Ok(total)
}

fn run_time(pid: u32) -> Result<Duration> {
    schedstat(Path::new(&format!("/proc/{pid}")))
}

/// The first number is nanoseconds on a processor.
fn schedstat(directory: &Path) -> Result<Duration> {
    let path = directory.join("schedstat");
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let first = text.split_whitespace().next().and_then(|n| n.parse().ok());
    first.map(Duration::from_nanos).with_context(|| format!("{} is empty", path.display()))
}

/// Fields 16 and 17 of `stat`: user and system time of children that were waited for.
fn ended_children(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    // The second field is the name in parentheses, which may hold spaces.
    let (_, rest) = text.rsplit_once(") ").with_context(|| format!("{path} has no name"))?;
    let ticks: u32 = rest.split_whitespace().skip(13).take(2).flat_map(str::parse::<u32>).sum();
    Ok(TICK * ticks)
}

/// Processes that it started and has not waited for.
pub fn children(pid: u32) -> Result<Vec<u32>> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    Ok(text.split_whitespace().flat_map(str::parse).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn time_of_a_child_is_counted_once_it_ended() {
        let own = std::process::id();
        let before = ended_children(own).unwrap();
        let spin = "n=0; while [ $n -lt 300000 ]; do n=$((n+1)); done";
        assert!(Command::new("sh").args(["-c", spin]).status().unwrap().success());
        assert!(ended_children(own).unwrap() > before);
        assert!(of_process(own).unwrap() > Duration::ZERO);
    }
}
