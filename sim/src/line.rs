//! One life of a node's process: whether it is alive, and where along its way it is to die.
//!
//! Owns the death. Everything a process does to the world (disk, database, peers) asks here first:
//! a dead process changes nothing any more, whatever of its tasks still runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use cachetier_journal::file_system::{FaultyFileSystem, PowerCut};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::history::History;

/// How a process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Killed: the kernel keeps what was written.
    Killed,
    /// The machine loses power.
    PowerCut(PowerCut),
}

/// Why a process must not be let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Impostor {
    /// A copy of the volume, made before its original claimed again.
    OldCopy,
    /// A copy of the volume under a group of another incarnation, without a database to tell it.
    OtherGroup,
}

/// What kind of step a process takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Disk,
    Database,
    Peer,
}

/// An armed death: at the `after`-th step of the kind from now.
#[derive(Clone, Copy, Debug)]
pub struct Fuse {
    pub step: Step,
    pub after: u32,
    pub death: Death,
}

type OnDeath = Box<dyn Fn(Death) + Send + Sync>;

/// See the module.
pub struct Line {
    pub node: String,
    pub life: u32,
    disk: FaultyFileSystem,
    dead: AtomicBool,
    /// Wakes whoever waits for an answer of this process.
    pub died: CancellationToken,
    fuse: Mutex<Option<Fuse>>,
    /// Acts on the volume that are to fail: sync, write.
    pub failing_syncs: AtomicU32,
    pub failing_writes: AtomicU32,
    /// When its disk failed for the first time.
    pub disk_failed: Mutex<Option<Instant>>,
    /// Runs on a volume that is not its own (any more), and must not be let in.
    pub impostor: Option<Impostor>,
    on_death: OnDeath,
}

impl Line {
    pub fn new(
        node: &str,
        life: u32,
        disk: FaultyFileSystem,
        impostor: Option<Impostor>,
        on_death: OnDeath,
    ) -> Arc<Self> {
        Arc::new(Self {
            node: node.to_owned(),
            life,
            disk,
            dead: AtomicBool::new(false),
            died: CancellationToken::new(),
            fuse: Mutex::default(),
            failing_syncs: AtomicU32::new(0),
            failing_writes: AtomicU32::new(0),
            disk_failed: Mutex::default(),
            impostor,
            on_death,
        })
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    pub fn arm(&self, fuse: Fuse) {
        *self.fuse.lock() = Some(fuse);
    }

    pub fn disarm(&self) {
        *self.fuse.lock() = None;
    }

    /// True if the process dies with this step, before it has its effect.
    pub fn dies_at(&self, step: Step) -> bool {
        if self.is_dead() {
            return true;
        }
        let death = {
            let mut fuse = self.fuse.lock();
            match &mut *fuse {
                Some(armed) if armed.step == step => {
                    armed.after = armed.after.saturating_sub(1);
                    let death = (armed.after == 0).then_some(armed.death);
                    if death.is_some() {
                        *fuse = None;
                    }
                    death
                }
                _ => None,
            }
        };
        if let Some(death) = death {
            self.die(death);
        }
        death.is_some()
    }

    /// Ends this life.
    pub fn die(&self, death: Death) {
        if self.dead.swap(true, Ordering::AcqRel) {
            return;
        }
        match death {
            Death::Killed => self.disk.kill_process(),
            Death::PowerCut(cut) => self.disk.cut_power(cut),
        }
        self.died.cancel();
        (self.on_death)(death);
    }

    /// In the words of the history.
    pub fn name(&self) -> String {
        let copy = if self.impostor.is_some() { ", on a copied volume" } else { "" };
        format!("{} (life {}{copy})", self.node, self.life)
    }
}

/// Says how a process died.
pub fn tell(history: &History, name: &str, death: Death) {
    match death {
        Death::Killed => history.say(format!("{name} is killed")),
        Death::PowerCut(cut) => history.say(format!("{name} loses power, {}", kept(cut))),
    }
}

fn kept(cut: PowerCut) -> &'static str {
    match cut {
        PowerCut::LoseAll => "and all that was not synced",
        PowerCut::KeepAll => "and the disk keeps everything",
        PowerCut::Random(_) => "and some of what was not synced",
    }
}
