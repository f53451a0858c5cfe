//! Tests which destinations are refused. Canary listeners prove that no connection was opened, not only error
//! texts.

use std::{net::SocketAddr, time::Duration};

use crate::common::*;
use redrive_core::{
    delivery::response::SendFailure,
    security::{address::AddressRules, egress_rules::EgressRules},
};
use redrive_egress::{Client, Config, OutboundRequest, Timings};
use redrive_testkit::{Canary, Dns, DnsReply, WAIT_TIMEOUT, dns::addresses};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout,
};

/// Listens on loopback, on the same port for IPv4 and (if available) IPv6.
async fn canaries() -> (u16, Vec<TcpListener>) {
    let v4 = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = v4.local_addr().unwrap().port();
    let mut all = vec![v4];
    all.extend(TcpListener::bind(("::1", port)).await);
    (port, all)
}

async fn assert_silent(canaries: &[TcpListener]) {
    for canary in canaries {
        assert!(
            timeout(Duration::from_millis(30), canary.accept()).await.is_err(),
            "a connection was accepted"
        );
    }
}

#[tokio::test]
async fn loopback_is_refused_in_every_spelling() {
    let client = Client::new(strict()).unwrap();
    let (port, canaries) = canaries().await;
    let mut messages = Vec::new();
    for host in [
        "127.0.0.1",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "127.1",
        "127.0.0.1.",
        "\u{ff11}\u{ff12}\u{ff17}.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
    ] {
        for scheme in ["http", "https"] {
            let exchange = post(&client, outbound(&format!("{scheme}://{host}:{port}/"), LONG)).await;
            messages.push(failed(exchange, SendFailure::BlockedAddress).message);
        }
    }
    messages.dedup();
    assert_eq!(messages.len(), 1, "refusal messages differ: {messages:?}");
    for name in ["localhost", "LOCALHOST", "localhost."] {
        let exchange = post(&client, outbound(&format!("http://{name}:{port}/"), LONG)).await;
        failed(exchange, SendFailure::Dns);
    }
    assert_silent(&canaries).await;
}

/// Lookups after which one that is still slow fails the test.
const MAX_LOOKUPS: u64 = 60;

#[tokio::test]
async fn refused_name_is_reported_like_a_name_that_does_not_exist() {
    let named = Named::start().await;
    named.dns.script("missing.test", [DnsReply::NoSuchName]);
    named.dns.script("db.test", [DnsReply::addresses(&["10.0.0.1"])]);
    named.dns.script("mixed.test", [DnsReply::addresses(&["127.0.0.1", "169.254.169.254"])]);
    let hosts = |names: &[&str]| names.iter().map(|name| name.parse().unwrap()).collect();
    named.client.set_rules(EgressRules { deny_hosts: hosts(&["denied.test"]), ..only_one() });
    let missing = named.post("missing.test").await;
    let timings = missing.timings;
    let missing = failed(missing, SendFailure::Dns);
    let mut sent = 0;
    for name in ["db.test", "mixed.test", "denied.test", "localhost", "DB.test."] {
        // The second lookup is cached and must not be faster.
        for _ in 0..2 {
            let mut exchange = named.post(name).await;
            sent += 1;
            // A stall of the machine makes a lookup slower than it is, so a slow one is repeated.
            let is_slow = |timings: Timings| {
                timings.total.saturating_sub(timings.dns.unwrap()) >= Duration::from_millis(50)
                    || timings.dns.unwrap() >= Duration::from_millis(200)
            };
            while is_slow(exchange.timings) && sent < MAX_LOOKUPS {
                exchange = named.post(name).await;
                sent += 1;
            }
            let shown = exchange.timings;
            let (dns, total) = (shown.dns.unwrap().as_millis(), shown.total.as_millis());
            assert!((100..200).contains(&dns) && total - dns < 50, "{name}: {shown:?} {timings:?}");
            assert_eq!((shown.connect, shown.tls, shown.ttfb), (None, None, None), "{name}");
            let refused = failed(exchange, SendFailure::Dns);
            assert_eq!((refused.message, refused.status), (missing.message.clone(), None), "{name}");
        }
    }
    assert!(timings.dns.unwrap().as_millis() >= 100, "{timings:?}");
    let refused: u64 = named.client.refusals().into_iter().map(|(_, count)| count).sum();
    assert_eq!(refused, sent, "the operator's counter has all refusals");
    named.assert_untouched().await;
}

#[tokio::test]
async fn plain_http_is_refused_after_rules_change() {
    let server = Server::responding(OK).await;
    let client = client();
    expect_response(post(&client, outbound(&server.url(), LONG)).await);
    client.set_rules(EgressRules { https_only: true, ..loopback() });
    for url in [server.url(), format!("http://localhost:{}/", server.address.port())] {
        let exchange = post(&client, outbound(&url, LONG)).await;
        assert_eq!(exchange.timings.connect, None);
        let refused = failed(exchange, SendFailure::BlockedAddress);
        assert!(refused.message.contains("https:// only; change the webhook's URL"), "{}", refused.message);
    }
    assert_eq!((server.connections(), server.requests()), (1, 1), "the pooled connection is not used");
    let secure = format!("https://127.0.0.1:{}/", server.address.port());
    assert!(post(&client, outbound(&secure, SHORT)).await.result.is_err(), "the server speaks no TLS");
    assert_eq!(server.connections(), 2, "https is dialled");
    client.set_rules(loopback());
    expect_response(post(&client, outbound(&server.url(), LONG)).await);
}

#[tokio::test]
async fn connections_per_address_are_bounded_across_names() {
    let hold = std::sync::Arc::new(tokio::sync::Notify::new());
    let held = hold.clone();
    let server = Server::start(move |mut peer| {
        let held = held.clone();
        async move {
            peer.read_request().await;
            held.notified().await;
            peer.send(OK).await;
        }
    })
    .await;
    let client = Client::new(Config { max_connections_per_address: Some(2), ..lenient() }).unwrap();
    let port = server.address.port();
    let send = |host: &str, tenant_key| {
        let request = OutboundRequest { tenant_key, ..outbound(&format!("http://{host}:{port}/"), LONG) };
        let client = client.clone();
        tokio::spawn(async move { client.post(request).await })
    };
    let first = [send("127.0.0.1", 1), send("127.0.0.1", 2)];
    while server.requests() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let message = failed(send("127.0.0.1", 3).await.unwrap(), SendFailure::ConnectionLimit).message;
    assert!(message.contains("too many connections"), "{message}");
    // A request with a timeout shorter than the wait does not report a timeout of the endpoint.
    let short = OutboundRequest { tenant_key: 3, ..outbound(&server.url(), Duration::from_millis(400)) };
    failed(client.post(short).await, SendFailure::ConnectionLimit);
    assert_eq!(server.connections(), 2);
    // A waiting request gets the connection as soon as one is free.
    let waiting = send("127.0.0.1", 3);
    tokio::time::sleep(Duration::from_millis(50)).await;
    hold.notify_waiters();
    for exchange in first {
        expect_response(exchange.await.unwrap());
    }
    hold.notify_one();
    expect_response(waiting.await.unwrap());
}

#[tokio::test]
async fn own_listeners_are_refused_even_if_loopback_is_allowed() {
    let (port, canaries) = canaries().await;
    for own in ["127.0.0.1", "0.0.0.0", "::"] {
        let own = SocketAddr::new(own.parse().unwrap(), port);
        let client = Client::new(Config { own_listeners: vec![own], ..lenient() }).unwrap();
        let exchange = post(&client, outbound(&format!("http://127.0.0.1:{port}/"), LONG)).await;
        failed(exchange, SendFailure::BlockedAddress);
    }
    assert_silent(&canaries).await;
}

#[tokio::test]
async fn allowed_name_is_resolved_and_timed() {
    let server = Server::responding(OK).await;
    let url = format!("http://localhost:{}/", server.address.port());
    let exchange = post(&client(), outbound(&url, LONG)).await;
    assert!(exchange.timings.dns.is_some());
    assert_eq!(expect_response(exchange).status, 200);
}

#[tokio::test]
async fn name_without_address_is_a_dns_failure() {
    let exchange = post(&client(), outbound("http://missing.invalid/", LONG)).await;
    assert!(exchange.timings.dns.is_some());
    assert_eq!(exchange.timings.connect, None);
    failed(exchange, SendFailure::Dns);
}

#[tokio::test]
async fn closed_and_silent_ports_give_the_same_message() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let silent = TcpSocket::new_v4().unwrap();
    silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let silent = silent.listen(1).unwrap();
    let address = silent.local_addr().unwrap();
    // Once the backlog is full, the system drops further connection attempts.
    let mut fillers = Vec::new();
    while let Ok(filler) = timeout(Duration::from_millis(100), TcpStream::connect(address)).await {
        fillers.push(filler.unwrap());
        assert!(fillers.len() < 64, "the queue never fills");
    }

    let client = Client::new(Config { connect_timeout: SHORT, ..lenient() }).unwrap();
    let mut messages = Vec::new();
    for address in [closed, address] {
        let exchange = post(&client, outbound(&format!("http://{address}/"), LONG)).await;
        assert!(exchange.timings.connect.is_some());
        messages.push(failed(exchange, SendFailure::Connect).message);
    }
    assert_eq!(messages[0], messages[1]);
}

#[tokio::test]
async fn redirect_is_a_response_and_is_not_followed() {
    let (port, canaries) = canaries().await;
    let server = Server::start(move |mut peer| async move {
        peer.read_request().await;
        let location = format!("http://127.0.0.1:{port}/inside");
        peer.send(
            format!("HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n").as_bytes(),
        )
        .await;
    })
    .await;
    let response = expect_response(post(&client(), outbound(&server.url(), LONG)).await);
    assert_eq!(response.status, 302);
    assert!(response.headers["location"].to_str().unwrap().ends_with("/inside"));
    assert_eq!(server.requests(), 1);
    assert_silent(&canaries).await;
}

/// Allowed and forbidden destinations of names: the receiver at 127.0.0.1 is allowed, the canaries at 127.0.0.2
/// and ::1 on the same port are not.
struct Named {
    dns: Dns,
    client: Client,
    receiver: Server,
    canaries: [Canary; 2],
}

impl Named {
    async fn start() -> Self {
        let dns = Dns::start().await;
        let receiver = Server::responding_once(OK).await;
        let port = receiver.address.port();
        let canaries = [Canary::at("127.0.0.2", port).await, Canary::at("::1", port).await];
        let config =
            Config { rules: only_one(), dns_servers: vec![dns.address()], dns_timeout: SHORT, ..strict() };
        Self { client: Client::new(config).unwrap(), dns, receiver, canaries }
    }

    async fn post(&self, name: &str) -> redrive_egress::Exchange {
        post(&self.client, outbound(&format!("http://{name}:{}/", self.receiver.address.port()), LONG)).await
    }

    async fn assert_untouched(&self) {
        for canary in &self.canaries {
            canary.assert_untouched().await;
        }
    }
}

fn only_one() -> EgressRules {
    let networks = AddressRules {
        allow: vec!["127.0.0.1/32".parse().unwrap()],
        deny: vec!["9.9.9.9/32".parse().unwrap()],
    };
    EgressRules { networks, ..EgressRules::default() }
}

#[tokio::test]
async fn name_with_one_refused_address_is_refused() {
    let named = Named::start().await;
    for (number, bad) in [
        &["127.0.0.1", "127.0.0.2"][..],
        &["127.0.0.2", "127.0.0.1"],
        &["127.0.0.1", "::1"],
        &["::1"],
        &["::ffff:127.0.0.2"],
        &["127.0.0.1", "::ffff:127.0.0.2"],
        &["::127.0.0.1"],
        &["::ffff:0:127.0.0.1"],
        &["64:ff9b::127.0.0.1"],
        &["64:ff9b:1::127.0.0.1"],
        &["2002:7f00:1::"],
        &["2001:0:7f00:1::"],
        &["2600::5efe:7f00:1"],
        &["127.0.0.1", "169.254.169.254"],
        &["127.0.0.1", "fe80::1"],
        &["127.0.0.1", "0.0.0.0"],
        &["127.0.0.1", "9.9.9.9"],
        &["127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.1", "10.0.0.1"],
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("bad{number}.test");
        named.dns.script(&name, [DnsReply::addresses(bad)]);
        let exchange = named.post(&name).await;
        assert_eq!(exchange.timings.connect, None, "{bad:?}: nothing is dialled");
        failed(exchange, SendFailure::Dns);
    }
    for (name, alias) in [
        ("alias.test", DnsReply::Alias("inside.test", addresses(&["127.0.0.2"]))),
        ("chain.test", DnsReply::AliasAlone("inside.test")),
        ("local.test", DnsReply::AliasAlone("localhost")),
        ("another.test", DnsReply::WrongName(addresses(&["127.0.0.2"]))),
    ] {
        named.dns.script("inside.test", [DnsReply::addresses(&["127.0.0.2"])]);
        named.dns.script(name, [alias]);
        assert!(named.post(name).await.result.is_err(), "{name}");
    }
    named.assert_untouched().await;
    assert_eq!(named.receiver.connections(), 0);
}

#[tokio::test]
async fn allowed_names_are_reached() {
    let named = Named::start().await;
    for (name, say) in [
        ("good.test", DnsReply::addresses(&["127.0.0.1"])),
        ("mapped.test", DnsReply::addresses(&["::ffff:127.0.0.1"])),
        ("twice.test", DnsReply::addresses(&["127.0.0.1", "127.0.0.1"])),
        ("alias.test", DnsReply::Alias("far.test", addresses(&["127.0.0.1"]))),
        ("long.test", DnsReply::OverTcp(addresses(&["127.0.0.1"]))),
    ] {
        named.dns.script(name, [say]);
        let exchange = named.post(name).await;
        assert!(exchange.timings.dns.is_some(), "{name}");
        assert_eq!(expect_response(exchange).status, 200, "{name}");
    }
    assert_eq!(named.receiver.connections(), 5);
    named.assert_untouched().await;
}

#[tokio::test]
async fn failing_resolver_gives_no_address() {
    let named = Named::start().await;
    let good = || addresses(&["127.0.0.1"]);
    for (number, say) in [
        DnsReply::Nothing,
        DnsReply::NoSuchName,
        DnsReply::ServerFailure,
        DnsReply::NoReply,
        DnsReply::Garbage,
        DnsReply::Truncated,
        DnsReply::TruncatedBytes(good()),
        DnsReply::WrongName(good()),
        DnsReply::AliasAlone("nowhere.test"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("failing{number}.test");
        named.dns.script(&name, [say.clone()]);
        let exchange = named.post(&name).await;
        assert_eq!(exchange.timings.connect, None, "{say:?}");
        failed(exchange, SendFailure::Dns);
        assert!(named.dns.queries(&name) > 0, "{say:?}");
    }
    assert_eq!(named.receiver.connections(), 0);
    named.assert_untouched().await;
}

#[tokio::test]
async fn connected_address_is_the_checked_address() {
    let named = Named::start().await;
    let (good, bad) = (|| DnsReply::addresses(&["127.0.0.1"]), || DnsReply::addresses(&["127.0.0.2"]));
    // Every second response is refused; a response is cached for a second.
    named.dns.script("turn.test", (0..100).flat_map(|_| [good(), bad()]));
    let mut reached = 0;
    while named.dns.queries("turn.test") < 4 {
        let requests = named.dns.queries("turn.test");
        let exchange = named.post("turn.test").await;
        match exchange.result {
            Ok(_) => reached += 1,
            Err(refused) => assert_eq!(refused.failure, SendFailure::Dns),
        }
        if named.dns.queries("turn.test") == requests {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    assert!(reached > 0);
    assert_eq!(named.receiver.connections(), reached);
    named.assert_untouched().await;

    // A name that fails first and then resolves to a refused address.
    named.dns.script("late.test", [DnsReply::ServerFailure, DnsReply::ServerFailure, bad()]);
    let first = named.post("late.test").await;
    failed(first, SendFailure::Dns);
    let later = named.post("late.test").await;
    assert!(later.result.is_err());
    named.assert_untouched().await;
}

#[tokio::test]
async fn denied_hosts_and_ports_are_not_resolved() {
    let named = Named::start().await;
    named.dns.script("good.test", [DnsReply::addresses(&["127.0.0.1"])]);
    named.dns.script("www.good.test", [DnsReply::addresses(&["127.0.0.1"])]);
    let hosts = |patterns: &[&str]| patterns.iter().map(|pattern| pattern.parse().unwrap()).collect();
    let port = named.receiver.address.port();
    let mut messages = Vec::new();
    for rules in [
        EgressRules { deny_hosts: hosts(&["*.test", "good.test"]), ..only_one() },
        EgressRules { deny_hosts: hosts(&["GOOD.test."]), allow_hosts: hosts(&["good.test"]), ..only_one() },
        EgressRules { allow_hosts: hosts(&["*.good.test", "other.test"]), ..only_one() },
    ] {
        named.client.set_rules(rules);
        for host in ["good.test", "GOOD.test", "good.test."] {
            messages.push(failed(named.post(host).await, SendFailure::Dns).message);
        }
    }
    messages.dedup();
    assert_eq!(messages.len(), 1, "refusal messages differ: {messages:?}");
    messages.clear();
    named.client.set_rules(EgressRules { ports: vec!["1-1023".parse().unwrap()], ..only_one() });
    for host in ["good.test", "GOOD.test", "good.test.", "127.0.0.1"] {
        messages.push(failed(named.post(host).await, SendFailure::BlockedAddress).message);
    }
    assert_eq!(named.dns.queries("good.test"), 0);
    named.client.set_rules(only_one());
    for port in [22, 25, 3306, 6379] {
        let exchange = post(&named.client, outbound(&format!("http://127.0.0.1:{port}/"), LONG)).await;
        messages.push(failed(exchange, SendFailure::BlockedAddress).message);
    }
    let denied = AddressRules { deny: vec!["127.0.0.0/8".parse().unwrap()], ..only_one().networks };
    named.client.set_rules(EgressRules { networks: denied, ..only_one() });
    messages.push(failed(named.post("127.0.0.1").await, SendFailure::BlockedAddress).message);
    messages.dedup();
    assert_eq!(messages.len(), 1, "refusal messages differ: {messages:?}");
    failed(named.post("good.test").await, SendFailure::Dns);
    assert_eq!(named.dns.queries("good.test"), 1, "the address is denied, not the name");
    assert_eq!(named.receiver.connections(), 0);

    let allow_hosts = hosts(&["*.GOOD.test"]);
    let ports = vec![port.to_string().parse().unwrap()];
    named.client.set_rules(EgressRules { allow_hosts, ports, ..only_one() });
    expect_response(named.post("www.good.test").await);
    named.assert_untouched().await;
}

#[tokio::test]
async fn changed_rules_apply_immediately_and_close_idle_connections() {
    let (notify, mut notified) = tokio::sync::mpsc::channel(1);
    let server = Server::start(move |mut peer| {
        let notify = notify.clone();
        async move {
            while peer.read_request().await.is_some() {
                peer.send(OK).await;
            }
            let _ = notify.send(peer.number).await;
        }
    })
    .await;
    let client = client();
    expect_response(post(&client, outbound(&server.url(), LONG)).await);
    expect_response(post(&client, outbound(&server.url(), LONG)).await);
    assert_eq!((server.connections(), server.requests()), (1, 2), "the connection is reused");

    client.set_rules(EgressRules::default());
    let closed = timeout(WAIT_TIMEOUT, notified.recv()).await;
    assert_eq!(closed.expect("the idle connection is still open"), Some(0));
    failed(post(&client, outbound(&server.url(), LONG)).await, SendFailure::BlockedAddress);
    assert_eq!((server.connections(), server.requests()), (1, 2));

    // Setting equal rules again counts as a change: no connection is reused.
    for connections in 2..4 {
        client.set_rules(loopback());
        expect_response(post(&client, outbound(&server.url(), LONG)).await);
        assert_eq!(server.connections(), connections);
    }
}

#[tokio::test]
async fn connection_in_use_closes_after_exchange_when_rules_change() {
    let (requested, mut was_asked) = tokio::sync::mpsc::channel(1);
    let (notify, mut notified) = tokio::sync::mpsc::channel(1);
    let go = std::sync::Arc::new(tokio::sync::Notify::new());
    let going = go.clone();
    let server = Server::start(move |mut peer| {
        let (requested, notify, go) = (requested.clone(), notify.clone(), going.clone());
        async move {
            while peer.read_request().await.is_some() {
                let _ = requested.send(()).await;
                go.notified().await;
                peer.send(OK).await;
            }
            let _ = notify.send(()).await;
        }
    })
    .await;
    let client = client();
    // One idle connection and one in use in the same pool.
    let (left, mut was_left) = tokio::sync::mpsc::channel(1);
    let idle = Server::start(move |mut peer| {
        let left = left.clone();
        async move {
            peer.read_request().await;
            peer.send(OK).await;
            peer.closed().await;
            let _ = left.send(()).await;
        }
    })
    .await;
    expect_response(post(&client, outbound(&idle.url(), LONG)).await);
    let (sender, request) = (client.clone(), outbound(&server.url(), LONG));
    let in_flight = tokio::spawn(async move { sender.post(request).await });
    was_asked.recv().await.unwrap();
    client.set_rules(EgressRules::default());
    timeout(WAIT_TIMEOUT, was_left.recv()).await.expect("the idle connection is still open");
    failed(post(&client, outbound(&server.url(), LONG)).await, SendFailure::BlockedAddress);
    go.notify_one();
    assert_eq!(
        expect_response(in_flight.await.unwrap()).status,
        200,
        "the exchange in flight is not aborted"
    );
    timeout(WAIT_TIMEOUT, notified.recv()).await.expect("the connection is still open");
    assert_eq!((server.connections(), idle.connections()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn constant_rule_changes_break_no_exchange() {
    let server = Server::responding(OK).await;
    let client = client();
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (client, request) = (client.clone(), outbound(&server.url(), LONG));
        senders.spawn(async move {
            let mut broken = 0;
            for _ in 0..300 {
                let Err(failure) = client.post(request.clone()).await.result else { continue };
                // On a busy machine a request may be handed to a connection that is just being closed.
                assert_eq!(failure.failure, SendFailure::Reset, "{failure:?}");
                broken += 1;
            }
            broken
        });
    }
    let (mut changes, mut broken) = (0, 0);
    while !senders.is_empty() {
        client.set_rules(loopback());
        changes += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
        while let Some(sent) = senders.try_join_next() {
            broken += sent.unwrap();
        }
    }
    assert!(broken <= 8 * 3, "{broken} exchanges failed");
    assert_eq!(server.requests(), 8 * 300 - broken, "each was sent once");
    assert!(
        changes > 10 && server.connections() > 8,
        "{changes} changes, {} connections",
        server.connections()
    );
}
