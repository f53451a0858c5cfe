//! Client address of a request, as an extension for handlers.

use std::net::{IpAddr, Ipv6Addr};

use axum::http::Extensions;

/// Address of the client: of the connection, or behind a trusted proxy the address that it forwards. Every request
/// has one as an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientAddr(pub(crate) IpAddr);

/// Returns the client's address.
pub(crate) fn client_address(extensions: &Extensions) -> Option<IpAddr> {
    extensions.get::<ClientAddr>().map(|client| client.0)
}

/// Returns the address that is counted: for IPv6 the /64 network, since a client can use any address in it.
pub(crate) fn address_group(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        address => address,
    }
}
