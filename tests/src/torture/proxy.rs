//! A small TCP proxy whose connections can be cut, and which can refuse new ones.

use anyhow::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

pub struct Proxy {
    port: u16,
    state: Arc<State>,
    task: tokio::task::JoinHandle<()>,
}

struct State {
    target: u16,
    refusing: AtomicBool,
    cut: Notify,
}

impl Proxy {
    /// Forwards a free port of 127.0.0.1 to `target`.
    pub async fn start(port: u16, target: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let state =
            Arc::new(State { target, refusing: AtomicBool::new(false), cut: Notify::new() });
        let task = tokio::spawn(accept(listener, state.clone()));
        Ok(Self { port, state, task })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends every connection; what was on its way is lost.
    pub fn cut(&self) {
        self.state.cut.notify_waiters();
    }

    /// Closes new connections at once while set.
    pub fn refuse(&self, refuse: bool) {
        self.state.refusing.store(refuse, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    while let Ok((stream, _)) = listener.accept().await {
        if !state.refusing.load(Ordering::SeqCst) {
            tokio::spawn(forward(stream, state.clone()));
        }
    }
}

async fn forward(mut near: TcpStream, state: Arc<State>) {
    let cut = state.cut.notified();
    let Ok(mut far) = TcpStream::connect(("127.0.0.1", state.target)).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    tokio::select! {
        // either end may break it, which the other then sees
        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
        () = cut => {}
    }
}
