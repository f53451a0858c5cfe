//! Who is calling, where proxies stand in between.
//!
//! Every proxy adds the address that called it at the right end of `X-Forwarded-For`. What stands further left
//! was there before, and anybody may have written it. So the list is read from the right, for as long as the
//! one who wrote the entry is trusted.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::security::address::canonical;

/// The address of whoever is calling: `peer`, who opened the connection, or, if that is a trusted proxy, the
/// rightmost address in the lines of `X-Forwarded-For` that is not one itself.
///
/// What stands left of something that is no address is not believed either. The answer is canonical: an IPv4
/// address that came as `::ffff:a.b.c.d` is an IPv4 address.
pub fn client<'a, L>(peer: IpAddr, trusted: &[IpNet], lines: L) -> IpAddr
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

/// Whether what this address says about others is believed.
pub fn is_trusted(address: IpAddr, trusted: &[IpNet]) -> bool {
    let address = canonical(address);
    trusted.iter().any(|network| network.contains(&address))
}

/// One entry: an address, which some proxies write with a port, or in brackets.
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
        client(peer.parse().unwrap(), &networks(), lines.iter().map(|line| line.as_bytes())).to_string()
    }

    #[test]
    fn a_stranger_is_whoever_connected_whatever_it_says() {
        assert_eq!(seen("203.0.113.9", &[]), "203.0.113.9");
        assert_eq!(seen("203.0.113.9", &["198.51.100.1"]), "203.0.113.9");
        assert_eq!(seen("::ffff:203.0.113.9", &["10.0.0.1"]), "203.0.113.9");
    }

    #[test]
    fn a_proxy_is_believed_about_the_one_before_it() {
        assert_eq!(seen("10.0.0.1", &["198.51.100.1"]), "198.51.100.1");
        assert_eq!(seen("::ffff:10.0.0.1", &["::ffff:198.51.100.1"]), "198.51.100.1", "canonical");
        assert_eq!(seen("fd00::1", &["2001:db8::7"]), "2001:db8::7");
        assert_eq!(seen("10.0.0.1", &["198.51.100.1:4711"]), "198.51.100.1", "with a port");
        assert_eq!(seen("10.0.0.1", &["[2001:db8::7]:4711"]), "2001:db8::7");
        assert_eq!(seen("10.0.0.1", &["[2001:db8::7]"]), "2001:db8::7");
        assert_eq!(seen("10.0.0.1", &[]), "10.0.0.1", "a proxy that adds nothing");
    }

    #[test]
    fn only_the_rightmost_stranger_counts() {
        assert_eq!(seen("10.0.0.1", &["1.1.1.1, 198.51.100.1"]), "198.51.100.1");
        assert_eq!(seen("10.0.0.1", &["1.1.1.1, 198.51.100.1 , 10.0.0.2"]), "198.51.100.1");
        assert_eq!(
            seen("10.0.0.1", &["1.1.1.1", "198.51.100.1, 10.0.0.2"]),
            "198.51.100.1",
            "lines are one list"
        );
        assert_eq!(seen("10.0.0.1", &["10.0.0.3, 10.0.0.2"]), "10.0.0.3", "callers from among the proxies");
    }

    #[test]
    fn nothing_is_believed_beyond_what_cannot_be_read() {
        for odd in ["unknown", "", "198.51.100.1.5", "198.51.100.1:port", "fe80::1%eth0", "\u{fc}"] {
            let line = format!("1.1.1.1, {odd}, 10.0.0.2");
            assert_eq!(seen("10.0.0.1", &[&line]), "10.0.0.2", "{odd}");
        }
        assert_eq!(client("10.0.0.1".parse().unwrap(), &networks(), [&b"\xff"[..]]).to_string(), "10.0.0.1");
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer(peer: IpAddr, lines: Vec<Vec<u8>>) {
            let client = client(peer, &networks(), lines.iter().map(Vec::as_slice));
            prop_assert_eq!(client, client.to_canonical());
        }

        #[test]
        fn what_a_stranger_writes_changes_nothing(
            spoofed in "[0-9a-f:., \\[\\]]{0,60}", stranger: std::net::Ipv4Addr, proxies in 0u8..4,
        ) {
            let stranger = IpAddr::V4(stranger);
            prop_assume!(!is_trusted(stranger, &networks()));
            let mut line = format!("{spoofed},{stranger}");
            for proxy in 0..proxies {
                line += &format!(", 10.1.1.{proxy}");
            }
            let peer = "10.0.0.1".parse().unwrap();
            prop_assert_eq!(client(peer, &networks(), [line.as_bytes()]), stranger);
            prop_assert_eq!(client(stranger, &networks(), [line.as_bytes()]), stranger);
        }
    }
}
