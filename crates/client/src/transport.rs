//! How bytes reach a node: TCP by default, anything else (a port-forward) by a [`Transport`].
//!
//! Owns dialling and the TLS handshake. A failed dial proves that no request was sent.

use crate::options::Endpoint;
use crate::tls::{TlsError, TlsIdentity};
use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A connected byte stream.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}
pub type BoxedStream = Box<dyn Stream>;

/// Opens byte streams to nodes.
pub trait Transport: Send + Sync + 'static {
    /// `address` is the `host:port` of an [`Endpoint`].
    fn open<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<BoxedStream>>;
}

/// Plain TCP without Nagle's delay.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpTransport;

impl Transport for TcpTransport {
    fn open<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<BoxedStream>> {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as BoxedStream)
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("cannot connect to {address}")]
    Connect { address: String, source: io::Error },
    #[error("TLS handshake with {address} failed")]
    Handshake { address: String, source: io::Error },
    #[error("no connection to {address} within {timeout:?}")]
    Timeout { address: String, timeout: Duration },
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Dials one endpoint.
#[derive(Clone)]
pub(crate) struct Dialer {
    pub endpoint: Endpoint,
    pub transport: Arc<dyn Transport>,
    pub tls: Option<TlsIdentity>,
    pub timeout: Duration,
}

impl Dialer {
    /// One attempt: stream, then handshake, within the timeout.
    pub async fn dial(&self) -> Result<TokioIo<BoxedStream>, DialError> {
        let timeout = self.timeout;
        let address = self.endpoint.address.clone();
        tokio::time::timeout(timeout, self.attempt())
            .await
            .map_err(|_| DialError::Timeout { address, timeout })?
            .map(TokioIo::new)
    }

    async fn attempt(&self) -> Result<BoxedStream, DialError> {
        let address = &self.endpoint.address;
        let connect = |source| DialError::Connect { address: address.clone(), source };
        let stream = self.transport.open(address).await.map_err(connect)?;
        let Some(identity) = &self.tls else { return Ok(stream) };
        let config = Arc::new(identity.load().await?.client_config()?);
        let name = self.endpoint.expected_name().to_owned();
        let name = ServerName::try_from(name.clone()).map_err(|_| TlsError::ServerName(name))?;
        let handshake = |source| DialError::Handshake { address: address.clone(), source };
        let stream = TlsConnector::from(config).connect(name, stream).await.map_err(handshake)?;
        Ok(Box::new(stream))
    }
}
