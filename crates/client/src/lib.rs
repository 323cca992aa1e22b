//! Client library of a cache group: finds the owner of a key, keeps connections, retries what is
//! safe to retry, and says precisely what happened when it is not.
//!
//! Owns connections, TLS material and the last topology it saw. Must never interpret rows beyond
//! their types, and never repeat a write whose first attempt may have happened, unless it has an
//! idempotency key. Requests come from applications, `cachectl`, the benchmark, the preload Job,
//! the operator and from nodes that forward; they go out as gRPC.

pub mod address;
pub mod admin;
pub mod channel;
pub mod client;
pub mod convert;
pub mod error;
pub mod options;
pub mod peer;
mod pipeline;
pub mod request;
mod retry;
mod routing;
pub mod tls;
pub mod transport;

pub use address::AddressError;
pub use admin::AdminClient;
pub use channel::{Channels, NodeChannel};
pub use client::Client;
pub use error::{ClientError, ERROR_DETAIL_TRAILER, Reason, Refusal, causes};
pub use options::{Calls, Endpoint, Options, Routing};
pub use peer::PeerClient;
pub use request::{
    Answer, Condition, Delete, Guard, Insert, Key, Operation, Position, Read, ReadAnswer, Source,
    TableRead, TableRows, Transact, TransactAnswer, Update,
};
pub use tls::{TlsError, TlsIdentity};
pub use transport::{BoxedStream, TcpTransport, Transport};

/// The generated messages, for callers that show them as they are (`Status`, `Compare`).
pub use cachetier_proto::v1 as wire;
