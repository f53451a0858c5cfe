//! Egress settings: which targets webhooks may reach, and the timeouts and size limits of requests.

use std::net::SocketAddr;

use ipnet::IpNet;
use redrive_core::{
    security::{
        address::AddressRules,
        egress_rules::{EgressRules, HostPattern, OwnHost, PortRange},
    },
    time::HumanDuration,
    webhook::UrlRules,
};
use serde::{Deserialize, Serialize};

use super::ConfigError;

/// Egress settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    /// Whether webhooks may use plain http.
    pub allow_http: bool,
    /// Networks that are allowed although they are not public.
    pub allow_networks: Vec<IpNet>,
    /// Networks that are denied; takes precedence over every other rule.
    pub deny_networks: Vec<IpNet>,
    /// The only hosts that may be called; empty allows all.
    pub allow_hosts: Vec<HostPattern>,
    /// Hosts that are denied; takes precedence over every other rule.
    pub deny_hosts: Vec<HostPattern>,
    /// The only ports that may be called; empty allows all except those of known non-HTTP services.
    pub ports: Vec<PortRange>,
    /// DNS servers to use instead of the system's.
    pub dns_servers: Vec<SocketAddr>,
    /// Timeout of connecting.
    pub connect_timeout: HumanDuration,
    /// Timeout of resolving a host.
    pub dns_timeout: HumanDuration,
    /// Maximum number of bytes that are read of a response.
    pub max_response_bytes: usize,
    /// Maximum requests in flight to one destination host, over all webhooks and tenants; 0 for no limit.
    pub max_requests_per_host: usize,
    /// Maximum open connections to one IP address, over all hosts; 0 for no limit.
    pub max_connections_per_address: usize,
}

impl Egress {
    /// Returns the defaults: https to public addresses; for `redrive dev` also http and loopback.
    pub(super) fn defaults(dev: bool) -> Self {
        let loopback = ["127.0.0.0/8", "::1/128"].into_iter().filter_map(|net| net.parse().ok());
        Self {
            allow_http: dev,
            allow_networks: if dev { loopback.collect() } else { Vec::new() },
            deny_networks: Vec::new(),
            allow_hosts: Vec::new(),
            deny_hosts: Vec::new(),
            ports: Vec::new(),
            dns_servers: Vec::new(),
            connect_timeout: HumanDuration::secs(10),
            dns_timeout: HumanDuration::secs(5),
            max_response_bytes: 64 * 1024,
            max_requests_per_host: 256,
            max_connections_per_address: 512,
        }
    }

    /// Returns the egress rules of an installation with this public URL.
    pub fn reach(&self, public_url: Option<&str>) -> EgressRules {
        EgressRules {
            networks: AddressRules { allow: self.allow_networks.clone(), deny: self.deny_networks.clone() },
            allow_hosts: self.allow_hosts.clone(),
            deny_hosts: self.deny_hosts.clone(),
            ports: self.ports.clone(),
            https_only: !self.allow_http,
            own_host: public_url.and_then(OwnHost::from_url),
        }
    }

    /// Returns the rules for webhook URLs of an installation with this public URL.
    pub fn urls(&self, public_url: Option<&str>) -> UrlRules {
        UrlRules { allow_http: self.allow_http, egress: self.reach(public_url) }
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |setting: &str, reason: &str| {
            Err(ConfigError::Invalid { setting: setting.into(), reason: reason.into() })
        };
        for (setting, max) in [
            ("egress.max_requests_per_host", self.max_requests_per_host),
            ("egress.max_connections_per_address", self.max_connections_per_address),
        ] {
            if max > 1_000_000 {
                return refuse(setting, "must be at most 1000000, or 0 for no limit");
            }
        }
        if !(1024..=16 << 20).contains(&self.max_response_bytes) {
            return refuse("egress.max_response_bytes", "must be from 1024 to 16777216");
        }
        for (setting, span) in
            [("egress.connect_timeout", self.connect_timeout), ("egress.dns_timeout", self.dns_timeout)]
        {
            if span < HumanDuration::millis(10) {
                return refuse(setting, "must be at least 10ms");
            }
        }
        if self.dns_servers.iter().any(|server| server.port() == 0) {
            return refuse("egress.dns_servers", "must have a port other than 0, usually 53");
        }
        if self.allow_networks.iter().any(|net| net.prefix_len() == 0) {
            return refuse(
                "egress.allow_networks",
                "must not name the whole internet; list the networks you need",
            );
        }
        Ok(())
    }
}
