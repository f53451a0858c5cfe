//! Egress: the one guarded HTTP client that sends every outgoing request of Redrive.
//!
//! An address is checked on connecting, for every connection, regardless of how the URL spells the host. The
//! client must never follow a redirect, use a proxy, decompress a body or send a request twice, and no endpoint
//! can keep an exchange, or its memory, beyond the deadline.

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
use redrive_core::{delivery::response::SendFailure, security::egress_rules::EgressRules};
pub use rustls::pki_types::CertificateDer;

pub use crate::{
    client::Client,
    error::{InvalidTarget, SetupError},
    target::Target,
};

/// Maximum number of response bytes that hyper buffers; also the maximum size of the response headers.
const MAX_BUFFER_BYTES: usize = 64 * 1024;

/// Configuration of the client. Only the rules can be changed later.
#[derive(Clone, Debug)]
pub struct Config {
    /// Initial rules for hosts, ports and addresses: see [`Client::set_rules`].
    pub rules: EgressRules,
    /// Name servers to query; empty for the system's.
    pub dns_servers: Vec<SocketAddr>,
    /// Timeout of connecting, over all addresses, and separately of the TLS handshake.
    pub connect_timeout: Duration,
    /// Timeout of resolving a name.
    pub dns_timeout: Duration,
    /// Number of bytes of a response body to read before the connection is dropped.
    pub max_response_bytes: usize,
    /// Maximum number of idle connections per host.
    pub idle_per_host: usize,
    /// Maximum number of open connections to one IP address, over all hosts; `None` for no limit.
    pub max_connections_per_address: Option<usize>,
    /// Time for which an idle connection is kept. Shorter than the usual keep-alive of endpoints, so that a request
    /// rarely uses a connection that is just being closed.
    pub idle_timeout: Duration,
    /// Addresses that Redrive itself listens on: never a destination, even if the rules allow the address.
    pub own_listeners: Vec<SocketAddr>,
    /// Monotonic clock with an arbitrary origin.
    pub monotonic_clock: fn() -> Duration,
    /// Trusted certificate authorities.
    pub roots: Roots,
}

impl Config {
    /// Returns the default configuration: public addresses only, and the usual limits.
    pub fn new(stopwatch: fn() -> Duration) -> Self {
        Self {
            rules: EgressRules::default(),
            dns_servers: Vec::new(),
            connect_timeout: Duration::from_secs(10),
            dns_timeout: Duration::from_secs(5),
            max_response_bytes: 64 * 1024,
            idle_per_host: 32,
            max_connections_per_address: None,
            idle_timeout: Duration::from_secs(4),
            own_listeners: Vec::new(),
            monotonic_clock: stopwatch,
            roots: Roots::WebPki,
        }
    }
}

/// Trusted certificate authorities.
#[derive(Clone, Debug)]
pub enum Roots {
    /// The public authorities.
    WebPki,
    /// The public authorities and the operator's own.
    WebPkiPlus(Vec<CertificateDer<'static>>),
}

/// One POST to send.
#[derive(Clone, Debug)]
pub struct OutboundRequest {
    /// Destination.
    pub target: Target,
    /// Headers. The client overrides `Host` and the framing headers.
    pub headers: HeaderMap,
    /// Body, sent unchanged.
    pub body: Bytes,
    /// Timeout of the whole exchange, including the response body.
    pub timeout: Duration,
    /// Key of the tenant for which it is sent. The open connections of an address are counted by it, so that tenants
    /// share them fairly.
    pub tenant_key: u64,
}

/// Result of one POST.
#[derive(Debug)]
pub struct Exchange {
    /// The response, or the failure.
    pub result: Result<EgressResponse, EgressFailure>,
    /// Durations of the phases.
    pub timings: Timings,
}

/// A complete response of any status.
#[derive(Debug)]
pub struct EgressResponse {
    /// The status code.
    pub status: u16,
    /// The response headers.
    pub headers: HeaderMap,
    /// The first bytes of the body, at most 1 KiB, unmodified.
    pub body_sample: Bytes,
}

/// An exchange without a complete response.
#[derive(Debug)]
pub struct EgressFailure {
    /// Kind of failure.
    pub failure: SendFailure,
    /// Message that is safe to show to a tenant: it reveals nothing about the internal network, neither which names
    /// exist there nor which ports are open.
    pub message: String,
    /// The status, if the headers arrived before the failure.
    pub status: Option<u16>,
}

/// Durations of the phases. A phase that did not happen is `None`: there is no DNS for an IP address, no TLS for
/// `http`, and none of the first three on a reused connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Resolving the name.
    pub dns: Option<Duration>,
    /// Connecting the socket.
    pub connect: Option<Duration>,
    /// The TLS handshake.
    pub tls: Option<Duration>,
    /// From the start of the exchange to the response headers.
    pub ttfb: Option<Duration>,
    /// The whole exchange.
    pub total: Duration,
}
