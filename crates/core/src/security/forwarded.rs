//! Client address behind proxies.
//!
//! Every proxy appends the address that called it at the right end of `X-Forwarded-For`. Entries further left
//! were there before and may be forged by any client. The list is therefore read from the right, as long as the
//! proxy that wrote the entry is trusted.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::security::address::canonical;

/// Returns the client address: `peer`, which opened the connection, or, if that is a trusted proxy, the rightmost
/// address in the `X-Forwarded-For` lines that is not a trusted proxy.
///
/// Entries left of one that is not an address are ignored. The result is canonical: an IPv4 address given as
/// `::ffff:a.b.c.d` becomes an IPv4 address.
pub fn client_address<'a, L>(peer: IpAddr, trusted: &[IpNet], lines: L) -> IpAddr
where
    L: IntoIterator<Item = &'a [u8]>,
    L::IntoIter: DoubleEndedIterator,
{
    let mut client = canonical(peer);
    let hops = lines.into_iter().rev().flat_map(|line| line.rsplit(|byte| *byte == b','));
    for hop in hops {
        match address(hop) {
            Some(address) if is_trusted(client, trusted) => client = address,
            _ => break,
        }
    }
    client
}

/// Returns whether this address is a trusted proxy.
pub fn is_trusted(address: IpAddr, trusted: &[IpNet]) -> bool {
    let address = canonical(address);
    trusted.iter().any(|network| network.contains(&address))
}

/// Parses one entry: an address, which some proxies write with a port or in brackets.
fn address(hop: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(hop).ok()?.trim_ascii();
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse().or_else(|_| text.parse().map(|address: SocketAddr| address.ip()));
    address.ok().map(canonical)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn networks() -> Vec<IpNet> {
        ["10.0.0.0/8", "fd00::/8"].map(|network| network.parse().unwrap()).to_vec()
    }

    fn seen(peer: &str, lines: &[&str]) -> String {
        client_address(peer.parse().unwrap(), &networks(), lines.iter().map(|line| line.as_bytes()))
            .to_string()
    }

    #[test]
    fn untrusted_peer_is_the_client_regardless_of_header() {
        assert_eq!(seen("203.0.113.9", &[]), "203.0.113.9");
        assert_eq!(seen("203.0.113.9", &["198.51.100.1"]), "203.0.113.9");
        assert_eq!(seen("::ffff:203.0.113.9", &["10.0.0.1"]), "203.0.113.9");
    }

    #[test]
    fn trusted_proxy_supplies_the_client_address() {
        assert_eq!(seen("10.0.0.1", &["198.51.100.1"]), "198.51.100.1");
        assert_eq!(seen("::ffff:10.0.0.1", &["::ffff:198.51.100.1"]), "198.51.100.1", "canonical");
        assert_eq!(seen("fd00::1", &["2001:db8::7"]), "2001:db8::7");
        assert_eq!(seen("10.0.0.1", &["198.51.100.1:4711"]), "198.51.100.1", "with a port");
        assert_eq!(seen("10.0.0.1", &["[2001:db8::7]:4711"]), "2001:db8::7");
        assert_eq!(seen("10.0.0.1", &["[2001:db8::7]"]), "2001:db8::7");
        assert_eq!(seen("10.0.0.1", &[]), "10.0.0.1", "a proxy without the header");
    }

    #[test]
    fn rightmost_untrusted_address_is_the_client() {
        assert_eq!(seen("10.0.0.1", &["1.1.1.1, 198.51.100.1"]), "198.51.100.1");
        assert_eq!(seen("10.0.0.1", &["1.1.1.1, 198.51.100.1 , 10.0.0.2"]), "198.51.100.1");
        assert_eq!(
            seen("10.0.0.1", &["1.1.1.1", "198.51.100.1, 10.0.0.2"]),
            "198.51.100.1",
            "several header lines are one list"
        );
        assert_eq!(seen("10.0.0.1", &["10.0.0.3, 10.0.0.2"]), "10.0.0.3", "all entries are trusted proxies");
    }

    #[test]
    fn entries_left_of_an_invalid_one_are_ignored() {
        for odd in ["unknown", "", "198.51.100.1.5", "198.51.100.1:port", "fe80::1%eth0", "\u{fc}"] {
            let line = format!("1.1.1.1, {odd}, 10.0.0.2");
            assert_eq!(seen("10.0.0.1", &[&line]), "10.0.0.2", "{odd}");
        }
        assert_eq!(
            client_address("10.0.0.1".parse().unwrap(), &networks(), [&b"\xff"[..]]).to_string(),
            "10.0.0.1"
        );
    }

    proptest! {
        #[test]
        fn arbitrary_header_bytes_never_panic(peer: IpAddr, lines: Vec<Vec<u8>>) {
            let client = client_address(peer, &networks(), lines.iter().map(Vec::as_slice));
            prop_assert_eq!(client, client.to_canonical());
        }

        #[test]
        fn forged_entries_do_not_change_the_client(
            spoofed in "[0-9a-f:., \\[\\]]{0,60}", client: std::net::Ipv4Addr, proxies in 0u8..4,
        ) {
            let client = IpAddr::V4(client);
            prop_assume!(!is_trusted(client, &networks()));
            let mut line = format!("{spoofed},{client}");
            for proxy in 0..proxies {
                line += &format!(", 10.1.1.{proxy}");
            }
            let peer = "10.0.0.1".parse().unwrap();
            prop_assert_eq!(client_address(peer, &networks(), [line.as_bytes()]), client);
            prop_assert_eq!(client_address(client, &networks(), [line.as_bytes()]), client);
        }
    }
}
