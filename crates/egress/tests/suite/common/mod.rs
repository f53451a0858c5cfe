//! Small raw servers on loopback that behave as a test tells them, and a client that may reach them.

use std::{
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::HeaderMap;
use redrive_core::{
    delivery::response::SendFailure, security::address::AddressRules, security::egress_rules::ReachRules,
};
use redrive_egress::{Answered, Client, Config, Exchange, Failed, Outbound, Target};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// The deadline of exchanges that should reach it.
pub(crate) const SHORT: Duration = Duration::from_millis(300);
/// The deadline of exchanges that should not.
pub(crate) const LONG: Duration = Duration::from_secs(5);
/// A small good answer.
pub(crate) const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

pub(crate) fn stopwatch() -> Duration {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    ORIGIN.get_or_init(Instant::now).elapsed()
}

/// Everything default: loopback is refused.
pub(crate) fn strict() -> Config {
    Config::new(stopwatch)
}

/// Loopback is allowed.
pub(crate) fn lenient() -> Config {
    Config { rules: loopback(), ..strict() }
}

/// Rules that allow loopback.
pub(crate) fn loopback() -> ReachRules {
    let allow = ["127.0.0.0/8", "::1/128"].map(|net| net.parse().unwrap()).to_vec();
    ReachRules { networks: AddressRules { allow, deny: Vec::new() }, ..ReachRules::default() }
}

pub(crate) fn client() -> Client {
    Client::new(lenient()).unwrap()
}

pub(crate) fn outbound(url: &str, timeout: Duration) -> Outbound {
    let target = Target::parse(url).unwrap();
    Outbound { target, headers: HeaderMap::new(), body: Bytes::from_static(b"{\"a\":1}"), timeout, owner: 0 }
}

/// Posts, and checks that the exchange ended by its deadline and a second.
pub(crate) async fn post(client: &Client, request: Outbound) -> Exchange {
    let start = Instant::now();
    let limit = request.timeout + Duration::from_secs(1);
    let exchange = client.post(request).await;
    assert!(start.elapsed() < limit, "took {:?}: {exchange:?}", start.elapsed());
    exchange
}

#[track_caller]
pub(crate) fn answered(exchange: Exchange) -> Answered {
    exchange.result.unwrap_or_else(|failed| panic!("failed: {failed:?}"))
}

#[track_caller]
pub(crate) fn failed(exchange: Exchange, failure: SendFailure) -> Failed {
    let failed = exchange.result.expect_err("an answer came");
    assert_eq!(failed.failure, failure, "{failed:?}");
    failed
}

/// A server that counts, and hands each connection with its number to `behave`.
pub(crate) struct Server {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

impl Server {
    pub(crate) async fn start<F, R>(behave: F) -> Self
    where
        F: Fn(Peer) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, requests) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (seen, counted) = (connections.clone(), requests.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let number = seen.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(behave(Peer { stream, number, requests: counted.clone() }));
            }
        });
        Self { address, connections, requests }
    }

    /// A server that answers every request with the same bytes and keeps the connection open.
    pub(crate) async fn answering(answer: &'static [u8]) -> Self {
        Self::start(move |mut peer| async move {
            while peer.read_request().await.is_some() {
                peer.send(answer).await;
            }
        })
        .await
    }

    /// A server that answers the first request with these bytes and closes.
    pub(crate) async fn answering_once(answer: &'static [u8]) -> Self {
        Self::start(move |mut peer| async move {
            peer.read_request().await;
            peer.send(answer).await;
        })
        .await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook?x=1", self.address)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// One accepted connection.
pub(crate) struct Peer {
    pub stream: TcpStream,
    pub number: usize,
    requests: Arc<AtomicUsize>,
}

impl Peer {
    /// Reads and counts a request; `None` when the client has closed.
    pub(crate) async fn read_request(&mut self) -> Option<String> {
        let request = read_request(&mut self.stream).await?;
        self.requests.fetch_add(1, Ordering::SeqCst);
        Some(request)
    }

    /// Writes; false when the client has closed.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }

    /// Waits until the client has closed, and says how much it had still sent.
    pub(crate) async fn closed(&mut self) -> usize {
        let mut all = 0;
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = self.stream.read(&mut buffer).await {
            all += read;
        }
        all
    }

    /// Closes with a reset instead of a goodbye.
    pub(crate) fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }
}

/// Reads one request with its body, as text.
pub(crate) async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = stream.read(&mut buffer).await.ok().filter(|read| *read > 0)?;
        request.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&request);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
            return Some(text.into_owned());
        }
    }
}
