//! Tests of webhook validation and states.

use proptest::prelude::*;

use super::*;
use crate::security::{address::AddressRules, egress_rules::OwnHost};

fn https() -> UrlRules {
    UrlRules::default()
}

fn http() -> UrlRules {
    UrlRules { allow_http: true, ..https() }
}

#[test]
fn invalid_urls_are_refused() {
    for good in ["https://example.com", "https://example.com:8443/a/b?c=d%20e", "https://[2606:4700::1]/x"] {
        assert_eq!(validate_url(good, &https()), Ok(()), "{good}");
    }
    for bad in [
        "",
        "example.com/x",
        "ftp://example.com",
        "http://example.com",
        "https://",
        "https://user@example.com",
        "https://user:pass@example.com",
        "https://@example.com",
        "https://example.com/#top",
        "https://example.com/a b",
        "https://exa\tmple.com",
        "https://example.com\\@evil.example",
        "https://exam{ple.com/",
        "https://example.com:0/",
        "https://example.com:99999/",
        "file:///etc/passwd",
        "javascript:alert(1)",
    ] {
        assert!(validate_url(bad, &https()).is_err(), "{bad:?}");
    }
    assert!(validate_url(&format!("https://example.com/{}", "x".repeat(2048)), &https()).is_err());
    assert_eq!(validate_url("http://93.184.215.14:9000/webhooks", &http()), Ok(()));
    assert_eq!(validate_url("https://example.com/a@b", &https()), Ok(()));
}

#[test]
fn denied_urls_are_refused_without_disclosing_rules() {
    let message = |url: &str, rules: &UrlRules| validate_url(url, rules).map_err(|refused| refused.message);
    let port = message("https://example.com:25/", &https()).unwrap_err();
    assert!(port.contains("port 25") && port.contains("443"), "{port}");
    assert_eq!(message("https://example.com:8443/", &https()), Ok(()));
    let listed = EgressRules {
        allow_hosts: vec!["*.example.com".parse().unwrap()],
        deny_hosts: vec!["inside.example.com".parse().unwrap()],
        ports: vec!["443".parse().unwrap(), "25".parse().unwrap()],
        ..EgressRules::default()
    };
    let rules = UrlRules { egress: listed, ..http() };
    assert_eq!(message("https://hooks.example.com/", &rules), Ok(()));
    assert_eq!(message("https://hooks.example.com:25/", &rules), Ok(()), "a listed port is allowed");
    assert!(message("http://hooks.example.com/", &rules).unwrap_err().contains("port 80"));
    let hosts = ["inside.example.com", "INSIDE.example.com.", "example.org", "1.1.1.1", "[2606::1]"];
    let words = hosts.map(|host| message(&format!("https://{host}/"), &rules).unwrap_err());
    assert!(words.iter().all(|word| *word == words[0]), "{words:?}");
    let denied = EgressRules {
        networks: AddressRules { allow: Vec::new(), deny: vec!["93.184.0.0/16".parse().unwrap()] },
        ..EgressRules::default()
    };
    let denied = message("https://93.184.215.14/", &UrlRules { egress: denied, ..https() }).unwrap_err();
    assert_eq!(denied, words[0], "the operator's own networks are not shown");
}

#[test]
fn url_with_literal_private_address_is_refused_with_the_reason() {
    let text = |url: &str| validate_url(url, &https()).unwrap_err().message;
    for (host, range) in [
        ("127.0.0.1", "loopback"),
        ("0x7f.1", "loopback"),
        ("2130706433", "loopback"),
        ("0177.0.0.1", "loopback"),
        ("127.1", "loopback"),
        ("127.0.0.1.", "loopback"),
        ("%31%32%37.0.0.1", "loopback"),
        ("[::1]", "loopback"),
        ("[::ffff:127.0.0.1]", "loopback"),
        ("10.0.0.1", "private"),
        ("169.254.169.254", "cloud metadata"),
        ("[fd00::1]", "unique local"),
        ("[64:ff9b::10.0.0.1]", "NAT64"),
    ] {
        let message = text(&format!("https://{host}/x"));
        assert!(message.contains(&format!("({range})")), "{host}: {message}");
    }
    for host in ["localhost", "LocalHost.", "db.localhost"] {
        assert!(text(&format!("https://{host}/")).contains("localhost"), "{host}");
    }
    assert_eq!(validate_url("https://93.184.215.14/", &https()), Ok(()));
    let loopback = AddressRules { allow: vec!["127.0.0.0/8".parse().unwrap()], deny: Vec::new() };
    let dev =
        UrlRules { allow_http: true, egress: EgressRules { networks: loopback, ..EgressRules::default() } };
    for host in ["127.0.0.1:9000", "localhost:9000"] {
        assert_eq!(validate_url(&format!("http://{host}/"), &dev), Ok(()), "{host}");
    }
}

#[test]
fn url_of_own_public_host_is_refused() {
    let own_host = OwnHost::from_url("https://hooks.example.com/redrive");
    let rules = UrlRules { egress: EgressRules { own_host, ..EgressRules::default() }, ..https() };
    let message = validate_url("https://HOOKS.example.com.:8443/v1/events", &rules).unwrap_err().message;
    assert!(message.contains("this Redrive installation"), "{message}");
    assert_eq!(validate_url("https://example.com/", &rules), Ok(()));
}

#[test]
fn origin_change_requires_credentials_to_be_supplied() {
    let with = |url: &str| WebhookSpec {
        url: url.to_owned(),
        headers: BTreeMap::from([("x-api-key".to_owned(), SecretString::new("k"))]),
        auth: Some(EndpointAuth::Bearer { token: SecretString::new("t") }),
        ..WebhookSpec::default()
    };
    let old = with("https://example.com/a");
    let nothing = SuppliedCredentials::default();
    for same in ["https://example.com/b?c", "https://EXAMPLE.com:443/a", "https://example.com"] {
        assert_eq!(with(same).missing_credentials(&old, &nothing), [""; 0], "{same}");
    }
    let others = [
        "http://example.com/a",
        "https://example.com:8443/a",
        "https://evil.example/a",
        "https://a.example.com/a",
        "https://example.com./a",
        "no url",
    ];
    for other in others {
        assert_eq!(with(other).missing_credentials(&old, &nothing), ["headers.x-api-key", "auth"], "{other}");
        let headers = SuppliedCredentials { headers: ["x-api-key".to_owned()].into(), auth: false };
        assert_eq!(with(other).missing_credentials(&old, &headers), ["auth"], "{other}");
        let all = SuppliedCredentials { auth: true, ..headers };
        assert_eq!(with(other).missing_credentials(&old, &all), [""; 0], "{other}");
        let bare = WebhookSpec { url: other.to_owned(), ..WebhookSpec::default() };
        assert_eq!(bare.missing_credentials(&old, &nothing), [""; 0], "removed credentials are not sent");
    }
}

#[test]
fn reserved_headers_cannot_be_overridden() {
    let refused = |name: &str, value: &str| {
        !invalid_headers(&BTreeMap::from([(name.to_owned(), SecretString::new(value))])).is_empty()
    };
    for name in [
        "Host",
        "webhook-id",
        "Webhook-Signature",
        "X-Webhook-Event",
        "Redrive-Hops",
        "Content-Length",
        "a b",
        "",
        "x:y",
    ] {
        assert!(refused(name, "v"), "{name}");
    }
    for value in ["a\r\nb: c", "a\nb", "a\0b", &"x".repeat(4097)] {
        assert!(refused("x-own", value), "{value:?}");
    }
    assert!(!refused("Authorization", "Bearer abc"));
}

fn spec() -> WebhookSpec {
    let url = "https://example.com/webhooks".to_owned();
    WebhookSpec { url, events: vec![Pattern::All], ..WebhookSpec::default() }
}

#[test]
fn invalid_rate_limit_is_refused() {
    let limited = |requests_per_minute, burst| {
        let rate_limit = Some(RateLimit { requests_per_minute, burst });
        WebhookSpec { rate_limit, ..spec() }.validate(&https()).map_err(|invalid| invalid.field)
    };
    assert_eq!(spec().validate(&https()), Ok(()));
    assert_eq!(limited(600, None), Ok(()));
    assert_eq!(limited(0, None), Err("rate_limit.requests_per_minute".into()));
    assert_eq!(limited(600, Some(0)), Err("rate_limit.burst".into()));
}

#[test]
fn settings_missing_from_stored_spec_get_defaults() {
    let mut old = serde_json::to_value(spec()).unwrap();
    for added in ["circuit_breaker_config", "rate_limit", "ordering_guarantee", "expires_at"] {
        assert!(old.as_object_mut().unwrap().remove(added).is_some(), "{added}");
    }
    assert_eq!(serde_json::from_value::<WebhookSpec>(old).unwrap(), spec());
}

#[test]
fn only_active_and_paused_webhooks_receive_events() {
    let disabled = WebhookState::Disabled("gone".into());
    for (state, name, gets) in [
        (WebhookState::Active, "active", true),
        (WebhookState::Paused, "paused", true),
        (disabled, "disabled", false),
        (WebhookState::Deleted, "deleted", false),
    ] {
        assert_eq!((state.name(), state.receives_events()), (name, gets));
        assert_eq!((state.cancels_deliveries(), state.may_be_disabled_by_outcome()), (!gets, gets), "{name}");
    }
    for keeps_events in [true, false] {
        let pending = WebhookState::PendingVerification(Verification::begin(Time::default(), keeps_events));
        assert!(pending.parks_deliveries() && !pending.cancels_deliveries());
        assert!(!pending.may_be_disabled_by_outcome());
    }
}

/// Returns a webhook in this state whose URL must be verified, with the URL that was verified before.
fn to_verify(state: WebhookState, url: &str, verified: Option<&str>) -> Webhook {
    let spec = WebhookSpec {
        url: url.into(),
        verify_url: true,
        verified_url: verified.map(str::to_owned),
        ..spec()
    };
    let (id, at) = (WebhookId::new(Time::default(), &[1; 10]), Time::default());
    let tenant_id = TenantId::default();
    Webhook { id, tenant_id, spec, secrets: Vec::new(), state, created_at: at, updated_at: at }
}

#[test]
fn webhook_with_unverified_url_is_never_active() {
    use WebhookState::{Active, Disabled, Paused, PendingVerification};
    let now = Time::from_millis(5_000);
    let pending = |keeps_events| PendingVerification(Verification::begin(now, keeps_events));
    let older = |keeps_events| PendingVerification(Verification::begin(Time::default(), keeps_events));
    let after = |mut new: Webhook, old: Option<&Webhook>| {
        new.set_pending_verification(old, now);
        new.state
    };
    assert_eq!(after(to_verify(Active, "a", None), None), pending(false), "a new webhook gets no events");
    let verified = to_verify(Active, "a", Some("a"));
    assert_eq!(after(verified.clone(), Some(&verified)), Active);
    let changed = to_verify(Active, "b", Some("a"));
    assert_eq!(
        after(changed.clone(), Some(&verified)),
        pending(true),
        "events wait while the new URL is verified"
    );
    // Neither disabling and enabling nor pausing and resuming bypasses the verification.
    let off = to_verify(Disabled("why".into()), "b", Some("a"));
    assert_eq!(after(changed.clone(), Some(&off)), pending(false));
    assert_eq!(after(changed, Some(&to_verify(Paused, "b", Some("a")))), pending(true));
    assert_eq!(after(to_verify(Paused, "b", None), None), Paused);
    // A pending verification continues unless the URL changes, changes back, or verification is turned off.
    let waits = to_verify(older(true), "b", Some("a"));
    assert_eq!(after(waits.clone(), Some(&waits)), older(true));
    assert_eq!(after(to_verify(older(true), "c", Some("a")), Some(&waits)), pending(true));
    assert_eq!(after(to_verify(older(true), "a", Some("a")), Some(&waits)), Active);
    let enabled = to_verify(Active, "b", Some("a"));
    assert_eq!(after(enabled, Some(&waits)), older(true), "enabling sends no further challenge");
    // Neither does disabling and enabling it within the minimum interval between two challenges.
    let challenged = |url: &str, state| {
        let mut webhook = to_verify(state, url, None);
        webhook.spec.challenged_at = Some(Time::from_millis(4_000));
        webhook
    };
    let off = challenged("b", Disabled("why".into()));
    let later = Verification { next: Time::from_millis(34_000), ..Verification::begin(now, false) };
    assert_eq!(after(challenged("b", Active), Some(&off)), PendingVerification(later));
    assert_eq!(after(challenged("c", Active), Some(&off)), pending(false), "another endpoint");
    let mut careless = waits.clone();
    careless.spec.verify_url = false;
    assert_eq!(after(careless, Some(&waits)), Active);
}

/// Generates texts that resemble URLs.
fn any_url() -> impl Strategy<Value = String> {
    let scheme = "(https?|HTTPS|ftp)?:?[/\\\\]{0,3}";
    let user = "([a-z0-9._~%:@\\[\\]-]{0,12}[@:.])?";
    let host = "\\[?[0-9a-fx:.]{1,16}\\]?|[a-z0-9.-]{1,16}|\\PC{1,6}";
    let rest = "(:[0-9]{0,6})?([/?#]\\PC{0,12}){0,2}";
    let near =
        (scheme, user, host, rest).prop_map(|(scheme, user, host, rest)| scheme + &user + &host + &rest);
    prop_oneof![3 => near, 1 => "(https?://)?\\PC{0,60}", 1 => any::<String>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn accepted_urls_have_plain_host_for_arbitrary_text(text in any_url()) {
        if validate_url(&text, &http()).is_ok() {
            let url = Url::parse(&text).unwrap();
            prop_assert!(url.host_str().is_some_and(|host| !host.is_empty()), "{}", url);
            prop_assert!(url.username().is_empty() && url.password().is_none(), "{}", url);
            prop_assert!(url.fragment().is_none() && url.port() != Some(0), "{}", url);
            prop_assert_eq!(validate_url(&text, &https()).is_ok(), url.scheme() == "https");
            // The canonical form is accepted as well, unless percent-encoding made it too long.
            prop_assert!(url.as_str().len() > MAX_URL || validate_url(url.as_str(), &http()).is_ok(), "{}", url);
        }
    }

    #[test]
    fn accepted_headers_can_be_sent(name in "[a-zA-Z:_ -]{0,20}|\\PC{0,5}", value in "[ -~]{0,20}|.{0,10}") {
        if invalid_headers(&BTreeMap::from([(name.clone(), SecretString::new(value.clone()))])).is_empty() {
            let sent = HeaderName::try_from(&name).unwrap();
            prop_assert!(!RESERVED_HEADERS.contains(&sent.as_str()), "{}", sent);
            prop_assert!(!HeaderValue::try_from(&value).unwrap().as_bytes().contains(&b'\n'));
        }
    }
}
