//! Egress rules: which hosts, ports and networks the operator allows to be called.
//!
//! Pure checks. Names and ports can be checked before the host is resolved; addresses are checked in
//! `address.rs`, with the very address that is connected to. All checks must pass: a listed name does not allow
//! a special address, and an allowed network does not allow a port.

use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use url::{Host, Url};

use crate::security::address::{self, AddressRules};

/// Ports of protocols other than HTTP, such as SMTP servers, shells and databases: a request there could only do
/// harm. The list contains the ports that browsers block (the "bad ports" of the Fetch standard) and those of
/// file shares, remote desktops, databases, caches and queues. Sorted, for the binary search.
const NON_HTTP_PORTS: [u16; 95] = [
    0, 1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103,
    104, 109, 110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 445, 465, 512, 513,
    514, 515, 526, 530, 531, 532, 540, 548, 554, 556, 563, 587, 601, 636, 873, 989, 990, 993, 995, 1433,
    1521, 1719, 1720, 1723, 2049, 3306, 3389, 3659, 4045, 4190, 5060, 5061, 5432, 5672, 6000, 6379, 6566,
    6665, 6666, 6667, 6668, 6669, 6679, 6697, 9042, 10080, 11211, 27017,
];

/// The operator's rules about where requests may be sent.
///
/// ```
/// use redrive_core::security::egress_rules::{EgressDenied, EgressRules};
///
/// let allow_hosts = vec!["*.example.com".parse().unwrap()];
/// let rules = EgressRules { allow_hosts, ..EgressRules::default() };
/// // A wildcard matches the names below a name, not the name itself.
/// assert_eq!(rules.check_name("a.example.com", 443), Ok(()));
/// assert_eq!(rules.check_name("example.com", 443), Err(EgressDenied::HostNotListed));
/// // All checks must pass: an allowed name allows neither another protocol's port nor a private address.
/// assert_eq!(rules.check_name("a.example.com", 5432), Err(EgressDenied::PortNotHttp(5432)));
/// assert!(rules.check_address([10, 0, 0, 1].into()).is_err());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EgressRules {
    /// Allowed and denied addresses.
    pub networks: AddressRules,
    /// Only these hosts may be called; empty for all.
    pub allow_hosts: Vec<HostPattern>,
    /// These hosts may not be called; takes precedence over `allow_hosts`.
    pub deny_hosts: Vec<HostPattern>,
    /// Only these ports may be called; if empty, all but those known for other protocols than HTTP.
    pub ports: Vec<PortRange>,
    /// Only `https` may be used.
    pub https_only: bool,
    /// The host of this installation's public URL. Never called: a webhook there would publish its own events again.
    pub own_host: Option<OwnHost>,
}

/// Why a request is denied. For the operator's log and metrics; [`EgressDenied::is_hidden_for`] decides which
/// reasons a tenant must not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EgressDenied {
    /// The port is not in the list of allowed ports.
    #[error("port {0} is not in egress.ports")]
    PortNotListed(u16),
    /// The port is known for another protocol than HTTP.
    #[error("port {0} is not an HTTP port; add it to egress.ports to allow it")]
    PortNotHttp(u16),
    /// The host is denied.
    #[error("the host is in egress.deny_hosts")]
    HostDenied,
    /// The host is not in the list of allowed hosts.
    #[error("the host is not in egress.allow_hosts")]
    HostNotListed,
    /// The URL begins with `http://`.
    #[error("egress.allow_http is off")]
    PlainHttp,
    /// The host is that of `server.public_url`.
    #[error("the host is this installation itself (server.public_url)")]
    OwnHost,
    /// The name always refers to this machine, and loopback addresses are not allowed.
    #[error("the host is localhost, and loopback addresses are not in egress.allow_networks")]
    Localhost,
    /// The address is denied.
    #[error(transparent)]
    Address(#[from] address::AddressDenied),
    /// The address and port belong to a listener of this server.
    #[error("the server itself listens on this address")]
    OwnListener,
}

impl EgressDenied {
    /// The metric labels of all reasons.
    pub const LABELS: [&str; 5] = ["address", "own_listener", "host", "port", "scheme"];

    /// Returns the metric label of the reason.
    pub fn label(self) -> &'static str {
        match self {
            Self::Address(_) => "address",
            Self::OwnListener => "own_listener",
            Self::HostDenied | Self::HostNotListed => "host",
            Self::PortNotListed(_) | Self::PortNotHttp(_) => "port",
            Self::PlainHttp => "scheme",
            Self::OwnHost | Self::Localhost => "host",
        }
    }

    /// Returns whether the denial must look like a name without an address. If the host is a name, every denial that
    /// depends on the name or its addresses must: otherwise a tenant could find out which internal names exist.
    /// Scheme, port and a literal address are part of the URL, so denying those reveals nothing.
    pub fn is_hidden_for(self, host: &str) -> bool {
        let is_known = matches!(
            self,
            Self::PortNotListed(_) | Self::PortNotHttp(_) | Self::PlainHttp | Self::OwnHost | Self::Localhost
        );
        !is_known && literal_address(host).is_none()
    }
}

/// Returns the IP address if a URL's host is one. IPv6 addresses may be in brackets.
pub fn literal_address(host: &str) -> Option<IpAddr> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.parse().ok()
}

/// Hash that identifies a destination host across tenants and webhooks. If the hashes of two hosts collide, the
/// hosts only share a limit, as two webhooks with the same host do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostKey(u64);

impl HostKey {
    /// Returns the key of a URL's host. Letter case, trailing dots and the IPv4-mapped notation of an IPv4 address
    /// make no difference.
    pub fn from_host(host: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        match literal_address(host) {
            Some(address) => address.to_canonical().hash(&mut hasher),
            None => normalize_host(host).hash(&mut hasher),
        }
        Self(hasher.finish())
    }
}

impl EgressRules {
    /// Checks whether a URL's scheme may be used.
    pub fn check_scheme(&self, is_https: bool) -> Result<(), EgressDenied> {
        if is_https || !self.https_only { Ok(()) } else { Err(EgressDenied::PlainHttp) }
    }

    /// Checks a URL's host and port, without resolving the host.
    pub fn check_name(&self, host: &str, port: u16) -> Result<(), EgressDenied> {
        self.check_port(port)?;
        let host = normalize_host(host);
        if self.own_host.as_ref().is_some_and(|own| own.is(&host, port)) {
            return Err(EgressDenied::OwnHost);
        }
        if self.deny_hosts.iter().any(|pattern| pattern.matches(&host)) {
            return Err(EgressDenied::HostDenied);
        }
        if !self.allow_hosts.is_empty() && !self.allow_hosts.iter().any(|pattern| pattern.matches(&host)) {
            return Err(EgressDenied::HostNotListed);
        }
        Ok(())
    }

    /// Checks the host of a URL as far as possible without DNS: a literal address, and names that always refer to this
    /// machine (RFC 6761).
    pub fn check_literal(&self, host: &Host<&str>) -> Result<(), EgressDenied> {
        match host {
            Host::Ipv4(address) => self.check_address((*address).into()),
            Host::Ipv6(address) => self.check_address((*address).into()),
            Host::Domain(name) if is_localhost(&normalize_host(name)) => {
                let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
                match loopback.into_iter().any(|address| self.check_address(address).is_ok()) {
                    true => Ok(()),
                    false => Err(EgressDenied::Localhost),
                }
            }
            Host::Domain(_) => Ok(()),
        }
    }

    /// Checks an address right before it is connected to.
    pub fn check_address(&self, address: IpAddr) -> Result<(), EgressDenied> {
        Ok(address::check(address, &self.networks)?)
    }

    fn check_port(&self, port: u16) -> Result<(), EgressDenied> {
        if self.ports.is_empty() {
            return match NON_HTTP_PORTS.binary_search(&port) {
                Ok(_) => Err(EgressDenied::PortNotHttp(port)),
                Err(_) => Ok(()),
            };
        }
        match self.ports.iter().any(|range| range.contains(port)) {
            true => Ok(()),
            false => Err(EgressDenied::PortNotListed(port)),
        }
    }
}

/// Returns a host in the form in which hosts are compared: lower case, without a trailing dot.
fn normalize_host(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

fn is_localhost(bare: &str) -> bool {
    bare == "localhost" || bare.ends_with(".localhost")
}

/// The public host of this installation, in the form in which hosts are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnHost {
    host: String,
    address: Option<IpAddr>,
    /// If set, only this port matches. Set for loopback only, where receivers under development have the same host.
    port: Option<u16>,
}

impl OwnHost {
    /// Returns the host of a public URL, or `None` if the text is not a URL with a host.
    pub fn from_url(public_url: &str) -> Option<Self> {
        let url = Url::parse(public_url).ok()?;
        let address = match url.host()? {
            Host::Ipv4(address) => Some(IpAddr::from(address)),
            Host::Ipv6(address) => Some(address::canonical(address.into())),
            Host::Domain(_) => None,
        };
        let host = normalize_host(url.host_str()?);
        let is_loopback = address.is_some_and(|address| address.is_loopback()) || is_localhost(&host);
        let port = url.port_or_known_default().filter(|_| is_loopback);
        Some(Self { host, address, port })
    }

    /// Returns whether a URL's normalized host and port refer to this installation.
    fn is(&self, host: &str, port: u16) -> bool {
        let is_same_host = match self.address {
            None => host == self.host,
            Some(own) => {
                let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
                literal.parse().is_ok_and(|address: IpAddr| address::canonical(address) == own)
            }
        };
        is_same_host && self.port.is_none_or(|own| own == port)
    }
}

/// A name (`hooks.example.com`), or all names below one (`*.example.com`, which excludes `example.com`).
/// Stored in the form that URLs have: lower case, other scripts as `xn--…`, without a trailing dot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPattern {
    /// Whether the pattern matches the names below `name` instead of `name` itself.
    below: bool,
    name: String,
}

impl HostPattern {
    /// Returns whether the pattern matches a normalized host.
    fn matches(&self, host: &str) -> bool {
        match self.below {
            false => host == self.name,
            true => host.strip_suffix(&*self.name).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
        }
    }
}

/// Error for an invalid host pattern or port range, described for its author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRule(String);

impl FromStr for HostPattern {
    type Err = InvalidRule;

    fn from_str(text: &str) -> Result<Self, InvalidRule> {
        let bad = |why: &str| InvalidRule(format!("{text:?} {why}"));
        let (below, name) = text.strip_prefix("*.").map_or((false, text), |name| (true, name));
        if name.contains('*') {
            return Err(bad("has a * that is not its whole first label; use the form *.example.com"));
        }
        if name.contains(['/', ':', '@', '?', '#', '[', ']', '%']) {
            return Err(bad("must be a host name without scheme, port or path, such as hooks.example.com"));
        }
        match Host::parse(name.trim_end_matches('.')) {
            Ok(Host::Domain(name)) if name.split('.').all(|label| !label.is_empty()) => {
                Ok(Self { below, name: normalize_host(&name) })
            }
            Ok(Host::Ipv4(_) | Host::Ipv6(_)) => {
                Err(bad("is an IP address; use egress.allow_networks or egress.deny_networks"))
            }
            _ => Err(bad("is not a host name; use one such as hooks.example.com or *.example.com")),
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.below { "*." } else { "" }, self.name)
    }
}

impl Serialize for HostPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HostPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A port (`443`), or an inclusive range (`8000-8999`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl FromStr for PortRange {
    type Err = InvalidRule;

    fn from_str(text: &str) -> Result<Self, InvalidRule> {
        let port = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u16>().ok().filter(|port| digits && *port > 0)
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self { first, last }),
            _ => Err(InvalidRule(format!(
                "{text:?} is not a port or a port range; use ports from 1 to 65535, such as 443 or 8000-8999"
            ))),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

impl Serialize for PortRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PortRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(i64),
            Text(String),
        }
        let text = match Form::deserialize(deserializer) {
            Ok(Form::Number(port)) => port.to_string(),
            Ok(Form::Text(text)) => text,
            Err(_) => return Err(de::Error::custom("expected a port such as 443, or \"8000-8999\"")),
        };
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use url::Url;

    use super::*;

    fn hosts(patterns: &[&str]) -> Vec<HostPattern> {
        patterns.iter().map(|pattern| pattern.parse().unwrap()).collect()
    }

    fn ports(ranges: &[&str]) -> Vec<PortRange> {
        ranges.iter().map(|range| range.parse().unwrap()).collect()
    }

    fn denying(patterns: &[&str]) -> EgressRules {
        EgressRules { deny_hosts: hosts(patterns), ..EgressRules::default() }
    }

    fn allowing(patterns: &[&str]) -> EgressRules {
        EgressRules { allow_hosts: hosts(patterns), ..EgressRules::default() }
    }

    #[test]
    fn host_pattern_matches_name_and_wildcard_names_below() {
        let cases = [
            ("example.com", "example.com", true),
            ("example.com", "EXAMPLE.com.", true),
            ("Example.COM.", "example.com", true),
            ("example.com", "www.example.com", false),
            ("example.com", "example.com.evil.example", false),
            ("*.example.com", "www.example.com", true),
            ("*.example.com", "a.b.EXAMPLE.com.", true),
            ("*.example.com", "example.com", false),
            ("*.example.com", ".example.com", false),
            ("*.example.com", "notexample.com", false),
            ("*.example.com", "example.com.evil.example", false),
            ("*.Bücher.example", "www.xn--bcher-kva.example", true),
            ("b\u{fc}cher.example", "xn--bcher-kva.example", true),
            ("ｅｘａｍｐｌｅ.com", "example.com", true),
            ("localhost", "localhost.", true),
            ("*.internal", "db.internal", true),
        ];
        for (pattern, host, named) in cases {
            let denied = denying(&[pattern]).check_name(host, 443);
            assert_eq!(denied == Err(EgressDenied::HostDenied), named, "{pattern} and {host}");
            let allowed = allowing(&[pattern]).check_name(host, 443);
            assert_eq!(allowed.is_ok(), named, "{pattern} and {host}");
        }
    }

    #[test]
    fn deny_takes_precedence_and_allow_list_is_exclusive() {
        let rules = EgressRules { deny_hosts: hosts(&["bad.example.com"]), ..allowing(&["*.example.com"]) };
        assert_eq!(rules.check_name("good.example.com", 443), Ok(()));
        assert_eq!(rules.check_name("bad.example.com", 443), Err(EgressDenied::HostDenied));
        assert_eq!(rules.check_name("example.com", 443), Err(EgressDenied::HostNotListed));
        for address in ["93.184.215.14", "[2606:4700::1111]"] {
            assert_eq!(rules.check_name(address, 443), Err(EgressDenied::HostNotListed), "{address}");
        }
        assert!(
            allowing(&["inside.example"]).check_address([10, 0, 0, 1].into()).is_err(),
            "an allowed name does not allow an address"
        );
    }

    fn owned_by(public_url: &str) -> EgressRules {
        EgressRules { own_host: OwnHost::from_url(public_url), ..EgressRules::default() }
    }

    #[test]
    fn own_public_host_is_denied_in_every_spelling() {
        let is_own = |public_url: &str, url: &str| {
            let url = Url::parse(url).unwrap();
            let port = url.port_or_known_default().unwrap();
            let checked = owned_by(public_url).check_name(url.host_str().unwrap(), port);
            assert!(matches!(checked, Ok(()) | Err(EgressDenied::OwnHost)), "{url}: {checked:?}");
            checked.is_err()
        };
        for url in [
            "https://hooks.example.com/",
            "https://HOOKS.Example.com./v1/events",
            "http://hooks.example.com:8080/",
            "https://ｈｏｏｋｓ.example.com/",
        ] {
            assert!(is_own("https://Hooks.example.com:8443/redrive", url), "{url}");
        }
        assert!(is_own("https://b\u{fc}cher.example", "https://xn--bcher-kva.example/"));
        assert!(is_own("https://93.184.215.14", "https://[::ffff:93.184.215.14]:8080/"));
        assert!(is_own("https://[2606:4700::1111]", "https://[2606:4700:0::1111]/"));
        for url in
            ["https://example.com/", "https://a.hooks.example.com/", "https://hooks.example.com.evil.org/"]
        {
            assert!(!is_own("https://hooks.example.com", url), "{url}");
        }
        // Receivers under development share the host, so the port decides.
        for own in ["http://127.0.0.1:8080", "http://localhost:8080"] {
            let other = own.replace("8080", "9000");
            assert!(is_own(own, own) && !is_own(own, &other), "{own}");
        }
        assert_eq!(OwnHost::from_url("hooks.example.com"), None);
    }

    #[test]
    fn literal_address_and_localhost_are_checked_without_dns() {
        let check = |rules: &EgressRules, host: &str| {
            let url = Url::parse(&format!("https://{host}/")).unwrap();
            rules.check_literal(&url.host().unwrap()).is_ok()
        };
        let public = EgressRules::default();
        for host in
            ["127.0.0.1", "0x7f.1", "2130706433", "10.1.2.3", "[::1]", "[::ffff:10.0.0.1]", "169.254.169.254"]
        {
            assert!(!check(&public, host), "{host}");
        }
        for host in ["localhost", "LOCALHOST.", "a.localhost"] {
            assert!(!check(&public, host), "{host}");
        }
        for host in ["93.184.215.14", "a.example", "localhost.example", "notlocalhost"] {
            assert!(check(&public, host), "{host}");
        }
        let networks = AddressRules { allow: vec!["127.0.0.0/8".parse().unwrap()], deny: Vec::new() };
        let dev = EgressRules { networks, ..EgressRules::default() };
        assert!(check(&dev, "127.0.0.1") && check(&dev, "localhost") && !check(&dev, "10.0.0.1"));
    }

    #[test]
    fn plain_http_is_denied_only_if_https_is_required() {
        let rules = EgressRules { https_only: true, ..EgressRules::default() };
        assert_eq!(rules.check_scheme(false), Err(EgressDenied::PlainHttp));
        assert_eq!(rules.check_scheme(true), Ok(()));
        assert_eq!(EgressRules::default().check_scheme(false), Ok(()));
    }

    #[test]
    fn denials_are_hidden_for_names_but_not_for_literal_addresses() {
        let inside = EgressRules::default().check_address([10, 0, 0, 1].into()).unwrap_err();
        for about_host in
            [inside, EgressDenied::OwnListener, EgressDenied::HostDenied, EgressDenied::HostNotListed]
        {
            for name in ["db.internal", "db", "localhost", "xn--bcher-kva.example", "10.0.0.1.example"] {
                assert!(about_host.is_hidden_for(name), "{about_host:?} {name}");
            }
            for literal in ["10.0.0.1", "[::1]", "[::ffff:7f00:1]"] {
                assert!(!about_host.is_hidden_for(literal), "{about_host:?} {literal}");
            }
        }
        for about_url in
            [EgressDenied::PlainHttp, EgressDenied::PortNotHttp(22), EgressDenied::PortNotListed(80)]
        {
            assert!(!about_url.is_hidden_for("db.internal"), "{about_url:?}");
        }
    }

    #[test]
    fn host_key_is_the_same_for_every_spelling_of_a_host() {
        let same = |a: &str, b: &str| HostKey::from_host(a) == HostKey::from_host(b);
        assert!(same("a.example", "A.Example."));
        assert!(same("127.0.0.1", "[::ffff:127.0.0.1]"));
        assert!(same("[::1]", "[0:0:0:0:0:0:0:1]"));
        assert!(!same("a.example", "b.example") && !same("127.0.0.1", "127.0.0.2"));
    }

    #[test]
    fn invalid_host_pattern_is_rejected_with_hint() {
        for (text, expected) in [
            ("", "not a host name"),
            (".", "not a host name"),
            ("*.", "not a host name"),
            ("*", "use the form *.example.com"),
            ("a.*.example.com", "use the form *.example.com"),
            ("*example.com", "use the form *.example.com"),
            ("*.*.com", "use the form *.example.com"),
            ("a..example.com", "not a host name"),
            ("a b", "not a host name"),
            ("https://example.com", "without scheme, port or path"),
            ("example.com:443", "without scheme, port or path"),
            ("example.com/x", "without scheme, port or path"),
            ("u@example.com", "without scheme, port or path"),
            ("10.0.0.1", "deny_networks"),
            ("0x7f.1", "deny_networks"),
            ("[::1]", "without scheme, port or path"),
        ] {
            let message = text.parse::<HostPattern>().unwrap_err().to_string();
            assert!(message.contains(expected) && message.starts_with(&format!("{text:?}")), "{message}");
        }
    }

    #[test]
    fn without_port_list_only_non_http_ports_are_denied() {
        let rules = EgressRules::default();
        assert!(NON_HTTP_PORTS.is_sorted(), "the binary search needs a sorted list");
        for port in [80, 443, 3000, 5000, 8000, 8080, 8443, 9000, 9200, 32768, 65535] {
            assert_eq!(rules.check_name("a.example", port), Ok(()), "{port}");
        }
        for port in [0, 22, 25, 53, 110, 143, 389, 445, 465, 587, 3306, 5432, 6379, 6667, 11211, 27017] {
            let refused = Err(EgressDenied::PortNotHttp(port));
            assert_eq!(rules.check_name("a.example", port), refused, "{port}");
        }
        let ephemeral = NON_HTTP_PORTS.iter().filter(|port| **port >= 32_768).count();
        assert_eq!(ephemeral, 0, "ephemeral ports belong to no particular protocol");
    }

    #[test]
    fn port_list_is_exclusive() {
        let rules = EgressRules { ports: ports(&["443", "25", "8000-8999"]), ..EgressRules::default() };
        for port in [443, 25, 8000, 8500, 8999] {
            assert_eq!(rules.check_name("a.example", port), Ok(()), "{port}");
        }
        for port in [0, 80, 22, 442, 444, 7999, 9000, 65535] {
            assert_eq!(rules.check_name("a.example", port), Err(EgressDenied::PortNotListed(port)), "{port}");
        }
        for bad in
            ["", "0", "0-5", "65536", "-1", "+80", " 80", "80-", "-80", "90-80", "http", "1-2-3", "８０"]
        {
            let message = bad.parse::<PortRange>().unwrap_err().to_string();
            assert!(message.contains("8000-8999"), "{message}");
        }
    }

    #[test]
    fn rules_round_trip_through_text() {
        let read = |json: &str| serde_json::from_str::<Vec<PortRange>>(json);
        let both = read("[443, \"25\", \"8000-8999\"]").unwrap();
        assert_eq!(serde_json::to_string(&both).unwrap(), r#"["443","25","8000-8999"]"#);
        assert!(read("[0]").unwrap_err().to_string().contains("1 to 65535"));
        assert!(read("[true]").unwrap_err().to_string().contains("expected a port"));
        let hosts: Vec<HostPattern> = serde_json::from_str(r#"["*.B\u00fccher.example."]"#).unwrap();
        assert_eq!(serde_json::to_string(&hosts).unwrap(), r#"["*.xn--bcher-kva.example"]"#);
    }

    proptest! {
        #[test]
        fn denied_host_is_denied_in_every_spelling(
            labels in prop::collection::vec("[a-z]{1,8}", 1..4),
            shout in any::<u64>(),
            dots in 0..3usize,
            pattern in prop::sample::select(&["example.org", "*.example.org"][..]),
        ) {
            let name = match pattern {
                "example.org" => "example.org".to_owned(),
                _ => format!("{}.example.org", labels.join(".")),
            };
            let mixed_case = name.chars().enumerate().map(|(at, c)| {
                if shout >> (at % 64) & 1 == 1 { c.to_ascii_uppercase() } else { c }
            });
            let host: String = mixed_case.chain(std::iter::repeat_n('.', dots)).collect();
            prop_assert_eq!(denying(&[pattern]).check_name(&host, 443), Err(EgressDenied::HostDenied));
            // The same through the URL parser, as in production.
            let url = Url::parse(&format!("https://{host}/")).unwrap();
            let seen = url.host_str().unwrap();
            prop_assert_eq!(denying(&[pattern]).check_name(seen, 443), Err(EgressDenied::HostDenied));
        }

        #[test]
        fn port_ranges_match_reference_list(ranges in prop::collection::vec((1..=65535u16, 0..999u16), 1..5), port: u16) {
            let ends = |(first, more): &(u16, u16)| (*first, first.saturating_add(*more));
            let texts: Vec<String> = ranges.iter().map(ends).map(|(a, b)| format!("{a}-{b}")).collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let rules = EgressRules { ports: ports(&texts), ..EgressRules::default() };
            let listed = ranges.iter().map(ends).any(|(first, last)| first <= port && port <= last);
            prop_assert_eq!(rules.check_name("a.example", port).is_ok(), listed);
        }

        #[test]
        fn arbitrary_text_never_panics(text in "\\PC{0,40}", port: u16) {
            if let Ok(pattern) = text.parse::<HostPattern>() {
                prop_assert_eq!(pattern.to_string().parse::<HostPattern>(), Ok(pattern));
            }
            let _ = allowing(&["a.example"]).check_name(&text, port);
        }
    }
}
