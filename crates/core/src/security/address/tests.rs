//! Compares the address check with an independent table, on millions of addresses.

use proptest::prelude::*;

use super::*;

/// Every network that must be refused, as text: a second copy of the registries, written independently of the code
/// above.
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

/// Seeded generator of numbers (SplitMix64), so that a million addresses cost little.
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

    /// Returns an address at, just outside or somewhere inside a network of the table.
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

    /// Embeds an IPv4 address in an IPv6 address, in one of the known forms or in an undefined one.
    fn wrap(&mut self, inner: Ipv4Addr) -> Ipv6Addr {
        let low = u128::from(u32::from(inner));
        let global = (0x2600 + self.below(0x800) as u128) << 112 | (self.wide() >> 16 & !(u128::MAX >> 64));
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
            // A single flipped bit detects a mask that is too wide or too narrow by one.
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
    fn deny_list_overrides_allow_list_on_random_addresses(seed: u64) {
        let (table, mut stream) = (Table::new(), Stream(seed));
        let mut picked: Vec<IpNet> = ["8.0.0.0/7", "93.184.0.0/16", "2600::/12", "2a00:1450::/32"]
            .map(|net| net.parse().unwrap())
            .to_vec();
        picked.extend((0..3).map(|_| table.refused[stream.below(table.refused.len())]));
        let rules = AddressRules { allow: table.refused.clone(), deny: picked.clone() };
        for _ in 0..2_048 {
            let address = match stream.below(2) {
                0 => stream.address(&table),
                _ => {
                    let index = stream.below(picked.len());
                    stream.near(&picked[index])
                }
            };
            let plain = address.to_canonical();
            // All embedding forms are allowed here except the two of ISATAP, which no network covers.
            let denied = picked.iter().any(|net| net.contains(&plain));
            if denied {
                prop_assert!(check(address, &rules).is_err(), "{}", address);
            }
            if let IpAddr::V4(inner) = plain {
                for wrapped in wrappings(inner) {
                    prop_assert!(!denied || check(wrapped, &rules).is_err(), "{}", wrapped);
                }
                prop_assert_eq!(check(address, &rules).is_err(), denied, "{}", address);
            }
        }
    }

    #[test]
    fn allowed_network_admits_its_addresses(bits: u128, length in 0u8..=128) {
        let address = Ipv6Addr::from(bits);
        let net = ipnet::Ipv6Net::new(address, length).unwrap();
        let rules = AddressRules { allow: vec![net.into()], ..AddressRules::default() };
        if address.to_ipv4_mapped().is_none() {
            prop_assert_eq!(check(address.into(), &rules), Ok(()));
        }
    }
}

/// Returns the addresses at, beside and one bit away from both ends of a network.
fn borders(net: &IpNet) -> Vec<IpAddr> {
    let mut found = Vec::new();
    match net {
        IpNet::V4(net) => {
            for end in [u32::from(net.network()), u32::from(net.broadcast())] {
                let beside = (-2..=2).map(|step| end.wrapping_add_signed(step));
                let all = beside.chain((0..32).map(|bit| end ^ 1 << bit));
                found.extend(all.map(|bits| IpAddr::from(Ipv4Addr::from(bits))));
            }
        }
        IpNet::V6(net) => {
            for end in [u128::from(net.network()), u128::from(net.broadcast())] {
                let beside = (-2..=2).map(|step| end.wrapping_add_signed(step));
                let all = beside.chain((0..128).map(|bit| end ^ 1 << bit));
                found.extend(all.map(|bits| IpAddr::from(Ipv6Addr::from(bits))));
            }
        }
    }
    found
}

/// Returns every form in which an IPv6 address can embed an IPv4 address, written out manually.
fn wrappings(inner: Ipv4Addr) -> Vec<IpAddr> {
    let [a, b, c, d] = inner.octets();
    let (high, low) = (format!("{a:02x}{b:02x}"), format!("{c:02x}{d:02x}"));
    let (not_high, not_low) = (format!("{:02x}{:02x}", !a, !b), format!("{:02x}{:02x}", !c, !d));
    let texts = [
        format!("::ffff:{inner}"),
        format!("::ffff:0:{inner}"),
        format!("64:ff9b::{inner}"),
        format!("64:ff9b:1::{inner}"),
        format!("2002:{high}:{low}::1"),
        format!("2001:0:808:808::{not_high}:{not_low}"),
        format!("2600:1:2:3:0:5efe:{high}:{low}"),
        format!("2600:1:2:3:200:5efe:{high}:{low}"),
    ];
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn check_matches_table_at_network_boundaries() {
    let (table, rules) = (Table::new(), AddressRules::default());
    let mut checked_count = 0;
    for address in table.refused.iter().flat_map(borders) {
        assert_eq!(check(address, &rules).is_err(), table.refuses(address), "{address}");
        checked_count += 1;
        let IpAddr::V4(inner) = address else { continue };
        for wrapped in wrappings(inner) {
            assert_eq!(check(wrapped, &rules).is_err(), table.refuses(wrapped), "{wrapped}");
            checked_count += 1;
        }
    }
    assert!(checked_count > 20_000, "only {checked_count}");
}

#[test]
fn deny_takes_precedence_over_allow() {
    let rules = |allow: &[&str], deny: &[&str]| {
        let nets = |list: &[&str]| list.iter().map(|net| net.parse().unwrap()).collect();
        AddressRules { allow: nets(allow), deny: nets(deny) }
    };
    let public = rules(&[], &["1.2.3.0/24", "2606:4700::/32"]);
    for (address, denied) in [
        ("1.2.3.0", true),
        ("1.2.3.255", true),
        ("::ffff:1.2.3.4", true),
        ("1.2.2.255", false),
        ("1.2.4.0", false),
        ("2606:4700::1111", true),
        ("2606:4701::1", false),
    ] {
        assert_eq!(check(ip(address), &public).is_err(), denied, "{address}");
    }
    let both = rules(&["10.0.0.0/8", "64:ff9b::/96", "2002::/16"], &["10.0.0.0/16", "0.0.0.0/1"]);
    assert!(check(ip("10.0.0.1"), &both).is_err() && check(ip("10.1.0.1"), &both).is_err());
    let refused = check(ip("8.8.8.8"), &both).unwrap_err();
    assert_eq!(refused.range, "denied by the operator");
    assert_eq!(check(ip("200.0.0.1"), &both), Ok(()));
    // An allowed embedding form is denied if the embedded address is denied.
    assert!(check(ip("64:ff9b::1.2.3.4"), &both).is_err());
    assert!(check(ip("2002:102:304::1"), &both).is_err());
    assert_eq!(check(ip("64:ff9b::200.2.3.4"), &both), Ok(()));
    let mapped = rules(&["::ffff:10.0.0.0/104"], &["::ffff:10.1.0.0/112"]);
    assert_eq!(check(ip("10.0.0.1"), &mapped), Ok(()), "a network of mapped addresses is the IPv4 one");
    assert!(check(ip("10.1.0.1"), &mapped).is_err());
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
fn allow_list_matches_canonical_addresses() {
    let allowing = |net: &str| AddressRules { allow: vec![net.parse().unwrap()], deny: Vec::new() };
    let loopback = allowing("127.0.0.0/8");
    assert_eq!(check(ip("127.0.0.1"), &loopback), Ok(()));
    assert_eq!(check(ip("::ffff:127.0.0.1"), &loopback), Ok(()), "a mapped address is checked as IPv4");
    for wrapped in ["::127.0.0.1", "64:ff9b::7f00:1", "::ffff:0:7f00:1", "2002:7f00:1::", "::1"] {
        assert!(check(ip(wrapped), &loopback).is_err(), "{wrapped}");
    }
    assert_eq!(check(ip("64:ff9b::7f00:1"), &allowing("64:ff9b::/96")), Ok(()));
    assert!(
        check(ip("::ffff:127.0.0.1"), &allowing("::/0")).is_err(),
        "an IPv6 network does not contain IPv4 addresses"
    );
    let refused = check(ip("::ffff:10.0.0.1"), &loopback).unwrap_err();
    assert_eq!(refused, AddressDenied { address: ip("10.0.0.1"), range: "private" });
    assert_eq!(refused.to_string(), "10.0.0.1 is blocked: private");
}

mod slow {
    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn check_matches_table_on_a_million_addresses(seed: u64) {
            let (table, rules, mut stream) = (Table::new(), AddressRules::default(), Stream(seed));
            let mut refused = 0;
            for _ in 0..16_384 {
                let address = stream.address(&table);
                let expected = table.refuses(address);
                prop_assert_eq!(check(address, &rules).is_err(), expected, "{}", address);
                prop_assert_eq!(special_range(address).is_some(), expected, "{}", address);
                refused += usize::from(expected);
            }
            prop_assert!((2_000..14_000).contains(&refused), "unbalanced sample: {} refused", refused);
        }
    }
}
