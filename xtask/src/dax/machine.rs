//! One boot of the guest: starts it, follows what it says on its console, kills it.
//!
//! The emulator dies with this program, however that ends.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::module;
use super::parts::Parts;

/// From power-on to what is waited for; a busy machine takes half a minute.
const BOOT_MAX: Duration = Duration::from_secs(240);
const POLL: Duration = Duration::from_millis(50);

pub struct Machine<'a> {
    pub parts: &'a Parts,
    pub initrd: &'a Path,
    pub module: &'a Path,
}

pub struct Boot {
    pub act: &'static str,
    pub mount: &'static str,
    pub processor: &'static str,
    /// What the platform says it keeps when the power fails.
    pub persistence: Option<&'static str>,
    pub log: PathBuf,
}

/// What the guest's program said so far.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Said {
    pub flush: Option<String>,
    pub acknowledged: u64,
    pub refused: Option<String>,
    pub last: Option<u64>,
    pub damaged: Option<String>,
    ended: bool,
    broken: Option<String>,
}

pub struct Running {
    child: Child,
    log: PathBuf,
    begun: Instant,
}

impl Machine<'_> {
    pub fn boot(&self, boot: &Boot) -> Result<Running> {
        let log = File::create(&boot.log).context("making the guest's log")?;
        let persistence = boot.persistence.map(|p| format!(",nvdimm-persistence={p}"));
        let machine = format!("q35,nvdimm=on{}", persistence.unwrap_or_default());
        let memory = format!(
            "memory-backend-file,id=memory,share=on,mem-path={},size={}",
            self.module.display(),
            module::BYTES
        );
        let words =
            format!("console=ttyS0 panic=-1 loglevel=3 t_act={} t_mount={}", boot.act, boot.mount);
        let mut command = self.parts.emulator();
        command.args(["-accel", "tcg", "-cpu", boot.processor, "-smp", "1", "-machine", &machine]);
        command.args(["-m", "256M,slots=2,maxmem=4G", "-nodefaults", "-no-user-config"]);
        command.args(["-no-reboot", "-display", "none", "-nic", "none", "-serial", "stdio"]);
        command.args(["-object", &memory, "-device", "nvdimm,id=module,memdev=memory"]);
        command.arg("-kernel").arg(self.parts.kernel()).arg("-initrd").arg(self.initrd);
        command.args(["-append", &words]).stdin(Stdio::null());
        let errors = log.try_clone().context("sharing the guest's log")?;
        let child = command.stdout(log).stderr(errors).spawn().context("starting the emulator")?;
        Ok(Running { child, log: boot.log.clone(), begun: Instant::now() })
    }
}

impl Running {
    /// Waits until so many frames are acknowledged, or the volume is refused, and kills the machine.
    pub fn until_acknowledged(mut self, frames: u64) -> Result<Said> {
        self.follow(|said| said.acknowledged >= frames || said.refused.is_some())?;
        self.kill()?;
        self.said()
    }

    /// Waits until the program ended, and kills the machine.
    pub fn until_ended(mut self) -> Result<Said> {
        self.follow(|said| said.ended)?;
        self.kill()?;
        self.said()
    }

    fn follow(&mut self, enough: impl Fn(&Said) -> bool) -> Result<()> {
        loop {
            let said = self.said()?;
            if let Some(what) = said.broken {
                bail!("the guest could not do its work: {what}; it said:\n{}", self.text()?);
            }
            if enough(&said) {
                return Ok(());
            }
            let status = self.child.try_wait().context("looking at the emulator")?;
            if status.is_some() || said.ended || self.begun.elapsed() > BOOT_MAX {
                bail!("the guest did not come so far; it said:\n{}", self.text()?);
            }
            std::thread::sleep(POLL);
        }
    }

    fn kill(&mut self) -> Result<()> {
        self.child.kill().context("killing the emulator")?;
        self.child.wait().context("waiting for the emulator")?;
        Ok(())
    }

    fn text(&self) -> Result<String> {
        let bytes = std::fs::read(&self.log).context("reading the guest's log")?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn said(&self) -> Result<Said> {
        Ok(read(&self.text()?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // ended already, or nobody looks at it any more
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Complete lines only: the last one may be under way.
fn read(text: &str) -> Said {
    let mut said = Said::default();
    let complete = text.rfind('\n').and_then(|end| text.get(..end)).unwrap_or_default();
    for line in complete.lines() {
        let (word, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        let text = || Some(rest.to_owned());
        match word {
            "FLUSH" => said.flush = text(),
            "ACK" => said.acknowledged = rest.parse().unwrap_or(said.acknowledged),
            "REFUSED" => said.refused = text(),
            "LAST" => said.last = rest.parse().ok(),
            "DAMAGED" => said.damaged = text(),
            "BROKEN" => said.broken = text(),
            "ENDED" => said.ended = true,
            _ => {}
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_lines_of_the_console_count() {
        let said = read("[  1.0] noise\r\nFLUSH clwb\r\nACK 50\r\nACK 100\r\nACK 15");
        assert_eq!((said.flush.as_deref(), said.acknowledged), (Some("clwb"), 100));
        let ended = read("LAST 7\r\nENDED 0\r\n");
        assert!(ended.ended && ended.last == Some(7) && ended.broken.is_none());
    }
}
