//! The threads that serve connections, one per core.
//!
//! Owns one single-threaded runtime each: a connection lives on one of them from its handshake to
//! its end, and a call that finds its instance in memory is read, answered and sent without waking
//! another thread. What a call waits for (the journal, the backend, a peer) runs elsewhere. Must
//! never run the group's own tasks.

use super::certificates::Certificates;
use super::listener::{ListenError, establish};
use super::server::Server;
use futures::FutureExt;
use futures::future::BoxFuture;
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
    pub ended: BoxFuture<'static, Result<(), ListenError>>,
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
    let thread = format!("rpc-{number}");
    let serving = move || runtime.block_on(run(server, arriving, certificates, stop));
    let ended = on_thread(thread, serving)?.boxed();
    Ok(Worker { accepted, ended })
}

/// Runs `work` on a thread of its own, and says how it ended; a panic, which is logged where it
/// happens, is an end too.
fn on_thread(
    thread: String,
    work: impl FnOnce() -> Result<(), ListenError> + Send + 'static,
) -> std::io::Result<impl Future<Output = Result<(), ListenError>> + Send + 'static> {
    let (report, ended) = oneshot::channel();
    std::thread::Builder::new().name(thread.clone()).spawn(move || {
        // nobody listens any more only when the whole process ends
        drop(report.send(work()));
    })?;
    Ok(async move { ended.await.unwrap_or(Err(ListenError::WorkerLost { thread })) })
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
        let next = async { (handshakes.clone().acquire_owned().await, arriving.recv().await) };
        let next = tokio::select! {
            () = stop.cancelled() => return,
            next = next => next,
        };
        let (Ok(permit), Some(Accepted { stream, address })) = next else { return };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_serving_thread_that_panics_is_reported_by_name() {
        let work = || match std::hint::black_box(true) {
            true => panic!("broken"),
            false => Ok(()),
        };
        let ended = on_thread("rpc-7".to_owned(), work).unwrap().await;
        let said = ended.unwrap_err().to_string();
        assert!(said.contains("rpc-7"), "{said}");
    }
}
