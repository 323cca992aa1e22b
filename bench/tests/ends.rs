//! What is left of a benchmark that was stopped, and how soon a wrong command line is told.

use anyhow::{Context, Result, ensure};
use hlr_bench::stage::eventually;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
/// Long before anything could have been started.
const AT_ONCE: Duration = Duration::from_secs(5);

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A benchmark that fills its PostgreSQL, and the id of that server.
struct Filling {
    child: Child,
    server: Pid,
    temporary: tempfile::TempDir,
}

impl Filling {
    async fn start() -> Result<Self> {
        let temporary = tempfile::tempdir()?;
        // the database's own user goes through it
        std::fs::set_permissions(temporary.path(), std::fs::Permissions::from_mode(0o755))?;
        // it is stopped long before the node would be started
        let mut command = bench(&["hlr", "--subscribers", "500000", "--node-binary", "/bin/true"]);
        let mut child = command.env("TMPDIR", temporary.path()).spawn()?;
        let server = eventually("its PostgreSQL", PATIENCE, || {
            let found = match child.try_wait() {
                Ok(None) => server_below(temporary.path()),
                ended => Err(anyhow::anyhow!("it ended by itself: {ended:?}")),
            };
            async move { found.map(Some) }
        })
        .await?;
        Ok(Self { child, server, temporary })
    }

    async fn end(mut self, signal: Signal) -> Result<(Output, tempfile::TempDir)> {
        let id = Pid::from_raw(self.child.id().try_into()?).context("no process id")?;
        kill_process(id, signal)?;
        eventually("the benchmark to end", PATIENCE, || {
            let status = self.child.try_wait();
            async move { Ok(status?) }
        })
        .await?;
        let output = self.child.wait_with_output()?;
        eventually("its server to end", PATIENCE, || async {
            Ok(test_kill_process(self.server).is_err().then_some(()))
        })
        .await?;
        Ok((output, self.temporary))
    }
}

fn server_below(temporary: &Path) -> Result<Pid> {
    let folder = folders(temporary)?.pop().context("no folder yet")?;
    let text = std::fs::read_to_string(folder.join("data/postmaster.pid"))?;
    let id: i32 = text.lines().next().context("postmaster.pid is empty")?.trim().parse()?;
    // below zero while initdb is at work
    Pid::from_raw(id.max(0)).context("no server yet")
}

fn folders(below: &Path) -> Result<Vec<PathBuf>> {
    std::fs::read_dir(below)?.map(|entry| Ok(entry?.path())).collect()
}

#[tokio::test]
async fn a_benchmark_told_to_end_leaves_no_server_and_no_folder() -> Result<()> {
    for (signal, name) in [(Signal::INT, "SIGINT"), (Signal::TERM, "SIGTERM")] {
        let (output, temporary) = Filling::start().await?.end(signal).await?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(1) && said.contains(name), "{said}");
        let left = folders(temporary.path())?;
        ensure!(left.is_empty(), "{name}: {left:?} are left");
    }
    Ok(())
}

#[tokio::test]
async fn a_killed_benchmark_leaves_no_server_and_its_folder_goes_with_the_next() -> Result<()> {
    let (_, temporary) = Filling::start().await?.end(Signal::KILL).await?;
    let left = folders(temporary.path())?;
    ensure!(left.len() == 1, "{left:?}");
    // ends by itself, since that program is no node
    let few = ["hlr", "--subscribers", "100", "--node-binary", "/bin/true", "--seconds", "0.1"];
    bench(&few).env("TMPDIR", temporary.path()).output()?;
    let left = folders(temporary.path())?;
    ensure!(left.is_empty(), "{left:?} are left");
    Ok(())
}

#[test]
fn a_wrong_argument_is_told_at_once_and_by_name() -> Result<()> {
    let missing = "/none/cache-node";
    for (arguments, named) in [
        (vec!["hlr", "--node-binary", missing], missing),
        (vec!["hlr", "--lanes", "0"], "--lanes"),
        (vec!["hlr", "--threads", "2,0"], "--threads"),
        (vec!["hlr", "--server-cpus", "1000-1001"], "no processor 1000"),
        (vec!["hlr", "--driver-cpus", "x"], "--driver-cpus"),
        (vec!["hlr", "--seconds", "0"], "--seconds"),
        (vec!["flush", "--lanes", "1,0"], "--lanes"),
        (vec!["flush", "--pile-up", "9"], "--pile-up"),
        (vec!["engine", "--subscribers", "0"], "--subscribers"),
    ] {
        let asked = Instant::now();
        let output = bench(&arguments).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success() && said.contains(named), "{arguments:?}: {said}");
        ensure!(asked.elapsed() < AT_ONCE, "{arguments:?} took {:?}", asked.elapsed());
    }
    Ok(())
}
