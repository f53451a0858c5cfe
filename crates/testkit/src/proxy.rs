//! A fault-injecting proxy in front of any TCP server.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
};

use crate::server::Server;

/// A proxy on a free loopback port. It forwards everything until instructed otherwise, and ends, with all its
/// connections, when it is dropped.
pub struct Proxy {
    server: Server,
    rules: Arc<watch::Sender<Rules>>,
    connections: Arc<AtomicUsize>,
    trap: Trap,
}

/// The bytes that make a connection lose its replies; consumed by the first client that sends them.
type Trap = Arc<Mutex<Option<&'static [u8]>>>;

/// The time during which replies are dropped before the connection is reset, so that the server has finished by
/// then.
const SWALLOWING: Duration = Duration::from_millis(300);

/// The current rules for all connections.
#[derive(Clone, Copy)]
struct Rules {
    flow: Flow,
    /// Incremented by every cut: a connection that started with a smaller number is reset.
    cuts: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Flow {
    Pass,
    Stall,
    Refuse,
    Delay(Duration),
}

impl Proxy {
    /// Starts a proxy in front of the server at this address.
    pub async fn to(address: SocketAddr) -> Self {
        let rules = Arc::new(watch::Sender::new(Rules { flow: Flow::Pass, cuts: 0 }));
        let seen = Arc::new(AtomicUsize::new(0));
        let trap = Trap::default();
        let (ruled, counted, set) = (Arc::clone(&rules), Arc::clone(&seen), Arc::clone(&trap));
        let server = Server::start(move |stream| {
            counted.fetch_add(1, Ordering::SeqCst);
            serve(stream, address, ruled.subscribe(), Arc::clone(&set))
        })
        .await;
        Self { server, rules, connections: seen, trap }
    }

    /// Returns the address to connect to instead of the server's.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns the number of connections accepted so far, including those it reset.
    pub fn connection_count(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Forwards everything, including bytes that were held.
    pub fn pass(&self) {
        self.set(Flow::Pass, false);
    }

    /// Resets every connection, and each new one as soon as it is accepted.
    pub fn refuse(&self) {
        self.set(Flow::Refuse, true);
    }

    /// Holds every byte in both directions while all connections stay open, like a network that loses every packet.
    /// Held bytes are forwarded later.
    pub fn stall(&self) {
        self.set(Flow::Stall, false);
    }

    /// Resets the existing connections, and forwards new ones.
    pub fn cut(&self) {
        self.set(Flow::Pass, true);
    }

    /// Delays every chunk of data in both directions by this long.
    pub fn delay(&self, delay: Duration) {
        self.set(Flow::Delay(delay), false);
    }

    /// Forwards the next request that contains these bytes, drops the replies to it, and then resets that connection:
    /// the server has executed a request whose result the client never learns.
    pub fn lose_reply_to(&self, request: &'static [u8]) {
        *self.trap.lock().expect("no test panics with it") = Some(request);
    }

    fn set(&self, flow: Flow, cut: bool) {
        self.rules.send_modify(|rules| *rules = Rules { flow, cuts: rules.cuts + usize::from(cut) });
    }
}

async fn serve(mut client: TcpStream, address: SocketAddr, rules: watch::Receiver<Rules>, trap: Trap) {
    let Rules { flow, cuts } = *rules.borrow();
    if flow != Flow::Refuse
        && let Ok(mut server) = TcpStream::connect(address).await
    {
        let mut cutting = rules.clone();
        let cut = async { cutting.wait_for(|rules| rules.cuts != cuts).await.is_ok() };
        let broken = tokio::select! {
            biased;
            _ = cut => true,
            passed = pass(&mut client, &mut server, &rules, &trap) => passed.is_err(),
        };
        if !broken {
            return;
        }
        server.set_zero_linger().ok();
    }
    // With a linger of zero, closing sends a reset.
    client.set_zero_linger().ok();
}

/// Forwards everything in both directions until both sides have closed.
async fn pass(
    client: &mut TcpStream,
    server: &mut TcpStream,
    rules: &watch::Receiver<Rules>,
    trap: &Trap,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let caught = AtomicBool::new(false);
    let springs = |sent: &[u8]| {
        let mut set = trap.lock().expect("no test panics with it");
        if set.is_some_and(|bytes| sent.windows(bytes.len()).any(|part| part == bytes)) {
            *set = None;
            caught.store(true, Ordering::SeqCst);
        }
        false
    };
    let there = forward(from_client, to_server, rules.clone(), springs);
    let back = forward(from_server, to_client, rules.clone(), |_| caught.load(Ordering::SeqCst));
    tokio::try_join!(there, back).map(|_| ())
}

async fn forward(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut rules: watch::Receiver<Rules>,
    is_lost: impl Fn(&[u8]) -> bool,
) -> io::Result<()> {
    let mut piece = vec![0; 16 * 1024];
    loop {
        let length = from.read(&mut piece).await?;
        if is_lost(&piece[..length]) {
            tokio::time::sleep(SWALLOWING).await;
            return Err(io::Error::other("the reply is lost"));
        }
        let flow = rules.borrow().flow;
        if let Flow::Delay(delay) = flow {
            tokio::time::sleep(delay).await;
        }
        // An error means that the proxy is being dropped together with this connection.
        rules.wait_for(|rules| rules.flow != Flow::Stall).await.map_err(io::Error::other)?;
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&piece[..length]).await?;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::WAIT_TIMEOUT;

    const MOMENT: Duration = Duration::from_millis(100);

    /// Starts an echo server with a proxy in front of it.
    async fn echo() -> (Server, Proxy) {
        let server = Server::start(|mut stream| async move {
            let (mut reading, mut writing) = stream.split();
            tokio::io::copy(&mut reading, &mut writing).await.ok();
        })
        .await;
        let proxy = Proxy::to(server.address()).await;
        (server, proxy)
    }

    async fn connected(proxy: &Proxy) -> TcpStream {
        TcpStream::connect(proxy.address()).await.unwrap()
    }

    /// Sends a word and expects it back.
    async fn exchange(stream: &mut TcpStream) -> io::Result<()> {
        stream.write_all(b"hello").await?;
        read_echo(stream).await
    }

    async fn read_echo(stream: &mut TcpStream) -> io::Result<()> {
        let mut response = [0; 5];
        tokio::time::timeout(WAIT_TIMEOUT, stream.read_exact(&mut response)).await.unwrap()?;
        assert_eq!(&response, b"hello");
        Ok(())
    }

    async fn is_reset(stream: &mut TcpStream) -> bool {
        let read = tokio::time::timeout(WAIT_TIMEOUT, stream.read(&mut [0])).await.unwrap();
        read.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
    }

    #[tokio::test]
    async fn proxy_forwards_data_and_close() {
        let (_server, proxy) = echo().await;
        let (mut reading, mut writing) = connected(&proxy).await.into_split();
        let sent: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251) as u8).collect();
        let send = async {
            writing.write_all(&sent).await.unwrap();
            writing.shutdown().await.unwrap();
        };
        let mut received = Vec::new();
        let (_, read) = tokio::join!(send, reading.read_to_end(&mut received));
        read.unwrap();
        assert!(received == sent);
        assert_eq!(proxy.connection_count(), 1);
    }

    #[tokio::test]
    async fn refuse_resets_existing_and_new_connections() {
        let (_server, proxy) = echo().await;
        let mut before = connected(&proxy).await;
        exchange(&mut before).await.unwrap();
        proxy.refuse();
        assert!(is_reset(&mut before).await);
        assert!(is_reset(&mut connected(&proxy).await).await);
        proxy.pass();
        exchange(&mut connected(&proxy).await).await.unwrap();
        assert_eq!(proxy.connection_count(), 3);
    }

    #[tokio::test]
    async fn cut_resets_only_existing_connections() {
        let (_server, proxy) = echo().await;
        let mut before = connected(&proxy).await;
        exchange(&mut before).await.unwrap();
        proxy.cut();
        let mut after = connected(&proxy).await;
        assert!(is_reset(&mut before).await);
        exchange(&mut after).await.unwrap();
    }

    #[tokio::test]
    async fn stall_holds_all_bytes_and_loses_none() {
        let (_server, proxy) = echo().await;
        let mut before = connected(&proxy).await;
        exchange(&mut before).await.unwrap();
        proxy.stall();
        let mut during = connected(&proxy).await;
        for stream in [&mut before, &mut during] {
            stream.write_all(b"hello").await.unwrap();
            assert!(tokio::time::timeout(MOMENT, stream.read(&mut [0])).await.is_err());
        }
        proxy.pass();
        read_echo(&mut before).await.unwrap();
        read_echo(&mut during).await.unwrap();

        proxy.stall();
        before.write_all(b"hello").await.unwrap();
        proxy.cut();
        assert!(is_reset(&mut before).await, "a stalled connection can be cut");
    }

    #[tokio::test]
    async fn delay_applies_in_both_directions() {
        let (_server, proxy) = echo().await;
        let mut stream = connected(&proxy).await;
        proxy.delay(MOMENT);
        let started = Instant::now();
        exchange(&mut stream).await.unwrap();
        assert!(started.elapsed() >= 2 * MOMENT);
        proxy.pass();
        exchange(&mut stream).await.unwrap();
    }

    #[tokio::test]
    async fn server_shutdown_is_visible_through_the_proxy() {
        let (server, proxy) = echo().await;
        let mut before = connected(&proxy).await;
        exchange(&mut before).await.unwrap();
        drop(server);
        assert_eq!(before.read(&mut [0]).await.unwrap_or(0), 0);
        assert!(is_reset(&mut connected(&proxy).await).await);
    }
}
