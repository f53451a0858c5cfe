//! Flow control as users see it: circuits, limits, ordering, pause, priority, pools.
//!
//! Rules and timing are tested elsewhere with a simulated clock; here it is the real binary, over HTTP.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use redrive_testkit::{Api, ApiResponse, Receiver, Redrive, Reply, Setup};
use redrive_tests::{
    attempts_of, delivery_of, entries, id, millis, redrive_at_speed, text, wait_for_delivery, wait_for_status,
};
use serde_json::{Value, json};

/// Starts a receiver that fails until its flag is set.
async fn broken() -> (Receiver, Arc<AtomicBool>) {
    let works = Arc::new(AtomicBool::new(false));
    let reported = works.clone();
    let receiver = Receiver::with(move |_| match reported.load(SeqCst) {
        true => Reply::status(200),
        false => Reply::status(500).body("out of order"),
    })
    .await;
    (receiver, works)
}

async fn publish(api: &Api, numbers: std::ops::Range<usize>) -> Vec<Value> {
    let mut events = Vec::new();
    for n in numbers {
        events.push(api.publish("order.created", json!({"n": n})).await);
    }
    events
}

async fn health_when(api: &Api, webhook: &Value, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
    api.wait_until(what, &format!("/v1/webhooks/{}/health", id(webhook)), condition).await
}

/// Waits until nothing is pending, and asserts that nothing is dead.
async fn all_delivered(api: &Api) {
    let none = |page: &Value| page["data"].as_array().unwrap().is_empty();
    api.wait_until("nothing is pending", "/v1/deliveries?status=pending&limit=1", none).await;
    assert!(none(&api.get("/v1/dlq").await.expect(200)));
}

/// Returns the whole problem document as text.
fn wait_text(response: &ApiResponse) -> String {
    assert!(response.status >= 400, "{}", response.status);
    response.json().to_string()
}

fn numbers(receiver: &Receiver) -> Vec<u64> {
    receiver.arrivals().iter().map(|arrival| arrival.json()["data"]["n"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn new_url_ends_the_open_circuit_of_the_old_one() {
    let (broken, works) = (Receiver::responding(500).await, Receiver::start().await);
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let config = json!({"minimum_throughput": 5, "sleep_window_ms": 3_600_000});
    let settings =
        json!({"circuit_breaker_config": config, "retry_config": {"schedule": [0, 0, 0, 0, 0, 0, 0]}});
    let webhook = api.create_webhook(&broken.url(), settings).await;
    publish(&api, 0..5).await;
    health_when(&api, &webhook, "an open circuit", |health| health["circuit"]["state"] == "open").await;
    let path = format!("/v1/webhooks/{}", id(&webhook));
    api.patch(&path, json!({"description": "the same endpoint"})).await.expect(200);
    let health = api.get(&format!("{path}/health")).await.expect(200);
    assert_eq!(health["circuit"]["state"], "open", "the endpoint is the same");
    api.patch(&path, json!({"url": works.url()})).await.expect(200);
    let health = api.get(&format!("{path}/health")).await.expect(200);
    assert_eq!(health["circuit"]["state"], "closed", "{health:#}");
    works.wait_for(5).await;
}

#[tokio::test]
async fn circuit_opens_survives_a_kill_recovers_and_shows_its_history() {
    let (receiver, works) = broken().await;
    let mut redrive = redrive_at_speed(20).await;
    let api = redrive.api();
    let config = json!({"minimum_throughput": 5, "sleep_window_ms": 60_000});
    let webhook = api
        .create_webhook(
            &receiver.url(),
            json!({"circuit_breaker_config": config, "retry_config": {"schedule": [0, 5, 5, 5, 5, 5, 5, 5]}}),
        )
        .await;
    assert_eq!(webhook["circuit_breaker_config"]["minimum_throughput"], 5);
    let first = publish(&api, 0..5).await;
    let health =
        health_when(&api, &webhook, "an open circuit", |health| health["circuit"]["state"] == "open").await;
    let circuit = &health["circuit"];
    assert_eq!(
        (&circuit["counts"]["total"], &circuit["counts"]["failed"]),
        (&json!(5), &json!(5)),
        "{health:#}"
    );
    assert_eq!(circuit["counts"]["by_category"], json!({"server_error": 5}));
    assert_eq!(circuit["error_percentage"], 100.0);
    assert_eq!(millis(&circuit["next_half_open_at"]) - millis(&circuit["state_transition_at"]), 60_000);
    assert_eq!(health["last_5_minutes"]["attempts"], 5);
    assert_eq!(health["last_5_minutes"]["success_rate"], 0.0);
    assert_eq!(health["last_hour"]["errors"], json!({"server_error": 5}));
    assert_eq!(health["waiting"]["waiting_on"], "circuit_open");

    let held = publish(&api, 5..8).await;
    let delivery = delivery_of(&api, &held[0]).await;
    assert_eq!((&delivery["status"], &delivery["waiting_on"]), (&json!("pending"), &json!("circuit_open")));
    assert_eq!(delivery["next_attempt_at"], circuit["next_half_open_at"]);
    let words = text(&delivery["waiting_explanation"]);
    assert!(words.contains("5 of 5 attempts failed, mostly with server_error"), "{words}");

    works.store(true, SeqCst);
    redrive.restart().await;
    let again = api.get(&format!("/v1/webhooks/{}/health", id(&webhook))).await.expect(200);
    assert_eq!(again["circuit"]["state"], "open", "a kill does not close the circuit: {again:#}");
    assert_eq!(receiver.count(), 5);

    all_delivered(&api).await;
    let health =
        health_when(&api, &webhook, "a closed circuit", |health| health["circuit"]["state"] == "closed")
            .await;
    let periods = health["circuit"]["periods"].as_array().unwrap();
    assert_eq!(periods.len(), 1, "{health:#}");
    assert!(!periods[0]["ended_at"].is_null());
    assert!(!health["last_success_at"].is_null());
    assert_eq!(health["backlog"]["total"], 0);

    // A blocked delivery shows `circuit_blocked`, without a number and without counting as an attempt.
    let attempts = attempts_of(&api, id(&delivery)).await;
    let reported: Vec<_> =
        attempts.iter().map(|one| (text(&one["status"]), one["number"].as_u64())).collect();
    assert_eq!(reported, [("circuit_blocked", None), ("success", Some(1))], "{attempts:#?}");
    let retried = delivery_of(&api, &first[0]).await;
    let attempts = attempts_of(&api, id(&retried)).await;
    let reported: Vec<_> =
        attempts.iter().map(|one| (text(&one["status"]), one["number"].as_u64())).collect();
    assert_eq!(
        reported,
        [("failed", Some(1)), ("circuit_blocked", None), ("success", Some(2))],
        "{attempts:#?}"
    );
    assert_eq!(attempts[0]["circuit_state_at_attempt"], "closed");
    let metrics = String::from_utf8(api.get("/metrics").await.body.to_vec()).unwrap();
    assert!(metrics.contains("webhook_circuit_breaker_state{state=\"open\"} 0"), "{metrics}");
    assert!(metrics.contains("webhook_circuit_breaker_transitions_total"), "{metrics}");
}

#[tokio::test]
async fn circuit_is_forced_and_reset_manually() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = api.create_webhook(&receiver.url(), Value::Null).await;
    let path = format!("/v1/webhooks/{}/circuit-breaker", id(&webhook));
    let forced =
        api.patch(&path, json!({"action": "force_open", "duration_seconds": 3600})).await.expect(200);
    assert_eq!(forced["state"], "open");
    assert!(!forced["forced"]["until"].is_null(), "{forced:#}");
    let event = api.publish("order.created", json!({"n": 1})).await;
    let delivery = delivery_of(&api, &event).await;
    let waiting = wait_for_delivery(&api, id(&delivery), "blocked by the forced circuit", |one| {
        one["waiting_on"] == "circuit_open"
    })
    .await;
    assert!(text(&waiting["waiting_explanation"]).contains("forced open by"), "{waiting:#}");
    assert_eq!(receiver.count(), 0);
    assert_eq!(api.patch(&path, json!({"action": "reset"})).await.expect(200)["state"], "closed");
    wait_for_status(&api, id(&delivery), "delivered").await;

    for (body, field) in [
        (json!({"action": "explode"}), "action"),
        (json!({"action": "reset", "duration_seconds": 5}), "duration_seconds"),
        (json!({"action": "force_open", "duration_seconds": 0}), "duration_seconds"),
        (json!({}), "action"),
    ] {
        let problem = api.patch(&path, &body).await;
        assert!((400..=422).contains(&problem.status), "{body}: {}", problem.status);
        assert!(wait_text(&problem).contains(field), "{body}: {}", wait_text(&problem));
    }
}

#[tokio::test]
async fn strict_order_survives_kills() {
    let tries = Arc::new(AtomicUsize::new(0));
    let receiver = Receiver::with({
        let tries = tries.clone();
        // Some requests fail and some are slow, so that every kill finds requests in flight.
        move |_| match tries.fetch_add(1, SeqCst) % 7 {
            3 => Reply::status(503),
            5 => Reply::status(200).after(Duration::from_millis(30)),
            _ => Reply::status(200),
        }
    })
    .await;
    let mut redrive = Redrive::start().await;
    let api = redrive.api();
    let retries = json!({"schedule": [0, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05], "jitter": 0});
    api.create_webhook(
        &receiver.url(),
        json!({"ordering_guarantee": "strict", "max_in_flight": 20, "retry_config": retries}),
    )
    .await;
    publish(&api, 0..40).await;
    for n in 1..=3 {
        receiver.wait_for(receiver.count().max(n * 10)).await;
        redrive.restart().await;
        publish(&api, 40 + 10 * (n - 1)..40 + 10 * n).await;
    }
    all_delivered(&api).await;
    let mut order = numbers(&receiver);
    order.dedup();
    assert_eq!(order, (0..70).collect::<Vec<_>>(), "the deliveries are sent one after another in order");
}

#[tokio::test]
async fn batch_order_is_preserved() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), json!({"ordering_guarantee": "strict"})).await;
    for part in 0..2 {
        let event = |n| json!({"event_type": "a.b", "data": {"n": 200 * part + n}});
        let batch: Vec<_> = (0..200).map(event).collect();
        let response = api.post("/v1/events/batch", json!({"events": batch})).await.expect(202);
        let numbers: Vec<_> =
            entries(&response).iter().map(|one| one["sequence_number"].as_u64().unwrap()).collect();
        assert!(numbers.is_sorted(), "{numbers:?}");
    }
    all_delivered(&api).await;
    assert_eq!(numbers(&receiver), (0..400).collect::<Vec<_>>());
}

#[tokio::test]
async fn ordered_delivery_shows_which_delivery_it_waits_for() {
    let receiver =
        Receiver::with(|arrival| Reply::status(if arrival.json()["data"]["n"] == 0 { 503 } else { 200 }))
            .await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), json!({"ordering_guarantee": "per_event_type"})).await;
    let events = publish(&api, 0..3).await;
    let first = delivery_of(&api, &events[0]).await;
    wait_for_delivery(&api, id(&first), "the first has failed", |one| one["attempt_count"] == 1).await;
    let behind = delivery_of(&api, &events[2]).await;
    assert_eq!(behind["waiting_on"], "order", "{behind:#}");
    assert!(text(&behind["waiting_explanation"]).contains(id(&first)), "{behind:#}");
    let other = api.publish("order.paid", json!({"n": 9})).await;
    wait_for_status(&api, id(&delivery_of(&api, &other).await), "delivered").await;
    api.post(&format!("/v1/deliveries/{}/cancel", id(&first)), json!({})).await.expect(202);
    for event in &events[1..] {
        wait_for_status(&api, id(&delivery_of(&api, event).await), "delivered").await;
    }
}

#[tokio::test]
async fn pause_parks_deliveries_and_resume_sends_them_in_order() {
    let receiver = Receiver::start().await;
    let mut redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = api.create_webhook(&receiver.url(), json!({"max_in_flight": 1})).await;
    let path = |verb: &str| format!("/v1/webhooks/{}/{verb}", id(&webhook));
    assert_eq!(api.post(&path("pause"), json!({})).await.expect(200)["state"], "paused");
    assert_eq!(
        api.post(&path("pause"), json!({})).await.expect(200)["state"],
        "paused",
        "a repeated request changes nothing"
    );
    let events = publish(&api, 0..20).await;
    let parked = delivery_of(&api, &events[7]).await;
    assert_eq!((&parked["waiting_on"], &parked["next_attempt_at"]), (&json!("paused"), &Value::Null));
    redrive.restart().await;
    let health = api.get(&path("health")).await.expect(200);
    assert_eq!(health["backlog"]["by_waiting_on"], json!({"paused": 20}), "{health:#}");
    assert_eq!(receiver.count(), 0);
    assert_eq!(api.post(&path("resume"), json!({})).await.expect(200)["state"], "active");
    all_delivered(&api).await;
    assert_eq!(numbers(&receiver), (0..20).collect::<Vec<_>>());
    api.post(&path("disable"), json!({})).await.expect(200);
    for verb in ["pause", "resume"] {
        let refused = api.post(&path(verb), json!({})).await;
        assert_eq!(refused.status, 409, "{}", wait_text(&refused));
        assert!(wait_text(&refused).contains("enable"), "{}", wait_text(&refused));
    }
}

#[tokio::test]
async fn rate_limit_spreads_requests() {
    const SPEED: u32 = 10;
    let receiver = Receiver::start().await;
    let redrive = redrive_at_speed(SPEED).await;
    let api = redrive.api();
    let limit = json!({"requests_per_minute": 60, "burst": 3});
    let webhook = api.create_webhook(&receiver.url(), json!({"rate_limit": limit})).await;
    assert_eq!(webhook["rate_limit"], limit);
    let events = publish(&api, 0..10).await;
    let last = delivery_of(&api, &events[9]).await;
    assert_eq!(last["waiting_on"], "rate_limit", "{last:#}");
    assert!(!last["next_attempt_at"].is_null());
    all_delivered(&api).await;
    let mut times = Vec::new();
    for event in &events {
        let delivery = delivery_of(&api, event).await;
        let attempts = attempts_of(&api, id(&delivery)).await;
        assert_eq!(attempts.len(), 1, "waiting used no attempt");
        times.push(millis(&attempts[0]["executed_at"]));
    }
    times.sort_unstable();
    // A burst of three, then one token per second; never more than that in any interval.
    for (at, from) in times.iter().enumerate() {
        for (further, to) in times[at..].iter().enumerate() {
            let allowed = 3 + (to - from) / 1000 + 1;
            assert!((further as i64) < allowed, "{} within {} ms", further + 1, to - from);
        }
    }
    assert!(times[9] - times[0] >= 6_900, "{times:?}");
}

#[tokio::test]
async fn status_429_holds_the_whole_webhook() {
    let calls = Arc::new(AtomicUsize::new(0));
    let receiver = Receiver::with(move |_| match calls.fetch_add(1, SeqCst) {
        0 => Reply::status(429).header("retry-after", "60"),
        _ => Reply::status(200),
    })
    .await;
    let redrive = redrive_at_speed(60).await;
    let api = redrive.api();
    let webhook = api.create_webhook(&receiver.url(), json!({"max_in_flight": 1})).await;
    publish(&api, 0..1).await;
    health_when(&api, &webhook, "a hold", |health| health["waiting"]["waiting_on"] == "rate_limit").await;
    let event = api.publish("order.created", json!({"n": 1})).await;
    let held = delivery_of(&api, &event).await;
    assert_eq!(held["waiting_on"], "rate_limit", "{held:#}");
    assert!(text(&held["waiting_explanation"]).contains("429"), "{held:#}");
    all_delivered(&api).await;
    let arrivals = receiver.arrivals();
    assert!(arrivals[1].at - arrivals[0].at >= Duration::from_millis(950), "not before its Retry-After");
}

#[tokio::test]
async fn hung_endpoints_of_one_tenant_do_not_delay_another() {
    let (hung, gate) = Receiver::latched(200).await;
    let healthy = Receiver::start().await;
    // All endpoints of the tenant are on one host, and host limits are not tested here.
    let setup = Setup::new()
        .env("REDRIVE_EGRESS_MAX_REQUESTS_PER_HOST", "0")
        .env("REDRIVE_EGRESS_MAX_CONNECTIONS_PER_ADDRESS", "0");
    let redrive = Redrive::start_with(setup).await;
    let api = redrive.api();
    api.post("/v1/tenants", json!({"id": "other"})).await.expect(201);
    for n in 0..100 {
        api.create_webhook(&hung.url_at(&format!("/{n}")), json!({"max_in_flight": 20})).await;
    }
    api.create_webhook(&healthy.url(), json!({"tenant_id": "other"})).await;
    let batch: Vec<_> = (0..200).map(|n| json!({"event_type": "a.b", "data": n})).collect();
    api.post("/v1/events/batch", json!({"events": batch})).await.expect(202);
    hung.wait_for(700).await;
    for n in 0..50 {
        let event = json!({"event_type": "a.b", "data": {"n": n}, "tenant_id": "other"});
        api.post("/v1/events", &event).await.expect(202);
    }
    healthy.wait_for(50).await;
    assert!(hung.count() <= 810, "one tenant never takes all slots: {}", hung.count());
    gate.open();
}

#[tokio::test]
async fn high_priority_goes_first_and_can_be_set_on_retry() {
    let (receiver, gate) = Receiver::latched(200).await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = api.create_webhook(&receiver.url(), json!({"max_in_flight": 1})).await;
    let mut events = Vec::new();
    for (n, priority) in [(0, "low"), (1, "low"), (2, "normal"), (3, "high")] {
        let event = json!({"event_type": "a.b", "data": {"n": n}, "priority": priority});
        events.push(api.post("/v1/events", &event).await.expect(202));
    }
    let high = delivery_of(&api, &events[3]).await;
    assert_eq!((&high["priority"], &high["waiting_on"]), (&json!("high"), &json!("in_flight_limit")));
    gate.open();
    receiver.wait_for(4).await;
    assert_eq!(numbers(&receiver), [0, 3, 2, 1], "the first request was already in flight");

    api.post(&format!("/v1/webhooks/{}/pause", id(&webhook)), json!({})).await.expect(200);
    let over = delivery_of(&api, &events[0]).await;
    wait_for_status(&api, id(&over), "delivered").await;
    let path = format!("/v1/deliveries/{}/retry", id(&over));
    let again = api.post(&path, json!({"priority": "high"})).await.expect(202);
    let again = api.get(&format!("/v1/deliveries/{}", text(&again["delivery_id"]))).await.expect(200);
    assert_eq!(again["priority"], "high", "{again:#}");
    let refused = api.post("/v1/events", json!({"event_type": "a.b", "data": 1, "priority": "urgent"})).await;
    assert!(wait_text(&refused).contains("priority"), "{}", wait_text(&refused));
}

#[tokio::test]
async fn unserved_pool_is_visible_and_served_when_a_node_joins() {
    let receiver = Receiver::start().await;
    let folder = tempfile::tempdir().unwrap();
    let setup = || Setup::new().data_dir(folder.path());
    let mut redrive = Redrive::start_with(setup()).await;
    let api = redrive.api();
    api.post("/v1/tenants", json!({"id": "big", "pool": "heavy"})).await.expect(201);
    api.create_webhook(&receiver.url(), json!({"tenant_id": "big"})).await;
    let event = json!({"event_type": "a.b", "data": {"n": 1}, "tenant_id": "big"});
    api.post("/v1/events", &event).await.expect(202);
    let waiting = entries(&api.get("/v1/deliveries?tenant_id=big").await.expect(200)).remove(0);
    assert_eq!(waiting["waiting_on"], "pool", "{waiting:#}");
    assert!(text(&waiting["waiting_explanation"]).contains("heavy"));
    redrive.kill();
    let redrive = Redrive::start_with(setup().arg("--pool").arg("heavy")).await;
    receiver.wait_for(1).await;
    let tenant = redrive.api().patch("/v1/tenants/big", json!({"pool": null})).await.expect(200);
    assert_eq!(tenant["pool"], "default", "{tenant:#}");
}

#[tokio::test]
async fn rate_limited_key_gets_retry_after() {
    let setup =
        Setup::new().env("REDRIVE_LIMITS_API_REQUESTS_PER_MINUTE", "60").env("REDRIVE_LIMITS_API_BURST", "5");
    let redrive = Redrive::start_with(setup).await;
    let api = redrive.api();
    let mut statuses = BTreeMap::new();
    for n in 0..12 {
        let response = api.get("/v1/webhooks").await;
        *statuses.entry(response.status).or_insert(0) += 1;
        assert_eq!(response.header("ratelimit-limit"), Some("60"), "response {n}");
        assert!(
            response.header("ratelimit-remaining").is_some() && response.header("ratelimit-reset").is_some()
        );
        if response.status == 429 {
            assert_eq!(response.header("retry-after"), Some("1"));
            assert!(wait_text(&response).contains("limit"), "{}", wait_text(&response));
        }
    }
    assert!(statuses[&429] >= 6 && statuses[&200] >= 5, "{statuses:?}");
    assert_eq!(api.without_key().get("/v1/webhooks").await.status, 401);
    assert_eq!(api.without_key().get("/healthz").await.status, 200);
}

#[tokio::test]
async fn webhook_expires() {
    let receiver = Receiver::start().await;
    let redrive = redrive_at_speed(60).await;
    let api = redrive.api();
    let now = millis(&api.create_webhook(&receiver.url_at("/now"), Value::Null).await["created_at"]);
    let soon = redrive_core::Time::from_millis(now + 120_000).to_string();
    let webhook = api.create_webhook(&receiver.url(), json!({"expires_at": soon})).await;
    assert_eq!(webhook["expires_at"], json!(soon));
    let path = format!("/v1/webhooks/{}", id(&webhook));
    let expired = api.wait_until("the webhook expires", &path, |one| one["state"] == "disabled").await;
    assert!(expired.to_string().contains("expired"), "{expired:#}");
    let past = api.patch(&path, json!({"expires_at": "2020-01-01T00:00:00Z"})).await;
    assert!(wait_text(&past).contains("expires_at"), "{}", wait_text(&past));
    let stays = api.post(&format!("{path}/enable"), json!({})).await;
    assert!(stays.status >= 400 && wait_text(&stays).contains("expires_at"), "{}", wait_text(&stays));
    api.patch(&path, json!({"expires_at": null})).await.expect(200);
    api.post(&format!("{path}/enable"), json!({})).await.expect(200);
}

#[tokio::test]
async fn every_flow_control_setting_is_validated() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    for (field, value, names) in [
        ("circuit_breaker_config", json!({"window_size_ms": 0}), "circuit_breaker_config.window_size_ms"),
        (
            "circuit_breaker_config",
            json!({"minimum_throughput": 0}),
            "circuit_breaker_config.minimum_throughput",
        ),
        (
            "circuit_breaker_config",
            json!({"error_threshold_percentage": 101}),
            "circuit_breaker_config.error_threshold_percentage",
        ),
        ("circuit_breaker_config", json!({"sleep_window_ms": 1}), "circuit_breaker_config.sleep_window_ms"),
        (
            "circuit_breaker_config",
            json!({"half_open_max_calls": 0}),
            "circuit_breaker_config.half_open_max_calls",
        ),
        (
            "circuit_breaker_config",
            json!({"half_open_success_threshold": 1.5}),
            "circuit_breaker_config.half_open_success_threshold",
        ),
        ("circuit_breaker_config", json!({"typo": 1}), "typo"),
        ("rate_limit", json!({"requests_per_minute": 0}), "rate_limit.requests_per_minute"),
        ("rate_limit", json!({"requests_per_minute": 60, "burst": 0}), "rate_limit.burst"),
        ("rate_limit", json!({"burst": 5}), "requests_per_minute"),
        ("ordering_guarantee", json!("sometimes"), "ordering_guarantee"),
        ("max_in_flight", json!(0), "max_in_flight"),
        ("expires_at", json!("2020-01-01T00:00:00Z"), "expires_at"),
        ("expires_at", json!("tomorrow"), "expires_at"),
    ] {
        let body = json!({"url": "http://127.0.0.1:2/", "events": ["*"], field: value});
        let response = api.post("/v1/webhooks", &body).await;
        assert!((400..=422).contains(&response.status), "{field}: {value}: {}", response.status);
        assert!(wait_text(&response).contains(names), "{field}: {value}: {}", wait_text(&response));
    }
}
