//! A listener on a free loopback port. All its connections end when it is dropped.

use std::{future::Future, net::SocketAddr};

use tokio::{
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};

pub(crate) struct Server {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Server {
    /// Listens, and runs `serve` for every connection.
    pub(crate) async fn start<F, S>(serve: S) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
        S: Fn(TcpStream) -> F + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("no free port on 127.0.0.1");
        let address = listener.local_addr().expect("a bound listener has an address");
        Self { address, accepting: tokio::spawn(accept(listener, serve)) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url_at(&self, path: &str) -> String {
        format!("http://{}/{}", self.address, path.trim_start_matches('/'))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The accept task owns the connections, so they end with it.
        self.accepting.abort();
    }
}

async fn accept<F, S>(listener: TcpListener, serve: S)
where
    F: Future<Output = ()> + Send + 'static,
    S: Fn(TcpStream) -> F,
{
    let mut connections = JoinSet::new();
    loop {
        // A failed accept affects only that connection, and its client sees the error.
        if let Ok((stream, _)) = listener.accept().await {
            connections.spawn(serve(stream));
        }
        while connections.try_join_next().is_some() {}
    }
}
