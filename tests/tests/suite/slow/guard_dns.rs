//! The guard with names: what a hostile name server can say, what the operator's lists say, and rules that
//! change while everything runs. Judged by canaries that must see no connection, on every way out.

use redrive_testkit::{Canary, Dns, Receiver, Redrive, Reply, Say, Setup, dns::addresses};
use redrive_tests::{
    egress_paths::{
        Called, HTTPS_ONLY, REFUSED, Way, is_not_reached, is_reached, is_unknown_name, port_of, production,
        register, was_refused_as, was_unknown_name,
    },
    text,
};
use serde_json::{Value, json};

/// A server that asks a scripted name server, may reach 127.0.0.1 and nothing else inside, a receiver there,
/// and canaries beside it on the same port.
struct Named {
    dns: Dns,
    redrive: Redrive,
    receiver: Receiver,
    canaries: [Canary; 2],
}

impl Named {
    async fn start() -> Self {
        // Closing makes every request a new connection, and every connection a new judgement.
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
        format!("http://{name}:{}/hook", port_of(&self.receiver))
    }

    async fn assert_untouched(&self) {
        for canary in &self.canaries {
            canary.assert_untouched().await;
        }
    }
}

#[tokio::test]
async fn names_that_lead_inside_are_not_reached() {
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
        named.dns.script(&name, [Say::addresses(all)]);
        is_unknown_name(&api, &named.url(&name)).await;
    }
    // The other half of the comparison: a name that does not exist looks the same in every field.
    is_unknown_name(&api, &named.url("no-such-name.test")).await;
    let good = || addresses(&["127.0.0.1"]);
    let bad = || addresses(&["127.0.0.2"]);
    named.dns.script("bad.test", [Say::Addresses(bad())]);
    for (name, script) in [
        ("alias.test", vec![Say::Alias("bad.test", bad())]),
        ("chain.test", vec![Say::AliasAlone("bad.test")]),
        ("late.test", vec![Say::ServerFailure, Say::ServerFailure, Say::Addresses(bad())]),
        ("nothing.test", vec![Say::Nothing]),
        ("missing.test", vec![Say::NoSuchName]),
        ("failing.test", vec![Say::ServerFailure]),
        ("silent.test", vec![Say::Silence]),
        ("garbage.test", vec![Say::Garbage]),
        ("halved.test", vec![Say::Halved(good())]),
        ("truncated.test", vec![Say::Truncated]),
        ("another.test", vec![Say::AboutAnother(bad())]),
    ] {
        named.dns.script(name, script);
        // Twice, since some fail first and lead inside later.
        is_not_reached(&api, &named.url(name)).await;
        is_not_reached(&api, &named.url(name)).await;
        assert!(named.dns.asked(name) > 0, "{name} was never asked about");
    }
    assert_eq!(named.receiver.count(), 0);
    named.assert_untouched().await;

    named.dns.script("good.test", [Say::Alias("far.test", good())]);
    is_reached(&api, &named.url("good.test")).await;
    assert_eq!(named.receiver.count(), Way::ALL.len());
}

#[tokio::test]
async fn a_name_that_changes_between_look_ups_reaches_only_what_was_checked() {
    let named = Named::start().await;
    let api = named.redrive.api();
    let turn = || [Say::addresses(&["127.0.0.1"]), Say::addresses(&["127.0.0.2"])];
    named.dns.script("turn.test", (0..50).flat_map(|_| turn()));
    let (mut reached, mut refused) = (0, 0);
    // An answer is good for a second, so this takes a moment.
    while named.dns.asked("turn.test") < 4 {
        for way in Way::ALL {
            match way.call(&api, &named.url("turn.test"), 1).await {
                Called::Reached => reached += 1,
                Called::NotTaken(said) => panic!("{said}"),
                Called::NotVerified(_) => refused += 1,
                Called::Failed(_, attempts) => {
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

#[tokio::test]
async fn the_operators_lists_hold_at_the_door_and_when_connecting() {
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
    named.dns.script("hooks.good.test", [Say::addresses(&["127.0.0.1"])]);
    let url = named.url("hooks.good.test");
    let port = port_of(&named.receiver);
    let webhook = register(&api, &url, 5).await.unwrap();
    let mut reached = 0;
    let mut told = 0;
    let (http, https) = ("allow_http = true", "allow_http = false");
    for (rules, at_the_door, seen) in [
        (format!("{http}\n{open}\ndeny_networks = [\"127.0.0.0/8\"]"), false, None),
        (format!("{http}\n{open}\ndeny_hosts = [\"*.GOOD.test.\"]"), true, None),
        (
            format!("{http}\n{open}\ndeny_hosts = [\"hooks.good.test\"]\nallow_hosts = [\"*.good.test\"]"),
            true,
            None,
        ),
        (format!("{http}\n{open}\nallow_hosts = [\"good.test\"]"), true, None),
        (format!("{http}\n{open}\nports = [443, \"{}-65535\"]", port + 1), true, Some(REFUSED)),
        (format!("{http}\nallow_hosts = [\"*.good.test\"]"), false, None),
        (format!("{https}\n{open}"), true, Some(HTTPS_ONLY)),
    ] {
        for way in Way::ALL {
            let called = way.send(&api, &webhook).await;
            assert!(matches!(called, Called::Reached), "{way:?} before {rules}: {called:?}");
            reached += 1;
        }
        write(&rules);
        told = hang_up(&redrive, "are in force", told).await;
        // Retries after `dns` wait for seconds: one attempt shows as much.
        let tries = if seen.is_some() { 5 } else { 1 };
        let retries = json!({"retry_config": {"schedule": vec![0; tries]}});
        api.patch(&format!("/v1/webhooks/{}", text(&webhook["id"])), retries).await.expect(200);
        for way in Way::ALL {
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
        told = hang_up(&redrive, "are in force", told).await;
    }
    // A configuration that cannot be used changes nothing.
    write("deny_hosts = [\"*\"]");
    hang_up(&redrive, "the egress rules stay as they were", 0).await;
    for way in Way::ALL {
        assert!(matches!(way.send(&api, &webhook).await, Called::Reached));
    }
    assert!(redrive.output().contains("egress.deny_hosts"), "the log says what is wrong");
    named.assert_untouched().await;
}

/// Sends SIGHUP and waits until the log has said something once more than before.
async fn hang_up(redrive: &Redrive, says: &str, before: usize) -> usize {
    redrive.signal("HUP");
    redrive.wait_output_times(says, before + 1).await;
    before + 1
}
