//! Checks when and from where an API key may be used.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::time::Time;

/// Returns whether a key may be used now from this address. A key bound to networks is unusable without an
/// address.
pub fn is_usable(expires_at: Option<Time>, networks: &[IpNet], now: Time, from: Option<IpAddr>) -> bool {
    let inside = |from: IpAddr| networks.iter().any(|network| network.contains(&from.to_canonical()));
    expires_at.is_none_or(|end| now < end) && (networks.is_empty() || from.is_some_and(inside))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_usable_until_expiry_and_from_its_networks() {
        let networks = ["10.1.0.0/16".parse().unwrap(), "2001:db8::/32".parse().unwrap()];
        let (now, end) = (Time::from_secs(100), Time::from_secs(200));
        let good = |at, from: &str| is_usable(Some(end), &networks, at, Some(from.parse().unwrap()));
        assert!(good(now, "10.1.2.3") && good(now, "::ffff:10.1.2.3") && good(now, "2001:db8::1"));
        assert!(!good(now, "10.2.0.1") && !good(now, "2001:db9::1") && !good(end, "10.1.2.3"));
        assert!(!is_usable(None, &networks, now, None));
        assert!(is_usable(None, &[], now, None));
    }
}
