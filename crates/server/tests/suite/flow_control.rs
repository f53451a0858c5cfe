//! Flow control through the API: pauses, expiry, circuits, rate limits, pools.

use std::time::Duration;

use redrive_core::Time;
use redrive_testkit::{Api, ApiResponse, Receiver, Redrive, Reply, Setup};
use serde_json::{Value, json};

fn id(object: &Value) -> &str {
    object["id"].as_str().unwrap()
}

#[track_caller]
fn assert_problem(response: &ApiResponse, status: u16, code: &str, mentions: &str) {
    let text = String::from_utf8_lossy(&response.body).into_owned();
    assert_eq!((response.status, response.problem().as_str()), (status, code), "{text}");
    assert!(response.json()["detail"].as_str().unwrap().contains(mentions), "{text}");
}

/// Waits until the only delivery of an event meets a condition, and returns it.
async fn delivery_when(api: &Api, event: &Value, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
    let path = format!("/v1/events/{}/deliveries", id(event));
    let one =
        |page: &Value| page["data"].as_array().filter(|data| data.len() == 1).map(|data| data[0].clone());
    let page = api.wait_until(what, &path, |page| one(page).is_some_and(|one| condition(&one))).await;
    one(&page).unwrap()
}

#[tokio::test]
async fn webhook_returns_its_settings() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let given = json!({
        "circuit_breaker_config": {"minimum_throughput": 3, "error_threshold_percentage": 50.0},
        "rate_limit": {"requests_per_minute": 600, "burst": 100},
        "ordering_guarantee": "per_event_type",
        "expires_at": "2999-01-31T12:00:00.000Z",
        "state": "paused",
    });
    let created = api.create_webhook("http://127.0.0.1:2/", &given).await;
    let path = format!("/v1/webhooks/{}", id(&created));
    let read = api.get(&path).await.expect(200);
    let listed = api.get("/v1/webhooks").await.expect(200)["data"][0].clone();
    for (name, value) in given.as_object().unwrap() {
        assert_eq!(created[name], *value, "{name} as created");
        assert_eq!(read[name], *value, "{name} as read");
        assert_eq!(listed[name], *value, "{name} as listed");
    }
    assert_eq!((&read["active"], &read["last_success_at"]), (&json!(false), &Value::Null));
    let kept = api.patch(&path, json!({"description": "x"})).await.expect(200);
    assert_eq!(kept["rate_limit"], given["rate_limit"], "omitted fields keep their values");
    let cleared = json!({
        "rate_limit": null, "expires_at": null, "circuit_breaker_config": null, "ordering_guarantee": "none",
        "active": true,
    });
    let cleared = api.patch(&path, cleared).await.expect(200);
    assert_eq!((&cleared["rate_limit"], &cleared["expires_at"]), (&Value::Null, &Value::Null));
    assert_eq!(cleared["circuit_breaker_config"], json!({}));
    assert_eq!((&cleared["ordering_guarantee"], &cleared["state"]), (&json!("none"), &json!("active")));
}

#[tokio::test]
async fn paused_webhook_parks_its_deliveries() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = api.create_webhook(&receiver.url(), Value::Null).await;
    let at = |verb: &str| format!("/v1/webhooks/{}/{verb}", id(&webhook));
    for _ in 0..2 {
        let paused = api.post(&at("pause"), json!({})).await.expect(200);
        assert_eq!((&paused["state"], &paused["active"]), (&json!("paused"), &json!(false)));
    }
    let event = api.publish("a.b", json!(1)).await;
    let waiting = delivery_when(&api, &event, "a parked delivery", |one| one["waiting_on"] == "paused").await;
    assert_eq!((&waiting["status"], &waiting["next_attempt_at"]), (&json!("pending"), &Value::Null));
    assert!(waiting["waiting_explanation"].as_str().unwrap().contains("resume it"), "{waiting}");
    let health = api.get(&at("health")).await.expect(200);
    assert_eq!((&health["state"], &health["waiting"]["waiting_on"]), (&json!("paused"), &json!("paused")));
    assert_eq!(health["backlog"], json!({"total": 1, "by_waiting_on": {"paused": 1}, "counted_up_to": null}));
    assert_problem(&api.post(&at("test"), json!({})).await, 409, "webhook_not_active", "resume it first");
    assert_eq!(receiver.count(), 0);
    for _ in 0..2 {
        assert_eq!(api.post(&at("resume"), json!({})).await.expect(200)["state"], "active");
    }
    receiver.wait_for(1).await;
    delivery_when(&api, &event, "a delivered one", |one| one["status"] == "delivered").await;
    api.post(&at("pause"), json!({})).await.expect(200);
    assert_eq!(api.post(&at("enable"), json!({})).await.expect(200)["state"], "active");
    api.post(&at("disable"), json!({})).await.expect(200);
    assert_problem(&api.post(&at("pause"), json!({})).await, 409, "webhook_disabled", "/enable");
    assert_problem(&api.post(&at("resume"), json!({})).await, 409, "webhook_disabled", "/enable");
    assert_problem(&api.post(&at("test"), json!({})).await, 409, "webhook_not_active", "enable it first");
    assert_eq!(
        api.get(&at("health")).await.expect(200)["waiting"],
        Value::Null,
        "a disabled webhook has no wait reason"
    );
}

#[tokio::test]
async fn expired_webhook_needs_later_expiry_to_be_enabled() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let created = api.create_webhook("http://127.0.0.1:2/", Value::Null).await;
    let path = format!("/v1/webhooks/{}", id(&created));
    let past = created["created_at"].clone();
    let refusal = api.patch(&path, json!({"expires_at": past})).await;
    assert_problem(&refusal, 400, "invalid_field", "must be in the future");
    let soon = Time::parse(created["created_at"].as_str().unwrap()).unwrap() + Duration::from_secs(2);
    api.patch(&path, json!({"expires_at": soon})).await.expect(200);
    api.wait_until("an expired webhook", &path, |webhook| webhook["state"] == "disabled").await;
    assert_eq!(api.get(&path).await.expect(200)["disabled_reason"], "expired");
    assert_problem(
        &api.post(&format!("{path}/enable"), json!({})).await,
        409,
        "webhook_expired",
        "later expires_at",
    );
    assert_problem(
        &api.patch(&path, json!({"active": true})).await,
        409,
        "webhook_expired",
        "later expires_at",
    );
    assert_problem(
        &api.patch(&path, json!({"state": "paused"})).await,
        409,
        "webhook_expired",
        "later expires_at",
    );
    let longer = json!({"active": true, "expires_at": "2999-01-01T00:00:00Z"});
    assert_eq!(api.patch(&path, longer).await.expect(200)["state"], "active");
    api.post(&format!("{path}/disable"), json!({})).await.expect(200);
    api.patch(&path, json!({"expires_at": null})).await.expect(200);
    assert_eq!(api.post(&format!("{path}/enable"), json!({})).await.expect(200)["state"], "active");
}

#[tokio::test]
async fn circuit_can_be_forced_and_reset_manually() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let admin = redrive.api();
    let key = admin.post("/v1/tenants/default/api-keys", json!({"name": "ops"})).await.expect(201);
    let api = admin.with_key(key["key"].as_str().unwrap());
    let webhook = api.create_webhook(&receiver.url(), Value::Null).await;
    let circuit = format!("/v1/webhooks/{}/circuit-breaker", id(&webhook));
    let health = format!("/v1/webhooks/{}/health", id(&webhook));
    let forced =
        api.patch(&circuit, json!({"action": "force_open", "duration_seconds": 600})).await.expect(200);
    assert_eq!((&forced["state"], &forced["fallback"]), (&json!("open"), &json!(false)), "{forced}");
    assert_eq!((&forced["forced"]["open"], &forced["forced"]["by"]), (&json!(true), &json!("ops")));
    assert!(forced["forced"]["until"].is_string() && forced["counts"]["by_category"].is_object());
    assert_eq!(
        (&forced["periods"][0]["forced"], &forced["periods"][0]["ended_at"]),
        (&json!(true), &Value::Null)
    );

    let event = api.publish("a.b", json!(1)).await;
    let held =
        delivery_when(&api, &event, "a blocked delivery", |one| one["waiting_on"] == "circuit_open").await;
    assert_eq!(held["next_attempt_at"], forced["forced"]["until"]);
    assert!(held["waiting_explanation"].as_str().unwrap().contains("forced open by ops"), "{held}");
    let attempts = format!("/v1/deliveries/{}/attempts", id(&held));
    let blocked = api.get(&attempts).await.expect(200)["data"].clone();
    assert_eq!(blocked.as_array().unwrap().len(), 1, "{blocked}");
    for (name, value) in [
        ("status", json!("circuit_blocked")),
        ("number", Value::Null),
        ("executed_at", Value::Null),
        ("blocked_until", Value::Null),
        ("circuit_state_at_attempt", json!("open")),
        ("scheduled_at", held["created_at"].clone()),
    ] {
        assert_eq!(blocked[0][name], value, "{name}: {blocked}");
    }
    assert!(blocked[0]["error_message"].as_str().unwrap().contains("forced open"), "{blocked}");
    let report = api.wait_until("a backlog", &health, |report| report["backlog"]["total"] == 1).await;
    assert_eq!(report["backlog"]["by_waiting_on"], json!({"circuit_open": 1}), "{report}");
    assert_eq!(report["circuit"]["state"], "open");
    assert_eq!(report["waiting"]["waiting_on"], "circuit_open");

    let reset = api.patch(&circuit, json!({"action": "reset"})).await.expect(200);
    assert_eq!((&reset["state"], &reset["forced"]), (&json!("closed"), &Value::Null));
    delivery_when(&api, &event, "a delivered one", |one| one["status"] == "delivered").await;
    for path in [attempts, format!("/v1/events/{}/attempts", id(&event))] {
        let history = api.get(&path).await.expect(200)["data"].clone();
        let reported: Vec<_> =
            history.as_array().unwrap().iter().map(|one| (&one["status"], &one["number"])).collect();
        let expected = [(&json!("circuit_blocked"), &Value::Null), (&json!("success"), &json!(1))];
        assert_eq!(reported, expected, "{path}");
        assert!(history[0]["blocked_until"].is_string(), "{history}");
        assert_eq!(history[1]["circuit_state_at_attempt"], "closed");
    }
    let closed = admin.patch(&circuit, json!({"action": "force_close"})).await.expect(200);
    assert_eq!((&closed["state"], &closed["forced"]["by"]), (&json!("closed"), &json!("admin")));
    assert_eq!((&closed["forced"]["open"], &closed["forced"]["until"]), (&json!(false), &Value::Null));
}

#[tokio::test]
async fn circuit_is_forced_open_together_with_the_settings_of_its_webhook() {
    let receiver = Receiver::start().await;
    let mut redrive = Redrive::start().await;
    let webhook = redrive.api().create_webhook(&receiver.url(), Value::Null).await;
    let path = format!("/v1/webhooks/{}", id(&webhook));
    let created_at = Time::parse(webhook["created_at"].as_str().unwrap()).unwrap();
    let after = |secs| (created_at + Duration::from_secs(secs)).to_string();
    let until = after(3600);
    let forced = json!({"minimum_throughput": 7, "force_open_until": until});
    let api = redrive.api();
    let changed = api.patch(&path, json!({"circuit_breaker_config": forced})).await.expect(200);
    assert_eq!((&changed["circuit_breaker_config"], &changed["status"]), (&forced, &json!("paused")));
    let event = api.publish("a.b", json!(1)).await;
    delivery_when(&api, &event, "it waits", |one| one["waiting_on"] == "circuit_open").await;

    // It survives a crash, and changes of other settings.
    redrive.kill();
    redrive.restart().await;
    let api = redrive.api();
    let read = api.patch(&path, json!({"description": "x"})).await.expect(200);
    assert_eq!((&read["circuit_breaker_config"], &read["status"]), (&forced, &json!("paused")));
    let listed = api.get("/v1/webhooks?status=paused").await.expect(200);
    assert_eq!(listed["data"][0]["circuit_breaker_config"], forced);
    assert_eq!(api.get("/v1/webhooks?status=healthy").await.expect(200)["data"], json!([]));
    let health = api.get(&format!("{path}/health")).await.expect(200);
    assert_eq!(health["circuit"]["forced"], json!({"open": true, "until": until, "by": "admin"}));
    let kept =
        api.patch(&path, json!({"circuit_breaker_config": {"minimum_throughput": 8}})).await.expect(200);
    assert_eq!(
        kept["circuit_breaker_config"],
        json!({"minimum_throughput": 8, "force_open_until": until}),
        "without the field the circuit keeps its state"
    );

    for (time, mentions) in [(after(0), "must be in the future"), (after(31 * 86_400), "30 days")] {
        let refused = api.patch(&path, json!({"circuit_breaker_config": {"force_open_until": time}})).await;
        assert_problem(&refused, 400, "invalid_field", mentions);
    }
    assert_eq!(receiver.count(), 0);
    let ended = json!({"circuit_breaker_config": {"force_open_until": null}});
    let ended = api.patch(&path, ended).await.expect(200);
    assert_eq!(
        ended["circuit_breaker_config"],
        json!({"minimum_throughput": 8}),
        "the field alone changes no other setting"
    );
    receiver.wait_for(1).await;
    api.wait_until("it is healthy again", &path, |webhook| webhook["status"] == "healthy").await;
}

#[tokio::test]
async fn webhook_can_be_created_with_a_forced_circuit() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let other = api.create_webhook("http://127.0.0.1:2/", json!({"events": ["other"]})).await;
    let now = Time::parse(other["created_at"].as_str().unwrap()).unwrap();
    let forced = json!({"force_open_until": (now + Duration::from_secs(60)).to_string()});
    let created = api.create_webhook(&receiver.url(), json!({"circuit_breaker_config": forced})).await;
    assert_eq!((&created["circuit_breaker_config"], &created["status"]), (&forced, &json!("paused")));
    let event = api.publish("a.b", json!(1)).await;
    delivery_when(&api, &event, "it waits", |one| one["waiting_on"] == "circuit_open").await;
    let reset = format!("/v1/webhooks/{}/circuit-breaker", id(&created));
    api.patch(&reset, json!({"action": "reset"})).await.expect(200);
    receiver.wait_for(1).await;
    let read = api.get(&format!("/v1/webhooks/{}", id(&created))).await.expect(200);
    assert_eq!(read["circuit_breaker_config"], json!({}), "it shows what the circuit is");
}

#[tokio::test]
async fn status_follows_the_results_of_a_webhook() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let options = json!({"circuit_breaker_config": {"enabled": false}, "retry_config": {"max_attempts": 1}});
    let webhook = api.create_webhook(&receiver.url(), options).await;
    let path = format!("/v1/webhooks/{}", id(&webhook));
    assert_eq!((&webhook["status"], &webhook["last_success_at"]), (&json!("healthy"), &Value::Null));
    receiver.respond_with(|_| Reply::status(500));
    api.publish("a.b", json!(1)).await;
    api.wait_until("one failed", &path, |webhook| webhook["status"] == "degraded").await;
    for n in 0..4 {
        api.publish("a.b", json!(n)).await;
    }
    api.wait_until("five failed", &path, |webhook| webhook["status"] == "failing").await;
    let listed = api.get("/v1/webhooks?status=failing").await.expect(200);
    assert_eq!((listed["data"].as_array().unwrap().len(), &listed["data"][0]["id"]), (1, &webhook["id"]));
    receiver.respond_with(|_| Reply::status(200));
    api.publish("a.b", json!(5)).await;
    let recovered =
        |webhook: &Value| webhook["status"] == "degraded" && webhook["last_success_at"].is_string();
    api.wait_until("it recovered, and the last hour has failures", &path, recovered).await;
    for (action, expected) in [("pause", "paused"), ("resume", "degraded"), ("disable", "disabled")] {
        let changed = api.post(&format!("{path}/{action}"), json!({})).await.expect(200);
        assert_eq!(changed["status"], expected, "{action}");
    }
}

#[tokio::test]
async fn health_reports_success_rate_latency_and_errors() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = api.create_webhook(&receiver.url(), Value::Null).await;
    let path = format!("/v1/webhooks/{}/health", id(&webhook));
    let fresh = api.get(&path).await.expect(200);
    let nothing = json!({
        "attempts": 0, "successes": 0, "success_rate": null,
        "latency_ms": {"p50": null, "p95": null, "p99": null}, "errors": {},
    });
    for window in ["last_5_minutes", "last_hour", "last_24_hours"] {
        assert_eq!(fresh[window], nothing, "{window}");
    }
    assert_eq!((&fresh["circuit"]["state"], &fresh["waiting"]), (&json!("closed"), &Value::Null));
    assert_eq!(fresh["circuit"]["periods"], json!([]));
    assert_eq!((&fresh["last_success_at"], &fresh["failing_since"]), (&Value::Null, &Value::Null));
    assert_eq!((&fresh["in_flight"], &fresh["backlog"]["total"]), (&json!(0), &json!(0)));
    api.publish("a.b", json!(1)).await;
    api.wait_until("a success", &path, |health| health["last_hour"]["successes"] == 1).await;
    receiver.respond_with(|_| Reply::status(500));
    api.publish("a.b", json!(2)).await;
    // Circuit counts and per-minute rollups are updated separately, so wait for both.
    let both =
        |health: &Value| health["last_hour"]["attempts"] == 2 && health["circuit"]["counts"]["total"] == 2;
    let report = api.wait_until("a failure", &path, both).await;
    assert_eq!(report["last_5_minutes"]["errors"], json!({"server_error": 1}));
    assert_eq!(report["last_24_hours"]["success_rate"], json!(0.5));
    assert!(report["last_5_minutes"]["latency_ms"]["p99"].as_f64().unwrap() > 0.0);
    assert_eq!(
        report["circuit"]["counts"],
        json!({"total": 2, "failed": 1, "by_category": {"server_error": 1}})
    );
    assert!(report["last_success_at"].is_string() && report["failing_since"].is_string(), "{report}");
    let webhook = api.get(&format!("/v1/webhooks/{}", id(&webhook))).await.expect(200);
    assert_eq!(webhook["last_success_at"], report["last_success_at"]);
}

#[tokio::test]
async fn tenant_pool_and_limits_can_be_set_and_cleared() {
    let receiver = Receiver::start().await;
    let redrive =
        Redrive::start_with(Setup::new().arg("--pool").arg("default").arg("--pool").arg("gold")).await;
    let admin = redrive.api();
    let plain = admin.post("/v1/tenants", json!({"id": "plain"})).await.expect(201);
    assert_eq!(
        (&plain["pool"], &plain["rate_limit"], &plain["max_in_flight"]),
        (&json!("default"), &Value::Null, &Value::Null)
    );
    let rules = json!({"pool": "silver", "rate_limit": {"requests_per_minute": 60}, "max_in_flight": 7});
    let mut new = rules.clone();
    new["id"] = json!("acme");
    admin.post("/v1/tenants", new).await.expect(201);
    let read = admin.get("/v1/tenants/acme").await.expect(200);
    for (name, value) in rules.as_object().unwrap() {
        assert_eq!(read[name], *value, "{name}");
    }
    let webhook = json!({"tenant_id": "acme", "url": receiver.url(), "events": ["*"]});
    admin.post("/v1/webhooks", webhook).await.expect(201);
    let event = json!({"tenant_id": "acme", "event_type": "a.b", "data": 1});
    let event = admin.post("/v1/events", event).await.expect(202);
    let path = format!("/v1/events/{}/deliveries?tenant_id=acme", id(&event));
    let waiting = |page: &Value| page["data"][0]["waiting_on"] == "pool";
    admin.wait_until("a delivery without a pool", &path, waiting).await;
    assert_eq!(receiver.count(), 0);
    let changed = json!({"pool": "gold", "name": "Acme", "rate_limit": null});
    let changed = admin.patch("/v1/tenants/acme", changed).await.expect(200);
    assert_eq!(
        (&changed["pool"], &changed["name"], &changed["max_in_flight"]),
        (&json!("gold"), &json!("Acme"), &json!(7))
    );
    assert_eq!(changed["rate_limit"], Value::Null);
    receiver.wait_for(1).await;
    let cleared =
        admin.patch("/v1/tenants/acme", json!({"pool": null, "max_in_flight": null})).await.expect(200);
    assert_eq!((&cleared["pool"], &cleared["max_in_flight"]), (&json!("default"), &Value::Null));
}

#[tokio::test]
async fn priority_is_accepted_and_returned() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), Value::Null).await;
    let event = json!({"event_type": "a.b", "data": 1, "priority": "high"});
    let event = api.post("/v1/events", event).await.expect(202);
    assert_eq!(api.get(&format!("/v1/events/{}", id(&event))).await.expect(200)["priority"], "high");
    let delivered = delivery_when(&api, &event, "a delivered one", |one| one["status"] == "delivered").await;
    assert_eq!(delivered["priority"], "high");
    let batch = json!({"events": [{"event_type": "a.b", "data": 1, "priority": "low"}, {"event_type": "a.b", "data": 2}]});
    let batch = api.post("/v1/events/batch", batch).await.expect(202);
    for (index, priority) in ["low", "normal"].into_iter().enumerate() {
        let event = &batch["data"][index];
        assert_eq!(api.get(&format!("/v1/events/{}", id(event))).await.expect(200)["priority"], priority);
    }
    let retry = format!("/v1/deliveries/{}/retry", id(&delivered));
    let again = api.post(&retry, json!({"priority": "low"})).await.expect(202);
    assert_eq!(again["priority"], "low");
    let again = format!("/v1/deliveries/{}", again["delivery_id"].as_str().unwrap());
    api.wait_until("a delivered resend", &again, |one| one["status"] == "delivered").await;
    assert_eq!(api.get(&again).await.expect(200)["priority"], "low");
    let replay = format!("/v1/events/{}/replay", id(&event));
    let replayed = api.post(&replay, json!({"priority": "normal"})).await.expect(202);
    let replayed = format!("/v1/deliveries/{}", replayed["delivery_ids"][0].as_str().unwrap());
    assert_eq!(api.get(&replayed).await.expect(200)["priority"], "normal");
}

#[tokio::test]
async fn api_rate_limit_is_per_key() {
    let setup =
        Setup::new().env("REDRIVE_LIMITS_API_REQUESTS_PER_MINUTE", "6").env("REDRIVE_LIMITS_API_BURST", "3");
    let redrive = Redrive::start_with(setup).await;
    let admin = redrive.api();
    let key = admin.post("/v1/tenants/default/api-keys", json!({})).await;
    let reported = |response: &ApiResponse| {
        ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"]
            .map(|name| response.header(name).map(|value| value.parse::<u64>().unwrap()))
    };
    assert_eq!(reported(&key), [Some(6), Some(2), Some(10)]);
    let api = admin.with_key(key.expect(201)["key"].as_str().unwrap());
    assert_eq!(reported(&api.get("/v1/events").await), [Some(6), Some(2), Some(10)]);
    let missing = api.get("/v1/nothing").await;
    assert_eq!(
        (missing.status, reported(&missing)[1]),
        (404, Some(1)),
        "error responses have the headers too"
    );
    assert_eq!(api.get("/v1/events").await.status, 200);
    let over = api.post("/v1/events", json!({"event_type": "a.b", "data": 1})).await;
    assert_problem(&over, 429, "rate_limited", "6 calls a minute");
    assert_eq!(reported(&over)[1], Some(0));
    let wait: u64 = over.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=10).contains(&wait), "{wait}");
    assert_eq!(over.header("content-type"), Some("application/problem+json"));
    let unknown_key = admin.with_key("rdk_x").get("/v1/events").await;
    assert_eq!((unknown_key.status, reported(&unknown_key)), (401, [None; 3]));
    assert_eq!(admin.without_key().get("/healthz").await.status, 200);
    assert_eq!(
        admin.get("/v1/events").await.expect(200)["data"],
        json!([]),
        "another key; nothing was stored"
    );
}

#[tokio::test]
async fn rate_limit_headers_are_absent_without_a_limit() {
    let redrive = Redrive::start().await;
    let response = redrive.api().get("/v1/events").await;
    assert_eq!((response.status, response.header("ratelimit-limit")), (200, None));
}

#[tokio::test]
async fn flow_control_metrics_have_the_documented_names() {
    let redrive =
        Redrive::start_with(Setup::new().arg("--pool").arg("default").arg("--pool").arg("gold")).await;
    let api = redrive.api();
    let webhook = api.create_webhook("http://127.0.0.1:2/", Value::Null).await;
    let circuit = format!("/v1/webhooks/{}/circuit-breaker", id(&webhook));
    api.patch(&circuit, json!({"action": "force_open"})).await.expect(200);
    let event =
        api.post("/v1/events", json!({"event_type": "a.b", "data": 1, "priority": "low"})).await.expect(202);
    delivery_when(&api, &event, "a blocked delivery", |one| one["waiting_on"] == "circuit_open").await;
    let mut text = String::new();
    for _ in 0..200 {
        text = String::from_utf8_lossy(&api.get("/metrics").await.body).into_owned();
        if text.contains("webhook_circuit_blocked_deliveries 1\n") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for line in [
        "webhook_queue_depth{priority=\"high\"} 0",
        "webhook_queue_depth{priority=\"normal\"} 0",
        "webhook_queue_depth{priority=\"low\"} 1",
        "webhook_circuit_breaker_state{state=\"closed\"} 0",
        "webhook_circuit_breaker_state{state=\"open\"} 1",
        "webhook_circuit_breaker_state{state=\"half_open\"} 0",
        "webhook_circuits_forced_open 1",
        "webhook_circuits_open_over_1h 0",
        "webhook_circuit_blocked_deliveries 1",
        "webhook_worker_pool_utilization{pool=\"default\"} 0.0",
        "webhook_worker_pool_utilization{pool=\"gold\"} 0.0",
        "webhook_circuit_breaker_transitions_total{from_state=\"closed\",to_state=\"open\"} 1",
    ] {
        assert!(text.lines().any(|had| had == line), "no line {line} in:\n{text}");
    }
    assert!(text.contains("webhook_rate_limit_hits_total") && !text.contains("# EOF"), "{text}");
}

#[tokio::test]
async fn webhook_in_production_has_a_rate_limit_unless_it_is_switched_off() {
    const SENT: usize = 100 + 25;
    let serve = || {
        Setup::new()
            .command("serve")
            .env("REDRIVE_EGRESS_ALLOW_HTTP", "true")
            .env("REDRIVE_EGRESS_ALLOW_NETWORKS", r#"["127.0.0.0/8"]"#)
    };
    // Returns the webhook, and the time from the first to the last of 25 requests more than the burst.
    let send = async |setup: Setup| {
        let receiver = Receiver::start().await;
        let redrive = Redrive::start_with(setup).await;
        let api = redrive.api();
        let fields = json!({"max_in_flight": 50});
        let created = api.create_webhook(&receiver.url(), fields).await;
        let event = json!({"event_type": "order.created", "data": 1});
        let events = vec![event; SENT];
        api.post("/v1/events/batch", json!({"events": events})).await.expect(202);
        let arrivals = receiver.wait_for(SENT).await;
        let at = |arrival: &redrive_testkit::ReceivedRequest| arrival.at;
        (created, arrivals.iter().map(at).max().unwrap() - arrivals.iter().map(at).min().unwrap())
    };
    // The other 25 tokens come back at ten per second; the receiver may see the first request a little late.
    let (webhook, limited) = send(serve()).await;
    assert_eq!(webhook["rate_limit"], Value::Null, "{webhook}");
    assert!(limited > Duration::from_millis(2_000), "{limited:?}");
    for unlimited in [serve().env("REDRIVE_LIMITS_WEBHOOK_REQUESTS_PER_MINUTE", "0"), Setup::new()] {
        let (_, took) = send(unlimited).await;
        assert!(took < limited, "{took:?} without a limit, {limited:?} with it");
    }
}
