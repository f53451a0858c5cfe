//! What can go wrong, and how a tenant hears of it. Failures are told apart by typed causes, never by
//! texts, and no message here may tell more about the network than the tenant already knows.

use std::{error::Error, fmt, io};

use redrive_core::delivery::response::SendFailure;

use crate::{stream::Phases, tls};

/// Why the client could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A root certificate is unusable.
    #[error("a root certificate cannot be used: {0}; give each as one X.509 certificate in DER form")]
    Root(#[source] rustls::Error),
    /// The TLS library refused its setup.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[source] rustls::Error),
}

/// Why a URL is no target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTarget {
    /// It does not parse.
    #[error("is not a valid URL; give one like https://example.com/webhooks")]
    NoUrl,
    /// It is neither `http` nor `https`.
    #[error("must begin with https:// or http://")]
    Scheme,
    /// It carries a user name or password.
    #[error("must not contain a user name or password; use a header instead")]
    UserInfo,
    /// It carries a fragment.
    #[error("must not contain a fragment (#…), which is never sent")]
    Fragment,
}

/// Why no connection came about.
#[derive(Debug)]
pub(crate) enum Cause {
    /// The port, or a host that is an IP address, is refused.
    Refused,
    /// The scheme is refused.
    PlainHttp,
    /// The host is a name without an address, or one that is refused: the two must not be told apart.
    NoSuchName,
    /// As many connections as allowed are open to the host's addresses.
    AddressBusy,
    /// No name server said whether the host has an address.
    ResolverFailed,
    /// No address could be reached. Deliberately without the reason.
    Unreachable,
    /// The TLS handshake did not end.
    HandshakeStalled,
    /// The connection went away during the TLS handshake.
    HandshakeClosed,
    /// The TLS handshake failed, for this reason.
    Tls(rustls::Error),
}

/// What the connector hands through hyper: the cause, and how long the phases before it took.
#[derive(Debug)]
pub(crate) struct ConnectFailed {
    pub(crate) cause: Cause,
    pub(crate) phases: Phases,
}

impl fmt::Display for ConnectFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no connection: {:?}", self.cause)
    }
}

impl Error for ConnectFailed {}

/// A failure and its words for the tenant.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) failure: SendFailure,
    pub(crate) message: String,
}

fn verdict(failure: SendFailure, message: impl Into<String>) -> Verdict {
    Verdict { failure, message: message.into() }
}

/// The deadline came first.
pub(crate) fn timed_out(answering: bool) -> Verdict {
    let message = match answering {
        true => "the receiver did not finish its answer in time",
        false => "the receiver did not answer in time",
    };
    verdict(SendFailure::Timeout, message)
}

/// The error that the connector put into this chain, if it was the connector's.
pub(crate) fn connect_failure<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a ConnectFailed> {
    find(error)
}

/// Why there was no answer at all.
pub(crate) fn before_answer(error: &(dyn Error + 'static)) -> Verdict {
    if let Some(failed) = connect_failure(error) {
        return no_connection(&failed.cause);
    }
    if let Some(fault) = tls_fault(error) {
        return verdict(SendFailure::Tls, tls::explain(fault));
    }
    let closed = || verdict(SendFailure::Reset, "the receiver closed the connection before answering");
    match find::<hyper::Error>(error) {
        Some(error) if error.is_parse_too_large() => {
            verdict(SendFailure::Protocol, "the headers of the receiver's answer are too large")
        }
        Some(error) if error.is_parse() => not_http(),
        Some(error) if error.is_incomplete_message() || error.is_canceled() || error.is_closed() => closed(),
        // The pool lost a connection before the request was handed to it.
        None => closed(),
        Some(_) => match find::<io::Error>(error) {
            Some(error) if is_garbled(error) => not_http(),
            Some(_) => closed(),
            None => not_http(),
        },
    }
}

/// Why an answer did not come to its end.
pub(crate) fn within_body(error: &hyper::Error) -> Verdict {
    match find::<io::Error>(error) {
        Some(error) if is_garbled(error) => not_http(),
        _ => verdict(SendFailure::CutOff, "the receiver's answer was cut off midway"),
    }
}

/// Whether what came made no sense, rather than too little having come.
fn is_garbled(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData)
        && tls_fault_of(error).is_none()
}

fn not_http() -> Verdict {
    verdict(SendFailure::Protocol, "the receiver's answer is not valid HTTP/1.1")
}

fn no_connection(cause: &Cause) -> Verdict {
    match cause {
        Cause::Refused => verdict(
            SendFailure::BlockedAddress,
            "the URL's host, port or address is one that requests may not go to",
        ),
        Cause::PlainHttp => verdict(
            SendFailure::BlockedAddress,
            "this installation sends to https:// only; change the webhook's URL",
        ),
        Cause::AddressBusy => verdict(
            SendFailure::HostBusy,
            "too many connections to the receiver's address are open from here",
        ),
        Cause::NoSuchName => verdict(SendFailure::Dns, "the URL's host name has no address"),
        Cause::ResolverFailed => verdict(SendFailure::Dns, "the URL's host name could not be resolved"),
        Cause::Unreachable => verdict(SendFailure::Connect, "no connection to the receiver could be made"),
        Cause::HandshakeStalled => {
            verdict(SendFailure::Timeout, "the receiver did not finish the TLS handshake in time")
        }
        Cause::HandshakeClosed => {
            verdict(SendFailure::Reset, "the receiver closed the connection during the TLS handshake")
        }
        Cause::Tls(error) => verdict(SendFailure::Tls, tls::explain(error)),
    }
}

/// The first error of type `E` in a chain of causes.
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

/// The TLS fault that broke a connection after its handshake, such as a missing client certificate.
fn tls_fault<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    find::<io::Error>(error).and_then(tls_fault_of)
}

/// The TLS fault inside an I/O error. `source()` skips it, so it has to be asked for.
pub(crate) fn tls_fault_of(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}
