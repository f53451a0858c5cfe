//! Client address of a request, determined from the connection and the headers of trusted proxies.

use std::net::IpAddr;

use axum::http::HeaderMap;
use redrive_core::security::forwarded;

use super::HttpServer;
use crate::request::ClientAddr;

impl HttpServer {
    /// Returns the client address. `Forwarded` is ignored, because a proxy that does not know it passes on its
    /// client's.
    pub(super) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> ClientAddr {
        let lines = headers.get_all("x-forwarded-for").iter().map(|line| line.as_bytes());
        ClientAddr(forwarded::client_address(peer, &self.trusted_proxies, lines))
    }
}
