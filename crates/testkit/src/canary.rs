//! A listener that nobody may reach, and that counts who does.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use crate::{PATIENCE, watch_cell::Watched};

/// Counts the connections to one port, until dropped. It says nothing to them.
pub struct Canary {
    address: SocketAddr,
    peers: Arc<Watched<Vec<SocketAddr>>>,
    accepting: JoinHandle<()>,
}

impl Canary {
    /// One at every address of this machine, of both families where it has both, on a free port.
    pub async fn everywhere() -> Self {
        // Without IPv6 there is nothing of it to reach.
        let listener = match TcpListener::bind("[::]:0").await {
            Ok(listener) => listener,
            Err(_) => TcpListener::bind("0.0.0.0:0").await.expect("no free port"),
        };
        Self::with(listener)
    }

    /// One at this address and port.
    pub async fn at(ip: &str, port: u16) -> Self {
        let ip: IpAddr = ip.parse().unwrap_or_else(|_| panic!("{ip} is no address"));
        let bound = TcpListener::bind((ip, port)).await;
        Self::with(bound.unwrap_or_else(|error| panic!("no canary at {ip} port {port}: {error}")))
    }

    fn with(listener: TcpListener) -> Self {
        let address = listener.local_addr().expect("a bound listener has an address");
        let peers = Arc::new(Watched::<Vec<SocketAddr>>::default());
        let seen = peers.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((_, peer)) = listener.accept().await {
                seen.change(|peers| peers.push(plain(peer)));
            }
        });
        Self { address, peers, accepting }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Panics if anybody connected. What was not accepted yet counts as well: it is waited for by a
    /// connection of our own, which is accepted after all that came before.
    pub async fn assert_untouched(&self) {
        let ip = match self.address.ip() {
            ip if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
            ip => ip,
        };
        let own = TcpStream::connect((ip, self.address.port())).await.expect("the canary is gone");
        let own = plain(own.local_addr().expect("a connected socket has an address"));
        let accepted = |peers: &Vec<SocketAddr>| peers.contains(&own).then_some(());
        self.peers.find(PATIENCE, accepted).await.expect("the canary does not accept");
        let strangers = self.peers.change(|peers| {
            peers.retain(|peer| *peer != own);
            peers.clone()
        });
        assert!(strangers.is_empty(), "the canary at {} was reached from {strangers:?}", self.address);
    }
}

/// An address in its plain form: one socket may take both families, and shows IPv4 as mapped.
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
    async fn a_canary_sees_who_comes() {
        let canary = Canary::everywhere().await;
        canary.assert_untouched().await;
        canary.assert_untouched().await;
        drop(TcpStream::connect(("127.0.0.1", canary.port())).await.unwrap());
        canary.assert_untouched().await;
    }
}
