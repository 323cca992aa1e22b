//! Where and how much a node keeps in memory.

use crate::ByteSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Memory of each node.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
        {"rule": "quantity(string(self.capacity)).compareTo(quantity('16Mi')) >= 0", "message": "spec.memory.capacity must be at least 16Mi"}
    ]))]
pub struct Memory {
    /// Auto: hosts with persistent memory are preferred, and the status says when none was used.
    /// MemoryMode: only hosts labelled for persistent memory. DRAM: any host. AppDirect: store and
    /// journal lie in persistent memory that is mapped with direct access (DAX), which the volume of
    /// `journal.volume` must be on; the store takes `capacity` of it, and the pod little memory.
    #[schemars(extend("x-kubernetes-validations" = [
        {"rule": "self != 'CXL'", "message": "spec.memory.medium: CXL is not supported by this version; use Auto, DRAM, MemoryMode or AppDirect"}
    ]))]
    pub medium: Medium,
    /// Budget of the store. It is never exceeded, see `eviction`; the pod asks
    /// for this plus what the node needs around it.
    pub capacity: ByteSize,
    /// Prefer: transparent huge pages where the host has them. Never: not even those.
    #[schemars(extend("x-kubernetes-validations" = [
        {"rule": "self != 'Require'", "message": "spec.memory.hugePages: Require is not supported by this version; use Prefer or Never"}
    ]))]
    pub huge_pages: HugePages,
    /// Never: a full budget stops loads and refuses writes that would grow it. Clean: instances that
    /// the backend has for sure give way to what is asked for, those not read lately first; a load
    /// stops at the budget and counts as done.
    pub eviction: Eviction,
    /// Trust: a restarted node takes its memory back from images of its slots on the journal's
    /// volume. Verify: the same, after samples of it were compared with the backend, and not at all
    /// when one differs; until then, and while the backend is away, it is not served. Reload: memory
    /// is filled by loads and misses.
    pub images: Images,
}

/// Kind of memory.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Medium {
    #[default]
    Auto,
    #[serde(rename = "DRAM")]
    Dram,
    MemoryMode,
    AppDirect,
    #[serde(rename = "CXL")]
    Cxl,
}

impl Medium {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "Auto",
            Self::Dram => "DRAM",
            Self::MemoryMode => "MemoryMode",
            Self::AppDirect => "AppDirect",
            Self::Cxl => "CXL",
        }
    }
}

/// Use of huge pages.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    #[default]
    Prefer,
    Require,
    Never,
}

/// What may leave memory to make room.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    #[default]
    Never,
    Clean,
}

/// What a restarted node makes of the images of its slots.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Images {
    #[default]
    Trust,
    Verify,
    Reload,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            medium: Medium::default(),
            capacity: crate::quantity::gibibytes(1),
            huge_pages: HugePages::default(),
            eviction: Eviction::default(),
            images: Images::default(),
        }
    }
}
