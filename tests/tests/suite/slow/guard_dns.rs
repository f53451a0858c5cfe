//! The egress guard with host names: replies of a hostile name server, the operator's host lists, and rules that
//! change at run time. Canary listeners must see no connection on any egress path.

use redrive_testkit::{Canary, Dns, DnsReply, Receiver, Redrive, Reply, Setup, dns::addresses};
use redrive_tests::{
    egress_paths::{
        CallResult, EgressPath, HTTPS_ONLY, REFUSAL_TEXT, assert_not_reached, assert_reached,
        is_unknown_name, port_of, production, register, was_refused_as, was_unknown_name,
    },
    text,
};
use serde_json::{Value, json};

/// A server that uses a scripted name server and may reach 127.0.0.1 but no other internal address, a receiver
/// there, and canaries on the same port of other addresses.
struct Named {
    dns: Dns,
    redrive: Redrive,
    receiver: Receiver,
    canaries: [Canary; 2],
}

impl Named {
    async fn start() -> Self {
        // Closing makes every request open a new connection, and every connection is checked again.
        let receiver = Receiver::with(|_| Reply::status(200).header("connection", "close")).await;
        let port = port_of(&receiver);
        let canaries = [Canary::at("127.0.0.2", port).await, Canary::at("::1", port).await];
        let dns = Dns::start().await;
        let setup = production()
            .env("REDRIVE_EGRESS_ALLOW_NETWORKS", "[\"127.0.0.1/32\"]")
            .env("REDRIVE_EGRESS_DNS_SERVERS", format!("[\"{}\"]", dns.address()))
            .env("REDRIVE_EGRESS_DNS_TIMEOUT", "200ms");
        Self { dns, redrive: Redrive::start_with(setup).await, receiver, canaries }
    }

    fn url(&self, name: &str) -> String {
        format!("http://{name}:{}/webhook", port_of(&self.receiver))
    }

    async fn assert_untouched(&self) {
        for canary in &self.canaries {
            canary.assert_untouched().await;
        }
    }
}

#[tokio::test]
async fn dns_rebinding_reaches_only_checked_addresses() {
    let named = Named::start().await;
    let api = named.redrive.api();
    let turn = || [DnsReply::addresses(&["127.0.0.1"]), DnsReply::addresses(&["127.0.0.2"])];
    named.dns.script("turn.test", (0..50).flat_map(|_| turn()));
    let (mut reached, mut refused) = (0, 0);
    // A DNS reply is cached for a second, so this takes a few seconds.
    while named.dns.queries("turn.test") < 4 {
        for path in EgressPath::ALL {
            match path.call(&api, &named.url("turn.test"), 1).await {
                CallResult::Reached => reached += 1,
                CallResult::UrlRejected(message) => panic!("{message}"),
                CallResult::NotVerified(_) => refused += 1,
                CallResult::Failed(_, attempts) => {
                    refused += 1;
                    assert!(attempts.iter().all(|attempt| attempt["connect_ms"] == Value::Null));
                }
            }
        }
    }
    assert!(reached > 0 && refused > 0, "{reached} reached, {refused} refused");
    assert!(named.receiver.count() >= reached);
    named.assert_untouched().await;
}

/// Sends SIGHUP and waits until the log has this text once more than before.
async fn hang_up(redrive: &Redrive, message: &str, before: usize) -> usize {
    redrive.signal("HUP");
    redrive.wait_output_times(message, before + 1).await;
    before + 1
}

mod extended {
    use super::*;

    #[tokio::test]
    async fn names_resolving_to_internal_addresses_are_not_reached() {
        let named = Named::start().await;
        let api = named.redrive.api();
        for (number, all) in [
            &["127.0.0.2"][..],
            &["127.0.0.1", "127.0.0.2"],
            &["127.0.0.2", "127.0.0.1"],
            &["127.0.0.1", "::1"],
            &["127.0.0.1", "::ffff:127.0.0.2"],
            &["::127.0.0.1"],
            &["::ffff:0:127.0.0.1"],
            &["64:ff9b::127.0.0.1"],
            &["2002:7f00:1::"],
            &["2001:0:7f00:1::"],
            &["2600::5efe:127.0.0.1"],
            &["127.0.0.1", "169.254.169.254"],
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("inside{number}.test");
            named.dns.script(&name, [DnsReply::addresses(all)]);
            is_unknown_name(&api, &named.url(&name)).await;
        }
        // For comparison: a name that does not exist looks the same in every field.
        is_unknown_name(&api, &named.url("no-such-name.test")).await;
        let good = || addresses(&["127.0.0.1"]);
        let bad = || addresses(&["127.0.0.2"]);
        named.dns.script("bad.test", [DnsReply::Addresses(bad())]);
        for (name, script) in [
            ("alias.test", vec![DnsReply::Alias("bad.test", bad())]),
            ("chain.test", vec![DnsReply::AliasAlone("bad.test")]),
            ("late.test", vec![DnsReply::ServerFailure, DnsReply::ServerFailure, DnsReply::Addresses(bad())]),
            ("nothing.test", vec![DnsReply::Nothing]),
            ("missing.test", vec![DnsReply::NoSuchName]),
            ("failing.test", vec![DnsReply::ServerFailure]),
            ("silent.test", vec![DnsReply::NoReply]),
            ("garbage.test", vec![DnsReply::Garbage]),
            ("halved.test", vec![DnsReply::TruncatedBytes(good())]),
            ("truncated.test", vec![DnsReply::Truncated]),
            ("another.test", vec![DnsReply::WrongName(bad())]),
        ] {
            named.dns.script(name, script);
            // Twice, because some fail first and resolve to an internal address later.
            assert_not_reached(&api, &named.url(name)).await;
            assert_not_reached(&api, &named.url(name)).await;
            assert!(named.dns.queries(name) > 0, "{name} was never resolved");
        }
        assert_eq!(named.receiver.count(), 0);
        named.assert_untouched().await;

        named.dns.script("good.test", [DnsReply::Alias("far.test", good())]);
        assert_reached(&api, &named.url("good.test")).await;
        assert_eq!(named.receiver.count(), EgressPath::ALL.len());
    }

    #[tokio::test]
    async fn host_lists_apply_at_creation_and_when_connecting() {
        let named = Named::start().await;
        let dir = tempfile::TempDir::new().unwrap();
        let file = dir.path().join("redrive.toml");
        let write = |rules: &str| {
            let text = format!("[egress]\ndns_servers = [\"{}\"]\n{rules}\n", named.dns.address());
            std::fs::write(&file, text).unwrap();
        };
        let open = "allow_networks = [\"127.0.0.1/32\"]";
        let write_open = || write(&format!("allow_http = true\n{open}"));
        write_open();
        let setup = Setup::new().command("serve").arg("--config").arg(file.to_str().unwrap());
        let redrive = Redrive::start_with(setup).await;
        let api = redrive.api();
        named.dns.script("hooks.good.test", [DnsReply::addresses(&["127.0.0.1"])]);
        let url = named.url("hooks.good.test");
        let port = port_of(&named.receiver);
        let webhook = register(&api, &url, 5).await.unwrap();
        let mut reached = 0;
        let mut reported = 0;
        let (http, https) = ("allow_http = true", "allow_http = false");
        for (rules, at_the_door, seen) in [
            (format!("{http}\n{open}\ndeny_networks = [\"127.0.0.0/8\"]"), false, None),
            (format!("{http}\n{open}\ndeny_hosts = [\"*.GOOD.test.\"]"), true, None),
            (
                format!(
                    "{http}\n{open}\ndeny_hosts = [\"hooks.good.test\"]\nallow_hosts = [\"*.good.test\"]"
                ),
                true,
                None,
            ),
            (format!("{http}\n{open}\nallow_hosts = [\"good.test\"]"), true, None),
            (format!("{http}\n{open}\nports = [443, \"{}-65535\"]", port + 1), true, Some(REFUSAL_TEXT)),
            (format!("{http}\nallow_hosts = [\"*.good.test\"]"), false, None),
            (format!("{https}\n{open}"), true, Some(HTTPS_ONLY)),
        ] {
            for way in EgressPath::ALL {
                let called = way.send(&api, &webhook).await;
                assert!(matches!(called, CallResult::Reached), "{way:?} before {rules}: {called:?}");
                reached += 1;
            }
            write(&rules);
            reported = hang_up(&redrive, "egress rules reloaded", reported).await;
            // Retries after a `dns` failure wait for seconds, so one attempt has to suffice.
            let tries = if seen.is_some() { 5 } else { 1 };
            let retries = json!({"retry_config": {"schedule": vec![0; tries]}});
            api.patch(&format!("/v1/webhooks/{}", text(&webhook["id"])), retries).await.expect(200);
            for way in EgressPath::ALL {
                let called = way.send(&api, &webhook).await;
                match seen {
                    Some(message) => was_refused_as(way, &rules, called, message),
                    None => was_unknown_name(way, &rules, called),
                }
            }
            for change in ["pause", "resume"] {
                let path = format!("/v1/webhooks/{}/{change}", text(&webhook["id"]));
                api.post(&path, json!({})).await.expect(200);
            }
            let again = register(&api, &url, 5).await;
            assert_eq!(again.is_err(), at_the_door, "{rules}: {again:?}");
            if let Ok(again) = again {
                api.delete(&format!("/v1/webhooks/{}", text(&again["id"]))).await.expect(204);
            }
            assert_eq!(named.receiver.count(), reached, "{rules}");
            write_open();
            reported = hang_up(&redrive, "egress rules reloaded", reported).await;
        }
        // An invalid configuration changes nothing.
        write("deny_hosts = [\"*\"]");
        hang_up(&redrive, "egress rules unchanged", 0).await;
        for way in EgressPath::ALL {
            assert!(matches!(way.send(&api, &webhook).await, CallResult::Reached));
        }
        assert!(redrive.output().contains("egress.deny_hosts"), "the log names the invalid setting");
        named.assert_untouched().await;
    }
}
