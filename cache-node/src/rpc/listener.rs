//! Accepts connections: TCP without Nagle's delay, then, on the worker they are handed to, TLS and
//! who it is.
//!
//! Owns the port and the workers. The number of handshakes and of connections waiting
//! for a worker is bounded.

use super::authorize::{Caller, Role};
use super::certificates::{CertificateError, Certificates};
use super::server::{Server, Services};
use super::workers::{self, Accepted};
use cachetier_client::tls::PemIdentity;
use cachetier_model::node_config::TlsConfig;
use cachetier_runtime::{Port, PortError};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("listen.grpc")]
    Port(#[from] PortError),
    #[error("the files of tls.directory")]
    Certificates(#[from] CertificateError),
    #[error("the gRPC server stopped")]
    Serve(#[source] tonic::transport::Error),
    #[error("cannot start a serving thread")]
    Worker(#[source] std::io::Error),
    #[error("serving thread {thread} panicked")]
    WorkerLost { thread: String },
    #[error("the reflection service cannot be built")]
    Reflection(#[source] tonic_reflection::server::Error),
}

/// The port and the TLS material, both known to work, not yet open.
pub struct Entrance {
    port: Port,
    tls: Option<(Arc<Certificates>, Arc<PemIdentity>)>,
}

impl Entrance {
    /// Takes the port and reads the certificates.
    pub async fn prepare(address: &str, tls: Option<&TlsConfig>) -> Result<Self, ListenError> {
        let port = Port::take(address).await?;
        let tls = match tls {
            Some(config) => Some(Certificates::load(&config.directory).await?),
            None => None,
        };
        Ok(Self { port, tls })
    }

    /// Answers until `stop`; open calls get a moment to end.
    pub async fn serve(
        self,
        services: Services,
        stop: CancellationToken,
    ) -> Result<(), ListenError> {
        let Self { port, tls } = self;
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
        let listener = port.open()?;
        let serving = async {
            while let Some(ended) = ends.next().await {
                ended?;
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

/// Hands connections to the workers.
async fn accept(
    listener: TcpListener,
    workers: Vec<mpsc::Sender<Accepted>>,
    stop: CancellationToken,
) {
    let mut turn = 0;
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
            Ok(arrived) => tokio::select! {
                () = stop.cancelled() => return,
                () = hand_over(&workers, &mut turn, arrived) => {}
            },
            Err(error) => {
                // out of file descriptors, or a connection that was reset while it waited
                tracing::warn!(%error, "connection not accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// In turn, past those that have no room: one that is stuck keeps nobody from the others. While no
/// worker has room, connections wait in the kernel, whose queue is bounded.
async fn hand_over<T>(workers: &[mpsc::Sender<T>], turn: &mut usize, mut arrived: T) {
    for _ in 0..workers.len() {
        let Some(worker) = workers.get(*turn % workers.len()) else { return };
        *turn = turn.wrapping_add(1);
        arrived = match worker.try_send(arrived) {
            Ok(()) => return,
            Err(TrySendError::Full(back) | TrySendError::Closed(back)) => back,
        };
    }
    let room: FuturesUnordered<_> = workers.iter().map(mpsc::Sender::reserve).collect();
    // a worker that ended ends the server, see `serve`
    let mut room = room.filter_map(|place| std::future::ready(place.ok()));
    if let Some(place) = room.next().await {
        place.send(arrived);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_worker_that_is_stuck_keeps_no_connection_from_the_others() {
        let (stuck, _never_read) = mpsc::channel(2);
        let (fine, mut read) = mpsc::channel(1);
        let (workers, mut turn) = ([stuck, fine], 0);
        let handing = async {
            for n in 0..100 {
                hand_over(&workers, &mut turn, n).await;
            }
        };
        let reading = async {
            let mut taken = 0;
            while taken < 98 {
                taken += usize::from(read.recv().await.is_some());
            }
        };
        let both = async { tokio::join!(handing, reading) };
        tokio::time::timeout(Duration::from_secs(20), both).await.expect("accepting stopped");
    }

    #[tokio::test]
    async fn a_connection_waits_while_no_worker_has_room_and_goes_to_the_first_that_has() {
        let (first, _never_read) = mpsc::channel(1);
        let (second, mut read) = mpsc::channel(1);
        let (workers, mut turn) = ([first, second], 0);
        for n in 0..2 {
            hand_over(&workers, &mut turn, n).await;
        }
        let waiting = hand_over(&workers, &mut turn, 2);
        tokio::pin!(waiting);
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        assert_eq!(read.recv().await, Some(1));
        waiting.await;
        assert_eq!(read.recv().await, Some(2));
    }
}
