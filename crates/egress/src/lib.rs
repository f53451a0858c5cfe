//! The way out: the one guarded HTTP client, through which every request of Redrive leaves.
//!
//! An address is checked when connecting, for every connection, whatever the host looked like in the URL.
//! Nothing here follows a redirect, uses a proxy, unpacks a body or sends a request a second time, and no
//! receiver can hold an exchange, or the memory behind it, beyond its deadline.

mod client;
mod connections;
mod connector;
mod error;
mod resolver;
mod stream;
mod target;
mod tls;

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::HeaderMap;
use redrive_core::{delivery::response::SendFailure, security::egress_rules::ReachRules};
pub use rustls::pki_types::CertificateDer;

pub use crate::{
    client::Client,
    error::{BadTarget, SetupError},
    target::Target,
};

/// How much of an answer hyper may hold at once; also the limit of its headers' size.
const MAX_BUFFER_BYTES: usize = 64 * 1024;

/// How the client behaves, fixed when it is made but for the rules.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which hosts, ports and addresses may be called, to begin with: see [`Client::set_rules`].
    pub rules: ReachRules,
    /// Name servers to ask instead of the system's; empty for those.
    pub dns_servers: Vec<SocketAddr>,
    /// How long reaching a receiver may take, over all its addresses, and again for the TLS handshake.
    pub connect_timeout: Duration,
    /// How long resolving a name may take.
    pub dns_timeout: Duration,
    /// How much of an answer's body is read before the connection is dropped.
    pub max_response_bytes: usize,
    /// How many idle connections are kept per host.
    pub idle_per_host: usize,
    /// How many connections may be open to one IP address, over all hosts; `None` for any number.
    pub max_connections_per_address: Option<usize>,
    /// How long an idle connection is kept. Shorter than what receivers commonly use, so that a request
    /// seldom meets a connection that is just being closed.
    pub idle_timeout: Duration,
    /// Where Redrive itself listens: never a destination, even if the rules allow the address.
    pub own_listeners: Vec<SocketAddr>,
    /// A monotonic reading, from any origin.
    pub stopwatch: fn() -> Duration,
    /// Who may vouch for a receiver's certificate.
    pub roots: Roots,
}

impl Config {
    /// The defaults: public addresses only, and the usual limits.
    pub fn new(stopwatch: fn() -> Duration) -> Self {
        Self {
            rules: ReachRules::default(),
            dns_servers: Vec::new(),
            connect_timeout: Duration::from_secs(10),
            dns_timeout: Duration::from_secs(5),
            max_response_bytes: 64 * 1024,
            idle_per_host: 32,
            max_connections_per_address: None,
            idle_timeout: Duration::from_secs(4),
            own_listeners: Vec::new(),
            stopwatch,
            roots: Roots::WebPki,
        }
    }
}

/// Who may vouch for a receiver's certificate.
#[derive(Clone, Debug)]
pub enum Roots {
    /// The public authorities.
    WebPki,
    /// The public authorities and an operator's own.
    WebPkiPlus(Vec<CertificateDer<'static>>),
}

/// One POST to send.
#[derive(Clone, Debug)]
pub struct Outbound {
    /// Where to.
    pub target: Target,
    /// The headers. `Host` and those that frame the body are set by the client, whatever is in here.
    pub headers: HeaderMap,
    /// The body, sent as it is.
    pub body: Bytes,
    /// The deadline of the whole exchange, the answer's body included.
    pub timeout: Duration,
    /// For whom it is sent: a key of the tenant. Owners share an address's connections fairly.
    pub owner: u64,
}

/// How one POST went.
#[derive(Debug)]
pub struct Exchange {
    /// What came back, or why nothing usable did.
    pub result: Result<Answered, Failed>,
    /// How long each phase took.
    pub timings: Timings,
}

/// A complete answer, of whatever status.
#[derive(Debug)]
pub struct Answered {
    /// The status code.
    pub status: u16,
    /// The answer's headers.
    pub headers: HeaderMap,
    /// The first bytes of the body, at most 1 KiB, as they came.
    pub body_sample: Bytes,
}

/// An exchange without a complete answer.
#[derive(Debug)]
pub struct Failed {
    /// What kind of failure it was.
    pub failure: SendFailure,
    /// What happened, in words that a tenant may read: they reveal nothing about the network inside, neither which
    /// names exist there nor which ports are open.
    pub message: String,
    /// The status, if the headers had arrived before the exchange broke off.
    pub status: Option<u16>,
}

/// How long each phase took. What did not happen is `None`: there is no DNS for an IP address, no TLS for
/// `http`, and none of the first three on a reused connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Resolving the name.
    pub dns: Option<Duration>,
    /// Connecting the socket.
    pub connect: Option<Duration>,
    /// The TLS handshake.
    pub tls: Option<Duration>,
    /// From the start of the exchange to the answer's headers.
    pub ttfb: Option<Duration>,
    /// The whole exchange.
    pub total: Duration,
}
