//! Accepts connections: TCP without Nagle's delay, then TLS, then who it is.
//!
//! Owns the listening socket. A slow or broken handshake holds up nobody else; the number of
//! handshakes and of connections waiting for the server is bounded.

use super::authorize::{Caller, Role};
use super::certificates::{CertificateError, Certificates};
use super::server::{self, Server};
use cachetier_client::tls::PemIdentity;
use cachetier_model::node_config::TlsConfig;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
const HANDSHAKES_MAX: usize = 256;
const ACCEPTED_MAX: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("listen.grpc {address:?} is not `address:port`")]
    Address { address: String, source: std::net::AddrParseError },
    #[error("cannot listen on {address} for gRPC")]
    Bind { address: SocketAddr, source: std::io::Error },
    #[error(transparent)]
    Certificates(#[from] CertificateError),
    #[error("the gRPC server stopped")]
    Serve(#[source] tonic::transport::Error),
    #[error("the reflection service cannot be built")]
    Reflection(#[source] tonic_reflection::server::Error),
}

/// A listening socket with its TLS material, not yet answering.
pub struct BoundServer {
    listener: TcpListener,
    tls: Option<(Arc<Certificates>, Arc<PemIdentity>)>,
}

/// Binds the port and reads the certificates, so that both are known to work before the start.
pub async fn bind(address: &str, tls: Option<&TlsConfig>) -> Result<BoundServer, ListenError> {
    let parsed: SocketAddr = address
        .parse()
        .map_err(|source| ListenError::Address { address: address.to_owned(), source })?;
    let tls = match tls {
        Some(config) => Some(Certificates::load(&config.directory).await?),
        None => None,
    };
    let bind = |source| ListenError::Bind { address: parsed, source };
    let listener = TcpListener::bind(parsed).await.map_err(bind)?;
    Ok(BoundServer { listener, tls })
}

impl BoundServer {
    /// Answers until `stop`; open calls get a moment to end.
    pub async fn serve(self, server: Server, stop: CancellationToken) -> Result<(), ListenError> {
        let (accepted, incoming) = mpsc::channel(ACCEPTED_MAX);
        let Self { listener, tls } = self;
        let (certificates, renewal) = match tls {
            Some((certificates, seen)) => {
                let renewal = certificates.clone().follow(seen, stop.clone());
                (Some(certificates), Some(renewal))
            }
            None => (None, None),
        };
        let renewal = async {
            match renewal {
                Some(renewal) => renewal.await,
                None => stop.cancelled().await,
            }
        };
        let accepting = accept(listener, certificates, accepted, stop.clone());
        let serving = server::serve(server, ReceiverStream::new(incoming), stop.clone());
        let (served, (), ()) = tokio::join!(serving, accepting, renewal);
        served
    }
}

async fn accept(
    listener: TcpListener,
    certificates: Option<Arc<Certificates>>,
    accepted: mpsc::Sender<std::io::Result<NodeStream>>,
    stop: CancellationToken,
) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    loop {
        let arrived = tokio::select! {
            () = stop.cancelled() => return,
            arrived = listener.accept() => arrived,
        };
        let (stream, address) = match arrived {
            Ok(arrived) => arrived,
            Err(error) => {
                // out of file descriptors, or a connection that was reset while it waited
                tracing::warn!(%error, "connection not accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Ok(permit) = handshakes.clone().acquire_owned().await else { return };
        let (accepted, certificates) = (accepted.clone(), certificates.clone());
        tokio::spawn(async move {
            let _permit = permit;
            let connect = establish(stream, certificates);
            match tokio::time::timeout(HANDSHAKE_TIMEOUT, connect).await {
                // The receiver is gone only when the server stops.
                Ok(Ok(stream)) => drop(accepted.send(Ok(stream)).await),
                Ok(Err(error)) => tracing::debug!(%address, %error, "handshake failed"),
                Err(_) => tracing::debug!(%address, "handshake timed out"),
            }
        });
    }
}

async fn establish(
    stream: TcpStream,
    certificates: Option<Arc<Certificates>>,
) -> std::io::Result<NodeStream> {
    stream.set_nodelay(true)?;
    let Some(certificates) = certificates else {
        // Without TLS everybody is trusted; said loudly at the start.
        return Ok(NodeStream {
            io: Box::new(stream),
            caller: Caller { role: Some(Role::Trusted) },
        });
    };
    let stream = TlsAcceptor::from(certificates.current()).accept(stream).await?;
    let certificate = stream.get_ref().1.peer_certificates().and_then(|c| c.first());
    let role = certificate.and_then(|c| Role::of_certificate(c));
    Ok(NodeStream { io: Box::new(stream), caller: Caller { role } })
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection and who is at its other end.
pub struct NodeStream {
    io: Box<dyn Io>,
    caller: Caller,
}

impl Connected for NodeStream {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller
    }
}

impl AsyncRead for NodeStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for NodeStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
