//! A fixed address in front of servers that change, as a virtual address or a service has it.

use parking_lot::Mutex;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Forwards one port to the server chosen last; a choice ends every connection made before it.
pub struct Forwarder {
    pub port: u16,
    target: watch::Sender<Option<u16>>,
    accepted: Arc<Mutex<u64>>,
}

impl Forwarder {
    pub async fn start(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, receiver) = watch::channel(Some(target));
        let accepted = Arc::<Mutex<u64>>::default();
        tokio::spawn(accept(listener, receiver, Arc::clone(&accepted)));
        Self { port, target: sender, accepted }
    }

    /// `None`: connections are closed at once.
    pub fn point_to(&self, target: Option<u16>) {
        self.target.send_replace(target);
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> u64 {
        *self.accepted.lock()
    }
}

async fn accept(
    listener: TcpListener,
    mut target: watch::Receiver<Option<u16>>,
    accepted: Arc<Mutex<u64>>,
) {
    loop {
        tokio::select! {
            // the forwarder was dropped
            gone = target.changed() => if gone.is_err() { return },
            taken = listener.accept() => {
                let Ok((stream, _)) = taken else { return };
                *accepted.lock() += 1;
                tokio::spawn(forward(stream, target.clone()));
            }
        }
    }
}

async fn forward(mut near: TcpStream, mut target: watch::Receiver<Option<u16>>) {
    let Some(port) = *target.borrow_and_update() else { return };
    let Ok(mut far) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    tokio::select! {
        // either end may break it, which the other then sees
        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
        _ = target.changed() => {}
    }
}
