//! What each kind of response leads to, from the first attempt to a final status in the API.

use redrive_testkit::{Api, Latch, ReceivedRequest, Receiver, Redrive, Reply};
use redrive_tests::{
    attempts_of, attempts_when, column, deliveries_of, delivery_of, entries, id, millis, redrive_at_speed,
    text, wait_for_delivery, wait_for_event_status, wait_for_status,
};
use serde_json::{Value, json};

/// The clock speed, at which a minute passes in a tenth of a second.
const SPEED: u32 = 600;

/// Starts a receiver that responds with the status in its path: `/404` with 404.
async fn by_path() -> Receiver {
    Receiver::with(|arrival| Reply::status(status_in(arrival))).await
}

fn status_in(arrival: &ReceivedRequest) -> u16 {
    arrival.path[1..].parse().unwrap()
}

fn retries(schedule: &[f64]) -> Value {
    json!({"retry_config": {"schedule": schedule}})
}

/// Returns whether the dead-letter list contains this delivery.
async fn is_in_dlq(api: &Api, delivery: &str) -> bool {
    let dead = entries(&api.get("/v1/dlq?limit=500").await.expect(200));
    dead.iter().any(|dead| id(dead) == delivery)
}

#[tokio::test]
async fn permanent_failures_end_a_delivery_immediately() {
    let codes = [400, 401, 403, 404, 410, 413, 414, 415, 451];
    let receiver = by_path().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    for code in codes {
        api.create_webhook(&receiver.url_at(&code.to_string()), retries(&[0.0, 0.0, 0.0])).await;
    }
    let event = api.publish("order.created", json!({})).await;
    for delivery in deliveries_of(&api, &event).await {
        let delivery = wait_for_status(&api, id(&delivery), "dead").await;
        let code = delivery["last_status_code"].as_u64().unwrap();
        let category = if code == 413 { "payload_too_large" } else { "client_error" };
        assert_eq!(delivery["dead_reason"], "permanent", "{code}");
        assert_eq!(delivery["likely_recoverable"], false, "{code}");
        assert_eq!(delivery["failure_category"], category, "{code}");
        assert_eq!(delivery["attempt_count"], 1, "{code}");
        assert!(delivery["dead_at"].is_string() && delivery["next_attempt_at"].is_null(), "{code}");
        let attempts = attempts_of(&api, id(&delivery)).await;
        assert_eq!(column(&attempts, "status"), ["exhausted"], "{code}");
        assert_eq!(attempts[0]["http_status_code"], code);
        assert!(attempts[0]["next_retry_at"].is_null() && attempts[0]["retry_reason"].is_null(), "{code}");
        assert!(is_in_dlq(&api, id(&delivery)).await, "{code}");
    }
    let mut request: Vec<u16> = receiver.arrivals().iter().map(status_in).collect();
    request.sort_unstable();
    assert_eq!(request, codes, "each once");
}

#[tokio::test]
async fn other_failures_are_retried_until_attempts_are_exhausted() {
    let categories = [
        (300, "redirect"),
        (301, "redirect"),
        (302, "redirect"),
        (303, "redirect"),
        (307, "redirect"),
        (308, "redirect"),
        (402, "client_error"),
        (408, "timeout"),
        (409, "client_error"),
        (418, "client_error"),
        (422, "client_error"),
        (429, "rate_limit"),
        (500, "server_error"),
        (501, "server_error"),
        (503, "server_error"),
        (599, "server_error"),
    ];
    let canary = Receiver::start().await;
    let elsewhere = canary.url();
    let receiver =
        Receiver::with(move |arrival| Reply::status(status_in(arrival)).header("location", &elsewhere)).await;
    let redrive = redrive_at_speed(SPEED).await;
    let api = redrive.api();
    for (code, _) in categories {
        api.create_webhook(&receiver.url_at(&code.to_string()), retries(&[0.0, 1.0, 1.0])).await;
    }
    let event = api.publish("order.created", json!({})).await;
    for delivery in deliveries_of(&api, &event).await {
        let delivery = wait_for_status(&api, id(&delivery), "dead").await;
        let code = delivery["last_status_code"].as_u64().unwrap();
        let (_, category) =
            categories.into_iter().find(|(known, _)| u64::from(*known as u16) == code).unwrap();
        assert_eq!(delivery["dead_reason"], "exhausted", "{code}");
        // Client errors and redirects would fail again on a retry.
        let refused = ["client_error", "redirect", "payload_too_large"].contains(&category);
        assert_eq!(delivery["likely_recoverable"], !refused, "{code}");
        assert_eq!((&delivery["attempt_count"], &delivery["max_attempts"]), (&json!(3), &json!(3)), "{code}");
        let attempts = attempts_of(&api, id(&delivery)).await;
        assert_eq!(column(&attempts, "number"), [1, 2, 3], "{code}");
        assert_eq!(column(&attempts, "status"), ["failed", "failed", "exhausted"], "{code}");
        assert_eq!(column(&attempts, "failure_category"), [category; 3], "{code}");
        assert_eq!(attempts[0]["retry_reason"], category, "{code}");
    }
    assert_eq!(receiver.count(), 3 * categories.len());
    assert_eq!(canary.count(), 0, "a redirect was followed");
}

#[tokio::test]
async fn retry_on_all_retries_permanent_failures() {
    let receiver = Receiver::with(|arrival| match arrival.header("x-webhook-attempt") {
        Some("3") => Reply::status(200),
        _ => Reply::status(status_in(arrival)),
    })
    .await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    for code in [400, 401, 404, 413, 451] {
        let config = json!({"retry_config": {"schedule": [0, 0.02, 0.02], "retry_on": "all"}});
        api.create_webhook(&receiver.url_at(&code.to_string()), config).await;
    }
    let own = json!({"retry_config": {"schedule": [0, 0.02, 0.02], "permanent_status_codes": [500]}});
    api.create_webhook(&receiver.url_at("404"), &own).await;
    api.create_webhook(&receiver.url_at("500"), &own).await;
    let event = api.publish("order.created", json!({})).await;
    let mut outcomes = Vec::new();
    for delivery in deliveries_of(&api, &event).await {
        let over = |delivery: &Value| delivery["status"] == "delivered" || delivery["status"] == "dead";
        let delivery = wait_for_delivery(&api, id(&delivery), "an end", over).await;
        outcomes.push((text(&delivery["status"]).to_owned(), delivery["attempt_count"].as_u64().unwrap()));
    }
    outcomes.sort();
    let mut expected = vec![("delivered".to_owned(), 3); 6];
    expected.insert(0, ("dead".to_owned(), 1));
    assert_eq!(outcomes, expected);
}

#[tokio::test]
async fn gone_disables_the_webhook_and_cancels_pending_deliveries() {
    let gate = Latch::closed();
    let held = gate.clone();
    let receiver = Receiver::with(move |_| Reply::status(410).latched_by(&held)).await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = api.create_webhook(&receiver.url(), json!({"max_in_flight": 1})).await;
    let first = api.publish("order.created", json!({})).await;
    receiver.wait_for(1).await;
    let mut later = Vec::new();
    for _ in 0..3 {
        later.push(api.publish("order.created", json!({})).await);
    }
    gate.open();

    let first = wait_for_event_status(&api, &first, "dead").await;
    assert_eq!((&first["dead_reason"], &first["last_status_code"]), (&json!("permanent"), &json!(410)));
    for event in later {
        let delivery = wait_for_event_status(&api, &event, "cancelled").await;
        assert!(text(&delivery["cancel_reason"]).contains("410"), "{delivery:#}");
        assert_eq!(delivery["attempt_count"], 0);
        assert!(delivery["cancelled_at"].is_string());
    }
    let webhook = api.get(&format!("/v1/webhooks/{}", id(&webhook))).await.expect(200);
    assert_eq!((&webhook["state"], &webhook["active"]), (&json!("disabled"), &json!(false)));
    assert!(text(&webhook["disabled_reason"]).contains("410"), "{webhook:#}");
    assert_eq!(api.publish("order.created", json!({})).await["deliveries"], 0);
    assert_eq!(receiver.count(), 1);

    // Enabled again, the webhook gets all later events.
    receiver.respond_with(|_| Reply::status(200));
    api.post(&format!("/v1/webhooks/{}/enable", id(&webhook)), json!({})).await.expect(200);
    let event = api.publish("order.created", json!({})).await;
    wait_for_event_status(&api, &event, "delivered").await;
    assert_eq!(receiver.count(), 2);
}

#[tokio::test]
async fn gone_from_old_url_does_not_disable_the_webhook() {
    let gate = Latch::closed();
    let held = gate.clone();
    let receiver = Receiver::with(move |arrival| match arrival.path.as_str() {
        "/old" => Reply::status(410).latched_by(&held),
        _ => Reply::status(200),
    })
    .await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = api.create_webhook(&receiver.url_at("/old"), json!({})).await;
    let first = api.publish("order.created", json!({})).await;
    receiver.wait_for(1).await;
    let path = format!("/v1/webhooks/{}", id(&webhook));
    api.patch(&path, json!({"url": receiver.url_at("/new")})).await.expect(200);
    gate.open();
    wait_for_event_status(&api, &first, "dead").await;
    assert_eq!(api.get(&path).await.expect(200)["state"], "active");
    let second = api.publish("order.created", json!({})).await;
    wait_for_event_status(&api, &second, "delivered").await;
}

#[tokio::test]
async fn request_in_flight_of_deleted_webhook_finishes_without_retry() {
    for status in [200, 500] {
        let gate = Latch::closed();
        let held = gate.clone();
        let receiver = Receiver::with(move |_| Reply::status(status).latched_by(&held)).await;
        let redrive = Redrive::start().await;
        let api = redrive.api();
        let webhook = api.create_webhook(&receiver.url(), json!({})).await;
        let event = api.publish("order.created", json!({})).await;
        receiver.wait_for(1).await;
        api.delete(&format!("/v1/webhooks/{}", id(&webhook))).await.expect(204);
        gate.open();
        let wanted = if status == 200 { "delivered" } else { "cancelled" };
        let delivery = wait_for_event_status(&api, &event, wanted).await;
        assert_eq!(delivery["attempt_count"], 1);
    }
}

#[tokio::test]
async fn dead_delivery_is_redriven_in_a_new_round() {
    let receiver = Receiver::responding(404).await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = api.create_webhook(&receiver.url(), json!({})).await;
    let event = api.publish("order.created", json!({"n": 1})).await;
    let first = wait_for_event_status(&api, &event, "dead").await;
    assert!(is_in_dlq(&api, id(&first)).await);
    assert_eq!(first["round"], 1);

    // The endpoint still fails: the second round is dead too and replaces the first in the list.
    let response = api.post(&format!("/v1/deliveries/{}/retry", id(&first)), json!({})).await.expect(202);
    let second = wait_for_status(&api, text(&response["delivery_id"]), "dead").await;
    assert_eq!((&second["round"], &second["replay_of"]), (&json!(2), &first["id"]));
    assert_eq!(second["attempt_count"], 1, "a new round begins with its own first attempt");
    let first = wait_for_status(&api, id(&first), "dead").await;
    assert_eq!(first["redriven_as"], second["id"]);
    assert!(!is_in_dlq(&api, id(&first)).await, "a redriven delivery is no longer a dead letter");
    assert!(is_in_dlq(&api, id(&second)).await);
    let again = api.post(&format!("/v1/deliveries/{}/retry", id(&first)), json!({})).await;
    assert_eq!((again.status, &*again.problem()), (409, "already_redriven"));

    // The endpoint is fixed: a replay delivers the event, with the same id and body.
    receiver.respond_with(|_| Reply::status(200));
    let response = api.post(&format!("/v1/events/{}/replay", id(&event)), json!({})).await.expect(202);
    let third = wait_for_status(&api, text(&response["delivery_ids"][0]), "delivered").await;
    assert_eq!((&third["round"], &third["replay_of"]), (&json!(3), &second["id"]));
    assert!(entries(&api.get("/v1/dlq").await.expect(200)).is_empty());

    // Through the webhook's own path, delivered deliveries can be resent too.
    let path = format!("/v1/webhooks/{}/deliveries/{}/retry", id(&webhook), id(&third));
    let response = api.post(&path, json!({})).await.expect(202);
    let fourth = wait_for_status(&api, text(&response["delivery_id"]), "delivered").await;
    assert_eq!(fourth["round"], 4);
    let arrivals = receiver.arrivals();
    assert_eq!(arrivals.len(), 4);
    for arrival in &arrivals {
        assert_eq!((arrival.webhook_id(), &arrival.body), (id(&event), &arrivals[0].body));
        assert_eq!(arrival.header("x-webhook-attempt"), Some("1"));
    }
    assert_eq!(deliveries_of(&api, &event).await.len(), 4);
}

#[tokio::test]
async fn replay_is_sent_only_to_named_webhooks() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let one = api.create_webhook(&receiver.url_at("one"), json!({})).await;
    let other = api.create_webhook(&receiver.url_at("other"), json!({"events": ["never.this"]})).await;
    let event = api.publish("order.created", json!({})).await;
    receiver.wait_for(1).await;
    wait_for_event_status(&api, &event, "delivered").await;
    let path = format!("/v1/events/{}/replay", id(&event));
    // A webhook that did not get the event can be named explicitly.
    api.post(&path, json!({"webhook_ids": [id(&one), id(&other)]})).await.expect(202);
    let arrivals = receiver.wait_for(3).await;
    assert_eq!(arrivals.iter().filter(|arrival| arrival.path == "/other").count(), 1);
    let unknown = format!("wh_{}", "0".repeat(32));
    assert_eq!(api.post(&path, json!({"webhook_ids": [unknown]})).await.status, 404);
    assert_eq!(api.post(&path, json!({"webhook_ids": []})).await.status, 400);
}

#[tokio::test]
async fn replay_can_leave_out_webhooks_that_received_the_event() {
    let (healthy, failing) = (Receiver::start().await, Receiver::responding(400).await);
    let redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&healthy.url(), json!({})).await;
    api.create_webhook(&failing.url(), json!({})).await;
    let event = api.publish("order.created", json!({})).await;
    let ended =
        |page: &Value| entries(page).iter().all(|one| ["delivered", "dead"].contains(&text(&one["status"])));
    let deliveries = format!("/v1/events/{}/deliveries", id(&event));
    api.wait_until("two results", &deliveries, ended).await;
    let path = format!("/v1/events/{}/replay", id(&event));
    let counts = |reply: &Value| (reply["total"].clone(), reply["already_delivered"].clone());

    let dry_run = json!({"include_delivered": false, "dry_run": true});
    assert_eq!(counts(&api.post(&path, dry_run.clone()).await.expect(200)), (json!(1), json!(1)));
    assert_eq!(counts(&api.post(&path, json!({"dry_run": true})).await.expect(200)), (json!(2), json!(1)));
    assert_eq!((healthy.count(), failing.count()), (1, 1), "nothing was sent");

    failing.respond_with(|_| Reply::status(200));
    let replayed = api.post(&path, json!({"include_delivered": false})).await.expect(202);
    assert_eq!(counts(&replayed), (json!(1), json!(1)));
    wait_for_status(&api, text(&replayed["delivery_ids"][0]), "delivered").await;
    assert_eq!((healthy.count(), failing.count()), (1, 2));

    let replayed = api.post(&path, json!({"include_delivered": false})).await.expect(202);
    assert_eq!((counts(&replayed), &replayed["delivery_ids"]), ((json!(0), json!(2)), &json!([])));
    let replayed = api.post(&path, json!({})).await.expect(202);
    assert_eq!(counts(&replayed), (json!(2), json!(2)), "by default all webhooks receive it again");
    healthy.wait_for(2).await;
    failing.wait_for(3).await;
}

#[tokio::test]
async fn delivery_is_dead_at_its_maximum_age() {
    let receiver = Receiver::responding(500).await;
    let redrive = redrive_at_speed(SPEED).await;
    let api = redrive.api();
    // The retry after the second attempt would exceed the maximum age, so the delivery is dead already then.
    let config =
        json!({"retry_config": {"schedule": [0, 100, 100, 100], "give_up_after": "3m", "jitter": 0}});
    api.create_webhook(&receiver.url(), config).await;
    let event = api.publish("order.created", json!({})).await;
    let delivery = wait_for_event_status(&api, &event, "dead").await;
    assert_eq!((&delivery["dead_reason"], &delivery["attempt_count"]), (&json!("expired"), &json!(2)));
    assert_eq!(delivery["likely_recoverable"], true);
    let attempts = attempts_of(&api, id(&delivery)).await;
    assert_eq!(column(&attempts, "status"), ["failed", "exhausted"]);
    assert_eq!(receiver.count(), 2);
}

#[tokio::test]
async fn failures_below_http_are_categorized() {
    let receiver = Receiver::start().await;
    let closed = Receiver::start().await.url();
    let redrive = redrive_at_speed(SPEED).await;
    let api = redrive.api();
    let plain = receiver.url();
    let tls = plain.replace("http://", "https://");
    for (url, category, attempts, reason) in [
        (tls.as_str(), "tls", 3, "tls_limit"),
        (closed.as_str(), "network", 5, "exhausted"),
        ("http://no-such-name.invalid/webhook", "dns", 5, "exhausted"),
    ] {
        let webhook = api.create_webhook(url, retries(&[0.0, 1.0, 1.0, 1.0, 1.0])).await;
        let event = api.publish("order.created", json!({})).await;
        let delivery = wait_for_event_status(&api, &event, "dead").await;
        assert_eq!(delivery["failure_category"], category, "{delivery:#}");
        assert_eq!(delivery["dead_reason"], reason, "{delivery:#}");
        assert_eq!(delivery["attempt_count"], attempts, "{delivery:#}");
        assert!(!text(&delivery["last_error"]).is_empty());
        assert_eq!(delivery["last_status_code"], Value::Null);
        api.delete(&format!("/v1/webhooks/{}", id(&webhook))).await.expect(204);
    }
    assert_eq!(receiver.count(), 0);
}

#[tokio::test]
async fn pending_delivery_is_cancelled() {
    let receiver = Receiver::responding(500).await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), retries(&[0.0, 3600.0])).await;
    let event = api.publish("order.created", json!({})).await;
    let delivery = delivery_of(&api, &event).await;
    attempts_when(&api, id(&delivery), 1).await;
    let path = format!("/v1/deliveries/{}/cancel", id(&delivery));
    let response = api.post(&path, json!({})).await.expect(202);
    assert_eq!(response["status"], "cancelled");
    let delivery = wait_for_status(&api, id(&delivery), "cancelled").await;
    assert_eq!(delivery["cancel_reason"], "cancelled by request");
    assert!(delivery["next_attempt_at"].is_null() && delivery["waiting_on"].is_null());
    assert_eq!(delivery["failure_category"], "server_error", "the last error stays visible");
    let again = api.post(&path, json!({})).await;
    assert_eq!((again.status, &*again.problem()), (409, "delivery_already_ended"));

    // A cancelled delivery can be redriven as well.
    receiver.respond_with(|_| Reply::status(200));
    let response = api.post(&format!("/v1/deliveries/{}/retry", id(&delivery)), json!({})).await.expect(202);
    assert_eq!(wait_for_status(&api, text(&response["delivery_id"]), "delivered").await["round"], 2);
}

#[tokio::test]
async fn request_in_flight_of_cancelled_delivery_finishes() {
    for (code, expected, attempt) in [(200, "delivered", "success"), (500, "cancelled", "failed")] {
        let gate = Latch::closed();
        let held = gate.clone();
        let receiver = Receiver::with(move |_| Reply::status(code).latched_by(&held)).await;
        let redrive = Redrive::start().await;
        let api = redrive.api();
        api.create_webhook(&receiver.url(), retries(&[0.0, 0.05])).await;
        let event = api.publish("order.created", json!({})).await;
        receiver.wait_for(1).await;
        let delivery = delivery_of(&api, &event).await;
        let response =
            api.post(&format!("/v1/deliveries/{}/cancel", id(&delivery)), json!({})).await.expect(202);
        assert_eq!(response["status"], "in_flight", "the request is still in flight");
        gate.open();
        let delivery = wait_for_status(&api, id(&delivery), expected).await;
        let attempts = attempts_of(&api, id(&delivery)).await;
        assert_eq!(column(&attempts, "status"), [attempt]);
        assert_eq!(attempts[0]["next_retry_at"], Value::Null);
        assert_eq!(receiver.count(), 1);
    }
}

#[tokio::test]
async fn queued_delivery_is_cancelled_without_a_request() {
    let gate = Latch::closed();
    let held = gate.clone();
    let receiver = Receiver::with(move |_| Reply::status(200).latched_by(&held)).await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), json!({"max_in_flight": 1})).await;
    let first = api.publish("order.created", json!({})).await;
    receiver.wait_for(1).await;
    let queued = api.publish("order.created", json!({})).await;
    let delivery = delivery_of(&api, &queued).await;
    api.post(&format!("/v1/deliveries/{}/cancel", id(&delivery)), json!({})).await.expect(202);
    let delivery = wait_for_status(&api, id(&delivery), "cancelled").await;
    assert_eq!(delivery["attempt_count"], 0);
    gate.open();
    wait_for_event_status(&api, &first, "delivered").await;
    assert_eq!(receiver.count(), 1);
}

#[tokio::test]
async fn retry_of_pending_delivery_makes_it_due_now() {
    let receiver = Receiver::responding(503).await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), retries(&[0.0, 3600.0, 3600.0])).await;
    let event = api.publish("order.created", json!({})).await;
    let delivery = delivery_of(&api, &event).await;
    attempts_when(&api, id(&delivery), 1).await;
    receiver.respond_with(|_| Reply::status(200));

    let replay = api.post(&format!("/v1/events/{}/replay", id(&event)), json!({})).await;
    assert_eq!((replay.status, &*replay.problem()), (409, "delivery_pending"));

    let response = api.post(&format!("/v1/deliveries/{}/retry", id(&delivery)), json!({})).await.expect(202);
    assert_eq!(response["delivery_id"], delivery["id"], "the same delivery and not a new round");
    let delivery = wait_for_status(&api, id(&delivery), "delivered").await;
    assert_eq!((&delivery["attempt_count"], &delivery["round"]), (&json!(2), &json!(1)));
    assert_eq!(deliveries_of(&api, &event).await.len(), 1);
}

#[tokio::test]
async fn attempt_record_is_complete() {
    let receiver = Receiver::with(|arrival| match arrival.number {
        1 => Reply::status(500).header("x-trace", "abc").body(format!("sorry{}", "é".repeat(2000))),
        _ => Reply::status(202).body("thanks"),
    })
    .await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = api
        .create_webhook(
            &receiver.url(),
            json!({"retry_config": {"schedule": [0, 0.05]}, "headers": {"Authorization": "Bearer s3cret"}}),
        )
        .await;
    let event = api.publish("order.created", json!({"n": 1})).await;
    let delivery = wait_for_event_status(&api, &event, "delivered").await;
    let attempts = attempts_of(&api, id(&delivery)).await;
    assert_eq!(column(&attempts, "number"), [1, 2]);
    assert_eq!(column(&attempts, "status"), ["failed", "success"]);
    assert_eq!(column(&attempts, "http_status_code"), [500, 202]);
    assert_eq!(column(&attempts, "failure_category"), [&json!("server_error"), &Value::Null]);
    for (attempt, arrival) in attempts.iter().zip(receiver.arrivals()) {
        assert!(id(attempt).starts_with("att_"));
        assert_eq!(attempt["delivery_id"], delivery["id"]);
        assert_eq!(attempt["event_id"], event["id"]);
        assert_eq!(attempt["webhook_id"], webhook["id"]);
        assert!(attempt["duration_ms"].as_f64().unwrap() >= attempt["ttfb_ms"].as_f64().unwrap());
        assert!(attempt["dns_ms"].is_null() && attempt["tls_ms"].is_null(), "an address, without TLS");
        assert!(millis(&attempt["scheduled_at"]) <= millis(&attempt["executed_at"]));
        assert!(!text(&attempt["worker"]).is_empty());
        shows_what_was_sent(attempt, &arrival);
    }
    assert!(attempts[0]["connect_ms"].is_number());
    assert_eq!(attempts[0]["error_message"], "the endpoint returned 500");
    assert_eq!(attempts[0]["retry_reason"], "server_error");
    assert!(millis(&attempts[0]["next_retry_at"]) > millis(&attempts[0]["executed_at"]));
    let sample = text(&attempts[0]["response_body_sample"]);
    assert!(sample.starts_with("sorryéé") && sample.len() <= 1024 + 2, "{}", sample.len());
    let headers = attempts[0]["response_headers"].as_array().unwrap();
    assert!(headers.contains(&json!({"name": "x-trace", "value": "abc"})), "{headers:?}");
    assert_eq!(attempts[1]["response_body_sample"], "thanks");
    assert!(attempts[1]["error_message"].is_null() && attempts[1]["next_retry_at"].is_null());
    assert_eq!(entries(&api.get(&format!("/v1/events/{}/attempts", id(&event))).await.expect(200)), attempts);
}

/// Asserts that the recorded request headers are those received, with secrets redacted.
fn shows_what_was_sent(attempt: &Value, arrival: &ReceivedRequest) {
    let shown = attempt["request_headers"].as_array().unwrap();
    for header in shown {
        let (name, value) = (text(&header["name"]), text(&header["value"]));
        let sent = arrival.header(name).unwrap_or_else(|| panic!("{name} was not sent"));
        match name {
            "webhook-signature" | "x-webhook-signature" | "authorization" => assert_eq!(value, "[redacted]"),
            _ => assert_eq!(value, sent, "{name}"),
        }
    }
    let framing = ["host", "content-length", "accept"];
    for (name, _) in arrival.headers.iter().filter(|(name, _)| !framing.contains(&&**name)) {
        assert!(shown.iter().any(|header| header["name"] == **name), "{name} was sent and is not shown");
    }
}
