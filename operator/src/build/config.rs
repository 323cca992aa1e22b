//! The node configuration, rendered from the spec into a ConfigMap.

use super::{Blueprint, BuildError, labels};
use crate::preload::short_hex;
use cachetier_api::TimeSpan;
use cachetier_api::v1alpha1 as api;
use cachetier_model::node_config::{
    BackendCommit, BackendConfig, BypassConfig, BypassReads, BypassWrites, Durability, Eviction,
    GroupIdentity, IdempotencyConfig, Images, JournalConfig, ListenConfig, Medium, MemoryConfig,
    NodeConfig, PreloadConfig, PreloadMode, TableConfig, TlsConfig, TopologySource,
    WriteThroughConfig,
};
use k8s_openapi::api::core::v1::ConfigMap;
use sha2::{Digest, Sha256};

pub const FILE: &str = "node.yaml";
pub const CONFIG_DIRECTORY: &str = "/etc/cachetier/config";
pub const TLS_DIRECTORY: &str = "/etc/cachetier/tls";
pub const BACKEND_DIRECTORY: &str = "/etc/cachetier/backend";
pub const DATA_DIRECTORY: &str = "/var/lib/cachetier";
/// Longest time between two syncs at `Relaxed`, milliseconds.
const RELAXED_SYNC_MS: u64 = 100;
/// The journal may use this share of its volume; the rest is the file system's own.
const JOURNAL_SHARE_PERCENT: u64 = 90;

pub fn config_map(blueprint: &Blueprint<'_>) -> Result<ConfigMap, BuildError> {
    let text = serde_saphyr::to_string(&node_config(blueprint)).map_err(BuildError::Config)?;
    Ok(ConfigMap {
        metadata: labels::metadata(blueprint, blueprint.names.config_map()),
        data: Some([(FILE.to_owned(), text)].into()),
        ..ConfigMap::default()
    })
}

/// Changes exactly when the configuration's bytes change.
pub fn digest(config_map: &ConfigMap) -> String {
    let text = config_map.data.as_ref().and_then(|data| data.get(FILE));
    short_hex(&Sha256::digest(text.map_or("", String::as_str)), 16)
}

pub fn node_config(blueprint: &Blueprint<'_>) -> NodeConfig {
    let spec = &blueprint.group.spec;
    let postgres = &spec.backend.postgres;
    NodeConfig {
        group: GroupIdentity {
            name: format!("{}/{}", blueprint.names.namespace(), blueprint.names.stateful_set()),
            uid: blueprint.uid.to_owned(),
        },
        backend: BackendConfig {
            credentials_dir: BACKEND_DIRECTORY.into(),
            schema: postgres.schema.clone(),
            max_connections: postgres.max_connections.unsigned_abs(),
        },
        tables: spec.tables.iter().map(table).collect(),
        journal: journal(&spec.journal, &spec.memory, blueprint.uid),
        memory: memory(&spec.memory),
        write_through: write_through(&spec.write_through),
        idempotency: idempotency(spec.idempotency_window.as_ref()),
        bypass: bypass(&spec.bypass),
        preload: preload(&spec.preload),
        listen: ListenConfig::default(),
        tls: Some(TlsConfig { directory: TLS_DIRECTORY.into() }),
        topology: TopologySource::Operator,
    }
}

fn table(table: &api::Table) -> TableConfig {
    TableConfig {
        name: table.name.clone(),
        parent: table.parent.clone(),
        lookup_keys: table.lookup_keys.clone(),
    }
}

/// Each incarnation of a group has its own directory: a volume that is used again is never mistaken
/// for this group's journal.
fn journal(journal: &api::Journal, memory: &api::Memory, uid: &str) -> JournalConfig {
    let store = match memory.medium {
        api::Medium::AppDirect => memory.capacity.bytes(),
        _ => 0,
    };
    let room = journal.volume.size.bytes().saturating_sub(store);
    JournalConfig {
        directory: format!("{DATA_DIRECTORY}/{uid}").into(),
        capacity_bytes: room / 100 * JOURNAL_SHARE_PERCENT,
        durability: match journal.durability {
            api::Durability::Sync => Durability::Sync,
            api::Durability::Relaxed => Durability::Relaxed,
        },
        sync_interval_ms: RELAXED_SYNC_MS,
        keep_flushed_seconds: journal.keep_flushed.duration().as_secs(),
    }
}

fn memory(settings: &api::Memory) -> MemoryConfig {
    MemoryConfig {
        capacity_bytes: settings.capacity.bytes(),
        medium: match settings.medium {
            api::Medium::AppDirect => Medium::AppDirect,
            _ => Medium::Memory,
        },
        eviction: match settings.eviction {
            api::Eviction::Never => Eviction::Never,
            api::Eviction::Clean => Eviction::Clean,
        },
        images: match settings.images {
            api::Images::Trust => Images::Trust,
            api::Images::Verify => Images::Verify,
            api::Images::Reload => Images::Reload,
        },
    }
}

fn write_through(settings: &api::WriteThrough) -> WriteThroughConfig {
    WriteThroughConfig {
        lanes: u16::try_from(settings.lanes).unwrap_or(1),
        max_batch_rows: settings.max_batch_rows.unsigned_abs(),
        max_delay_ms: settings.max_delay.millis(),
        max_backlog_bytes: settings.max_backlog.bytes(),
        backend_commit: match settings.backend_commit {
            api::BackendCommit::Sync => BackendCommit::Sync,
            api::BackendCommit::Async => BackendCommit::Async,
        },
        paused: settings.paused,
    }
}

/// A window that is not a whole number of seconds is rounded up: answers are kept at least as long.
fn idempotency(window: Option<&TimeSpan>) -> IdempotencyConfig {
    let window_seconds = window.map_or(0, |window| window.millis().div_ceil(1_000));
    IdempotencyConfig { window_seconds, ..IdempotencyConfig::default() }
}

fn bypass(settings: &api::Bypass) -> BypassConfig {
    BypassConfig {
        reads: match settings.reads {
            api::BypassReads::Allow => BypassReads::Allow,
            api::BypassReads::Deny => BypassReads::Deny,
        },
        writes: match settings.writes {
            api::BypassWrites::Hold => BypassWrites::Hold,
            api::BypassWrites::Fail => BypassWrites::Fail,
        },
        hold_timeout_ms: settings.hold_timeout.millis(),
        max_concurrent: settings.max_concurrent.unsigned_abs(),
    }
}

fn preload(settings: &api::Preload) -> PreloadConfig {
    PreloadConfig {
        mode: match settings.mode {
            api::PreloadMode::BeforeReady => PreloadMode::BeforeReady,
            api::PreloadMode::Background => PreloadMode::Background,
            api::PreloadMode::None => PreloadMode::None,
        },
        r#where: settings.condition.clone(),
        ready_at_percent: u8::try_from(settings.ready_at_percent).unwrap_or(100),
    }
}
