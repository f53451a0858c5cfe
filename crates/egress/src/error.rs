//! Failures of exchanges, and their messages for tenants. Failures are distinguished by typed causes, never by
//! message texts, and no message may reveal more about the network than the tenant already knows.

use std::{error::Error, fmt, io};

use redrive_core::delivery::response::SendFailure;

use crate::{stream::Phases, tls};

/// Error of creating the client.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A root certificate is unusable.
    #[error("root certificate cannot be used: {0}; each must be one X.509 certificate in DER form")]
    Root(#[source] rustls::Error),
    /// The TLS library refused its setup.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[source] rustls::Error),
}

/// Reason why a URL cannot be a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTarget {
    /// It is not a valid URL.
    #[error("is not a valid URL; use the form https://example.com/webhooks")]
    Unparsable,
    /// It is neither `http` nor `https`.
    #[error("must begin with https:// or http://")]
    Scheme,
    /// It contains a user name or password.
    #[error("must not contain a user name or password; use a header instead")]
    UserInfo,
    /// It contains a fragment.
    #[error("must not contain a fragment (#…), which is never sent")]
    Fragment,
}

/// Reason why no connection was established.
#[derive(Debug)]
pub(crate) enum ConnectError {
    /// The port, or a host that is an IP address, is refused.
    Refused,
    /// The scheme is refused.
    PlainHttp,
    /// The host is a name without an address, or a refused one; the two must not be distinguishable.
    NoSuchName,
    /// The connection limit of the host's addresses is reached.
    AddressBusy,
    /// No name server reported whether the host has an address.
    ResolverFailed,
    /// No address could be reached. The reason is deliberately omitted.
    Unreachable,
    /// The TLS handshake did not finish in time.
    HandshakeStalled,
    /// The connection was closed during the TLS handshake.
    HandshakeClosed,
    /// The TLS handshake failed with this error.
    Tls(rustls::Error),
}

/// Error that the connector passes through hyper: the cause, and the durations of the phases before it.
#[derive(Debug)]
pub(crate) struct ConnectFailed {
    pub(crate) cause: ConnectError,
    pub(crate) phases: Phases,
}

impl fmt::Display for ConnectFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no connection: {:?}", self.cause)
    }
}

impl Error for ConnectFailed {}

/// A failure and its message for the tenant.
#[derive(Debug)]
pub(crate) struct DescribedFailure {
    pub(crate) failure: SendFailure,
    pub(crate) message: String,
}

fn describe(failure: SendFailure, message: impl Into<String>) -> DescribedFailure {
    DescribedFailure { failure, message: message.into() }
}

/// Describes an exchange that reached its deadline.
pub(crate) fn timed_out(has_response: bool) -> DescribedFailure {
    let message = match has_response {
        true => "the endpoint did not finish its response in time",
        false => "the endpoint did not respond in time",
    };
    describe(SendFailure::Timeout, message)
}

/// Returns the connector's error in this chain, if there is one.
pub(crate) fn connect_failure<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a ConnectFailed> {
    find(error)
}

/// Describes why no response arrived.
pub(crate) fn no_response(error: &(dyn Error + 'static)) -> DescribedFailure {
    if let Some(failed) = connect_failure(error) {
        return no_connection(&failed.cause);
    }
    if let Some(fault) = tls_fault(error) {
        return describe(SendFailure::Tls, tls::explain(fault));
    }
    let closed = || describe(SendFailure::Reset, "the endpoint closed the connection before responding");
    match find::<hyper::Error>(error) {
        Some(error) if error.is_parse_too_large() => {
            describe(SendFailure::Protocol, "the headers of the endpoint's response are too large")
        }
        Some(error) if error.is_parse() => not_http(),
        Some(error) if error.is_incomplete_message() || error.is_canceled() || error.is_closed() => closed(),
        // The pool lost the connection before the request was handed to it.
        None => closed(),
        Some(_) => match find::<io::Error>(error) {
            Some(error) if is_malformed(error) => not_http(),
            Some(_) => closed(),
            None => not_http(),
        },
    }
}

/// Describes why a response body is incomplete.
pub(crate) fn body_failure(error: &hyper::Error) -> DescribedFailure {
    match find::<io::Error>(error) {
        Some(error) if is_malformed(error) => not_http(),
        _ => describe(SendFailure::Truncated, "the endpoint's response was cut off"),
    }
}

/// Returns whether the received data was malformed rather than incomplete.
fn is_malformed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData)
        && tls_fault_of(error).is_none()
}

fn not_http() -> DescribedFailure {
    describe(SendFailure::Protocol, "the endpoint's response is not valid HTTP/1.1")
}

fn no_connection(occurrence: &ConnectError) -> DescribedFailure {
    match occurrence {
        ConnectError::Refused => {
            describe(SendFailure::BlockedAddress, "the URL's host, port or address is blocked")
        }
        ConnectError::PlainHttp => describe(
            SendFailure::BlockedAddress,
            "this installation sends to https:// only; change the webhook's URL",
        ),
        ConnectError::AddressBusy => {
            describe(SendFailure::ConnectionLimit, "too many connections to the endpoint's address are open")
        }
        ConnectError::NoSuchName => describe(SendFailure::Dns, "the URL's host name has no address"),
        ConnectError::ResolverFailed => {
            describe(SendFailure::Dns, "the URL's host name could not be resolved")
        }
        ConnectError::Unreachable => describe(SendFailure::Connect, "connecting to the endpoint failed"),
        ConnectError::HandshakeStalled => {
            describe(SendFailure::Timeout, "the endpoint did not finish the TLS handshake in time")
        }
        ConnectError::HandshakeClosed => {
            describe(SendFailure::Reset, "the endpoint closed the connection during the TLS handshake")
        }
        ConnectError::Tls(error) => describe(SendFailure::Tls, tls::explain(error)),
    }
}

/// Returns the first error of type `E` in a chain of sources.
fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// Returns the TLS error that broke a connection after its handshake, such as a missing client certificate.
fn tls_fault<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    find::<io::Error>(error).and_then(tls_fault_of)
}

/// Returns the TLS error inside an I/O error. `source()` skips it, so it is read explicitly.
pub(crate) fn tls_fault_of(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}
