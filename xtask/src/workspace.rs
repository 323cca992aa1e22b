//! Where things are: the source tree, cargo's target folder and the per-machine tool cache.
//! Reads the environment once per question and never writes to it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process;

/// Root of the source tree, from where this crate was compiled or from the working directory.
pub fn root() -> PathBuf {
    let compiled = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = compiled.parent().unwrap_or(compiled);
    if root.join("Cargo.toml").exists() {
        return root.to_path_buf();
    }
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
    here.ancestors().find(|dir| dir.join("Cargo.lock").exists()).unwrap_or(&here).to_path_buf()
}

/// Cargo's target folder, as cargo itself would choose it.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// What everything that CI builds takes, without the caches of cargo and Go.
const BUILD_GIB: u64 = 20;

/// Says how much room there is for what is built, and whether it is enough: a full disk shows in
/// the oddest of failures.
pub fn room() -> anyhow::Result<String> {
    let target = target_dir();
    let exists = target.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let volume = rustix::fs::statvfs(exists)?;
    let free = volume.f_bavail.saturating_mul(volume.f_frsize) >> 30;
    let advice = if free < BUILD_GIB { ": free some before a whole run" } else { "" };
    let exists = exists.display();
    Ok(format!("{free} GiB are free at {exists}; all that is built takes {BUILD_GIB}{advice}"))
}

/// Folder for results that are costly to make and depend only on checked-in files.
pub fn cache_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("CACHETIER_CACHE") {
        return PathBuf::from(dir);
    }
    let home = std::env::var_os("HOME").unwrap_or_else(|| "/root".into());
    PathBuf::from(home).join(".cache/cachetier")
}

/// The cargo that runs us, or the one on the path.
pub fn cargo() -> Command {
    let mut command = Command::new(cargo_program());
    without_this_package(&mut command).current_dir(root());
    command
}

/// What cargo told this program of its own package is not for the cargo that it runs: build scripts
/// that look at it would run again, and all behind them, at every change between here and a shell.
fn without_this_package(command: &mut Command) -> &mut Command {
    let told = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(told) {
            command.env_remove(name);
        }
    }
    command
}

/// The same for running tests: it ends with this program and its test programs end with it, however
/// that comes.
pub fn cargo_for_tests() -> Command {
    const RUNNER: &str = r#"target."cfg(all())".runner=["setpriv","--pdeathsig","KILL","--"]"#;
    let mut command = process::tied(cargo_program(), "KILL");
    without_this_package(&mut command).args(["--config", RUNNER]).current_dir(root());
    command
}

fn cargo_program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The path of this program, for running it again. Cargo may have replaced the file meanwhile; the
/// kernel then calls ours deleted, and the new one of the same name does as well.
pub fn this_program() -> std::io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    let text = path.to_string_lossy();
    Ok(text.strip_suffix(" (deleted)").map_or(path.clone(), PathBuf::from))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::process::{Pid, Signal, kill_process, test_kill_process};

    use crate::process::wait_until;

    #[test]
    fn a_killed_test_run_leaves_no_test_program() {
        let package = tempfile::tempdir().unwrap();
        let file = |name: &str| package.path().join(name);
        std::fs::write(
            file("Cargo.toml"),
            "[package]\nname = \"waits\"\nedition = \"2024\"\n[lib]\npath = \"lib.rs\"\n[workspace]\n",
        )
        .unwrap();
        std::fs::write(
            file("lib.rs"),
            "#[test] fn waits() { std::fs::write(\"pid\", std::process::id().to_string()).unwrap(); \
             std::thread::sleep(std::time::Duration::from_secs(600)); }",
        )
        .unwrap();
        let mut command = super::cargo_for_tests();
        command.args(["test", "--quiet", "--lib"]).current_dir(package.path());
        let mut cargo = command.env("CARGO_TARGET_DIR", file("target")).spawn().unwrap();
        let program = || -> Option<Pid> {
            Pid::from_raw(std::fs::read_to_string(file("pid")).ok()?.parse().ok()?)
        };
        let limit = Duration::from_secs(120);
        wait_until("the test to run", limit, || program().is_some()).unwrap();
        let program = program().unwrap();
        kill_process(Pid::from_child(&cargo), Signal::KILL).unwrap();
        cargo.wait().unwrap();
        wait_until("it to end", limit, || test_kill_process(program).is_err()).unwrap();
    }
}
