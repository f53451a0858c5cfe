//! Rules for webhooks by operators and portal sessions: credentials stay with their origin, caps hold, forwarding
//! loops end, and sessions have only their capabilities.

use std::time::Duration;

use redrive_testkit::{Api, ApiResponse, Browser, Receiver, Redrive, Reply, Setup};
use redrive_tests::{
    attempts_of, delivery_of,
    egress_paths::{EgressPath, assert_reached, assert_refusal_text, production},
    entries, id, text, wait_for_status,
};
use serde_json::{Value, json};

const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);

fn with_secrets() -> Value {
    json!({
        "headers": {"X-Api-Key": "header-secret"},
        "auth": {"type": "bearer", "token": "bearer-secret"},
    })
}

#[tokio::test]
async fn changed_origin_needs_its_credentials_again() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let (old, new) = (Receiver::start().await, Receiver::start().await);
    let webhook = api.create_webhook(&old.url(), with_secrets()).await;
    let path = format!("/v1/webhooks/{}", id(&webhook));
    let url = new.url();
    let kept = json!({"type": "bearer", "token": "[redacted]"});
    for (change, field) in [
        (json!({"url": url}), "headers.x-api-key"),
        (json!({"url": url, "headers": {"x-api-key": "[redacted]"}}), "headers.x-api-key"),
        (json!({"url": url, "headers": {"x-api-key": "known"}}), "auth"),
        (json!({"url": url, "headers": {}, "auth": kept}), "auth"),
        (json!({"url": url.replace("http://", "https://"), "headers": {}}), "auth"),
    ] {
        for response in [api.patch(&path, &change).await, api.put(&path, &change).await] {
            let problem = response.expect(422);
            assert_eq!(
                (&problem["code"], &problem["field"]),
                (&json!("credentials_required"), &json!(field))
            );
            assert!(text(&problem["detail"]).contains(field), "{change}: {problem}");
        }
    }
    // A second spelling of a name does not restore the stored value.
    let twice = json!({"X-Api-Key": "known", "x-api-key": "[redacted]"});
    let problem = api.patch(&path, json!({"url": url, "headers": twice, "auth": null})).await.expect(400);
    assert_eq!(problem["field"], "headers.x-api-key", "{problem}");
    // An invalid URL is reported first.
    for bad in ["no url", "ftp://example.com/", "http://user@example.com/"] {
        let problem = api.patch(&path, json!({"url": bad})).await.expect(400);
        assert_eq!(problem["field"], "url", "{problem}");
    }
    api.post(&format!("{path}/test"), json!({})).await.expect(202);
    assert_eq!(old.wait_for(1).await[0].header("x-api-key"), Some("header-secret"));
    assert_eq!(new.count(), 0);

    // Another path of the same origin keeps the credentials, and removing them needs no credentials.
    api.patch(&path, json!({"url": old.url_at("/other")})).await.expect(200);
    let removed = api.patch(&path, json!({"url": url, "headers": {}, "auth": null})).await.expect(200);
    assert_eq!(removed["url"], url);
    api.post(&format!("{path}/test"), json!({})).await.expect(202);
    let arrival = &new.wait_for(1).await[0];
    assert_eq!((arrival.header("x-api-key"), arrival.header("authorization")), (None, None));

    let mut back = with_secrets();
    back["url"] = old.url().into();
    api.patch(&path, back).await.expect(200);
    api.post(&format!("{path}/test"), json!({})).await.expect(202);
    let arrival = &old.wait_for(2).await[1];
    assert_eq!(arrival.header("authorization"), Some("Bearer bearer-secret"));
}

#[tokio::test]
async fn literal_private_address_is_refused_at_creation_and_update() {
    let redrive = Redrive::start_with(production()).await;
    let api = redrive.api();
    let webhook = api.create_webhook("https://example.com/", json!(null)).await;
    let path = format!("/v1/webhooks/{}", id(&webhook));
    for (host, reason) in [
        ("127.0.0.1", "(loopback)"),
        ("0x7f.1:8080", "(loopback)"),
        ("[::ffff:127.0.0.1]", "(loopback)"),
        ("10.1.2.3", "(private)"),
        ("169.254.169.254", "(cloud metadata)"),
        ("localhost", "localhost"),
        ("db.localhost.", "localhost"),
    ] {
        let url = format!("https://{host}/");
        let new = json!({"url": url, "events": ["*"]});
        for response in [api.post("/v1/webhooks", new).await, api.patch(&path, json!({"url": url})).await] {
            let problem = response.expect(400);
            assert_eq!(problem["field"], "url");
            assert!(text(&problem["detail"]).contains(reason), "{url}: {problem}");
        }
    }
    let allowing = production().env("REDRIVE_EGRESS_ALLOW_NETWORKS", "[\"127.0.0.0/8\"]");
    let receiver = Receiver::start().await;
    assert_reached(&Redrive::start_with(allowing).await.api(), &receiver.url()).await;
}

#[tokio::test]
async fn own_public_host_is_refused_at_creation_and_when_sending() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start().await;
    let setup = || Setup::new().data_dir(dir.path());
    let mut redrive = Redrive::start_with(setup()).await;
    let webhook = redrive
        .api()
        .create_webhook(&receiver.url(), json!({"retry_config": {"schedule": [0, 0, 0, 0, 0]}}))
        .await;
    is_stopped(&mut redrive).await;

    let public_url = receiver.url().trim_end_matches("/webhook").to_owned() + "/redrive";
    let redrive = Redrive::start_with(setup().env("REDRIVE_SERVER_PUBLIC_URL", &public_url)).await;
    let api = redrive.api();
    assert_refusal_text(
        EgressPath::Delivery,
        &receiver.url(),
        EgressPath::Delivery.send(&api, &webhook).await,
    );
    assert_eq!(receiver.count(), 0);
    let problem = api.post("/v1/webhooks", json!({"url": receiver.url(), "events": ["*"]})).await.expect(400);
    assert!(text(&problem["detail"]).contains("this Redrive installation"), "{problem}");

    let named = Setup::new().env("REDRIVE_SERVER_PUBLIC_URL", "https://Hooks.Example.com:8443/redrive");
    let redrive = Redrive::start_with(named).await;
    for url in [
        "https://hooks.example.com/v1/events",
        "http://HOOKS.example.com.:9000/",
        "https://ｈooks.example.com/",
    ] {
        let problem =
            redrive.api().post("/v1/webhooks", json!({"url": url, "events": ["*"]})).await.expect(400);
        assert!(text(&problem["detail"]).contains("this Redrive installation"), "{url}: {problem}");
    }
}

async fn is_stopped(redrive: &mut Redrive) {
    redrive.signal("TERM");
    assert!(redrive.wait_exit(DRAIN_TIMEOUT).await.success());
}

/// Creates a webhook on one server that publishes all its events to another.
async fn forward(from: &Redrive, to: &Redrive) {
    let url = format!("http://{}/v1/events", to.address());
    let extra = json!({
        "payload_format": "cloudevents",
        "auth": {"type": "bearer", "token": to.key()},
        "retry_config": {"max_attempts": 1},
    });
    from.api().create_webhook(&url, extra).await;
}

#[tokio::test]
async fn forwarding_loops_end() {
    let (one, other) = (Redrive::start().await, Redrive::start().await);
    forward(&one, &other).await;
    forward(&other, &one).await;
    one.api().publish("order.created", json!({"n": 1})).await;
    // Published with 0 hops, then with 1 to 5; the sixth publish is rejected.
    let is_dead = |page: &Value| entries(page).iter().any(|delivery| delivery["status"] == "dead");
    let dead = other.api().wait_until("the loop ends", "/v1/deliveries?status=dead", is_dead).await;
    let dead = entries(&dead);
    assert_eq!(dead.len(), 1);
    let attempts = attempts_of(&other.api(), id(&dead[0])).await;
    assert_eq!(attempts[0]["http_status_code"], 422);
    assert!(attempts[0].to_string().contains("loop_detected"), "{attempts:#?}");
    for redrive in [&one, &other] {
        assert_eq!(entries(&redrive.api().get("/v1/events").await.expect(200)).len(), 3);
    }
}

#[tokio::test]
async fn hop_count_is_sent_and_read_on_every_publish() {
    let redrive = Redrive::start_with(Setup::new().env("REDRIVE_EVENTS_MAX_HOPS", "3")).await;
    let api = redrive.api();
    let receiver = Receiver::start().await;
    let webhook = json!({"url": receiver.url(), "events": ["*"], "headers": {"Redrive-Hops": "0"}});
    assert_eq!(api.post("/v1/webhooks", webhook).await.expect(400)["field"], "headers.redrive-hops");
    api.create_webhook(&receiver.url(), json!(null)).await;
    api.publish("plain.event", json!(1)).await;
    assert_eq!(receiver.wait_for(1).await[0].header("redrive-hops"), Some("1"));

    let event = json!({"event_type": "a.b", "data": 1}).to_string();
    let batch = json!({"events": [{"event_type": "a.b", "data": 1}]}).to_string();
    let cloud = |id: &str| json!({"specversion": "1.0", "id": id, "source": "/s", "type": "a.b", "data": 1});
    let publish = async |path: &str,
                         content_type: &str,
                         hops: &str,
                         body: String,
                         ce: &[(&str, &str)]|
           -> ApiResponse {
        let mut headers = vec![("content-type", content_type), ("redrive-hops", hops)];
        headers.extend(ce);
        api.raw("POST", path, &headers, body).await
    };
    let binary = |id| [("ce-specversion", "1.0"), ("ce-id", id), ("ce-source", "/s"), ("ce-type", "a.b")];
    let structured = "application/cloudevents+json";
    publish("/v1/events", "application/json", "3", event.clone(), &[]).await.expect(202);
    publish("/v1/events", structured, "3", cloud("1").to_string(), &[]).await.expect(202);
    publish("/v1/events", "application/json", "3", "1".into(), &binary("2")).await.expect(202);
    publish("/v1/events/batch", "application/json", "3", batch.clone(), &[]).await.expect(202);
    let list = json!([cloud("3")]).to_string();
    let several = "application/cloudevents-batch+json";
    publish("/v1/events/batch", several, "3", list, &[]).await.expect(202);
    let arrivals = receiver.wait_for(6).await;
    assert!(arrivals[1..].iter().all(|arrival| arrival.header("redrive-hops") == Some("4")));

    for response in [
        publish("/v1/events", "application/json", "4", event.clone(), &[]).await,
        publish("/v1/events", structured, "4", cloud("4").to_string(), &[]).await,
        publish("/v1/events", "application/json", "99999", "1".into(), &binary("5")).await,
    ] {
        assert_eq!(response.expect(422)["code"], "loop_detected");
    }
    let judged = entries(&publish("/v1/events/batch", "application/json", "4", batch, &[]).await.expect(202));
    assert_eq!((&judged[0]["status"], &judged[0]["error"]["code"]), (&json!(422), &json!("loop_detected")));
    let problem = publish("/v1/events", "application/json", "many", event, &[]).await.expect(400);
    assert_eq!(problem["field"], "redrive-hops");
}

#[tokio::test]
async fn value_over_cap_is_rejected_and_stored_value_is_limited() {
    let dir = tempfile::tempdir().unwrap();
    let setup = || Setup::new().data_dir(dir.path());
    let mut redrive = Redrive::start_with(setup()).await;
    let failing = Receiver::responding(500).await;
    let request = json!({"max_in_flight": 500, "retry_config": {"schedule": [0, 0, 0, 0]}});
    let webhook = redrive.api().create_webhook(&failing.url(), request).await;
    assert_eq!(webhook.get("effective_limits"), None);
    is_stopped(&mut redrive).await;

    let capped = setup()
        .env("REDRIVE_LIMITS_CAPS_MAX_IN_FLIGHT", "100")
        .env("REDRIVE_LIMITS_CAPS_REQUESTS_PER_MINUTE", "6000")
        .env("REDRIVE_LIMITS_CAPS_MAX_ATTEMPTS", "2")
        .env("REDRIVE_LIMITS_CAPS_TIMEOUT_MS", "5000")
        .env("REDRIVE_LIMITS_CAPS_MIN_RETRY_DELAY", "10ms")
        .env("REDRIVE_LIMITS_CAPS_WEBHOOKS_PER_TENANT", "2");
    let redrive = Redrive::start_with(capped).await;
    let api = redrive.api();
    let path = format!("/v1/webhooks/{}", id(&webhook));
    let effective = &api.get(&path).await.expect(200)["effective_limits"];
    let expected = json!({
        "max_in_flight": 100, "rate_limit": {"requests_per_minute": 6000}, "max_attempts": 2,
        "min_retry_delay_ms": 10, "timeout_ms": 5000,
    });
    assert_eq!(*effective, expected);
    // The webhook's other fields can still be changed.
    api.patch(&path, json!({"description": "the object still exists"})).await.expect(200);
    let event = api.publish("order.created", json!(1)).await;
    let delivery = delivery_of(&api, &event).await;
    let dead = wait_for_status(&api, id(&delivery), "dead").await;
    assert_eq!((&dead["attempt_count"], failing.count()), (&json!(2), 2));

    for (change, field, setting) in [
        (json!({"max_in_flight": 101}), "max_in_flight", "limits.caps.max_in_flight"),
        (
            json!({"rate_limit": {"requests_per_minute": 6001}}),
            "rate_limit.requests_per_minute",
            "limits.caps.requests_per_minute",
        ),
        (
            json!({"retry_config": {"max_attempts": 3}}),
            "retry_config.max_attempts",
            "limits.caps.max_attempts",
        ),
        (json!({"retry_config": {"timeout_ms": 5001}}), "retry_config.timeout_ms", "limits.caps.timeout_ms"),
        (
            json!({"retry_config": {"schedule": [0, 0]}}),
            "retry_config.schedule",
            "limits.caps.min_retry_delay",
        ),
    ] {
        let mut new = change.clone();
        new["url"] = failing.url().into();
        new["events"] = json!(["*"]);
        for response in [api.patch(&path, change).await, api.post("/v1/webhooks", new).await] {
            let problem = response.expect(400);
            assert_eq!(problem["field"], field);
            assert!(text(&problem["detail"]).contains(setting), "{problem}");
        }
    }
    api.create_webhook(&failing.url(), json!({"max_in_flight": 100})).await;
    let third = api.post("/v1/webhooks", json!({"url": failing.url(), "events": ["*"]})).await.expect(409);
    assert_eq!(third["code"], "cap_reached");
}

/// Creates a portal session of the default tenant, and returns a client with its token.
async fn session(redrive: &Redrive, capabilities: Value) -> Api {
    let session = json!({"tenant_id": "default", "capabilities": capabilities});
    let session = redrive.api().post("/v1/portal-sessions", session).await.expect(201);
    redrive.api().with_key(text(&session["token"]))
}

#[tokio::test]
async fn portal_session_must_verify_and_cannot_raise_limits() {
    let redrive = Redrive::start().await;
    let receiver = Receiver::with(|arrival| {
        let challenge = arrival.json()["challenge"].as_str().map(str::to_owned);
        Reply::status(200).body(challenge.unwrap_or_default())
    })
    .await;
    let plain = json!({"url": receiver.url(), "events": ["*"], "verify_url": false});
    let customer = session(&redrive, json!(["manage_endpoints", "secrets"])).await;
    let created = customer.post("/v1/webhooks", &plain).await.expect(201);
    assert_eq!((&created["verify_url"], &created["state"]), (&json!(true), &json!("pending_verification")));
    let path = format!("/v1/webhooks/{}", id(&created));
    assert_eq!(customer.patch(&path, json!({"verify_url": false})).await.expect(200)["verify_url"], true);
    for change in [
        json!({"max_in_flight": 1}),
        json!({"rate_limit": {"requests_per_minute": 1}}),
        json!({"retry_config": {"max_attempts": 1}}),
        json!({"circuit_breaker_config": {"enabled": false}}),
        json!({"managed_by": "operator"}),
    ] {
        assert_eq!(customer.patch(&path, &change).await.expect(403)["code"], "forbidden", "{change}");
    }
    let limited = session(&redrive, json!(["manage_endpoints", "limits"])).await;
    for raised in [
        json!({"max_in_flight": 6}),
        json!({"retry_config": {"max_attempts": 11, "base_delay_ms": 60000}}),
        json!({"retry_config": {"timeout_ms": 30001}}),
        json!({"retry_config": {"schedule": [0, "10ms"]}}),
        json!({"circuit_breaker_config": {"enabled": false}}),
    ] {
        limited.patch(&path, &raised).await.expect(403);
    }
    let circuit = format!("{path}/circuit-breaker");
    limited.patch(&circuit, json!({"action": "force_close"})).await.expect(403);
    limited.patch(&circuit, json!({"action": "reset"})).await.expect(200);
    limited.patch(&path, json!({"max_in_flight": 2, "retry_config": {"max_attempts": 3}})).await.expect(200);
    // The operator may exceed these limits, and a session may then use up to the operator's value.
    let given = json!({"max_in_flight": 50, "verify_url": false});
    assert_eq!(redrive.api().patch(&path, given).await.expect(200)["state"], "active");
    limited.patch(&path, json!({"max_in_flight": 40})).await.expect(200);
    limited.patch(&path, json!({"max_in_flight": 41})).await.expect(403);
    let never = Setup::new().env("REDRIVE_WEBHOOKS_REQUIRE_VERIFICATION", "never");
    let never = Redrive::start_with(never).await;
    let customer = session(&never, json!(["manage_endpoints"])).await;
    let created = customer.post("/v1/webhooks", &plain).await.expect(201);
    assert_eq!(
        (&created["state"], created.get("secret")),
        (&json!("active"), None),
        "no secret without the capability"
    );
    let own =
        json!({"url": receiver.url(), "events": ["*"], "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"});
    customer.post("/v1/webhooks", own).await.expect(403);
    let always = Setup::new().env("REDRIVE_WEBHOOKS_REQUIRE_VERIFICATION", "always");
    let always = Redrive::start_with(always).await;
    assert_eq!(always.api().create_webhook(&receiver.url(), json!(null)).await["verify_url"], true);
}

#[tokio::test]
async fn operator_managed_webhook_is_hidden_from_portal_sessions() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let receiver = Receiver::responding(400).await;
    let once = json!({"max_attempts": 1});
    let hidden = api
        .create_webhook(
            &receiver.url(),
            json!({"managed_by": "operator", "description": "hidden", "retry_config": once}),
        )
        .await;
    let shown = api.create_webhook(&receiver.url(), json!({"retry_config": once})).await;
    assert_eq!((&hidden["managed_by"], &shown["managed_by"]), (&json!("operator"), &json!("tenant")));
    let event = api.publish("order.created", json!(1)).await;
    let deliveries =
        api.wait_until("both deliveries are dead", "/v1/dlq", |page| entries(page).len() == 2).await;
    let to = |webhook: &Value| {
        let deliveries = entries(&deliveries);
        let delivery = deliveries.iter().find(|delivery| delivery["webhook_id"] == webhook["id"]);
        id(delivery.unwrap()).to_owned()
    };
    let (dead_hidden, dead_shown) = (to(&hidden), to(&shown));
    let operation = json!({"start_at": "2100-01-01T00:00:00Z", "filter": {"webhook_ids": [id(&hidden)]}});
    let operation = api.post("/v1/dlq/retry-batch", operation).await.expect(202);
    // An operation that names no webhook selects all of them.
    let on_all = json!({"start_at": "2100-01-01T00:00:00Z", "filter": {"event_types": ["order.created"]}});
    let on_all = api.post("/v1/dlq/retry-batch", on_all).await.expect(202);
    let both_reported = |page: &Value| {
        [&hidden, &shown]
            .iter()
            .all(|webhook| entries(page).iter().any(|one| one["webhook_id"] == webhook["id"]))
    };
    api.wait_until("both deaths are reported", "/v1/notifications", both_reported).await;
    let customer = session(&redrive, json!(["manage_endpoints", "resend", "secrets", "limits"])).await;

    // Listings, statistics and exports do not contain the operator's webhook.
    let event_path = format!("/v1/events/{}", id(&event));
    for path in [
        "/v1/webhooks".to_owned(),
        "/v1/webhooks?limit=1".to_owned(),
        "/v1/deliveries".to_owned(),
        "/v1/deliveries?status=dead".to_owned(),
        "/v1/dlq".to_owned(),
        "/v1/dlq/stats".to_owned(),
        "/v1/dlq/export".to_owned(),
        "/v1/deliveries/export".to_owned(),
        format!("/v1/deliveries?webhook_id={}", id(&hidden)),
        format!("{event_path}/deliveries"),
        format!("{event_path}/attempts"),
        "/v1/dlq/batch-operations".to_owned(),
        "/v1/notifications".to_owned(),
        "/v1/notifications?limit=1".to_owned(),
        "/v1/events".to_owned(),
    ] {
        let response = customer.get(&path).await;
        assert_eq!(response.status, 200, "{path}");
        let body = String::from_utf8_lossy(&response.body);
        let webhook_in_query = path.contains(id(&hidden));
        for secret in [id(&hidden), &dead_hidden, id(&operation), id(&on_all)] {
            assert!(!body.contains(secret) || webhook_in_query && secret == id(&hidden), "{path}: {body}");
        }
    }
    assert_eq!(entries(&customer.get("/v1/webhooks?limit=1").await.expect(200))[0]["id"], shown["id"]);
    assert_eq!(customer.get("/v1/dlq/stats").await.expect(200)["size"], 1);
    let reported = entries(&customer.get("/v1/notifications").await.expect(200));
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert_eq!(reported[0]["webhook_id"], shown["id"]);

    // Neither the webhook nor its objects can be accessed by id.
    let webhook = format!("/v1/webhooks/{}", id(&hidden));
    for path in [
        webhook.clone(),
        format!("{webhook}/health"),
        format!("{webhook}/deliveries"),
        format!("/v1/deliveries/{dead_hidden}"),
        format!("/v1/deliveries/{dead_hidden}/attempts"),
        format!("/v1/dlq/batch-operations/{}", id(&operation)),
        format!("/v1/dlq/batch-operations/{}", id(&on_all)),
    ] {
        customer.get(&path).await.expect(404);
    }
    for (path, body) in [
        (format!("{webhook}/test"), json!({})),
        (format!("{webhook}/pause"), json!({})),
        (format!("{webhook}/enable"), json!({})),
        (format!("{webhook}/disable"), json!({})),
        (format!("{webhook}/verify"), json!({})),
        (format!("{webhook}/rotate-secret"), json!({})),
        (format!("{webhook}/filter/test"), json!({"data": {}})),
        (format!("{webhook}/backfill"), json!({"from": "2026-01-01T00:00:00Z", "dry_run": true})),
        (format!("{webhook}/deliveries/{dead_hidden}/retry"), json!({})),
        (format!("/v1/deliveries/{dead_hidden}/retry"), json!({})),
        (format!("/v1/deliveries/{dead_hidden}/cancel"), json!({})),
        (format!("{event_path}/replay"), json!({"webhook_ids": [id(&hidden)]})),
        ("/v1/dlq/retry-batch".to_owned(), json!({"filter": {"webhook_ids": [id(&hidden)]}})),
        (format!("/v1/dlq/batch-operations/{}/cancel", id(&operation)), json!({})),
    ] {
        assert_eq!(customer.post(&path, body).await.status, 404, "{path}");
    }
    customer.patch(&webhook, json!({"description": "mine"})).await.expect(404);
    customer.patch(&format!("{webhook}/circuit-breaker"), json!({"action": "reset"})).await.expect(404);
    customer.delete(&webhook).await.expect(404);

    // Operations on all webhooks leave out the operator's.
    let again = customer.post(&format!("{event_path}/replay"), json!({})).await.expect(202);
    assert!(!again.to_string().contains(&dead_hidden));
    let all =
        api.wait_until("the replayed delivery is dead", "/v1/dlq", |page| entries(page).len() == 2).await;
    assert!(entries(&all).iter().any(|delivery| delivery["id"] == dead_hidden.as_str()));
    let dry = customer.delete("/v1/dlq?dry_run=true").await.expect(200);
    assert_eq!(dry["total"], 1);
    customer.delete("/v1/dlq").await;
    let left = api.wait_until("the purge is completed", "/v1/dlq", |page| entries(page).len() == 1).await;
    assert_eq!(entries(&left)[0]["id"], dead_hidden.as_str());
    assert_ne!(dead_hidden, dead_shown);

    // The history of a deleted operator-managed webhook stays hidden.
    api.delete(&webhook).await.expect(204);
    let history = customer.get("/v1/deliveries").await;
    assert!(!String::from_utf8_lossy(&history.body).contains(&dead_hidden));
}

#[tokio::test]
async fn session_pages_are_full_despite_operator_managed_webhooks() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let receiver = Receiver::start().await;
    let mut shown = Vec::new();
    for n in 0..40 {
        let managed_by = if n % 8 == 0 { "tenant" } else { "operator" };
        let webhook =
            api.create_webhook(&receiver.url_at(&format!("/{n}")), json!({"managed_by": managed_by})).await;
        if n % 8 == 0 {
            shown.insert(0, id(&webhook).to_owned());
        }
    }
    let customer = session(&redrive, json!(["view"])).await;
    let list = async |query: String| customer.get(&format!("/v1/webhooks?{query}")).await.expect(200);
    let ids = |page: &Value| entries(page).iter().map(|one| id(one).to_owned()).collect::<Vec<_>>();
    assert_eq!(ids(&list("limit=3".into()).await), shown[..3]);
    assert_eq!(
        ids(&list("limit=2&offset=1".into()).await),
        shown[1..3],
        "an offset counts visible webhooks only"
    );
    let (mut walked, mut query) = (Vec::new(), "limit=1".to_owned());
    loop {
        let page = list(query).await;
        walked.extend(ids(&page));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        query = format!("limit=1&cursor={cursor}");
    }
    assert_eq!(walked, shown);
}

#[tokio::test]
async fn events_about_operator_managed_webhooks_are_not_published() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let (refusing, operational) = (Receiver::responding(400).await, Receiver::start().await);
    api.create_webhook(&operational.url(), json!({"events": ["redrive.*"]})).await;
    let once = |managed_by: &str, event: &str| json!({"managed_by": managed_by, "events": [event], "retry_config": {"max_attempts": 1}});
    let hidden = api.create_webhook(&refusing.url(), once("operator", "first")).await;
    let shown = api.create_webhook(&refusing.url(), once("tenant", "second")).await;
    api.publish("first", json!(1)).await;
    let listed = |webhook: &Value| {
        let webhook = webhook["id"].clone();
        move |page: &Value| {
            entries(page).iter().any(|one| one["webhook_id"] == webhook && one["next_attempt_at"].is_null())
        }
    };
    api.wait_until("the first death is reported", "/v1/notifications", listed(&hidden)).await;
    api.publish("second", json!(1)).await;
    api.wait_until("the second death is reported", "/v1/notifications", listed(&shown)).await;
    operational.wait_for(1).await;
    let arrived: Vec<_> = operational.arrivals().iter().map(|one| one.json().to_string()).collect();
    assert!(
        arrived.iter().all(|body| body.contains(id(&shown)) && !body.contains(id(&hidden))),
        "{arrived:?}"
    );
}

/// A page, a text, and whether the page must show it.
type Offer<'a> = (&'a str, &'a str, bool);

#[tokio::test]
async fn portal_pages_offer_what_the_session_may_do() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let receiver = Receiver::responding(400).await;
    let once = json!({"max_attempts": 1});
    let shown = api.create_webhook(&receiver.url(), json!({"retry_config": once})).await;
    let operators = json!({"managed_by": "operator", "description": "operator's own", "retry_config": once});
    let hidden = api.create_webhook(&receiver.url(), operators).await;
    let event = api.publish("order.created", json!(1)).await;
    let dead = api.wait_until("both deliveries are dead", "/v1/dlq", |page| entries(page).len() == 2).await;
    let to = |webhook: &Value| {
        let dead = entries(&dead);
        id(dead.iter().find(|delivery| delivery["webhook_id"] == webhook["id"]).unwrap()).to_owned()
    };
    let (dead_shown, dead_hidden) = (to(&shown), to(&hidden));
    let base = "/dashboard/t/default";
    let webhook_page = format!("{base}/webhooks/{}", id(&shown));
    let form = format!("{webhook_page}/edit");
    let delivery_page = format!("{base}/deliveries/{dead_shown}");
    let cases: [(Value, [Offer<'_>; 6]); 3] = [
        (
            json!(["view"]),
            [
                (&webhook_page, "do-delete", false),
                (&webhook_page, "data-dialog=\"rotate\"", false),
                (&webhook_page, "data-dialog=\"backfill\"", false),
                (&delivery_page, "/retry", false),
                (&form, "f-url", false),
                (&form, "max_in_flight", false),
            ],
        ),
        (
            json!(["manage_endpoints", "resend"]),
            [
                (&webhook_page, "do-delete", true),
                (&webhook_page, "data-dialog=\"rotate\"", false),
                (&webhook_page, "data-dialog=\"backfill\"", true),
                (&delivery_page, "/retry", true),
                (&form, "f-url", true),
                (&form, "max_in_flight", false),
            ],
        ),
        (
            json!(["manage_endpoints", "secrets", "limits"]),
            [
                (&webhook_page, "do-delete", true),
                (&webhook_page, "data-dialog=\"rotate\"", true),
                (&webhook_page, "data-dialog=\"backfill\"", false),
                (&delivery_page, "/retry", false),
                (&form, "f-url", true),
                (&form, "max_in_flight", true),
            ],
        ),
    ];
    for (capabilities, pages) in cases {
        let session = json!({"tenant_id": "default", "capabilities": capabilities});
        let session = api.post("/v1/portal-sessions", session).await.expect(201);
        let browser = Browser::log_in(&redrive, text(&session["token"])).await;
        for (page, part, is_there) in pages {
            let html = browser.get(page).await;
            let html = String::from_utf8_lossy(&html.body).into_owned();
            assert_eq!(html.contains(part), is_there, "{capabilities}: {part} on {page}");
        }
        // No page shows anything of the operator's webhook.
        let pages = ["", "/webhooks", "/deliveries", "/dead", "/events", "/operations"];
        let pages = pages.map(|page| format!("{base}{page}"));
        for page in pages.into_iter().chain([format!("{base}/events/{}", id(&event))]) {
            let html = browser.get(&page).await;
            assert_eq!(html.status, 200, "{page}");
            let html = String::from_utf8_lossy(&html.body).into_owned();
            for secret in
                [id(&hidden), &dead_hidden, "operator&#39;s own", "operator's own", "operator&#x27;s own"]
            {
                assert!(!html.contains(secret), "{page} shows {secret}");
            }
        }
        for page in [format!("{base}/webhooks/{}", id(&hidden)), format!("{base}/deliveries/{dead_hidden}")] {
            assert_eq!(browser.get(&page).await.status, 404, "{page}");
        }
    }
}

#[tokio::test]
async fn all_broken_rules_of_a_webhook_are_listed() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = json!({
        "url": "https://example.com/webhooks",
        "events": ["order.created"],
        "headers": {"Host": "y", "x good": "z"},
        "owner": {"email": "nowhere"},
        "secret": "short",
        "auth": {"type": "basic", "user": "x", "password": "y"},
    });
    let problem = api.post("/v1/webhooks", webhook).await.expect(400);
    let errors = problem["errors"].as_array().unwrap();
    let fields: Vec<_> = errors.iter().map(|error| text(&error["field"])).collect();
    for field in ["headers.Host", "headers.x good", "owner.email", "secret", "auth", "auth.username"] {
        assert!(fields.contains(&field), "{field} of {problem:#}");
    }
}

#[tokio::test]
async fn patterns_are_refused_where_names_of_event_types_are_compared() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    for path in ["/v1/deliveries", "/v1/events", "/v1/dlq/stats", "/v1/deliveries/export"] {
        let problem = api.get(&format!("{path}?event_type=order.*")).await.expect(400);
        assert_eq!(problem["field"], "event_type", "{path}: {problem}");
        assert!(text(&problem["detail"]).contains("is a pattern"), "{path}: {problem}");
    }
    let filter = json!({"filter": {"event_types": ["order.created", "order.*"]}});
    let problem = api.post("/v1/deliveries/retry-batch", filter).await.expect(400);
    assert_eq!(problem["field"], "filter.event_types[1]", "{problem}");
}
