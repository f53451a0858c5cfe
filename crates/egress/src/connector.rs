//! The guard: from a URL's host to a connection, with every address checked on the way.
//! A socket is only ever opened to an address that was checked a moment before.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use http::{Uri, uri::Scheme};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use redrive_core::reach::ReachRules;
use rustls::pki_types::ServerName;
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_rustls::TlsConnector;
use tower_service::Service;

use crate::{
    Config, MAX_BUFFER_BYTES,
    error::{Cause, ConnectFailed, SetupError, tls_fault_of},
    resolver::Resolver,
    stream::{Link, Phases, Stream},
    tls,
};

/// How many of a name's addresses are tried.
const MAX_TRIED: usize = 4;
/// How long a connection stays open after the rules have changed, so that a request which was just handed to
/// it is not broken. Nothing that begins later can be handed to it.
const GRACE: Duration = Duration::from_millis(50);

/// Makes the connections of the client. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Connector(Arc<Dialer>);

struct Dialer {
    resolver: Resolver,
    tls: TlsConnector,
    rules: Mutex<Arc<ReachRules>>,
    /// The connections that were made, so that they can be ended when the rules change.
    made: Mutex<Vec<Weak<Link>>>,
    own_listeners: Vec<SocketAddr>,
    connect_timeout: Duration,
    /// The most that an answer can come to, head and body.
    max_answer: usize,
    stopwatch: fn() -> Duration,
}

impl Connector {
    pub(crate) fn new(config: Config) -> Result<Self, SetupError> {
        Ok(Self(Arc::new(Dialer {
            resolver: Resolver::new(&config.dns_servers, config.dns_timeout),
            tls: tls::client_config(config.roots)?.into(),
            rules: Mutex::new(Arc::new(config.rules)),
            made: Mutex::default(),
            own_listeners: config.own_listeners,
            connect_timeout: config.connect_timeout,
            max_answer: config.max_response_bytes + 2 * MAX_BUFFER_BYTES,
            stopwatch: config.stopwatch,
        })))
    }

    /// Puts other rules in force, for connections that are being made too.
    pub(crate) fn set_rules(&self, rules: ReachRules) {
        *self.0.rules.lock() = Arc::new(rules);
    }

    /// Ends all connections that were made so far: idle ones in a moment, the others with their exchange.
    pub(crate) fn retire_connections(&self) {
        let made = std::mem::take(&mut *self.0.made.lock());
        tokio::spawn(async move {
            sleep(GRACE).await;
            for link in made.iter().filter_map(Weak::upgrade) {
                link.retire();
            }
        });
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = ConnectFailed;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let dialer = self.0.clone();
        Box::pin(async move {
            let mut phases = Phases::default();
            let stream = dialer.dial(&uri, &mut phases).await;
            stream.map(TokioIo::new).map_err(|cause| ConnectFailed { cause, phases })
        })
    }
}

impl Dialer {
    async fn dial(&self, uri: &Uri, phases: &mut Phases) -> Result<Stream, Cause> {
        let secure = uri.scheme() == Some(&Scheme::HTTPS);
        let host = uri.host().ok_or(Cause::NoSuchName)?;
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });

        guard_name(&self.rules(), host, port)?;
        let addresses = self.resolve(host, phases).await?;
        let rules = self.rules();
        self.guard(&rules, host, port, &addresses)?;
        let socket = self.reach(&addresses, port, phases).await?;
        let stream = match secure {
            true => self.encrypt(host, socket, phases).await?,
            false => Stream::plain(socket, *phases, self.max_answer),
        };
        self.remember(stream.link());
        // Whoever changes the rules does that first and then looks for connections, so that one which is
        // made meanwhile is either found there or judged again here.
        let now = self.rules();
        if !Arc::ptr_eq(&rules, &now) {
            self.guard(&now, host, port, &addresses)?;
        }
        Ok(stream)
    }

    fn rules(&self) -> Arc<ReachRules> {
        self.rules.lock().clone()
    }

    /// Notes a connection, and forgets those that are gone whenever there would be no room without.
    fn remember(&self, link: &Arc<Link>) {
        let mut made = self.made.lock();
        if made.len() == made.capacity() {
            made.retain(|link| link.strong_count() > 0);
            let alive = made.len();
            made.reserve(alive.max(64));
        }
        made.push(Arc::downgrade(link));
    }

    async fn resolve(&self, host: &str, phases: &mut Phases) -> Result<Vec<IpAddr>, Cause> {
        if let Ok(address) = without_brackets(host).parse() {
            return Ok(vec![address]);
        }
        let start = (self.stopwatch)();
        let addresses = self.resolver.lookup(host).await;
        phases.dns = Some((self.stopwatch)().saturating_sub(start));
        addresses
    }

    /// One refused address refuses the host: whoever controls a name must not pick what we look at.
    /// The operator learns the detail from the log, the tenant nothing.
    fn guard(&self, rules: &ReachRules, host: &str, port: u16, addresses: &[IpAddr]) -> Result<(), Cause> {
        guard_name(rules, host, port)?;
        for address in addresses {
            if let Err(why) = rules.check_address(*address) {
                tracing::warn!(host, port, %address, reason = %why, "refused to connect: the address is not allowed");
                return Err(Cause::Refused);
            }
            if is_own_listener(&self.own_listeners, *address, port) {
                tracing::warn!(host, port, %address, "refused to connect: Redrive itself listens there");
                return Err(Cause::Refused);
            }
        }
        Ok(())
    }

    async fn reach(&self, addresses: &[IpAddr], port: u16, phases: &mut Phases) -> Result<TcpStream, Cause> {
        let tried = &addresses[..addresses.len().min(MAX_TRIED)];
        // Each gets its share, so that a first address that swallows packets leaves time for the next.
        let share = self.connect_timeout / u32::try_from(tried.len()).unwrap_or(1).max(1);
        let start = (self.stopwatch)();
        let mut reached = Err(Cause::Unreachable);
        for address in tried {
            let connecting = TcpStream::connect(SocketAddr::new(*address, port));
            if let Ok(Ok(socket)) = timeout(share, connecting).await {
                reached = Ok(socket);
                break;
            }
        }
        phases.connect = Some((self.stopwatch)().saturating_sub(start));
        let socket = reached?;
        // A failure only costs latency.
        let _ = socket.set_nodelay(true);
        Ok(socket)
    }

    /// Has a limit of its own, because hyper may finish a connection after its request has ended.
    async fn encrypt(&self, host: &str, socket: TcpStream, phases: &mut Phases) -> Result<Stream, Cause> {
        let name = without_brackets(host).trim_end_matches('.');
        let name = ServerName::try_from(name).map_err(|_| Cause::NoSuchName)?.to_owned();
        let start = (self.stopwatch)();
        let shaken = timeout(self.connect_timeout, self.tls.connect(name, socket)).await;
        phases.tls = Some((self.stopwatch)().saturating_sub(start));
        let stream = shaken.map_err(|_| Cause::HandshakeStalled)?.map_err(|error| handshake_cause(&error))?;
        Ok(Stream::tls(stream, *phases, self.max_answer))
    }
}

/// What can be said before the name is looked up, so that nobody is even asked about a host that is denied.
fn guard_name(rules: &ReachRules, host: &str, port: u16) -> Result<(), Cause> {
    rules.check_name(host, port).map_err(|why| {
        tracing::warn!(host, port, reason = %why, "refused to connect: the host or port is not allowed");
        Cause::Refused
    })
}

fn handshake_cause(error: &io::Error) -> Cause {
    tls_fault_of(error).map_or(Cause::HandshakeClosed, |fault| Cause::Tls(fault.clone()))
}

/// An IPv6 host of a URL comes in brackets.
fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Whether a connection to `address` would end at one of our own listeners. The unspecified address counts
/// as loopback on both sides: the system takes it as such. A listener on it hears every address of this host.
fn is_own_listener(listeners: &[SocketAddr], address: IpAddr, port: u16) -> bool {
    let address = address.to_canonical();
    let local = address.is_loopback() || address.is_unspecified();
    listeners.iter().filter(|own| own.port() == port).any(|own| {
        let own = own.ip().to_canonical();
        own == address
            || (own.is_unspecified() && (local || is_this_host(address)))
            || (own.is_loopback() && address.is_unspecified())
    })
}

/// Whether an address is one of this host's: only those can be bound. Nothing is sent.
fn is_this_host(address: IpAddr) -> bool {
    std::net::UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owns(listener: &str, address: &str) -> bool {
        let listener: SocketAddr = listener.parse().unwrap();
        is_own_listener(&[listener], address.parse().unwrap(), 8080)
    }

    #[test]
    fn own_listeners_are_known_by_every_name() {
        assert!(owns("127.0.0.1:8080", "127.0.0.1"));
        assert!(owns("127.0.0.1:8080", "::ffff:127.0.0.1"));
        assert!(owns("127.0.0.1:8080", "0.0.0.0"));
        assert!(owns("10.0.0.7:8080", "10.0.0.7"));
        assert!(owns("[::1]:8080", "::1"));
        for local in ["127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::"] {
            assert!(owns("0.0.0.0:8080", local), "{local}");
            assert!(owns("[::]:8080", local), "{local}");
        }
    }

    #[test]
    fn other_ports_and_addresses_are_not_ours() {
        assert!(!owns("127.0.0.1:8081", "127.0.0.1"));
        assert!(!owns("127.0.0.1:8080", "127.0.0.2"));
        assert!(!owns("0.0.0.0:8080", "192.0.2.1"));
        assert!(!owns("10.0.0.7:8080", "0.0.0.0"));
    }

    fn dialer() -> Dialer {
        let connector = Connector::new(Config::new(|| Duration::ZERO)).unwrap();
        Arc::into_inner(connector.0).unwrap()
    }

    #[tokio::test]
    async fn one_bad_answer_among_good_ones_refuses_the_name() {
        let good: IpAddr = "1.1.1.1".parse().unwrap();
        let bad: IpAddr = "127.0.0.1".parse().unwrap();
        let (dialer, rules) = (dialer(), ReachRules::default());
        assert!(dialer.guard(&rules, "a.example", 443, &[good, good]).is_ok());
        for mixed in [[good, bad], [bad, good]] {
            assert!(matches!(dialer.guard(&rules, "a.example", 443, &mixed), Err(Cause::Refused)));
        }
    }
}
