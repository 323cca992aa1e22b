//! How a stage starts other programs: they end with the thread that started them, however it ends.

use super::Processors;
use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::process::{Command, Output};

/// What stands before a program on its command line.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Sent by the kernel when the thread that started the program is gone.
    pub end_signal: &'a str,
    /// The only ones it may use.
    pub processors: Option<&'a Processors>,
    /// The system user it runs as.
    pub user: Option<&'a str>,
}

impl Launch<'_> {
    /// Killed with its starter.
    pub const KILLED: Launch<'static> = Launch { end_signal: "KILL", processors: None, user: None };

    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = match self.processors {
            Some(processors) => {
                let mut command = Command::new("taskset");
                command.args(["-c", &processors.to_string(), "setpriv"]);
                command
            }
            None => Command::new("setpriv"),
        };
        if let Some(user) = self.user {
            command.args(["--reuid", user, "--regid", user, "--init-groups"]);
        }
        command.args(["--pdeathsig", self.end_signal, "--"]).arg(program);
        command
    }
}

/// Runs a program to its end; its output is the error when it fails.
pub(super) fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    succeeded(command, &output)
}

pub(super) fn succeeded(command: &Command, output: &Output) -> Result<()> {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    let text = String::from_utf8_lossy(&text);
    ensure!(output.status.success(), "{command:?}: {}: {}", output.status, text.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn a_program_ends_with_the_thread_that_started_it() {
        let (tell, told) = std::sync::mpsc::channel();
        let starter = std::thread::spawn(move || {
            let mut child = Launch::KILLED.command("sh");
            child.args(["-c", "echo ready; exec sleep 600"]).stdout(std::process::Stdio::piped());
            let mut child = child.spawn().unwrap();
            // only once setpriv has asked the kernel does the program speak
            let mut ready = [0; 5];
            std::io::Read::read_exact(&mut child.stdout.take().unwrap(), &mut ready).unwrap();
            tell.send(child).unwrap();
        });
        starter.join().unwrap();
        assert_eq!(told.recv().unwrap().wait().unwrap().signal(), Some(9));
    }
}
