//! Opening a group: the journal first, then everything that needs no backend.
//!
//! Owns the translation of the configuration into the parts' options, and the refusal of one that
//! cannot work: only what the backend must be asked for waits and heals by itself.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cachetier_engine::Engine;
use cachetier_journal::{Durability, JournalError, JournalOptions, Stopped};
use cachetier_model::node_config::{self, ConfigError, NodeConfig};
use cachetier_model::{NodeEntry, Topology};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::calls::BacklogFigures;
use crate::error::{GroupError, in_full};
use crate::host::Host;
use crate::images::{self, ImageFiles, Images};
use crate::notebook::Notebook;
use crate::peers::Peers;
use crate::shared::{Board, Shared, Tally};
use crate::slots::Slots;
use crate::start;
use crate::status::{Ended, Problem};
use crate::tenure::Tenures;

/// A segment is a sixteenth of the journal, within these bounds.
const SEGMENT_BYTES_MIN: u64 = 1 << 20;
const SEGMENT_BYTES_MAX: u64 = 64 << 20;
/// A latched journal is visible in the status this long before the process is asked to end.
const LATCH_GRACE: Duration = Duration::from_millis(500);

fn journal_options(config: &NodeConfig, segment_bytes: Option<u64>) -> JournalOptions {
    let capacity_bytes = config.journal.capacity_bytes;
    let share = (capacity_bytes / 16).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
    let segment_bytes = segment_bytes.unwrap_or(share);
    let defaults = JournalOptions::default();
    let queue_bytes = defaults.queue_bytes.min(segment_bytes as usize / 2);
    JournalOptions {
        segment_bytes,
        capacity_bytes,
        durability: match config.journal.durability {
            node_config::Durability::Sync => Durability::Sync,
            node_config::Durability::Relaxed => Durability::Relaxed {
                interval: Duration::from_millis(config.journal.sync_interval_ms.max(1)),
            },
        },
        queue_bytes,
        group_commit_bytes: defaults.group_commit_bytes.min(queue_bytes),
        ..defaults
    }
}

/// Refuses what no waiting would heal.
fn check(config: &NodeConfig) -> Result<(), ConfigError> {
    config.check()?;
    let lookups = config.tables.iter().map(|table| table.lookup_keys.len()).sum();
    let (bytes, bytes_min) = (config.memory.capacity_bytes, Engine::capacity_bytes_min(lookups));
    if bytes < bytes_min {
        let fix = format!("it is {bytes}; at least {bytes_min} for these tables");
        return Err(ConfigError::new("memory.capacityBytes", fix));
    }
    Ok(())
}

fn unopened(directory: PathBuf, error: &JournalError) -> GroupError {
    match error {
        // the other options follow from this one
        JournalError::Options { fix, .. } => {
            ConfigError::new("journal.capacityBytes", fix.as_str()).into()
        }
        error => GroupError::JournalUnopened { directory, reason: in_full(error).into() },
    }
}

pub(crate) async fn open(
    config: NodeConfig,
    node: NodeEntry,
    peers: Arc<dyn Peers>,
    host: Host,
    shutdown: CancellationToken,
) -> Result<Arc<Shared>, GroupError> {
    check(&config)?;
    let Host { backend, files, labour, segment_bytes, images_refresh } = host;
    let options = journal_options(&config, segment_bytes);
    let directory = config.journal.directory.clone();
    let image_files = ImageFiles::new(Arc::clone(&files), &directory);
    let refresh = images_refresh.unwrap_or(images::REFRESH);
    let images = Images::new(image_files, config.memory.images, refresh);
    let opened = labour.open_journal(files, directory.clone(), options).await;
    let (journal, recovery) =
        opened.map_err(GroupError::internal)?.map_err(|error| unopened(directory, &error))?;
    tracing::info!(group = %config.group.name, node = %node.name, journal = %journal.id(),
        generation = recovery.generation, frames = recovery.frames, clean = recovery.clean,
        torn_bytes = recovery.torn_bytes, "journal opened");
    // a journal that never took a frame holds nothing
    let counted = match recovery.frames {
        0 => OnceLock::from(BacklogFigures::NONE),
        _ => OnceLock::new(),
    };
    let shared = Arc::new(Shared {
        notebook: Notebook::new(journal.clone(), labour),
        labour,
        runtime: tokio::runtime::Handle::current(),
        config,
        node,
        peers,
        backend,
        journal,
        generation: recovery.generation,
        slots: Slots::new(),
        images,
        tenures: Default::default(),
        ends: Default::default(),
        coverage: Default::default(),
        topology: watch::Sender::new(None::<Arc<Topology>>),
        topology_change: Default::default(),
        slots_noting: Default::default(),
        problems: Board::default(),
        writes_stopped: false.into(),
        journal_direct: false.into(),
        memory_refused: parking_lot::Mutex::default(),
        write_due: false.into(),
        tail: counted,
        fenced: Default::default(),
        ended: watch::Sender::new(None),
        shutdown,
        closed: CancellationToken::new(),
        tally: Tally::default(),
    });
    start::check_home(&shared).await?;
    if shared.fenced().is_none() {
        recall_tenures(&shared).await?;
    }
    start::recall_topology(&shared).await?;
    shared.spawn("journal-watch", watch_journal(Arc::clone(&shared)));
    Ok(shared)
}

/// Which stay of each slot goes on, and where the frames of earlier processes end; noted at once: a
/// process that knows nothing of it leaves a gap.
async fn recall_tenures(shared: &Shared) -> Result<(), GroupError> {
    let tenures = Tenures::recall(shared.notebook.tenures()?, shared.generation);
    let mut ends = shared.notebook.ends()?.unwrap_or_default();
    ends.found(shared.journal.stats().synced);
    shared.notebook.set_start(&tenures.note(shared.generation), &ends).await?;
    *shared.tenures.lock() = tenures;
    *shared.ends.lock() = ends;
    Ok(())
}

/// Ends the group when its journal does.
async fn watch_journal(shared: Arc<Shared>) {
    let mut marks = shared.journal.watch_synced();
    loop {
        let stopped = marks.borrow_and_update().stopped.clone();
        if let Some(Stopped::Latched(reason)) = stopped {
            tracing::error!(node = %shared.node.name, reason = %reason, "the journal failed");
            let text = format!("the journal failed ({reason}); replace this process");
            shared.problems.raise("latch", Problem::new("JournalLatched", text, true));
            tokio::time::sleep(LATCH_GRACE).await;
            shared.end(Ended::Latched(reason));
            return shared.shutdown.cancelled().await;
        }
        tokio::select! {
            () = shared.shutdown.cancelled() => return,
            changed = marks.changed() => if changed.is_err() { return },
        }
    }
}
