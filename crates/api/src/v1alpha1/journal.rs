//! The durable log of each node and the volume it is on.

use crate::{ByteSize, TimeSpan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Journal of each node.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Journal {
    /// Sync: an acknowledged write survives power loss. Relaxed: it survives a killed process, and
    /// is synced within a tenth of a second.
    pub durability: Durability,
    /// How long frames are kept after the backend has them, so that a backend that lost commits can
    /// be sent them again.
    pub keep_flushed: TimeSpan,
    pub volume: JournalVolume,
}

/// What an acknowledged write survives.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    #[default]
    Sync,
    Relaxed,
}

/// The persistent volume under each journal.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
        {"rule": "quantity(string(self.size)).compareTo(quantity('64Mi')) >= 0", "message": "spec.journal.volume.size must be at least 64Mi"},
        {"rule": "has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)", "message": "spec.journal.volume.storageClassName cannot be changed, set or unset on a live group"},
        {"rule": "quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) == 0", "message": "spec.journal.volume.size cannot be changed on a live group yet"}
    ]))]
pub struct JournalVolume {
    /// StorageClass of the volume; left out: the cluster's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
    pub size: ByteSize,
    /// What happens to a volume when its node is scaled away or the group is deleted.
    pub retention: VolumeRetention,
}

/// Fate of a volume that is no longer used.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VolumeRetention {
    #[default]
    Retain,
    Delete,
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            keep_flushed: crate::time_span::minutes(10),
            volume: JournalVolume::default(),
        }
    }
}

impl Default for JournalVolume {
    fn default() -> Self {
        Self {
            storage_class_name: None,
            size: crate::quantity::gibibytes(20),
            retention: VolumeRetention::default(),
        }
    }
}
