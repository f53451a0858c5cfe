//! Which addresses may be called: public ones, and those that the operator allows by name.
//!
//! A judgement of one address. It is asked at connect time, about the very address that is connected to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// The operator's exceptions.
#[derive(Clone, Debug, Default)]
pub struct AddressRules {
    /// Networks that may be called although they are special. An entry is compared with the canonical
    /// address, so IPv4 is allowed by its IPv4 network, however it was written.
    pub allow: Vec<IpNet>,
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

/// Refuses an address that is special, unless the operator allows it.
pub fn check(address: IpAddr, rules: &AddressRules) -> Result<(), Refused> {
    let address = canonical(address);
    match special_range(address) {
        Some(range) if !rules.allow.iter().any(|net| net.contains(&address)) => {
            Err(Refused { address, range })
        }
        _ => Ok(()),
    }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every special network as text, and whatever else must be refused: the registries once more, written
    /// down independently of the code above.
    const REFUSED: [&str; 54] = [
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "168.63.129.16/32",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "255.255.255.255/32",
        "169.254.169.254/32",
        "100.100.100.200/32",
        "192.0.0.192/32",
        "::/128",
        "::1/128",
        "::/96",
        "::ffff:0:0:0/96",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "100:0:0:1::/64",
        "2001::/23",
        "2001::/32",
        "2001:1::1/128",
        "2001:2::/48",
        "2001:3::/32",
        "2001:4:112::/48",
        "2001:10::/28",
        "2001:20::/28",
        "2001:30::/28",
        "2001:db8::/32",
        "2002::/16",
        "2620:4f:8000::/48",
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
        "fd00:ec2::254/128",
        // The complement of 2000::/3.
        "::/3",
        "4000::/2",
        "8000::/1",
        "fd20:ce::254/128",
    ];

    const MAPPED: &str = "::ffff:0:0/96";

    struct Table {
        refused: Vec<IpNet>,
        mapped: IpNet,
    }

    impl Table {
        fn new() -> Self {
            let net = |text: &str| text.parse::<IpNet>().unwrap();
            Self { refused: REFUSED.iter().map(|text| net(text)).collect(), mapped: net(MAPPED) }
        }

        fn refuses(&self, address: IpAddr) -> bool {
            let IpAddr::V6(v6) = address else {
                return self.refused.iter().any(|net| net.contains(&address));
            };
            if self.mapped.contains(&address) {
                return self.refuses(IpAddr::from((u128::from(v6) as u32).to_be_bytes()));
            }
            // The fifth and sixth groups of an ISATAP address.
            let interface = (u128::from(v6) >> 32) as u32;
            interface & !(1 << 25) == 0x5efe || self.refused.iter().any(|net| net.contains(&address))
        }
    }

    /// A stream of numbers from a seed (SplitMix64), so that a million addresses cost little.
    struct Stream(u64);

    impl Stream {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ mixed >> 31
        }

        fn below(&mut self, end: usize) -> usize {
            (self.next() % end as u64) as usize
        }

        fn wide(&mut self) -> u128 {
            u128::from(self.next()) << 64 | u128::from(self.next())
        }

        /// An address at, just outside or somewhere inside a network of the table.
        fn near(&mut self, net: &IpNet) -> IpAddr {
            let pick = self.below(5);
            match net {
                IpNet::V4(net) => {
                    let (first, last) = (u32::from(net.network()), u32::from(net.broadcast()));
                    let inside = first | self.next() as u32 & u32::from(net.hostmask());
                    let picks = [first, last, first.wrapping_sub(1), last.wrapping_add(1), inside];
                    Ipv4Addr::from(picks[pick]).into()
                }
                IpNet::V6(net) => {
                    let (first, last) = (u128::from(net.network()), u128::from(net.broadcast()));
                    let inside = first | self.wide() & u128::from(net.hostmask());
                    let picks = [first, last, first.wrapping_sub(1), last.wrapping_add(1), inside];
                    Ipv6Addr::from(picks[pick]).into()
                }
            }
        }

        /// An IPv4 address inside an IPv6 address, in one of the known ways or in a way that is none.
        fn wrap(&mut self, inner: Ipv4Addr) -> Ipv6Addr {
            let low = u128::from(u32::from(inner));
            let global =
                (0x2600 + self.below(0x800) as u128) << 112 | (self.wide() >> 16 & !(u128::MAX >> 64));
            Ipv6Addr::from(match self.below(11) {
                0 => 0xffff << 32 | low,
                1 => low,
                2 => 0xffff << 48 | low,
                3 => 0x0064_ff9b << 96 | low,
                4 => 0x0064_ff9b_0001 << 80 | low,
                5 => 0x2002 << 112 | low << 80 | u128::from(self.next()),
                6 => 0x2001_0000 << 96 | u128::from(self.next() as u32) << 32 | !low & 0xffff_ffff,
                7 => global | 0x5efe << 32 | low,
                8 => global | 0x0200_5efe << 32 | low,
                9 => global | 0x0300_5efe << 32 | low,
                _ => global | low,
            })
        }

        fn address(&mut self, table: &Table) -> IpAddr {
            let near = |stream: &mut Self| {
                let index = stream.below(table.refused.len());
                stream.near(&table.refused[index])
            };
            match (self.below(6), near(self)) {
                (0, _) => Ipv4Addr::from(self.next() as u32).into(),
                (1, _) => Ipv6Addr::from(0x2 << 124 | self.wide() >> 4).into(),
                (2, _) => Ipv6Addr::from(self.wide()).into(),
                (3, IpAddr::V4(inner)) => self.wrap(inner).into(),
                (3, _) => {
                    let inner = Ipv4Addr::from(self.next() as u32);
                    self.wrap(inner).into()
                }
                // One flipped bit finds a mask that is too wide or too narrow by one.
                (4, IpAddr::V6(near)) => Ipv6Addr::from(u128::from(near) ^ 1 << self.below(128)).into(),
                (_, near) => near,
            }
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_guard_agrees_with_the_table_on_a_million_addresses(seed: u64) {
            let (table, rules, mut stream) = (Table::new(), AddressRules::default(), Stream(seed));
            let mut refused = 0;
            for _ in 0..16_384 {
                let address = stream.address(&table);
                let expected = table.refuses(address);
                prop_assert_eq!(check(address, &rules).is_err(), expected, "{}", address);
                prop_assert_eq!(special_range(address).is_some(), expected, "{}", address);
                refused += usize::from(expected);
            }
            prop_assert!((2_000..14_000).contains(&refused), "a lopsided sample: {} refused", refused);
        }

        #[test]
        fn what_the_operator_allows_is_allowed(bits: u128, length in 0u8..=128) {
            let address = Ipv6Addr::from(bits);
            let net = ipnet::Ipv6Net::new(address, length).unwrap();
            let rules = AddressRules { allow: vec![net.into()] };
            if address.to_ipv4_mapped().is_none() {
                prop_assert_eq!(check(address.into(), &rules), Ok(()));
            }
        }
    }

    #[test]
    fn special_addresses_are_named() {
        for (address, range) in [
            ("0.0.0.0", "this network"),
            ("10.1.2.3", "private"),
            ("172.31.255.255", "private"),
            ("192.168.0.1", "private"),
            ("100.127.0.1", "carrier-grade NAT"),
            ("127.0.0.1", "loopback"),
            ("169.254.0.1", "link-local"),
            ("169.254.169.254", "cloud metadata"),
            ("100.100.100.200", "cloud metadata"),
            ("168.63.129.16", "cloud metadata"),
            ("224.0.0.1", "multicast"),
            ("255.255.255.255", "broadcast"),
            ("255.255.255.254", "reserved"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("::8.8.8.8", "IPv4-compatible"),
            ("::ffff:127.0.0.1", "loopback"),
            ("::ffff:0:8.8.8.8", "IPv4-translated"),
            ("64:ff9b::8.8.8.8", "NAT64"),
            ("64:ff9b:1::8.8.8.8", "NAT64"),
            ("2002:808:808::1", "6to4"),
            ("2001::1", "Teredo"),
            ("2001:20::1", "protocol assignments"),
            ("2600::5efe:a00:1", "ISATAP"),
            ("2600::200:5efe:808:808", "ISATAP"),
            ("fe80::1", "link-local"),
            ("fd00:ec2::254", "cloud metadata"),
            ("fd00::1", "unique local"),
            ("100::1", "discard-only"),
            ("1fff::1", "not global unicast"),
            ("4000::1", "not global unicast"),
        ] {
            assert_eq!(special_range(ip(address)), Some(range), "{address}");
        }
    }

    #[test]
    fn public_addresses_pass() {
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "168.63.129.15",
            "192.0.1.0",
            "198.20.0.0",
            "223.255.255.255",
            "::ffff:8.8.8.8",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2606:4700:4700::1111",
            "2a00:1450::1",
            "3fff:1000::1",
        ] {
            assert_eq!(check(ip(address), &AddressRules::default()), Ok(()), "{address}");
        }
    }

    #[test]
    fn the_allow_list_means_canonical_addresses() {
        let allowing = |net: &str| AddressRules { allow: vec![net.parse().unwrap()] };
        let loopback = allowing("127.0.0.0/8");
        assert_eq!(check(ip("127.0.0.1"), &loopback), Ok(()));
        assert_eq!(check(ip("::ffff:127.0.0.1"), &loopback), Ok(()), "mapped is judged as IPv4");
        for wrapped in ["::127.0.0.1", "64:ff9b::7f00:1", "::ffff:0:7f00:1", "2002:7f00:1::", "::1"] {
            assert!(check(ip(wrapped), &loopback).is_err(), "{wrapped}");
        }
        assert_eq!(check(ip("64:ff9b::7f00:1"), &allowing("64:ff9b::/96")), Ok(()));
        assert!(
            check(ip("::ffff:127.0.0.1"), &allowing("::/0")).is_err(),
            "no IPv6 network names an IPv4 address"
        );
        let refused = check(ip("::ffff:10.0.0.1"), &loopback).unwrap_err();
        assert_eq!(refused, Refused { address: ip("10.0.0.1"), range: "private" });
        assert_eq!(refused.to_string(), "10.0.0.1 is not to be called: private");
    }
}
