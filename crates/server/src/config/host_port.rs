//! A host and a port in the operator's settings. The host is an IP address or a name, which is resolved by the system
//! when it is used, never when the settings are read.

use std::{
    fmt,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    str::FromStr,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Longest name that DNS allows.
const MAX_NAME_BYTES: usize = 253;

/// A host, as an IP address or a name, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    host: Host,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Address(IpAddr),
    Name(String),
}

impl HostPort {
    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns whether the host is a loopback address, or `localhost`, which a system may resolve to another address.
    pub fn is_loopback(&self) -> bool {
        match &self.host {
            Host::Address(address) => address.is_loopback(),
            Host::Name(name) => name == "localhost",
        }
    }

    /// Returns the address at which a client on this machine reaches a server that listens here.
    pub fn for_local_client(&self) -> Self {
        let host = match self.host {
            Host::Address(IpAddr::V4(address)) if address.is_unspecified() => {
                Host::Address(std::net::Ipv4Addr::LOCALHOST.into())
            }
            Host::Address(IpAddr::V6(address)) if address.is_unspecified() => {
                Host::Address(std::net::Ipv6Addr::LOCALHOST.into())
            }
            _ => self.host.clone(),
        };
        Self { host, port: self.port }
    }

    /// Resolves the host on another thread, so that a timeout bounds the wait for a slow resolver. The list of addresses
    /// is not empty.
    pub async fn resolve(&self) -> std::io::Result<Vec<SocketAddr>> {
        let address = self.clone();
        let resolved = tokio::task::spawn_blocking(move || address.resolve_blocking()).await;
        resolved.map_err(std::io::Error::other)?
    }

    /// Resolves the host. The list of addresses is not empty. Blocks while the system resolves a name.
    pub fn resolve_blocking(&self) -> std::io::Result<Vec<SocketAddr>> {
        let addresses: Vec<_> = match &self.host {
            Host::Address(address) => vec![SocketAddr::new(*address, self.port)],
            Host::Name(name) => (name.as_str(), self.port).to_socket_addrs()?.collect(),
        };
        match addresses.is_empty() {
            true => Err(std::io::Error::other(format!("{self} has no address"))),
            false => Ok(addresses),
        }
    }
}

impl From<SocketAddr> for HostPort {
    fn from(address: SocketAddr) -> Self {
        Self { host: Host::Address(address.ip()), port: address.port() }
    }
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(address.into());
        }
        let invalid = || "must be a host and a port, such as 127.0.0.1:8080 or localhost:8080".to_owned();
        let (name, port) = text.rsplit_once(':').ok_or_else(invalid)?;
        let port = port.parse().map_err(|_| invalid())?;
        // A name of digits and dots alone is a mistyped IPv4 address, which some resolvers would accept.
        let is_name = name.len() <= MAX_NAME_BYTES
            && name.split('.').all(|label| !label.is_empty() && label.len() <= 63)
            && name.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c))
            && name.bytes().any(|c| c.is_ascii_alphabetic());
        match is_name {
            true => Ok(Self { host: Host::Name(name.to_ascii_lowercase()), port }),
            false => Err(invalid()),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(address) => write!(f, "{}", SocketAddr::new(*address, self.port)),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

impl Serialize for HostPort {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HostPort {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_and_names_are_accepted() {
        for text in ["127.0.0.1:8080", "[::1]:0", "localhost:8080", "my-host.internal:443", "a_b:1"] {
            assert_eq!(text.parse::<HostPort>().unwrap().to_string(), text);
        }
        assert_eq!("LocalHost:1".parse::<HostPort>().unwrap().to_string(), "localhost:1");
    }

    #[test]
    fn other_text_is_rejected_with_an_example() {
        for text in [
            "",
            "8080",
            ":8080",
            "localhost",
            "localhost:",
            "localhost:70000",
            "10.0.0:80",
            "1:2",
            "a..b:1",
            "a b:1",
            "::1:80x",
        ] {
            let error = text.parse::<HostPort>().unwrap_err();
            assert!(error.contains("localhost:8080"), "{text}: {error}");
        }
    }

    #[test]
    fn loopback_and_unspecified_addresses_are_recognized() {
        let at = |text: &str| text.parse::<HostPort>().unwrap();
        assert!(
            at("127.0.0.2:1").is_loopback() && at("[::1]:1").is_loopback() && at("localhost:1").is_loopback()
        );
        assert!(!at("0.0.0.0:1").is_loopback() && !at("localhost.example:1").is_loopback());
        assert_eq!(at("0.0.0.0:80").for_local_client(), at("127.0.0.1:80"));
        assert_eq!(at("[::]:80").for_local_client(), at("[::1]:80"));
        assert_eq!(at("10.0.0.1:80").for_local_client(), at("10.0.0.1:80"));
    }

    #[test]
    fn localhost_resolves_to_loopback() {
        let addresses = "localhost:8080".parse::<HostPort>().unwrap().resolve_blocking().unwrap();
        assert!(addresses.iter().all(|address| address.ip().is_loopback() && address.port() == 8080));
    }

    proptest! {
        #[test]
        fn parsed_text_is_written_and_parsed_alike(text in "[a-zA-Z0-9._:\\[\\]-]{0,24}") {
            if let Ok(parsed) = text.parse::<HostPort>() {
                prop_assert_eq!(parsed.to_string().parse::<HostPort>(), Ok(parsed));
            }
        }
    }
}
