//! Why a load ended without being complete.

use cachetier_client::{ClientError, Reason};
use cachetier_write_through::{BackendError, Disposition};

#[derive(Debug, thiserror::Error)]
pub enum PreloadError {
    #[error("{0}")]
    Backend(#[from] BackendError),
    #[error("node {node}: {source}")]
    Node { node: String, source: ClientError },
    #[error("no node has a topology yet")]
    NoTopology,
    #[error(
        "node {node} has no memory left for more instances; raise spec.memory.capacity, or narrow \
         spec.preload.where"
    )]
    MemoryFull { node: String },
    #[error("node {node} could not place {count} instances, which changed during the chunk")]
    Touched { node: String, count: u64 },
    #[error("node {node} holds another topology than the one that instances are routed by")]
    TopologyDiffers { node: String },
    #[error("node {node} did not count the chunk")]
    NotCounted { node: String },
    #[error(
        "load {load_id} was begun with another condition; a changed condition needs a new load id"
    )]
    FilterDiffers { load_id: String },
    #[error("the process that reads a chunk ended: {0}")]
    Worker(String),
}

impl PreloadError {
    /// Trying again cannot help before a person changes something.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Backend(error) => error.disposition() != Disposition::Retry,
            Self::Node { source, .. } => match source {
                ClientError::Refused(refusal) => {
                    matches!(refusal.reason, Reason::Role | Reason::Schema | Reason::Request)
                }
                ClientError::Convert(_) | ClientError::Protocol { .. } => true,
                _ => false,
            },
            Self::MemoryFull { .. } | Self::FilterDiffers { .. } | Self::Worker(_) => true,
            Self::NoTopology
            | Self::TopologyDiffers { .. }
            | Self::Touched { .. }
            | Self::NotCounted { .. } => false,
        }
    }
}
