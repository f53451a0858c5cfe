//! Raw loopback servers with scripted behaviour, and a client that may reach them.

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
    delivery::response::SendFailure,
    security::{address::AddressRules, egress_rules::EgressRules},
};
use redrive_egress::{Client, Config, EgressFailure, EgressResponse, Exchange, OutboundRequest, Target};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Timeout of exchanges that are expected to time out.
pub(crate) const SHORT: Duration = Duration::from_millis(300);
/// Timeout of exchanges that are expected to end earlier.
pub(crate) const LONG: Duration = Duration::from_secs(5);
/// A small successful response.
pub(crate) const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

pub(crate) fn stopwatch() -> Duration {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    ORIGIN.get_or_init(Instant::now).elapsed()
}

/// Returns the default configuration, which refuses loopback.
pub(crate) fn strict() -> Config {
    Config::new(stopwatch)
}

/// Returns a configuration that allows loopback.
pub(crate) fn lenient() -> Config {
    Config { rules: loopback(), ..strict() }
}

/// Returns rules that allow loopback.
pub(crate) fn loopback() -> EgressRules {
    let allow = ["127.0.0.0/8", "::1/128"].map(|net| net.parse().unwrap()).to_vec();
    EgressRules { networks: AddressRules { allow, deny: Vec::new() }, ..EgressRules::default() }
}

pub(crate) fn client() -> Client {
    Client::new(lenient()).unwrap()
}

pub(crate) fn outbound(url: &str, timeout: Duration) -> OutboundRequest {
    let target = Target::parse(url).unwrap();
    OutboundRequest {
        target,
        headers: HeaderMap::new(),
        body: Bytes::from_static(b"{\"a\":1}"),
        timeout,
        tenant_key: 0,
    }
}

/// Sends a request, and asserts that the exchange ended within its timeout plus ten seconds, which allows for a busy machine.
pub(crate) async fn post(client: &Client, request: OutboundRequest) -> Exchange {
    let start = Instant::now();
    let limit = request.timeout + Duration::from_secs(10);
    let exchange = client.post(request).await;
    assert!(start.elapsed() < limit, "took {:?}: {exchange:?}", start.elapsed());
    exchange
}

#[track_caller]
pub(crate) fn expect_response(exchange: Exchange) -> EgressResponse {
    exchange.result.unwrap_or_else(|failed| panic!("failed: {failed:?}"))
}

#[track_caller]
pub(crate) fn failed(exchange: Exchange, failure: SendFailure) -> EgressFailure {
    let failed = exchange.result.expect_err("a response arrived");
    assert_eq!(failed.failure, failure, "{failed:?}");
    failed
}

/// A server that counts connections and requests, and passes each numbered connection to `behave`.
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

    /// Starts a server that sends the same response to every request and keeps the connection open.
    pub(crate) async fn responding(response: &'static [u8]) -> Self {
        Self::start(move |mut peer| async move {
            while peer.read_request().await.is_some() {
                peer.send(response).await;
            }
        })
        .await
    }

    /// Starts a server that responds to the first request with these bytes and closes the connection.
    pub(crate) async fn responding_once(response: &'static [u8]) -> Self {
        Self::start(move |mut peer| async move {
            peer.read_request().await;
            peer.send(response).await;
        })
        .await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/webhooks?x=1", self.address)
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
    /// Reads and counts a request. Returns `None` if the client has closed the connection.
    pub(crate) async fn read_request(&mut self) -> Option<String> {
        let request = read_request(&mut self.stream).await?;
        self.requests.fetch_add(1, Ordering::SeqCst);
        Some(request)
    }

    /// Writes bytes. Returns false if the client has closed the connection.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }

    /// Waits until the client has closed the connection, and returns the number of bytes received until then.
    pub(crate) async fn closed(&mut self) -> usize {
        let mut all = 0;
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = self.stream.read(&mut buffer).await {
            all += read;
        }
        all
    }

    /// Closes the connection with a TCP reset.
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
