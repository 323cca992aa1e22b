//! Generated gRPC messages and services, and the one message that is written by hand so that rows
//! pass through it encoded.

pub mod read_response;

#[allow(clippy::all, clippy::pedantic, clippy::restriction, missing_docs)]
pub mod v1 {
    tonic::include_proto!("cachetier.v1");

    pub use crate::read_response::ReadResponse;

    /// The encoded descriptor set, for the reflection service.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
}
