//! Accepts connections: TCP without Nagle's delay, then, on the worker they are handed to, TLS and
//! who it is.
//!
//! Owns the listening socket and the workers. The number of handshakes and of connections waiting
//! for a worker is bounded.

use super::authorize::{Caller, Role};
use super::certificates::{CertificateError, Certificates};
use super::server::{Server, Services};
use super::workers::{self, Accepted};
use cachetier_client::tls::PemIdentity;
use cachetier_model::node_config::TlsConfig;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

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
    #[error("cannot start a serving thread")]
    Worker(#[source] std::io::Error),
    #[error("a serving thread ended unexpectedly")]
    WorkerLost,
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
    pub async fn serve(
        self,
        services: Services,
        stop: CancellationToken,
    ) -> Result<(), ListenError> {
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
        let (server, health) = Server::new(services, stop.clone())?;
        let (mut entrances, mut ends) = (Vec::new(), FuturesUnordered::new());
        for number in 0..workers::count() {
            let worker = workers::start(number, server.clone(), certificates.clone(), stop.clone());
            let worker = worker.map_err(ListenError::Worker)?;
            entrances.push(worker.accepted);
            ends.push(worker.ended);
        }
        let serving = async {
            while let Some(ended) = ends.next().await {
                ended.unwrap_or(Err(ListenError::WorkerLost))?;
            }
            Ok(())
        };
        let beside =
            async { tokio::join!(accept(listener, entrances, stop.clone()), renewal, health) };
        tokio::pin!(serving, beside);
        tokio::select! {
            served = &mut serving => served,
            _ = &mut beside => serving.await,
        }
    }
}

/// Hands connections to the workers in turn.
async fn accept(
    listener: TcpListener,
    workers: Vec<mpsc::Sender<Accepted>>,
    stop: CancellationToken,
) {
    let mut turns = workers.iter().cycle();
    loop {
        let arrived = tokio::select! {
            () = stop.cancelled() => return,
            arrived = listener.accept() => arrived,
        };
        let arrived = arrived.and_then(|(stream, address)| {
            stream.set_nodelay(true)?;
            Ok(Accepted { stream: stream.into_std()?, address })
        });
        match arrived {
            Ok(arrived) => {
                let Some(worker) = turns.next() else { return };
                tokio::select! {
                    () = stop.cancelled() => return,
                    // a worker that ended ends the server, see `serve`
                    sent = worker.send(arrived) => drop(sent),
                }
            }
            Err(error) => {
                // out of file descriptors, or a connection that was reset while it waited
                tracing::warn!(%error, "connection not accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// TLS, then who it is.
pub(super) async fn establish(
    stream: TcpStream,
    certificates: Option<Arc<Certificates>>,
) -> std::io::Result<NodeStream> {
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
