//! A listener that must not be reached and records every connection.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use crate::{WAIT_TIMEOUT, watch_cell::WatchCell};

/// A listener that records the connections to one port, until dropped. It sends nothing.
pub struct Canary {
    address: SocketAddr,
    peers: Arc<WatchCell<Vec<SocketAddr>>>,
    accepting: JoinHandle<()>,
}

impl Canary {
    /// Listens on every address of this machine, IPv4 and IPv6 if it has both, on a free port.
    pub async fn everywhere() -> Self {
        // Without IPv6, only IPv4 can be reached.
        let listener = match TcpListener::bind("[::]:0").await {
            Ok(listener) => listener,
            Err(_) => TcpListener::bind("0.0.0.0:0").await.expect("no free port"),
        };
        Self::with(listener)
    }

    /// Listens on this address and port.
    pub async fn at(ip: &str, port: u16) -> Self {
        let ip: IpAddr = ip.parse().unwrap_or_else(|_| panic!("{ip} is no address"));
        let bound = TcpListener::bind((ip, port)).await;
        Self::with(bound.unwrap_or_else(|error| panic!("no canary at {ip} port {port}: {error}")))
    }

    fn with(listener: TcpListener) -> Self {
        let address = listener.local_addr().expect("a bound listener has an address");
        let peers = Arc::new(WatchCell::<Vec<SocketAddr>>::default());
        let seen = peers.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((_, peer)) = listener.accept().await {
                seen.change(|peers| peers.push(plain(peer)));
            }
        });
        Self { address, peers, accepting }
    }

    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Panics if anything connected. Pending connections count too: this function connects itself, and its connection
    /// is accepted after all earlier ones.
    pub async fn assert_untouched(&self) {
        let ip = match self.address.ip() {
            ip if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
            ip => ip,
        };
        let own = TcpStream::connect((ip, self.address.port())).await.expect("the canary is gone");
        let own = plain(own.local_addr().expect("a connected socket has an address"));
        let accepted = |peers: &Vec<SocketAddr>| peers.contains(&own).then_some(());
        self.peers.wait_for(WAIT_TIMEOUT, accepted).await.expect("the canary does not accept");
        let connections = self.peers.change(|peers| {
            peers.retain(|peer| *peer != own);
            peers.clone()
        });
        assert!(connections.is_empty(), "the canary at {} was reached from {connections:?}", self.address);
    }
}

/// Returns the canonical form of an address: a dual-stack socket shows IPv4 peers as mapped IPv6 addresses.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    #[should_panic(expected = "was reached")]
    async fn canary_records_connections() {
        let canary = Canary::everywhere().await;
        canary.assert_untouched().await;
        canary.assert_untouched().await;
        drop(TcpStream::connect(("127.0.0.1", canary.port())).await.unwrap());
        canary.assert_untouched().await;
    }
}
