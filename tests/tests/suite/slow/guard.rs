//! The egress guard: canary listeners must see no connection to forbidden addresses on any egress path. Allowed
//! addresses are reached, so that an untouched canary is meaningful.

use redrive_testkit::{Canary, Dns, Receiver, Redrive, Reply};
use redrive_tests::egress_paths::{
    CallResult, EgressPath, assert_not_reached, assert_reached, assert_refused, is_unknown_name, port_of,
    production, register,
};

#[tokio::test]
async fn every_spelling_of_loopback_is_refused() {
    let canary = Canary::everywhere().await;
    let redrive = Redrive::start_with(production()).await;
    for host in [
        "127.0.0.1",
        "127.0.0.1.",
        "127.1",
        "127.0.1",
        "127.255.255.254",
        "127.000.000.001",
        "2130706433",
        "0x7f000001",
        "0x7F.0x0.0x0.0x1",
        "0x7f.1",
        "017700000001",
        "0177.0.0.1",
        "0177.0x0.0.1",
        "0",
        "0.0.0.0",
        "\u{ff11}\u{ff12}\u{ff17}.\u{ff10}.\u{ff10}.\u{ff11}",
        "\u{2460}\u{2461}\u{2466}.0.0.1",
        "127\u{3002}0\u{3002}0\u{3002}1",
        "127\u{ff0e}0\u{ff0e}0\u{ff0e}1",
        "127.0.0.%31",
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[0000::0001]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::FFFF:7f00:1]",
        "[::ffff:0.0.0.0]",
        "[::127.0.0.1]",
        "[::ffff:0:127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[64:ff9b:1::127.0.0.1]",
        "[2002:7f00:1::]",
        "[2001:0:7f00:1::]",
        "[2001:0:808:808::80ff:fffe]",
        "[2600::5efe:127.0.0.1]",
        "[2600::200:5efe:127.0.0.1]",
    ] {
        assert_refused(&redrive.api(), &format!("http://{host}:{}/webhook", canary.port())).await;
    }
    for name in ["localhost", "LOCALHOST", "localhost.", "\u{ff4c}ocalhost"] {
        assert_refused(&redrive.api(), &format!("http://{name}:{}/webhook", canary.port())).await;
    }
    canary.assert_untouched().await;
}

#[tokio::test]
async fn internal_addresses_are_refused() {
    let redrive = Redrive::start_with(production()).await;
    for host in [
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.1.1",
        "169.254.169.254",
        "168.63.129.16",
        "192.0.0.192",
        "100.100.100.200",
        "192.0.0.8",
        "192.88.99.1",
        "198.18.0.1",
        "192.0.2.1",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "[fe80::1]",
        "[fec0::1]",
        "[fc00::1]",
        "[fd00:ec2::254]",
        "[fd20:ce::254]",
        "[ff02::1]",
        "[100::1]",
        "[2001:db8::1]",
        "[2001:20::1]",
        "[3fff::1]",
        "[5f00::1]",
        "[::ffff:10.0.0.1]",
        "[::ffff:169.254.169.254]",
        "[64:ff9b::169.254.169.254]",
        "[2002:a9fe:a9fe::1]",
    ] {
        assert_refused(&redrive.api(), &format!("http://{host}/webhook")).await;
    }
}

#[tokio::test]
async fn url_parser_differences_do_not_reach_internal_addresses() {
    let dns = Dns::start().await;
    let canary = Canary::everywhere().await;
    let servers = format!("[\"{}\"]", dns.address());
    let redrive = Redrive::start_with(production().env("REDRIVE_EGRESS_DNS_SERVERS", servers)).await;
    let here = format!("127.0.0.1:{}", canary.port());
    let port = canary.port();
    for url in [
        format!("http://user@{here}/"),
        format!("http://user:pass@{here}/"),
        format!("http://@{here}/"),
        format!("http://public.test@{here}/"),
        format!("http://public.test:80@{here}/"),
        format!("http://{here}@public.test/"),
        format!("http://public.test%40{here}/"),
        format!("http://public.test\\@{here}/"),
        format!("http://{here}\\@public.test/"),
        format!("http:\\\\{here}\\"),
        format!("http:/\\{here}/"),
        format!("http:{here}/"),
        format!("http:/{here}/"),
        format!("http:///{here}/"),
        format!("HTTP://{here}/"),
        format!("//{here}/"),
        format!(" http://{here}/"),
        format!("http://\t{here}/"),
        format!("ht\ntp://{here}/"),
        format!("http://127.0.0.1\t:{port}/"),
        format!("http://127.0.0.1\r\n:{port}/"),
        format!("http://127.0.0.1%09:{port}/"),
        format!("http://127.0.0.1%00.public.test:{port}/"),
        format!("http://127.0.0.1\u{0}:{port}/"),
        format!("http://127.0.0.1\u{ad}:{port}/"),
        format!("http://127.0.0.1\u{200b}:{port}/"),
        format!("http://127.0.0.1..:{port}/"),
        format!("http://127.0.0.1:{port}:80/"),
        format!("http://127.0.0.1:0{port}/"),
        format!("http://127.0.0.1:+{port}/"),
        format!("http://{here}#@public.test/"),
        format!("http://{here}?@public.test/"),
        format!("http://public.test#@{here}/"),
        format!("http://public.test/@{here}/"),
        format!("http://[127.0.0.1]:{port}/"),
        format!("http://[[::1]]:{port}/"),
        format!("http://[::1%25lo]:{port}/"),
        format!("http://[::1%lo]:{port}/"),
        format!("http://[fe80::1%251]:{port}/"),
        format!("http://[::ffff:127.0.0.1%25lo]:{port}/"),
        format!("http://::1:{port}/"),
        format!("http://[::1:{port}/"),
        format!("http://127.0.0.1,public.test:{port}/"),
        format!("http://{here}/\u{ff03}@public.test/"),
        format!("gopher://{here}/"),
        format!("unix:{here}"),
    ] {
        assert_not_reached(&redrive.api(), &url).await;
    }
    canary.assert_untouched().await;
}

#[tokio::test]
async fn redirects_and_proxy_variables_are_ignored() {
    let canary = Canary::everywhere().await;
    let proxy = format!("http://127.0.0.1:{}", canary.port());
    let mut setup = production().env("REDRIVE_EGRESS_ALLOW_NETWORKS", "[\"127.0.0.1/32\"]");
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        setup = setup.env(name, &proxy).env(name.to_lowercase(), &proxy);
    }
    let redrive = Redrive::start_with(setup.without_env("NO_PROXY").without_env("no_proxy")).await;
    let api = redrive.api();
    let receiver = Receiver::start().await;
    assert_reached(&api, &receiver.url()).await;
    assert_eq!(receiver.count(), EgressPath::ALL.len(), "the receiver itself was called, not the proxy");
    for status in [301, 302, 303, 307, 308] {
        let location = proxy.clone();
        let redirecting = Receiver::with(move |_| {
            Reply::status(status)
                .header("location", &location)
                .header("refresh", &format!("0; url={location}"))
        })
        .await;
        for path in EgressPath::ALL {
            match path.call(&api, &redirecting.url(), 1).await {
                CallResult::Failed(_, attempts) => {
                    assert_eq!(attempts[0]["failure_category"], "redirect", "{path:?} {status}");
                }
                CallResult::NotVerified(message) => {
                    assert!(message.contains(&format!("returned {status}")), "{message}")
                }
                called => panic!("{path:?}: status {status} is not a success: {called:?}"),
            }
        }
    }
    canary.assert_untouched().await;
}

#[tokio::test]
async fn open_and_closed_ports_are_indistinguishable() {
    let open = Receiver::start().await;
    let redrive = Redrive::start_with(production()).await;
    let closed = port_of(&Receiver::start().await);
    for port in [port_of(&open), closed] {
        assert_refused(&redrive.api(), &format!("http://127.0.0.1:{port}/webhook")).await;
    }
    assert_eq!(open.count(), 0);
}

#[tokio::test]
async fn redrive_never_calls_itself() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let port = redrive.address().port();
    // Loopback is allowed here, but the server's own listener is not, under any name.
    for host in ["127.0.0.1", "2130706433", "[::ffff:127.0.0.1]"] {
        assert_refused(&api, &format!("http://{host}:{port}/webhook")).await;
    }
    is_unknown_name(&api, &format!("http://localhost:{port}/webhook")).await;
    let receiver = Receiver::start().await;
    assert_reached(&api, &receiver.url()).await;
}

#[tokio::test]
async fn non_http_ports_are_refused_unless_configured() {
    let redrive = Redrive::start_with(production()).await;
    for port in [22, 25, 53, 110, 143, 389, 445, 3306, 5432, 6379, 11211, 27017] {
        let message = register(&redrive.api(), &format!("http://example.com:{port}/"), 1).await.unwrap_err();
        assert!(message.contains(&format!("port {port}")) && message.contains("443"), "{message}");
    }
    let named = Redrive::start_with(production().env("REDRIVE_EGRESS_PORTS", "[25, \"80\"]")).await;
    register(&named.api(), "http://example.com:25/", 1).await.unwrap();
    register(&named.api(), "http://example.com/", 1).await.unwrap();
    assert!(register(&named.api(), "http://example.com:8080/", 1).await.is_err());
}
