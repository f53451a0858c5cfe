//! Targets that parse URLs and headers from untrusted users.

use std::net::{IpAddr, Ipv6Addr};

use http::{HeaderMap, HeaderValue, Uri, header};
use ipnet::IpNet;
use redrive_core::{
    Time,
    delivery::response::parse_retry_after,
    event::trace::{SpanId, Trace},
    security::{
        address::{self, AddressRules},
        egress_rules::{EgressRules, HostKey, HostPattern, PortRange, literal_address},
        forwarded,
    },
    time::HumanDuration,
    webhook::{UrlRules, validate_url},
};
use redrive_egress::Target as SendTarget;
use redrive_server::fuzzing;
use url::Url;

use super::text;
use crate::Target;

pub(crate) const URL: Target = Target {
    name: "url",
    run: url,
    tokens: &[
        "http://",
        "https://",
        "//",
        "@",
        ":",
        ":443",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0x7f.1",
        "2130706433",
        "%31",
        "xn--",
        "。",
        "\u{ff11}",
        "?a=b",
        "#x",
        "..",
        "localhost",
        "\\",
        ".",
        "\u{ad}",
        "%00",
    ],
    weight: 20,
};

/// Checks that a valid webhook URL leads to exactly the host, port and path that a second parser finds.
fn url(input: &[u8]) {
    let text = text(input);
    let rules = UrlRules { allow_http: true, ..UrlRules::default() };
    let accepted = validate_url(&text, &rules).is_ok();
    let target = SendTarget::parse(&text);
    assert!(!accepted || target.is_ok(), "accepted and cannot be sent to");
    let Ok(target) = target else { return };
    let uri = target.uri();
    assert!(!uri.authority().is_some_and(|authority| authority.as_str().contains('@')));
    let host = uri.host().unwrap_or_default();
    assert_eq!(target.host_key(), HostKey::from_host(host));
    let again = SendTarget::parse(&uri.to_string());
    assert!(again.is_ok_and(|again| again.uri() == uri), "the canonical form is not canonical");
    if let Ok(url) = Url::parse(&text) {
        assert_eq!(Some(host), url.host_str());
        let default = if url.scheme() == "https" { 443 } else { 80 };
        assert_eq!(Some(uri.port_u16().unwrap_or(default)), url.port_or_known_default());
        assert_eq!((uri.path(), uri.query()), (url.path(), url.query()));
        // Both parsers must agree on whether the host is an address: a name is resolved, an address is not.
        let is_address = !matches!(url.host(), Some(url::Host::Domain(_)));
        assert_eq!(literal_address(host).is_some(), is_address, "{host}");
    }
    let _ = EgressRules::default().check_name(host, uri.port_u16().unwrap_or(443));
}

pub(crate) const ADDRESS: Target = Target {
    name: "address",
    run: address,
    tokens: &[
        "::",
        "127.0.0.1",
        "::ffff:",
        "10.",
        "/8",
        "/0",
        "*.",
        ".example.com",
        "8000-8999",
        "fe80::1%eth0",
        "[",
        "]",
    ],
    weight: 20,
};

/// Checks that patterns survive a round trip, and that no IPv6 embedding of a denied IPv4 address is allowed.
fn address(input: &[u8]) {
    let text = text(input);
    let rules = AddressRules::default();
    if let Ok(pattern) = text.parse::<HostPattern>() {
        assert_eq!(pattern.to_string().parse::<HostPattern>().ok(), Some(pattern));
    }
    if let Ok(range) = text.parse::<PortRange>() {
        assert_eq!(range.to_string().parse::<PortRange>().ok(), Some(range));
    }
    if let Some(address) = literal_address(&text) {
        assert_eq!(HostKey::from_host(&text), HostKey::from_host(&address.to_string()));
        judge(address, &rules);
    }
    if let Some(bytes) = input.first_chunk::<16>() {
        judge(IpAddr::from(*bytes), &rules);
    }
    if let Some(bytes) = input.first_chunk::<4>() {
        judge(IpAddr::from(*bytes), &rules);
    }
}

fn judge(address: IpAddr, rules: &AddressRules) {
    let judged = address::check(address, rules).is_ok();
    let IpAddr::V4(v4) = address else { return };
    let [a, b, c, d] = v4.octets();
    let nat64 = Ipv6Addr::from([0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]);
    let six_to_four = Ipv6Addr::from([0x20, 2, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    for wrapped in [v4.to_ipv6_mapped(), v4.to_ipv6_compatible(), nat64, six_to_four] {
        let passes = address::check(wrapped.into(), rules).is_ok();
        assert!(judged || !passes, "{wrapped} passes and {v4} does not");
    }
}

pub(crate) const FORWARDED: Target = Target {
    name: "forwarded",
    run: forwarded,
    tokens: &[
        ",",
        ", ",
        "10.0.0.1",
        "203.0.113.9",
        "[::1]:80",
        "unknown",
        "for=",
        "\n",
        "fd00::1",
        "::ffff:10.0.0.1",
    ],
    weight: 20,
};

/// Checks that the client address is the peer, or an address in the header of a trusted proxy.
fn forwarded(input: &[u8]) {
    let trusted: Vec<IpNet> = ["10.0.0.0/8", "fd00::/8"].iter().filter_map(|net| net.parse().ok()).collect();
    let lines = || input.split(|byte| *byte == b'\n');
    let untrusted = IpAddr::from([203, 0, 113, 9]);
    assert_eq!(
        forwarded::client_address(untrusted, &trusted, lines()),
        untrusted,
        "an untrusted peer is the client"
    );
    let proxy = IpAddr::from([10, 0, 0, 1]);
    let client = forwarded::client_address(proxy, &trusted, lines());
    assert_eq!(client, client.to_canonical());
    if client != proxy {
        let hops = lines().flat_map(|line| line.split(|byte| *byte == b','));
        let mut named = hops.filter_map(|hop| {
            let hop = std::str::from_utf8(hop).ok()?.trim_ascii();
            let bare = hop.strip_prefix('[').and_then(|hop| hop.strip_suffix(']')).unwrap_or(hop);
            let with_port = || hop.parse().ok().map(|address: std::net::SocketAddr| address.ip());
            bare.parse().ok().or_else(with_port).map(|address: IpAddr| address.to_canonical())
        });
        assert!(named.any(|address| address == client), "{client} is in no header");
    }
}

pub(crate) const RETRY_AFTER: Target = Target {
    name: "retry_after",
    run: retry_after,
    tokens: &[
        "Wed, 21 Oct 2015 07:28:00 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        " GMT",
        "120",
        "-",
        "Nov",
        " ",
    ],
    weight: 20,
};

/// Checks that whole seconds are used as given, and that no result exceeds the maximum.
fn retry_after(input: &[u8]) {
    let text = text(input);
    let now = Time::from_secs(1_700_000_000u32);
    let parsed = parse_retry_after(&text, now);
    let trimmed = text.trim();
    if !trimmed.is_empty() && trimmed.len() < 18 && trimmed.bytes().all(|byte| byte.is_ascii_digit()) {
        let seconds: u64 = trimmed.parse().unwrap_or(u64::MAX);
        assert_eq!(
            parsed.map(|wait| wait.as_secs()),
            Some(seconds.min(HumanDuration::MAX.as_duration().as_secs()))
        );
    }
    assert!(parsed.is_none_or(|wait| wait <= HumanDuration::MAX.as_duration()));
}

pub(crate) const COOKIE: Target = Target {
    name: "cookie",
    run: cookie,
    tokens: &["redrive_session=", "__Host-redrive_session=", ";", "; ", "=", "\n", "\"", " ", "a=b"],
    weight: 20,
};

/// Checks that the session is part of a cookie line and ends where the cookie does.
fn cookie(input: &[u8]) {
    let mut headers = HeaderMap::new();
    for line in input.split(|byte| *byte == b'\n').take(20) {
        if let Ok(value) = HeaderValue::from_bytes(line) {
            headers.append(header::COOKIE, value);
        }
    }
    let Some(session) = fuzzing::session_cookie(&headers) else { return };
    assert!(!session.contains([';', '\r', '\n']) && session == session.trim_end());
    let whole = format!("redrive_session={session}");
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).map(str::trim);
    assert!(pairs.any(|pair| pair.ends_with(&whole)), "{session} is in no cookie");
}

pub(crate) const QUERY: Target = Target {
    name: "query",
    run: query,
    tokens: &[
        "event_type=",
        "&",
        "=",
        "%2C",
        ",",
        "cursor=",
        "limit=",
        "offset=",
        "from=",
        "2026-11-15T12:00:00Z",
        "id=",
        "evt_018f3b1c7a5e7c40b0a8f3d2c1e0a9b8",
        "status=",
        "dead",
        "+",
        "%",
        "%00",
        "tenant_id=",
        "source=",
        "&&",
    ],
    weight: 8,
};

/// Checks that lists and pages are bounded, and that cursors survive a round trip.
fn query(input: &[u8]) {
    let text = text(input);
    if let Some(written) = fuzzing::delivery_cursor(&text) {
        assert_eq!(fuzzing::delivery_cursor(&written).as_deref(), Some(written.as_str()));
    }
    let Ok(uri) = Uri::try_from(format!("/?{text}")) else { return };
    if let Some((filter, _)) = fuzzing::event_query(&uri) {
        assert!(filter.event_types.len() <= 50, "{} event types", filter.event_types.len());
    }
    fuzzing::other_queries(&uri);
}

pub(crate) const TRACE: Target = Target {
    name: "trace",
    run: trace,
    tokens: &[
        "00-",
        "4bf92f3577b34da6a3ce929d0e0e4736",
        "-00f067aa0ba902b7-",
        "01",
        "ff-",
        "\0",
        "a=b",
        ",",
        "congo=t61",
        "00000000000000000000000000000000",
    ],
    weight: 20,
};

/// Checks that a caller's trace context is preserved through the store and on to receivers.
fn trace(input: &[u8]) {
    let (parent, state) = super::halves(input);
    let _ = Trace::from_bytes(input);
    let Some(trace) = Trace::from_headers(&text(parent), &text(state)) else { return };
    assert!(trace.state().is_none_or(|state| state.len() <= 512));
    assert_eq!(Trace::from_bytes(&trace.to_bytes()).as_ref(), Some(&trace));
    let span = trace
        .parent
        .unwrap_or_else(|| SpanId::for_event(redrive_core::EventId::first_at(Time::from_secs(1u32))));
    let written = trace.traceparent(span);
    let again = Trace::from_headers(&written, trace.state().unwrap_or_default());
    assert_eq!(again.map(|again| again.traceparent(span)), Some(written));
}
