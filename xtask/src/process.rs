//! Running other programs: once with their output shown or captured, and waiting for a condition.
//! Long-lived programs of the cluster are `cluster::daemon`'s business.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Pause between two looks at a condition.
const POLL: Duration = Duration::from_millis(50);

/// Builds a command from words.
pub fn command<S: AsRef<std::ffi::OsStr>>(program: S, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// The start of a command whose process the kernel ends with the thread that starts it, however that
/// ends: nothing is left of a command that was killed.
pub fn tied<S: AsRef<std::ffi::OsStr>>(program: S, signal: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", signal, "--"]).arg(program);
    command
}

/// Runs a command with its output shown; fails when it fails.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("starting {}", describe(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", describe(command));
    }
    Ok(())
}

/// Runs a command and gives its standard output; fails with its standard error.
pub fn capture(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {}", describe(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} ended with {}: {}", describe(command), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// As [`capture`], with text on the command's standard input.
pub fn feed(command: &mut Command, input: &str) -> Result<String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {}", describe(command)))?;
    if let Some(mut stdin) = child.stdin.take() {
        // a program that ends early closes its input; its exit status says more than the pipe
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} ended with {}: {}", describe(command), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command whose failure means "already so"; tells whether it succeeded.
pub fn attempt(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Waits until `done` says yes; the error names what was waited for.
pub fn wait_until(what: &str, limit: Duration, mut done: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > limit {
            bail!("waited {} s for {what}", limit.as_secs());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// The program's name and its first words, short enough for an error message.
fn describe(command: &Command) -> String {
    let program = command.get_program().to_string_lossy().into_owned();
    let words: Vec<_> =
        command.get_args().take(6).map(|word| word.to_string_lossy().into_owned()).collect();
    format!("`{program} {}`", words.join(" "))
}

/// Whether a program of this name is on the path.
pub fn on_path(name: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path)
            .chain(["/usr/sbin".into(), "/sbin".into()])
            .any(|dir| dir.join(name).exists())
    })
}
