//! Who is calling, for handlers: an extension of every request.

use std::net::IpAddr;

use axum::http::HeaderMap;
use redrive_core::security::forwarded;

use super::Surface;

/// The address of whoever is calling: of the connection, or, behind a trusted proxy, of whom it speaks for.
/// Every request has one as its extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddr(pub IpAddr);

impl Surface {
    /// `Forwarded` is not looked at: a proxy that does not know it passes on what its client wrote.
    pub(super) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> ClientAddr {
        let lines = headers.get_all("x-forwarded-for").iter().map(|line| line.as_bytes());
        ClientAddr(forwarded::client(peer, &self.trusted_proxies, lines))
    }
}
