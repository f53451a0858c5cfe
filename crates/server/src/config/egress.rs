//! The way out: what webhooks may reach, and how patient and greedy requests are.

use std::net::SocketAddr;

use ipnet::IpNet;
use redrive_core::{
    security::address::AddressRules,
    security::egress_rules::{HostPattern, OwnHost, PortRange, ReachRules},
    time::Span,
    webhook::UrlRules,
};
use serde::{Deserialize, Serialize};

use super::ConfigError;

/// The way out.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    /// Whether webhooks may use plain http.
    pub allow_http: bool,
    /// Networks that may be reached although they are not public.
    pub allow_networks: Vec<IpNet>,
    /// Networks that may not be reached, whatever else is said.
    pub deny_networks: Vec<IpNet>,
    /// The only hosts that may be called; empty for all.
    pub allow_hosts: Vec<HostPattern>,
    /// Hosts that may not be called, whatever else is said.
    pub deny_hosts: Vec<HostPattern>,
    /// The only ports that may be called; empty for all that may speak HTTP.
    pub ports: Vec<PortRange>,
    /// Name servers to ask instead of the system's.
    pub dns_servers: Vec<SocketAddr>,
    /// How long connecting may take.
    pub connect_timeout: Span,
    /// How long looking a name up may take.
    pub dns_timeout: Span,
    /// How much of an answer is read.
    pub max_response_bytes: usize,
    /// Requests in flight to one destination host, over all webhooks and tenants; 0 for any number.
    pub max_requests_per_host: usize,
    /// Open connections to one IP address, over all hosts; 0 for any number.
    pub max_connections_per_address: usize,
}

impl Egress {
    /// The defaults: public addresses over https, and on a laptop this machine over http too.
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
            connect_timeout: Span::secs(10),
            dns_timeout: Span::secs(5),
            max_response_bytes: 64 * 1024,
            max_requests_per_host: 256,
            max_connections_per_address: 512,
        }
    }

    /// Where requests may go, from an installation with this public URL.
    pub fn reach(&self, public_url: Option<&str>) -> ReachRules {
        ReachRules {
            networks: AddressRules { allow: self.allow_networks.clone(), deny: self.deny_networks.clone() },
            allow_hosts: self.allow_hosts.clone(),
            deny_hosts: self.deny_hosts.clone(),
            ports: self.ports.clone(),
            https_only: !self.allow_http,
            own_host: public_url.and_then(OwnHost::from_url),
        }
    }

    /// Which URLs webhooks may have, of an installation with this public URL.
    pub fn urls(&self, public_url: Option<&str>) -> UrlRules {
        UrlRules { allow_http: self.allow_http, reach: self.reach(public_url) }
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
                return refuse(setting, "must be at most 1000000, or 0 for any number");
            }
        }
        if !(1024..=16 << 20).contains(&self.max_response_bytes) {
            return refuse("egress.max_response_bytes", "must be from 1024 to 16777216");
        }
        for (setting, span) in
            [("egress.connect_timeout", self.connect_timeout), ("egress.dns_timeout", self.dns_timeout)]
        {
            if span < Span::millis(10) {
                return refuse(setting, "must be at least 10ms");
            }
        }
        if self.dns_servers.iter().any(|server| server.port() == 0) {
            return refuse("egress.dns_servers", "must name a port other than 0; usually it is 53");
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
