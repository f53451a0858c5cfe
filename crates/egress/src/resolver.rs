//! Resolves names with the system's name servers or the operator's, and the hosts file.
//! Every error fails closed: a name that cannot be resolved for certain has no address.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use hickory_resolver::{
    ResolverBuilder, TokioResolver,
    config::{
        ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
    },
    net::{NetError, runtime::TokioRuntimeProvider},
};

use crate::error::ConnectError;

/// Maximum number of cached names.
const CACHE_ENTRIES: u64 = 4096;
/// Minimum time that responses are cached; without it a zero TTL would make every connection wait for DNS.
const MIN_TTL: Duration = Duration::from_secs(1);
/// Maximum time that responses are cached, so that an endpoint that changed its address is found soon.
const MAX_TTL: Duration = Duration::from_secs(60);

/// Resolver. Without a usable system configuration it resolves no names.
pub(crate) struct Resolver {
    inner: Option<TokioResolver>,
    timeout: Duration,
}

impl Resolver {
    /// Creates a resolver that queries these name servers, or the system's if the list is empty.
    pub(crate) fn new(servers: &[SocketAddr], timeout: Duration) -> Self {
        let inner = build(servers, timeout)
            .inspect_err(|error| {
                tracing::warn!(%error, "no DNS configuration: only IP addresses can be reached");
            })
            .ok();
        Self { inner, timeout }
    }

    /// Returns all addresses of `host`, of both families, at least one.
    ///
    /// The query is fully qualified. Otherwise the system's search domains would turn a URL's host into names of the
    /// internal network.
    pub(crate) async fn lookup(&self, host: &str) -> Result<Vec<IpAddr>, ConnectError> {
        let resolver = self.inner.as_ref().ok_or(ConnectError::ResolverFailed)?;
        let absolute = format!("{}.", host.strip_suffix('.').unwrap_or(host));
        let found = tokio::time::timeout(self.timeout, resolver.lookup_ip(absolute)).await;
        let found = found.map_err(|_| ConnectError::ResolverFailed)?.map_err(|error| cause(&error))?;
        let addresses: Vec<IpAddr> = found.iter().collect();
        if addresses.is_empty() { Err(ConnectError::NoSuchName) } else { Ok(addresses) }
    }
}

fn cause(error: &NetError) -> ConnectError {
    if error.is_no_records_found() { ConnectError::NoSuchName } else { ConnectError::ResolverFailed }
}

fn build(servers: &[SocketAddr], timeout: Duration) -> Result<TokioResolver, NetError> {
    match servers {
        [] => finish(TokioResolver::builder_tokio()?, timeout),
        servers => build_with_config(
            ResolverConfig::from_parts(None, Vec::new(), servers.iter().map(name_server).collect()),
            timeout,
        ),
    }
}

fn build_with_config(config: ResolverConfig, timeout: Duration) -> Result<TokioResolver, NetError> {
    finish(TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()), timeout)
}

fn finish(
    mut builder: ResolverBuilder<TokioRuntimeProvider>,
    timeout: Duration,
) -> Result<TokioResolver, NetError> {
    set_limits(builder.options_mut(), timeout);
    builder.build()
}

fn name_server(address: &SocketAddr) -> NameServerConfig {
    // A truncated response is requested again over TCP.
    let mut connections = vec![ConnectionConfig::udp(), ConnectionConfig::tcp()];
    for connection in &mut connections {
        connection.port = address.port();
    }
    NameServerConfig::new(address.ip(), true, connections)
}

fn set_limits(options: &mut ResolverOpts, timeout: Duration) {
    // Half the timeout per try, so that one lost datagram leaves time for a second try.
    options.timeout = timeout / 2;
    options.attempts = 1;
    options.cache_size = CACHE_ENTRIES;
    options.use_hosts_file = ResolveHosts::Always;
    // Both families, because one refused address of either refuses the name.
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.positive_min_ttl = Some(MIN_TTL);
    options.negative_min_ttl = Some(MIN_TTL);
    options.positive_max_ttl = Some(MAX_TTL);
    options.negative_max_ttl = Some(MAX_TTL);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn resolver_without_configuration_resolves_no_names() {
        let resolver = Resolver { inner: None, timeout: Duration::from_secs(1) };
        assert!(matches!(resolver.lookup("localhost").await, Err(ConnectError::ResolverFailed)));
    }

    #[tokio::test]
    async fn lookup_ignores_search_domains() {
        let dns = redrive_testkit::Dns::start().await;
        for inside in ["db.corp.test", "www.example.corp.test", "db.lan.test"] {
            dns.script(inside, [redrive_testkit::DnsReply::addresses(&["10.0.0.1"])]);
        }
        let name = |text: &str| text.parse().unwrap();
        let config = ResolverConfig::from_parts(
            Some(name("lan.test.")),
            vec![name("corp.test."), name("test.")],
            vec![name_server(&dns.address())],
        );
        let timeout = Duration::from_secs(2);
        let resolver = Resolver { inner: build_with_config(config, timeout).ok(), timeout };
        for host in ["db", "db.", "www.example", "db.corp"] {
            assert!(matches!(resolver.lookup(host).await, Err(ConnectError::NoSuchName)), "{host}");
        }
        for inside in ["db.corp.test", "www.example.corp.test", "db.lan.test"] {
            assert_eq!(dns.queries(inside), 0, "{inside}");
        }
        assert_eq!(resolver.lookup("db.corp.test").await.unwrap().len(), 1);
    }

    #[test]
    fn responses_are_cached_for_a_second_to_a_minute() {
        let mut options = ResolverOpts::default();
        set_limits(&mut options, Duration::from_secs(5));
        assert_eq!((options.positive_min_ttl, options.positive_max_ttl), (Some(MIN_TTL), Some(MAX_TTL)));
        assert_eq!((options.negative_min_ttl, options.negative_max_ttl), (Some(MIN_TTL), Some(MAX_TTL)));
        assert!(options.timeout < Duration::from_secs(5));
    }
}
