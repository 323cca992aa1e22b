//! What journal and store lie in: ordinary memory and a volume, or persistent memory (`AppDirect`).
//!
//! Owns the probe and what is told when persistent memory was asked for and is not there. Falls back
//! without losing a promise: the journal is synced as on any volume, and the store lies in a file of the
//! volume, because the pod was not given memory for it.

use std::path::Path;
use std::sync::Arc;

use cachetier_engine::{ArenaProvider, ArenaReport};
use cachetier_journal::file_system::dax::PersistentMemory;
use cachetier_journal::file_system::{DaxFileSystem, FileSystem, RealFileSystem};
use cachetier_model::node_config::{Medium, NodeConfig};

use crate::status::Problem;

/// The way to the journal's volume, and why it is not a better one.
pub(crate) struct Volume {
    pub files: Arc<dyn FileSystem>,
    /// Commits are stored, flushed and fenced; no system call is made for them.
    pub direct: bool,
    pub problem: Option<Problem>,
}

/// Blocks.
pub(crate) fn volume(config: &NodeConfig) -> Volume {
    let files: Arc<dyn FileSystem> = Arc::new(RealFileSystem);
    if config.memory.medium != Medium::AppDirect {
        return Volume { files, direct: false, problem: None };
    }
    let directory = &config.journal.directory;
    match direct(&files, directory) {
        Ok(files) => Volume { files, direct: true, problem: None },
        Err(error) => {
            let message = format!(
                "memory.medium is AppDirect, but the volume of {} cannot be mapped as persistent memory \
                 ({error}): the journal is synced as on any volume. Give the group a storage class whose \
                 volumes are mounted with direct access (-o dax on persistent memory), or choose another \
                 medium",
                directory.display()
            );
            tracing::warn!(reason = "DaxUnavailable", message, "no direct access");
            let problem = Some(Problem::new("DaxUnavailable", message, true));
            Volume { files, direct: false, problem }
        }
    }
}

fn direct(files: &Arc<dyn FileSystem>, directory: &Path) -> std::io::Result<Arc<dyn FileSystem>> {
    files.create_dir_all(directory)?;
    let memory = PersistentMemory::detect()?;
    let dax = DaxFileSystem::new(Arc::clone(files), Arc::new(memory));
    dax.probe(directory)?;
    tracing::info!(flush = memory.flush_by().as_str(), "the journal is in persistent memory");
    Ok(Arc::new(dax))
}

/// Where the store's records are to lie.
pub(crate) fn provider(config: &NodeConfig) -> ArenaProvider {
    match config.memory.medium {
        Medium::Memory => ArenaProvider::Anonymous,
        Medium::AppDirect => ArenaProvider::Dax(config.journal.directory.clone()),
    }
}

/// Whether what the store lies in will do: `Err` when it would take memory that was not set aside, or
/// else what is to be told.
pub(crate) fn judge(config: &NodeConfig, arena: &ArenaReport) -> Result<Option<Problem>, Problem> {
    let why = arena.fallbacks.join("; ");
    tracing::info!(provider = ?arena.provider, huge_pages = arena.huge_pages, fallbacks = why,
        "memory of the store");
    let small = arena.fallbacks.iter().any(|reason| reason.starts_with("budgets below"));
    match (config.memory.medium, &arena.provider) {
        (Medium::Memory, _) | (_, ArenaProvider::Dax(_)) => Ok(None),
        (_, ArenaProvider::Allocator) if small => Ok(None),
        (_, ArenaProvider::File(_)) => Ok(Some(Problem::new(
            "DaxUnavailable",
            format!(
                "memory.medium is AppDirect, but the volume is not persistent memory ({why}): the store \
                 lies in an ordinary file there and is as slow as that volume where it is not cached"
            ),
            true,
        ))),
        _ => Err(Problem::new(
            "StoreRefused",
            format!(
                "no memory for the store of memory.capacity on the journal's volume ({why}): enlarge the \
                 volume (journal.volume.size), or lower memory.capacity"
            ),
            true,
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(provider: ArenaProvider, fallbacks: &[&str]) -> ArenaReport {
        let fallbacks = fallbacks.iter().map(|f| (*f).to_owned()).collect();
        ArenaReport { provider, fallbacks, huge_pages: false }
    }

    #[test]
    fn a_store_that_was_to_lie_on_the_volume_never_takes_the_pods_memory() {
        let mut config: NodeConfig = serde_json::from_value(serde_json::json!({
            "group": {"name": "n/g", "uid": "u"},
            "backend": {"credentialsDir": "/c", "schema": "public"},
            "tables": [{"name": "t"}],
            "journal": {"directory": "/data"},
        }))
        .unwrap();
        let file = report(ArenaProvider::File("/data".into()), &["Dax: refused"]);
        let small = report(ArenaProvider::Allocator, &["budgets below 256 MiB use the allocator"]);
        let full = report(ArenaProvider::Allocator, &["Dax: no space", "File: no space"]);
        let ordinary = report(ArenaProvider::Anonymous, &[]);
        assert!(judge(&config, &ordinary).unwrap().is_none());
        config.memory.medium = Medium::AppDirect;
        let told = judge(&config, &file).unwrap().unwrap();
        assert!(told.reason == "DaxUnavailable" && told.message.contains("refused"), "{told:?}");
        assert!(judge(&config, &small).unwrap().is_none());
        for refused in [full, ordinary] {
            assert_eq!(judge(&config, &refused).unwrap_err().reason, "StoreRefused");
        }
    }
}
