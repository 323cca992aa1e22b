//! How the benchmark reaches the cache: addresses, certificates and the routes to pods from
//! outside their cluster.

use anyhow::{Context, Result, bail};
use cachetier_client::{
    BoxedStream, Client, Endpoint, Options, Routing, TcpTransport, TlsIdentity, Transport,
};
use clap::Args;
use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

#[derive(Args, Clone, Debug)]
pub struct CacheOptions {
    /// Address of a cache node, `host:port`; may be given several times
    #[arg(long = "server", value_name = "HOST:PORT", value_parser = Endpoint::from_str)]
    pub servers: Vec<Endpoint>,
    /// Directory with tls.crt, tls.key and ca.crt; without it the connection is plain text
    #[arg(long, value_name = "DIR")]
    pub tls_dir: Option<PathBuf>,
    /// Where to dial instead of a name, e.g. `hlr-0.hlr-nodes.telecom.svc=10.1.2.3`: certificates
    /// are still checked against the name
    #[arg(long = "resolve", value_name = "NAME=ADDRESS")]
    pub resolve: Vec<String>,
    /// Send everything to the given servers and let them forward
    #[arg(long)]
    pub seeds_only: bool,
    /// HTTP/2 connections per node
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub connections: usize,
}

impl CacheOptions {
    pub async fn connect(&self) -> Result<Client> {
        if self.servers.is_empty() {
            bail!("no cache node named; add --server HOST:PORT");
        }
        let options = Options {
            tls: self.tls_dir.clone().map(TlsIdentity::Directory),
            routing: if self.seeds_only { Routing::Seeds } else { Routing::Owner },
            connections_per_node: self.connections,
            ..Options::default()
        };
        let seeds = self.servers.clone();
        let transport = Arc::new(Routes { names: routes(&self.resolve)? });
        Client::connect_with(seeds, options, transport).await.with_context(|| {
            let given: Vec<&str> = self.servers.iter().map(|s| s.address.as_str()).collect();
            format!("no cache node answers at {}", given.join(", "))
        })
    }
}

fn routes(pairs: &[String]) -> Result<BTreeMap<String, String>> {
    pairs
        .iter()
        .map(|pair| {
            let (name, address) = pair
                .split_once('=')
                .with_context(|| format!("--resolve {pair} is not of the form NAME=ADDRESS"))?;
            Ok((name.to_owned(), address.to_owned()))
        })
        .collect()
}

/// Dials the address behind a name, keeping the port.
struct Routes {
    names: BTreeMap<String, String>,
}

impl Transport for Routes {
    fn open<'a>(&'a self, address: &'a str) -> BoxFuture<'a, std::io::Result<BoxedStream>> {
        Box::pin(async move {
            let routed = address
                .rsplit_once(':')
                .and_then(|(host, port)| Some(format!("{}:{port}", self.names.get(host)?)));
            TcpTransport.open(routed.as_deref().unwrap_or(address)).await
        })
    }
}
