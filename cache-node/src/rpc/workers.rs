//! The threads that serve connections, one per core.
//!
//! Owns one single-threaded runtime each: a connection lives on one of them from its handshake to
//! its end, and a call that finds its instance in memory is read, answered and sent without waking
//! another thread. What a call waits for (the journal, the backend, a peer) runs elsewhere. Must
//! never run the group's own tasks.

use super::certificates::Certificates;
use super::listener::{ListenError, establish};
use super::server::Server;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Handshakes at a time, per worker.
const HANDSHAKES_MAX: usize = 128;
const ACCEPTED_MAX: usize = 64;

/// A connection as the listener accepted it, bound to no runtime.
pub struct Accepted {
    pub stream: std::net::TcpStream,
    pub address: SocketAddr,
}

/// One serving thread.
pub struct Worker {
    pub accepted: mpsc::Sender<Accepted>,
    /// How serving ended.
    pub ended: oneshot::Receiver<Result<(), ListenError>>,
}

/// How many workers: one per core this process may use.
pub fn count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Starts one worker; it ends with `stop`.
pub fn start(
    number: usize,
    server: Server,
    certificates: Option<Arc<Certificates>>,
    stop: CancellationToken,
) -> std::io::Result<Worker> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (accepted, arriving) = mpsc::channel(ACCEPTED_MAX);
    let (report, ended) = oneshot::channel();
    let name = format!("rpc-{number}");
    std::thread::Builder::new().name(name).spawn(move || {
        let served = runtime.block_on(run(server, arriving, certificates, stop));
        // nobody listens any more only when the whole process ends
        drop(report.send(served));
    })?;
    Ok(Worker { accepted, ended })
}

async fn run(
    server: Server,
    arriving: mpsc::Receiver<Accepted>,
    certificates: Option<Arc<Certificates>>,
    stop: CancellationToken,
) -> Result<(), ListenError> {
    let (established, incoming) = mpsc::channel(ACCEPTED_MAX);
    let serving = server.serve(ReceiverStream::new(incoming), stop.clone());
    let (served, ()) =
        tokio::join!(serving, shake_hands(arriving, certificates, established, stop));
    served
}

/// A slow or broken handshake holds up nobody else.
async fn shake_hands(
    mut arriving: mpsc::Receiver<Accepted>,
    certificates: Option<Arc<Certificates>>,
    established: mpsc::Sender<std::io::Result<super::listener::NodeStream>>,
    stop: CancellationToken,
) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    loop {
        let arrived = tokio::select! {
            () = stop.cancelled() => return,
            arrived = arriving.recv() => arrived,
        };
        let Some(Accepted { stream, address }) = arrived else { return };
        let Ok(permit) = handshakes.clone().acquire_owned().await else { return };
        let (established, certificates) = (established.clone(), certificates.clone());
        tokio::spawn(async move {
            let _permit = permit;
            let connect = async { establish(TcpStream::from_std(stream)?, certificates).await };
            match tokio::time::timeout(HANDSHAKE_TIMEOUT, connect).await {
                // The receiver is gone only when the server stops.
                Ok(Ok(stream)) => drop(established.send(Ok(stream)).await),
                Ok(Err(error)) => tracing::debug!(%address, %error, "handshake failed"),
                Err(_) => tracing::debug!(%address, "handshake timed out"),
            }
        });
    }
}
