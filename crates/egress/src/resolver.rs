//! Names to addresses, with the system's name servers or the operator's, and the hosts file.
//! A name that cannot be resolved for certain has no address: every error fails closed.

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

use crate::error::Cause;

/// How many names are remembered.
const CACHED_NAMES: u64 = 4096;
/// Answers are remembered at least so long, lest a zero TTL makes every connection wait for DNS.
const MIN_TTL: Duration = Duration::from_secs(1);
/// Answers are remembered at most so long, so that a receiver that moved is found again soon.
const MAX_TTL: Duration = Duration::from_secs(60);

/// Resolves names. Without a usable system configuration it resolves none.
pub(crate) struct Resolver {
    inner: Option<TokioResolver>,
    timeout: Duration,
}

impl Resolver {
    /// A resolver that asks these name servers, or without any those that the system is configured with.
    pub(crate) fn new(servers: &[SocketAddr], timeout: Duration) -> Self {
        let inner = build(servers, timeout)
            .inspect_err(|error| {
                tracing::warn!(%error, "no DNS configuration: only IP addresses can be reached");
            })
            .ok();
        Self { inner, timeout }
    }

    /// All addresses of `host`, of both families, at least one.
    ///
    /// The query is fully qualified. The system's search domains would otherwise turn a URL's host into names of the
    /// network inside.
    pub(crate) async fn lookup(&self, host: &str) -> Result<Vec<IpAddr>, Cause> {
        let resolver = self.inner.as_ref().ok_or(Cause::ResolverFailed)?;
        let absolute = format!("{}.", host.strip_suffix('.').unwrap_or(host));
        let found = tokio::time::timeout(self.timeout, resolver.lookup_ip(absolute)).await;
        let found = found.map_err(|_| Cause::ResolverFailed)?.map_err(|error| cause(&error))?;
        let addresses: Vec<IpAddr> = found.iter().collect();
        if addresses.is_empty() { Err(Cause::NoSuchName) } else { Ok(addresses) }
    }
}

fn cause(error: &NetError) -> Cause {
    if error.is_no_records_found() { Cause::NoSuchName } else { Cause::ResolverFailed }
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
    // A long answer is asked for again over TCP.
    let mut connections = vec![ConnectionConfig::udp(), ConnectionConfig::tcp()];
    for connection in &mut connections {
        connection.port = address.port();
    }
    NameServerConfig::new(address.ip(), true, connections)
}

fn set_limits(options: &mut ResolverOpts, timeout: Duration) {
    // One lost datagram should not cost the lookup: leave room for a second try.
    options.timeout = timeout / 2;
    options.attempts = 1;
    options.cache_size = CACHED_NAMES;
    options.use_hosts_file = ResolveHosts::Always;
    // Both families, because a name is refused if any of its addresses is.
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
    async fn without_a_configuration_no_name_has_an_address() {
        let resolver = Resolver { inner: None, timeout: Duration::from_secs(1) };
        assert!(matches!(resolver.lookup("localhost").await, Err(Cause::ResolverFailed)));
    }

    #[tokio::test]
    async fn lookup_with_search_domains_asks_for_the_host_alone() {
        let dns = redrive_testkit::Dns::start().await;
        for inside in ["db.corp.test", "www.example.corp.test", "db.lan.test"] {
            dns.script(inside, [redrive_testkit::Say::addresses(&["10.0.0.1"])]);
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
            assert!(matches!(resolver.lookup(host).await, Err(Cause::NoSuchName)), "{host}");
        }
        for inside in ["db.corp.test", "www.example.corp.test", "db.lan.test"] {
            assert_eq!(dns.asked(inside), 0, "{inside}");
        }
        assert_eq!(resolver.lookup("db.corp.test").await.unwrap().len(), 1);
    }

    #[test]
    fn answers_are_remembered_for_a_second_to_a_minute() {
        let mut options = ResolverOpts::default();
        set_limits(&mut options, Duration::from_secs(5));
        assert_eq!((options.positive_min_ttl, options.positive_max_ttl), (Some(MIN_TTL), Some(MAX_TTL)));
        assert_eq!((options.negative_min_ttl, options.negative_max_ttl), (Some(MIN_TTL), Some(MAX_TTL)));
        assert!(options.timeout < Duration::from_secs(5));
    }
}
