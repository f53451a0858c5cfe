//! Client address of a request, as an extension for handlers.

use std::net::IpAddr;

use axum::http::HeaderMap;
use redrive_core::security::forwarded;

use super::HttpServer;

/// Address of the client: of the connection, or behind a trusted proxy the address that it forwards. Every request
/// has one as an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddr(pub IpAddr);

impl HttpServer {
    /// Returns the client address. `Forwarded` is ignored, because a proxy that does not know it passes on its
    /// client's.
    pub(super) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> ClientAddr {
        let lines = headers.get_all("x-forwarded-for").iter().map(|line| line.as_bytes());
        ClientAddr(forwarded::client_address(peer, &self.trusted_proxies, lines))
    }
}
