//! Process scaffolding shared by every long-running binary: log output, ports, the admin HTTP
//! endpoint, orderly shutdown and supervision of background tasks.
//!
//! Owns nothing of the product: it must never know a cache group, a cluster or a database. Data
//! comes from the binary's `main` and goes to the process's surroundings (stdout, sockets, signals).

pub mod admin;
pub mod port;
pub mod shutdown;
pub mod supervise;
pub mod telemetry;

pub use admin::{AdminEndpoint, AdminError};
pub use port::{Port, PortError};
pub use supervise::{BoxError, TaskEnded, Tasks};
pub use telemetry::{LogFormat, TelemetryError};

/// Makes ring the TLS provider of this process. First thing in every `main`; harmless when repeated.
pub fn install_crypto_provider() {
    // The error only says that a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
