//! Egress settings: which targets webhooks may reach, and the timeouts and size limits of requests.

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

use super::{ConfigError, HostPort, settings::section};

section! {
    /// Egress settings.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Egress {
        /// Whether webhooks may use plain `http`. Off, since payloads would be sent unencrypted.
        pub allow_http: bool,
        /// Networks that webhooks may reach although they are not public, such as `["10.20.0.0/16"]`. None by default,
        /// since untrusted users choose the URLs. `0.0.0.0/0` and `::/0` are rejected.
        pub allow_networks: Vec<IpNet>,
        /// Networks that are never reached, public ones included, such as `["203.0.113.0/24"]`; takes precedence over
        /// everything else. An IPv4 network is also denied inside IPv6 addresses that embed IPv4.
        pub deny_networks: Vec<IpNet>,
        /// The only hosts that webhooks may call; empty for all. Does not open addresses that are not public. See
        /// [egress rules](#egress-rules).
        pub allow_hosts: Vec<HostPattern>,
        /// Hosts that webhooks may not call; takes precedence over `egress.allow_hosts`.
        pub deny_hosts: Vec<HostPattern>,
        /// The only ports that webhooks may call, such as `["443", "8000-8999"]`; empty for all but those that are [not
        /// for HTTP](#egress-rules).
        pub ports: Vec<PortRange>,
        /// DNS servers that resolve endpoints instead of the system's, such as `["10.0.0.2:53"]`; over UDP, and TCP for
        /// long responses. The hosts file is used as well. A host name is resolved by the system at the start.
        pub dns_servers: Vec<HostPort>,
        /// Timeout for connecting to an endpoint, and again for the TLS handshake; within the attempt's own timeout.
        pub connect_timeout: HumanDuration,
        /// Timeout of DNS resolution.
        pub dns_timeout: HumanDuration,
        /// Maximum size that is read of a response, so that no endpoint can flood the server; 1 KiB of it is stored.
        /// 1024 to 16777216.
        pub max_response_bytes: usize,
        /// Requests in flight to one destination host, over all webhooks and tenants, so that no third party is
        /// flooded; nodes that share a store divide it. 0 for unlimited. See [below](#destination-limits).
        pub max_requests_per_host: usize,
        /// Open connections of one node to one IP address, over all hosts that resolve to it. 0 for unlimited.
        pub max_connections_per_address: usize,
    }
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
