//! The egress guard: opens the connection to a URL's host and checks every address first.
//! A socket must only ever be opened to an address that was checked immediately before.

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
use redrive_core::security::egress_rules::{EgressDenied, EgressRules, literal_address};
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
    error::{ConnectError, ConnectFailed, SetupError, tls_fault_of},
    resolver::Resolver,
    stream::{ConnectionState, Phases, Stream},
    tls,
};

/// Maximum number of addresses of a host that are tried.
const MAX_ADDRESSES_TRIED: usize = 4;
/// Time for which a connection stays open after the rules have changed, so that a request just handed to it does
/// not fail. Later requests cannot be handed to it.
const RETIRE_GRACE: Duration = Duration::from_millis(50);

/// Maximum time, over all addresses, to wait for a connection permit when the limit per address is reached. Far
/// shorter than the usual request timeout (30 s), and never more than half of it, so that a failed wait is not
/// reported as a timeout of the endpoint.
const MAX_PERMIT_WAIT: Duration = Duration::from_millis(500);
/// Failures to resolve a name, and refused names, are reported after a multiple of this. It hides the timing
/// difference between a cached response, the hosts file or a denied name, and a nearby name server.
const NAME_FAILURE_STEP: Duration = Duration::from_millis(100);
const REASONS: usize = EgressDenied::LABELS.len();

tokio::task_local! {
    /// Context of the request that is being sent in this task.
    pub(crate) static REQUEST: RequestContext;
}

/// Data about the request that a connection is opened for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestContext {
    /// Key of the tenant; see [`crate::OutboundRequest::tenant_key`].
    pub(crate) tenant_key: u64,
    /// Timeout of the whole request.
    pub(crate) timeout: Duration,
}

/// Opens the client's connections. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Connector(Arc<Dialer>);

struct Dialer {
    resolver: Resolver,
    tls: TlsConnector,
    rules: Mutex<Arc<EgressRules>>,
    /// Open connections, which are retired when the rules change.
    open_connections: Mutex<Vec<Weak<ConnectionState>>>,
    connections: Connections,
    /// Number of refused connections, by reason label.
    refusals: [AtomicU64; REASONS],
    own_listeners: Vec<SocketAddr>,
    connect_timeout: Duration,
    /// Maximum size of a response, headers and body.
    max_read_bytes: usize,
    stopwatch: fn() -> Duration,
}

impl Connector {
    pub(crate) fn new(config: Config) -> Result<Self, SetupError> {
        Ok(Self(Arc::new(Dialer {
            resolver: Resolver::new(&config.dns_servers, config.dns_timeout),
            tls: tls::client_config(config.roots)?.into(),
            rules: Mutex::new(Arc::new(config.rules)),
            open_connections: Mutex::default(),
            connections: Connections::new(config.max_connections_per_address),
            refusals: Default::default(),
            own_listeners: config.own_listeners,
            connect_timeout: config.connect_timeout,
            max_read_bytes: config.max_response_bytes + 2 * MAX_BUFFER_BYTES,
            stopwatch: config.monotonic_clock,
        })))
    }

    /// Replaces the rules, also for connections that are being opened.
    pub(crate) fn set_rules(&self, rules: EgressRules) {
        *self.0.rules.lock() = Arc::new(rules);
    }

    /// Retires all connections opened so far: idle ones after the grace period, the others when their exchange ends.
    pub(crate) fn retire_connections(&self) {
        let open = std::mem::take(&mut *self.0.open_connections.lock());
        tokio::spawn(async move {
            sleep(RETIRE_GRACE).await;
            for link in open.iter().filter_map(Weak::upgrade) {
                link.retire();
            }
        });
    }

    /// Returns the number of refused connections, by reason label.
    pub(crate) fn refusals(&self) -> [(&'static str, u64); REASONS] {
        std::array::from_fn(|at| (EgressDenied::LABELS[at], self.0.refusals[at].load(Relaxed)))
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
        // hyper calls this in the task of the request that needs the connection, but may complete it in another task.
        let without_limit = RequestContext { tenant_key: 0, timeout: Duration::MAX };
        let request = REQUEST.try_with(|request| *request).unwrap_or(without_limit);
        Box::pin(async move {
            let mut phases = Phases::default();
            let stream = dialer.dial(&uri, request, &mut phases).await;
            stream.map(TokioIo::new).map_err(|occurrence| ConnectFailed { cause: occurrence, phases })
        })
    }
}

/// Destination of a connection.
struct Destination<'a> {
    is_https: bool,
    host: &'a str,
    port: u16,
}

impl Dialer {
    async fn dial(
        &self,
        uri: &Uri,
        request: RequestContext,
        phases: &mut Phases,
    ) -> Result<Stream, ConnectError> {
        let is_https = uri.scheme() == Some(&Scheme::HTTPS);
        let host = uri.host().ok_or(ConnectError::NoSuchName)?;
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
        let (socket, permit) = self.connect_checked(&addresses, port, request, phases).await?;
        let stream = match is_https {
            true => self.encrypt(host, socket, permit, phases).await?,
            false => Stream::plain(socket, permit, *phases, self.max_read_bytes),
        };
        self.track(stream.link());
        // `Client::set_rules` replaces the rules before it collects connections, so a connection opened concurrently is
        // either collected there or checked again here.
        let now = self.rules();
        if !Arc::ptr_eq(&rules, &now) {
            self.guard(&now, &to, &addresses).inspect_err(|_| {
                *phases = Phases { dns: phases.dns, ..Phases::default() };
            })?;
        }
        Ok(stream)
    }

    fn rules(&self) -> Arc<EgressRules> {
        self.rules.lock().clone()
    }

    /// Tracks a connection. Closed ones are removed before the list would grow.
    fn track(&self, link: &Arc<ConnectionState>) {
        let mut open = self.open_connections.lock();
        if open.len() == open.capacity() {
            open.retain(|link| link.strong_count() > 0);
            let alive = open.len();
            open.reserve(alive.max(64));
        }
        open.push(Arc::downgrade(link));
    }

    /// Resolves a host name. All returned addresses are allowed by the returned rules.
    ///
    /// A name that does not exist, a denied name and a name with a refused address fail in the same way and with the
    /// same time granularity, so that callers cannot probe which names exist in the internal network.
    async fn resolve(
        &self,
        to: &Destination<'_>,
        phases: &mut Phases,
    ) -> Result<(Arc<EgressRules>, Vec<IpAddr>), ConnectError> {
        let start = (self.stopwatch)();
        let elapsed = || (self.stopwatch)().saturating_sub(start);
        let found = self.resolve_allowed(to).await;
        if matches!(found, Err(ConnectError::NoSuchName)) {
            sleep(time_to_failure(elapsed())).await;
        }
        if !matches!(found, Err(ConnectError::Refused | ConnectError::PlainHttp)) {
            phases.dns = Some(elapsed());
        }
        found
    }

    async fn resolve_allowed(
        &self,
        to: &Destination<'_>,
    ) -> Result<(Arc<EgressRules>, Vec<IpAddr>), ConnectError> {
        // Check what needs no lookup first, so that no name server is queried for a denied host.
        self.guard(&self.rules(), to, &[])?;
        let addresses = self.resolver.lookup(to.host).await?;
        let rules = self.rules();
        self.guard(&rules, to, &addresses)?;
        Ok((rules, addresses))
    }

    /// Checks the scheme, the port, the host and its addresses. One refused address refuses the host, so that the
    /// owner of a name cannot choose which of its addresses is checked.
    fn guard(
        &self,
        rules: &EgressRules,
        to: &Destination<'_>,
        addresses: &[IpAddr],
    ) -> Result<(), ConnectError> {
        let Destination { is_https, host, port } = *to;
        let result = rules.check_scheme(is_https).and_then(|()| rules.check_name(host, port));
        result.map_err(|why| self.refuse(to, None, why))?;
        for address in addresses {
            let result = match is_own_listener(&self.own_listeners, *address, port) {
                true => Err(EgressDenied::OwnListener),
                false => rules.check_address(*address),
            };
            result.map_err(|why| self.refuse(to, Some(*address), why))?;
        }
        Ok(())
    }

    /// Records a refusal. The operator gets the reason in the log and in a counter; the tenant gets what
    /// [`EgressDenied::is_hidden_for`] permits.
    fn refuse(&self, to: &Destination<'_>, address: Option<IpAddr>, why: EgressDenied) -> ConnectError {
        let Destination { host, port, .. } = *to;
        if let Some(at) = EgressDenied::LABELS.iter().position(|label| *label == why.label()) {
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
            EgressDenied::PlainHttp => ConnectError::PlainHttp,
            why if why.is_hidden_for(host) => ConnectError::NoSuchName,
            _ => ConnectError::Refused,
        }
    }

    async fn connect_checked(
        &self,
        addresses: &[IpAddr],
        port: u16,
        request: RequestContext,
        phases: &mut Phases,
    ) -> Result<(TcpStream, Permit), ConnectError> {
        let tried = &addresses[..addresses.len().min(MAX_ADDRESSES_TRIED)];
        // Divide the timeout among the addresses, so that one that drops packets leaves time for the next.
        let parts = u32::try_from(tried.len()).unwrap_or(1).max(1);
        let share = self.connect_timeout / parts;
        let wait = self.connect_timeout.min(MAX_PERMIT_WAIT).min(request.timeout / 2) / parts;
        let start = (self.stopwatch)();
        let mut reached = Err(ConnectError::Unreachable);
        for address in tried {
            let Some(permit) = self.connections.acquire(*address, request.tenant_key, wait).await else {
                reached = Err(ConnectError::AddressBusy);
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
        // Failing to set this only costs latency.
        let _ = socket.set_nodelay(true);
        Ok((socket, permit))
    }

    /// Performs the TLS handshake with its own timeout, because hyper may complete a connection after its request
    /// ended.
    async fn encrypt(
        &self,
        host: &str,
        socket: TcpStream,
        permit: Permit,
        phases: &mut Phases,
    ) -> Result<Stream, ConnectError> {
        let name = without_brackets(host).trim_end_matches('.');
        let name = ServerName::try_from(name).map_err(|_| ConnectError::NoSuchName)?.to_owned();
        let start = (self.stopwatch)();
        let handshake = timeout(self.connect_timeout, self.tls.connect(name, socket)).await;
        phases.tls = Some((self.stopwatch)().saturating_sub(start));
        let stream = handshake
            .map_err(|_| ConnectError::HandshakeStalled)?
            .map_err(|error| handshake_cause(&error))?;
        Ok(Stream::tls(stream, permit, *phases, self.max_read_bytes))
    }
}

/// Returns how long to delay the report of a name that failed after `elapsed`: until the next multiple of
/// [`NAME_FAILURE_STEP`].
fn time_to_failure(elapsed: Duration) -> Duration {
    let steps = elapsed.as_nanos() / NAME_FAILURE_STEP.as_nanos() + 1;
    let end = NAME_FAILURE_STEP.saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX));
    end.saturating_sub(elapsed)
}

fn handshake_cause(error: &io::Error) -> ConnectError {
    tls_fault_of(error).map_or(ConnectError::HandshakeClosed, |fault| ConnectError::Tls(fault.clone()))
}

/// Strips the brackets around an IPv6 host of a URL.
fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Returns whether a connection to `address` would reach one of this process's own listeners. The unspecified
/// address counts as loopback on both sides, as in the operating system. A listener on it accepts every address of
/// this host.
fn is_own_listener(listeners: &[SocketAddr], address: IpAddr, port: u16) -> bool {
    let address = address.to_canonical();
    let local = address.is_loopback() || address.is_unspecified();
    listeners.iter().filter(|own| own.port() == port).any(|own| {
        let own = own.ip().to_canonical();
        own == address
            || (own.is_unspecified() && (local || is_local_address(address)))
            || (own.is_loopback() && address.is_unspecified())
    })
}

/// Returns whether an address belongs to this host: only those can be bound. Sends nothing.
fn is_local_address(address: IpAddr) -> bool {
    std::net::UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_failures_are_reported_at_fixed_steps() {
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
    fn own_listeners_are_recognised_at_every_address() {
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
    fn other_ports_and_addresses_are_not_own_listeners() {
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
    async fn one_refused_address_refuses_the_name() {
        let good: IpAddr = "1.1.1.1".parse().unwrap();
        let bad: IpAddr = "127.0.0.1".parse().unwrap();
        let (dialer, rules) = (dialer(), EgressRules::default());
        let named = Destination { is_https: true, host: "a.example", port: 443 };
        let literal = Destination { host: "127.0.0.1", ..named };
        assert!(dialer.guard(&rules, &named, &[good, good]).is_ok());
        for mixed in [[good, bad], [bad, good]] {
            assert!(matches!(dialer.guard(&rules, &named, &mixed), Err(ConnectError::NoSuchName)));
        }
        assert!(matches!(dialer.guard(&rules, &literal, &[bad]), Err(ConnectError::Refused)));
        assert_eq!(dialer.refusals[0].load(Relaxed), 3, "every denial is counted for the operator");
    }
}
