//! Address check: which IP addresses may be called. Public ones, and those that the operator allows.
//!
//! Must be called at connect time with the very address that is connected to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// The operator's allowed and denied networks. An entry is compared with the canonical address, so an IPv4 network
/// matches IPv4 addresses in every notation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressRules {
    /// Networks that may be called although they are in a special range.
    pub allow: Vec<IpNet>,
    /// Networks that may never be called, public ones included. Takes precedence over `allow`. An IPv4 network is also
    /// denied where an IPv6 address embeds one of its addresses.
    pub deny: Vec<IpNet>,
}

/// Why an address was denied. For the operator's log only: tenants get the same message for every address, so that
/// they cannot map the internal network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{address} is blocked: {range}")]
pub struct AddressDenied {
    /// The address in its canonical form.
    pub address: IpAddr,
    /// The kind of special address, or that the operator denies it.
    pub range: &'static str,
}

/// Returns an error for an address that the operator denies, or that is special and not allowed by the operator.
pub fn check(address: IpAddr, rules: &AddressRules) -> Result<(), AddressDenied> {
    let address = canonical(address);
    if rules.deny.iter().any(|net| denies(net, address)) {
        return Err(AddressDenied { address, range: "denied by the operator" });
    }
    match special_range(address) {
        Some(range) if !rules.allow.iter().any(|net| covers(net, address)) => {
            Err(AddressDenied { address, range })
        }
        _ => Ok(()),
    }
}

/// Returns whether a network contains a canonical address. A network of IPv4-mapped addresses counts as its IPv4
/// network.
fn covers(net: &IpNet, address: IpAddr) -> bool {
    match (net, address) {
        (IpNet::V6(net), IpAddr::V4(v4)) if net.network().to_ipv4_mapped().is_some() => {
            net.prefix_len() >= 96 && net.contains(&v4.to_ipv6_mapped())
        }
        _ => net.contains(&address),
    }
}

/// Returns whether a network contains a canonical address or the IPv4 address embedded in it.
fn denies(net: &IpNet, address: IpAddr) -> bool {
    let carried = match address {
        IpAddr::V6(v6) => embedded_v4(v6),
        IpAddr::V4(_) => None,
    };
    covers(net, address) || carried.is_some_and(|carried| covers(net, carried.into()))
}

/// Returns the address that the system connects to: an IPv4-mapped address (`::ffff:a.b.c.d`) becomes its IPv4
/// address. All other addresses with an embedded IPv4 address stay as they are and count as special.
pub fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// Returns the kind of a special address, or `None` for a public one.
pub fn special_range(address: IpAddr) -> Option<&'static str> {
    match canonical(address) {
        IpAddr::V4(address) => special_v4(address),
        IpAddr::V6(address) => special_v6(address),
    }
}

/// Matches the IPv4 special-purpose registry, multicast, and addresses reserved by cloud providers.
fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    Some(match address.octets() {
        // Some of these lie in a range below; they are listed so that the log names the target.
        [169, 254, 169, 254] | [100, 100, 100, 200] | [192, 0, 0, 192] => "cloud metadata",
        // Azure's platform address is public according to all registries.
        [168, 63, 129, 16] => "cloud metadata",
        [0, ..] => "this network",
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => "private",
        [100, 64..=127, ..] => "carrier-grade NAT",
        [127, ..] => "loopback",
        [169, 254, ..] => "link-local",
        [192, 0, 0, _] => "protocol assignments",
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => "documentation",
        [192, 31, 196, _] | [192, 175, 48, _] => "AS112",
        [192, 52, 193, _] => "AMT relay",
        [192, 88, 99, _] => "6to4 relay",
        [198, 18..=19, ..] => "benchmarking",
        [224..=239, ..] => "multicast",
        [255, 255, 255, 255] => "broadcast",
        [240..=255, ..] => "reserved",
        _ => return None,
    })
}

/// Treats every IPv6 address except global unicast as special, and parts of global unicast as well.
fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    if let Some(wrapping) = embedding_kind(address) {
        return Some(wrapping);
    }
    Some(match address.segments() {
        [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254] | [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254] => "cloud metadata",
        [0x100, 0, 0, 0 | 1, ..] => "discard-only",
        [0x5f00, ..] => "segment routing",
        [0xfc00..=0xfdff, ..] => "unique local",
        [0xfe80..=0xfebf, ..] => "link-local",
        [0xfec0..=0xfeff, ..] => "site-local",
        [0xff00..=0xffff, ..] => "multicast",
        // Public internet addresses come only from 2000::/3.
        [0..=0x1fff | 0x4000..=0xffff, ..] => "not global unicast",
        [0x2001, 0..=0x1ff, ..] => "protocol assignments",
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => "documentation",
        [0x2620, 0x4f, 0x8000, ..] => "AS112",
        _ => return None,
    })
}

/// Returns how an IPv6 address embeds an IPv4 address, or `None` if it does not. A tunnel or translator could
/// extract the IPv4 address and connect to it, so no such address is called by default.
fn embedding_kind(address: Ipv6Addr) -> Option<&'static str> {
    Some(match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => "unspecified",
        [0, 0, 0, 0, 0, 0, 0, 1] => "loopback",
        [0, 0, 0, 0, 0, 0, ..] => "IPv4-compatible",
        [0, 0, 0, 0, 0xffff, 0, ..] => "IPv4-translated",
        [0x64, 0xff9b, 0, 0, 0, 0, ..] | [0x64, 0xff9b, 1, ..] => "NAT64",
        [0x2001, 0, ..] => "Teredo",
        [0x2002, ..] => "6to4",
        // An interface id of this form means ISATAP under any prefix, including public ones.
        [_, _, _, _, 0 | 0x200, 0x5efe, ..] => "ISATAP",
        _ => return None,
    })
}

/// Returns the IPv4 address embedded in an IPv6 address, if its form defines where it is.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let v4 = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    let [_, first, second, .., high, low] = address.segments();
    Some(match embedding_kind(address)? {
        "6to4" => v4(first, second),
        // Teredo carries the client's address with all bits inverted.
        "Teredo" => v4(!high, !low),
        "unspecified" | "loopback" => return None,
        _ => v4(high, low),
    })
}

#[cfg(test)]
mod tests;
