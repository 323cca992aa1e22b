//! Generated gRPC messages and services, and nothing else.

#[allow(clippy::all, clippy::pedantic, clippy::restriction, missing_docs)]
pub mod v1 {
    tonic::include_proto!("cachetier.v1");

    /// The encoded descriptor set, for the reflection service.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
}
