//! How a client connects and how patient it is.

use crate::tls::TlsIdentity;
use std::time::Duration;

/// Where a node listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// `host:port` that is dialled.
    pub address: String,
    /// Name the server's certificate must carry; the host of `address` when absent.
    pub server_name: Option<String>,
}

impl Endpoint {
    pub fn new(address: impl Into<String>) -> Self {
        Self { address: address.into(), server_name: None }
    }

    /// For dialling a pod's IP address while its certificate carries its DNS name.
    #[must_use]
    pub fn with_server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// The name to verify in the server's certificate.
    pub fn expected_name(&self) -> &str {
        self.server_name.as_deref().unwrap_or_else(|| host(&self.address))
    }
}

impl From<&str> for Endpoint {
    fn from(address: &str) -> Self {
        Self::new(address)
    }
}

impl From<String> for Endpoint {
    fn from(address: String) -> Self {
        Self::new(address)
    }
}

fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Where requests for a key go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Routing {
    /// Straight to the owner, by the pushed topology.
    #[default]
    Owner,
    /// Only to the addresses given at connect; nodes forward. For port-forwards and gateways.
    Seeds,
}

/// How reads and transactions travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Calls {
    /// Many in flight on one stream per connection: a fraction of the work per call at both ends.
    #[default]
    Pipelined,
    /// A gRPC call each, which proxies can spread and meter.
    Unary,
}

/// Settings of a client; the defaults suit applications next to the nodes.
#[derive(Clone, Debug)]
pub struct Options {
    /// Absent: plain text.
    pub tls: Option<TlsIdentity>,
    pub routing: Routing,
    pub calls: Calls,
    /// HTTP/2 connections per node; a node serves each on one of its cores. A connection takes a few
    /// calls before the next one is used; calls that travel together cost less at both ends.
    pub connections_per_node: usize,
    pub connect_timeout: Duration,
    /// One attempt of a read.
    pub read_timeout: Duration,
    /// One attempt of a transaction; operations on unique keys wait for the backend.
    pub write_timeout: Duration,
    /// How long a request that is safe to repeat is repeated.
    pub retry_for: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tls: None,
            routing: Routing::Owner,
            calls: Calls::Pipelined,
            connections_per_node: 4,
            connect_timeout: Duration::from_secs(2),
            read_timeout: Duration::from_secs(5),
            write_timeout: Duration::from_secs(30),
            retry_for: Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_certificate_name_is_the_host_unless_another_is_given() {
        assert_eq!(Endpoint::new("hlr-0.hlr:7070").expected_name(), "hlr-0.hlr");
        assert_eq!(Endpoint::new("[::1]:7070").expected_name(), "::1");
        let pod = Endpoint::new("10.0.0.7:7070").with_server_name("hlr-0.hlr-nodes.t.svc");
        assert_eq!(pod.expected_name(), "hlr-0.hlr-nodes.t.svc");
    }
}
