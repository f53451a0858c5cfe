//! Which addresses may be called: public ones, and those that the operator allows by name.
//!
//! A judgement of one address. It is asked at connect time, about the very address that is connected to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// The operator's networks. An entry is compared with the canonical address, so IPv4 is meant by its IPv4
/// network, however an address was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressRules {
    /// Networks that may be called although they are special.
    pub allow: Vec<IpNet>,
    /// Networks that may not be called, whatever else is said; public ones too. An IPv4 network is denied
    /// inside of every wrapping as well.
    pub deny: Vec<IpNet>,
}

/// Why an address was refused. For the operator's log alone: tenants are told the same thing for every
/// address, lest they map our network by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{address} is not to be called: {range}")]
pub struct Refused {
    /// The address in its canonical form.
    pub address: IpAddr,
    /// The kind of special address that it is.
    pub range: &'static str,
}

/// Refuses an address that the operator denies, and one that is special unless the operator allows it.
pub fn check(address: IpAddr, rules: &AddressRules) -> Result<(), Refused> {
    let address = canonical(address);
    if rules.deny.iter().any(|net| denies(net, address)) {
        return Err(Refused { address, range: "denied by the operator" });
    }
    match special_range(address) {
        Some(range) if !rules.allow.iter().any(|net| covers(net, address)) => Err(Refused { address, range }),
        _ => Ok(()),
    }
}

/// Whether a network contains a canonical address. A network of mapped addresses is its IPv4 network.
fn covers(net: &IpNet, address: IpAddr) -> bool {
    match (net, address) {
        (IpNet::V6(net), IpAddr::V4(v4)) if net.network().to_ipv4_mapped().is_some() => {
            net.prefix_len() >= 96 && net.contains(&v4.to_ipv6_mapped())
        }
        _ => net.contains(&address),
    }
}

/// Whether a network contains a canonical address, or the IPv4 address that it carries inside.
fn denies(net: &IpNet, address: IpAddr) -> bool {
    let carried = match address {
        IpAddr::V6(v6) => carried_v4(v6),
        IpAddr::V4(_) => None,
    };
    covers(net, address) || carried.is_some_and(|carried| covers(net, carried.into()))
}

/// The address that is really meant: a mapped one (`::ffff:a.b.c.d`) is its IPv4 address, since that is
/// what the system connects to. All other wrappings stay as they are, and are special as such.
pub fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// The kind of special address this is, or none for a public one.
pub fn special_range(address: IpAddr) -> Option<&'static str> {
    match canonical(address) {
        IpAddr::V4(address) => special_v4(address),
        IpAddr::V6(address) => special_v6(address),
    }
}

/// The IPv4 special-purpose registry, multicast, and what clouds keep for themselves.
fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    Some(match address.octets() {
        // Some of these lie in a range below; they are named so that the log says what was tried.
        [169, 254, 169, 254] | [100, 100, 100, 200] | [192, 0, 0, 192] => "cloud metadata",
        // Azure's platform address is a public one by all registries.
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

/// Everything in IPv6 is special but global unicast, and parts of that are as well.
fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    if let Some(wrapping) = wrapped_v4(address) {
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
        // The only block that addresses of the public internet come from is 2000::/3.
        [0..=0x1fff | 0x4000..=0xffff, ..] => "not global unicast",
        [0x2001, 0..=0x1ff, ..] => "protocol assignments",
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => "documentation",
        [0x2620, 0x4f, 0x8000, ..] => "AS112",
        _ => return None,
    })
}

/// The way in which the address carries an IPv4 address inside, or none. A tunnel or translator on the way
/// would unwrap it and connect inside, so no wrapping is called, whatever it carries.
fn wrapped_v4(address: Ipv6Addr) -> Option<&'static str> {
    Some(match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => "unspecified",
        [0, 0, 0, 0, 0, 0, 0, 1] => "loopback",
        [0, 0, 0, 0, 0, 0, ..] => "IPv4-compatible",
        [0, 0, 0, 0, 0xffff, 0, ..] => "IPv4-translated",
        [0x64, 0xff9b, 0, 0, 0, 0, ..] | [0x64, 0xff9b, 1, ..] => "NAT64",
        [0x2001, 0, ..] => "Teredo",
        [0x2002, ..] => "6to4",
        // An interface id of this form means ISATAP below any prefix, a public one included.
        [_, _, _, _, 0 | 0x200, 0x5efe, ..] => "ISATAP",
        _ => return None,
    })
}

/// The IPv4 address inside a wrapping, where its form says which it is.
fn carried_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let v4 = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    let [_, first, second, .., high, low] = address.segments();
    Some(match wrapped_v4(address)? {
        "6to4" => v4(first, second),
        // Teredo carries the client's address with all bits turned over.
        "Teredo" => v4(!high, !low),
        "unspecified" | "loopback" => return None,
        _ => v4(high, low),
    })
}

#[cfg(test)]
mod tests;
