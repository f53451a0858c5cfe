//! The guard: from a URL's host to a connection, with every address checked on the way.
//! A socket is only ever opened to an address that was checked a moment before.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::{Uri, uri::Scheme};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use redrive_core::security::egress_rules::{ReachRules, Unreachable, literal_address};
use rustls::pki_types::ServerName;
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_rustls::TlsConnector;
use tower_service::Service;

use crate::{
    Config, MAX_BUFFER_BYTES,
    connections::{Connections, Permit},
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

/// How long a connection may wait, over all its addresses, for another one to be closed where as many as allowed are open.
/// Far shorter than the usual timeout of a request (30 s), and never more than half of it, so that the end of the wait is
/// reported as what it is and not as a timeout of the receiver.
const MAX_PERMIT_WAIT: Duration = Duration::from_millis(500);
/// A name without an address, or a refused one, is reported after a multiple of this. It covers the difference
/// between an answer from a cache, the hosts file or a denied name, and one from a name server nearby.
const NAME_FAILURE_STEP: Duration = Duration::from_millis(100);
const REASONS: usize = Unreachable::LABELS.len();

tokio::task_local! {
    /// The request that is sent in this task.
    pub(crate) static REQUEST: RequestContext;
}

/// What a connection has to know of the request that it is opened for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestContext {
    /// For whom the request is sent; see [`crate::Outbound::owner`].
    pub(crate) owner: u64,
    /// How long the whole request may take.
    pub(crate) timeout: Duration,
}

/// Makes the connections of the client. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Connector(Arc<Dialer>);

struct Dialer {
    resolver: Resolver,
    tls: TlsConnector,
    rules: Mutex<Arc<ReachRules>>,
    /// The connections that were made, so that they can be ended when the rules change.
    made: Mutex<Vec<Weak<Link>>>,
    connections: Connections,
    /// Refused connections, by the label of the reason.
    refusals: [AtomicU64; REASONS],
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
            connections: Connections::new(config.max_connections_per_address),
            refusals: Default::default(),
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

    /// How many connections were refused, by the label of the reason.
    pub(crate) fn refusals(&self) -> [(&'static str, u64); REASONS] {
        std::array::from_fn(|at| (Unreachable::LABELS[at], self.0.refusals[at].load(Relaxed)))
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
        // hyper calls this in the task of the request that wants the connection, and may finish it in another one.
        let without_limit = RequestContext { owner: 0, timeout: Duration::MAX };
        let request = REQUEST.try_with(|request| *request).unwrap_or(without_limit);
        Box::pin(async move {
            let mut phases = Phases::default();
            let stream = dialer.dial(&uri, request, &mut phases).await;
            stream.map(TokioIo::new).map_err(|cause| ConnectFailed { cause, phases })
        })
    }
}

/// Where a connection is to go.
struct Destination<'a> {
    is_https: bool,
    host: &'a str,
    port: u16,
}

impl Dialer {
    async fn dial(&self, uri: &Uri, request: RequestContext, phases: &mut Phases) -> Result<Stream, Cause> {
        let is_https = uri.scheme() == Some(&Scheme::HTTPS);
        let host = uri.host().ok_or(Cause::NoSuchName)?;
        let port = uri.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        let to = Destination { is_https, host, port };

        let (rules, addresses) = match literal_address(host) {
            Some(address) => {
                let rules = self.rules();
                self.guard(&rules, &to, &[address])?;
                (rules, vec![address])
            }
            None => self.resolve(&to, phases).await?,
        };
        let (socket, permit) = self.reach(&addresses, port, request, phases).await?;
        let stream = match is_https {
            true => self.encrypt(host, socket, permit, phases).await?,
            false => Stream::plain(socket, permit, *phases, self.max_answer),
        };
        self.remember(stream.link());
        // `Client::set_rules` changes the rules first and collects connections then, so that a connection which
        // is made concurrently is either collected there or checked again here.
        let now = self.rules();
        if !Arc::ptr_eq(&rules, &now) {
            self.guard(&now, &to, &addresses).inspect_err(|_| {
                *phases = Phases { dns: phases.dns, ..Phases::default() };
            })?;
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

    /// The addresses of a host that is a name, all of them allowed by the rules that come with them.
    ///
    /// A name that does not exist, one that is denied and one with a refused address fail alike and after times of
    /// the same granularity, so that neither shows which names exist inside.
    async fn resolve(
        &self,
        to: &Destination<'_>,
        phases: &mut Phases,
    ) -> Result<(Arc<ReachRules>, Vec<IpAddr>), Cause> {
        let start = (self.stopwatch)();
        let elapsed = || (self.stopwatch)().saturating_sub(start);
        let found = self.resolve_allowed(to).await;
        if matches!(found, Err(Cause::NoSuchName)) {
            sleep(time_to_failure(elapsed())).await;
        }
        if !matches!(found, Err(Cause::Refused | Cause::PlainHttp)) {
            phases.dns = Some(elapsed());
        }
        found
    }

    async fn resolve_allowed(&self, to: &Destination<'_>) -> Result<(Arc<ReachRules>, Vec<IpAddr>), Cause> {
        // What needs no lookup is judged before one, so that no name server is asked about a denied host.
        self.guard(&self.rules(), to, &[])?;
        let addresses = self.resolver.lookup(to.host).await?;
        let rules = self.rules();
        self.guard(&rules, to, &addresses)?;
        Ok((rules, addresses))
    }

    /// Judges the scheme, the port, the host and its addresses. One refused address refuses the host, so that the
    /// owner of a name cannot choose which of its addresses is checked.
    fn guard(&self, rules: &ReachRules, to: &Destination<'_>, addresses: &[IpAddr]) -> Result<(), Cause> {
        let Destination { is_https, host, port } = *to;
        let judged = rules.check_scheme(is_https).and_then(|()| rules.check_name(host, port));
        judged.map_err(|why| self.refuse(to, None, why))?;
        for address in addresses {
            let judged = match is_own_listener(&self.own_listeners, *address, port) {
                true => Err(Unreachable::OwnListener),
                false => rules.check_address(*address),
            };
            judged.map_err(|why| self.refuse(to, Some(*address), why))?;
        }
        Ok(())
    }

    /// The operator gets the reason in the log and in a counter, the tenant what [`Unreachable::is_hidden_for`]
    /// leaves of it.
    fn refuse(&self, to: &Destination<'_>, address: Option<IpAddr>, why: Unreachable) -> Cause {
        let Destination { host, port, .. } = *to;
        if let Some(at) = Unreachable::LABELS.iter().position(|label| *label == why.label()) {
            self.refusals[at].fetch_add(1, Relaxed);
        }
        match address {
            Some(address) => {
                tracing::warn!(host, port, %address, reason = %why, "refused to connect: the address is not allowed");
            }
            None => {
                tracing::warn!(host, port, reason = %why, "refused to connect: the host or port is not allowed");
            }
        }
        match why {
            Unreachable::PlainHttp => Cause::PlainHttp,
            why if why.is_hidden_for(host) => Cause::NoSuchName,
            _ => Cause::Refused,
        }
    }

    async fn reach(
        &self,
        addresses: &[IpAddr],
        port: u16,
        request: RequestContext,
        phases: &mut Phases,
    ) -> Result<(TcpStream, Permit), Cause> {
        let tried = &addresses[..addresses.len().min(MAX_TRIED)];
        // Each gets its share, so that a first address that swallows packets leaves time for the next.
        let parts = u32::try_from(tried.len()).unwrap_or(1).max(1);
        let share = self.connect_timeout / parts;
        let wait = self.connect_timeout.min(MAX_PERMIT_WAIT).min(request.timeout / 2) / parts;
        let start = (self.stopwatch)();
        let mut reached = Err(Cause::Unreachable);
        for address in tried {
            let Some(permit) = self.connections.acquire(*address, request.owner, wait).await else {
                reached = Err(Cause::AddressBusy);
                continue;
            };
            let connecting = TcpStream::connect(SocketAddr::new(*address, port));
            if let Ok(Ok(socket)) = timeout(share, connecting).await {
                reached = Ok((socket, permit));
                break;
            }
        }
        phases.connect = Some((self.stopwatch)().saturating_sub(start));
        let (socket, permit) = reached?;
        // A failure only costs latency.
        let _ = socket.set_nodelay(true);
        Ok((socket, permit))
    }

    /// Has a limit of its own, because hyper may finish a connection after its request has ended.
    async fn encrypt(
        &self,
        host: &str,
        socket: TcpStream,
        permit: Permit,
        phases: &mut Phases,
    ) -> Result<Stream, Cause> {
        let name = without_brackets(host).trim_end_matches('.');
        let name = ServerName::try_from(name).map_err(|_| Cause::NoSuchName)?.to_owned();
        let start = (self.stopwatch)();
        let shaken = timeout(self.connect_timeout, self.tls.connect(name, socket)).await;
        phases.tls = Some((self.stopwatch)().saturating_sub(start));
        let stream = shaken.map_err(|_| Cause::HandshakeStalled)?.map_err(|error| handshake_cause(&error))?;
        Ok(Stream::tls(stream, permit, *phases, self.max_answer))
    }
}

/// How long to wait until a name that failed after `elapsed` is reported: until the next multiple of
/// [`NAME_FAILURE_STEP`].
fn time_to_failure(elapsed: Duration) -> Duration {
    let steps = elapsed.as_nanos() / NAME_FAILURE_STEP.as_nanos() + 1;
    let end = NAME_FAILURE_STEP.saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX));
    end.saturating_sub(elapsed)
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

    #[test]
    fn failures_of_names_are_reported_in_steps() {
        let after = |millis| {
            let elapsed = Duration::from_millis(millis);
            (elapsed + time_to_failure(elapsed)).as_millis()
        };
        assert_eq!((after(0), after(1), after(99)), (100, 100, 100));
        assert_eq!((after(100), after(101), after(5_000)), (200, 200, 5_100));
    }

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
        let named = Destination { is_https: true, host: "a.example", port: 443 };
        let literal = Destination { host: "127.0.0.1", ..named };
        assert!(dialer.guard(&rules, &named, &[good, good]).is_ok());
        for mixed in [[good, bad], [bad, good]] {
            assert!(matches!(dialer.guard(&rules, &named, &mixed), Err(Cause::NoSuchName)));
        }
        assert!(matches!(dialer.guard(&rules, &literal, &[bad]), Err(Cause::Refused)));
        assert_eq!(dialer.refusals[0].load(Relaxed), 3, "the operator's counter has them all");
    }
}
