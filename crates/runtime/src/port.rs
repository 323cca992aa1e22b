//! A port of this process: taken first, opened once there is somebody who answers.
//!
//! Owns what stands between the two: whoever connects is refused at once, and does not wait in a
//! queue that nobody serves yet. Must never accept a connection.

use std::io;
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpSocket, lookup_host};

/// Connections that the kernel holds until they are accepted.
const WAITING_MAX: u32 = 1_024;

#[derive(Debug, thiserror::Error)]
pub enum PortError {
    #[error("{address:?} is not `address:port`, such as 0.0.0.0:7070")]
    Form { address: String },
    #[error("the name in {address:?} cannot be looked up")]
    Name { address: String, source: io::Error },
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: io::Error },
}

/// A port that is ours and closed.
#[derive(Debug)]
pub struct Port {
    socket: TcpSocket,
    address: SocketAddr,
}

impl Port {
    /// Takes `host:port`; port 0 picks one. Fails if somebody else listens there.
    pub async fn take(address: &str) -> Result<Self, PortError> {
        let form = || PortError::Form { address: address.to_owned() };
        let (host, port) = address.rsplit_once(':').ok_or_else(form)?;
        let bare_v6 = host.contains(':') && !host.starts_with('[');
        if host.is_empty() || bare_v6 || port.parse::<u16>().is_err() {
            return Err(form());
        }
        let name = |source| PortError::Name { address: address.to_owned(), source };
        let found = lookup_host(address).await.map_err(name)?.next();
        let wanted = found.ok_or_else(|| name(io::ErrorKind::NotFound.into()))?;
        let listen = |source| PortError::Listen { address: wanted, source };
        let socket = bind(wanted).map_err(listen)?;
        let address = socket.local_addr().map_err(listen)?;
        Ok(Self { socket, address })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on connections wait to be accepted.
    pub fn open(self) -> Result<TcpListener, PortError> {
        let Self { socket, address } = self;
        socket.listen(WAITING_MAX).map_err(|source| PortError::Listen { address, source })
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // connections of an earlier process may still be closing
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpStream;

    #[tokio::test]
    async fn who_connects_before_the_port_is_open_is_refused_and_does_not_wait() {
        let port = Port::take("127.0.0.1:0").await.unwrap();
        let address = port.address();
        let refused = TcpStream::connect(address).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let listener = port.open().unwrap();
        let (connected, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        assert!(connected.is_ok() && accepted.is_ok());
    }

    #[tokio::test]
    async fn a_port_that_somebody_listens_on_is_not_taken() {
        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let taken = Port::take(&other.local_addr().unwrap().to_string()).await;
        assert!(matches!(taken, Err(PortError::Listen { .. })), "{taken:?}");
    }

    #[tokio::test]
    async fn what_is_no_address_and_port_is_told_the_form() {
        for address in ["", "abc", "7070", ":7070", "0.0.0.0:", "0.0.0.0:99999", "::1"] {
            let taken = Port::take(address).await;
            assert!(matches!(taken, Err(PortError::Form { .. })), "{address}: {taken:?}");
        }
    }
}
