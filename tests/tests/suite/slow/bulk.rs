//! Bulk operations as an operator uses them: retry, cancel, purge and backfill.

use std::{collections::BTreeMap, time::Duration};

use redrive_testkit::{Api, Postgres, Receiver, Redrive, Reply, Setup};
use redrive_tests::{entries, text};
use serde_json::{Value, json};

/// Publishes `count` events.
async fn publish(api: &Api, event_type: &str, count: usize) {
    let mut left = count;
    while left > 0 {
        let part = left.min(1_000);
        let events: Vec<_> = (0..part).map(|n| json!({"event_type": event_type, "data": n})).collect();
        api.post("/v1/events/batch", json!({ "events": events })).await.expect(202);
        left -= part;
    }
}

/// Returns the number of dead letters.
async fn dead(api: &Api) -> u64 {
    let counted = api.post("/v1/dlq/retry-batch", json!({"dry_run": true})).await.expect(200);
    assert_eq!(counted["count_complete"], true);
    counted["total"].as_u64().unwrap()
}

/// Creates a webhook with `count` dead letters, whose endpoint responds with 200 from then on.
async fn dead_letters(api: &Api, receiver: &Receiver, event_type: &str, count: usize) -> Value {
    receiver.respond_with(|_| Reply::status(400));
    let settings = json!({
        "events": [event_type], "max_in_flight": 64, "circuit_breaker_config": {"enabled": false},
    });
    let webhook = api.create_webhook(&receiver.url(), settings).await;
    let (before, so_far) = (dead(api).await, receiver.count());
    publish(api, event_type, count).await;
    receiver.wait_for(so_far + count).await;
    while dead(api).await < before + count as u64 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    receiver.respond_with(|_| Reply::status(200));
    webhook
}

fn path_of(operation: &Value) -> String {
    format!("/v1/dlq/batch-operations/{}", text(&operation["id"]))
}

async fn completed(api: &Api, operation: &Value) -> Value {
    api.wait_until("the end", &path_of(operation), |seen| seen["status"] == "completed").await
}

/// Returns how often each event was received after the first `but` requests.
fn arrivals(receiver: &Receiver, but: usize) -> BTreeMap<String, usize> {
    let mut times = BTreeMap::new();
    for arrival in &receiver.arrivals()[but..] {
        *times.entry(arrival.webhook_id().to_owned()).or_default() += 1;
    }
    times
}

#[tokio::test]
async fn dead_letters_are_retried_by_filter() {
    let (receiver, other) = (Receiver::start().await, Receiver::start().await);
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = dead_letters(&api, &receiver, "a.b", 30).await;
    dead_letters(&api, &other, "c.d", 5).await;
    let filter = json!({"webhook_ids": [webhook["id"]], "failure_categories": ["client_error"]});
    let dry = api.post("/v1/dlq/retry-batch", json!({"filter": filter, "dry_run": true})).await.expect(200);
    assert_eq!((&dry["total"], &dry["count_complete"]), (&json!(30), &json!(true)));
    assert_eq!(dry["sample"].as_array().unwrap().len(), 10);
    assert_eq!(receiver.count(), 30, "nothing was sent");
    for (filter, total) in [
        (json!({"dead_reasons": ["permanent"]}), 35),
        (json!({"dead_reasons": ["exhausted", "expired"]}), 0),
        (json!({"recoverable": false}), 35),
        (json!({"recoverable": true}), 0),
    ] {
        let body = json!({"filter": filter, "dry_run": true});
        assert_eq!(api.post("/v1/dlq/retry-batch", body).await.expect(200)["total"], total, "{filter}");
    }
    let purge = api.delete("/v1/dlq?dead_reason=exhausted&recoverable=true&dry_run=true").await.expect(200);
    assert_eq!(purge["total"], 0);

    let request = json!({"filter": filter, "priority": "high"});
    let operation = api.post("/v1/dlq/retry-batch", request).await.expect(202);
    assert_eq!(operation["kind"], "retry");
    let over = completed(&api, &operation).await;
    let progress = &over["progress"];
    assert_eq!((&progress["total"], &progress["queued"]), (&json!(30), &json!(30)));
    assert_eq!((&progress["delivered"], &progress["dead_again"]), (&json!(30), &json!(0)));
    assert_eq!((receiver.count(), other.count()), (60, 5));
    assert!(over["finished_at"].is_string() && over["progress"]["eta"].is_null(), "{over}");
    assert_eq!(dead(&api).await, 5, "those of the other webhook");
    let listed = api.get("/v1/dlq/batch-operations").await.expect(200);
    assert_eq!(entries(&listed).len(), 1);

    other.respond_with(|_| Reply::status(400));
    let again = api.post("/v1/dlq/retry-batch", json!({})).await.expect(202);
    let over = completed(&api, &again).await;
    assert_eq!(over["progress"]["dead_again"], 5);
    assert_eq!(over["progress"]["errors"], json!({"client_error": 5}));
    assert_eq!(dead(&api).await, 5, "each is dead once");
}

#[tokio::test]
async fn invalid_requests_are_rejected_with_their_field() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let refused = async |path: &str, body: Value| {
        let problem = api.post(path, body).await.expect(400);
        text(&problem["field"]).to_owned()
    };
    let batch = "/v1/dlq/retry-batch";
    assert_eq!(
        refused(batch, json!({"rate_limit": {"requests_per_second": 0}})).await,
        "rate_limit.requests_per_second"
    );
    assert_eq!(
        refused(batch, json!({"filter": {"failure_categories": ["x"]}})).await,
        "filter.failure_categories[0]"
    );
    assert_eq!(refused(batch, json!({"filter": {"statuses": ["dead"]}})).await, "filter.statuses");
    assert_eq!(refused(batch, json!({"filter": {"webhook_ids": []}})).await, "filter.webhook_ids");
    let body = [("content-type", "application/json")];
    let purge = api.raw("DELETE", "/v1/dlq", &body, "{\"dry_run\": true}").await.expect(400);
    assert_eq!(purge["code"], "invalid_body");
    assert_eq!(refused(batch, json!({"filter": {"webhook": "x"}})).await, "filter.webhook");
    let times = json!({"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"});
    assert_eq!(refused(batch, json!({"filter": times})).await, "filter.to");
    assert_eq!(refused("/v1/deliveries/retry-batch", json!({})).await, "filter");
    let unknown = json!({"filter": {"webhook_ids": [format!("wh_{}", "0".repeat(32))]}});
    api.post(batch, unknown).await.expect(404);
    assert_eq!(api.get(&format!("/v1/dlq/batch-operations/op_{}", "0".repeat(32))).await.status, 404);
}

#[tokio::test]
async fn disabled_webhook_gets_no_redeliveries() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = dead_letters(&api, &receiver, "a.b", 2).await;
    let path = format!("/v1/webhooks/{}", text(&webhook["id"]));
    api.post(&format!("{path}/disable"), json!({})).await.expect(200);
    let dead_letters = entries(&api.get("/v1/dlq").await.expect(200));
    let retry = format!("/v1/deliveries/{}/retry", text(&dead_letters[0]["id"]));
    let replay = format!("/v1/events/{}/replay", text(&dead_letters[0]["event_id"]));
    assert_eq!(api.post(&retry, json!({})).await.expect(409)["code"], "webhook_not_active");
    let named = json!({"webhook_ids": [webhook["id"]]});
    assert_eq!(api.post(&replay, named).await.expect(409)["code"], "webhook_not_active");
    let over = completed(&api, &api.post("/v1/dlq/retry-batch", json!({})).await.expect(202)).await;
    assert_eq!((&over["progress"]["queued"], &over["progress"]["skipped"]), (&json!(0), &json!(2)));
    assert_eq!(api.delete(&path).await.status, 204);
    assert_eq!(api.post(&retry, json!({})).await.expect(409)["code"], "webhook_not_active");
    assert_eq!(dead(&api).await, 2, "the dead letters are unchanged");
}

#[tokio::test]
async fn deliveries_of_a_time_range_are_resent_once() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = api.create_webhook(&receiver.url(), Value::Null).await;
    publish(&api, "a.b", 20).await;
    receiver.wait_for(20).await;
    let delivered = format!("/v1/webhooks/{}/deliveries?status=delivered&limit=500", text(&webhook["id"]));
    api.wait_until("all are delivered", &delivered, |page| entries(page).len() == 20).await;
    let filter = json!({"webhook_ids": [webhook["id"]], "from": webhook["created_at"]});
    // Two operations with the same selection and start time: neither resends what the other has created.
    let soon = redrive_core::Time::from_millis(redrive_tests::millis(&webhook["created_at"]) + 3_000);
    let request = json!({"filter": filter, "start_at": soon.to_string(), "include_delivered": true});
    let mut progress = Vec::new();
    let started = [
        api.post("/v1/deliveries/retry-batch", &request).await.expect(202),
        api.post("/v1/deliveries/retry-batch", &request).await.expect(202),
    ];
    for operation in &started {
        progress.push(completed(&api, operation).await["progress"].clone());
    }
    let sum = |name: &str| progress.iter().map(|one| one[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("queued"), sum("delivered")), (20, 20), "{progress:?}");
    let rounds = arrivals(&receiver, 20);
    assert_eq!(rounds.len(), 20);
    assert!(rounds.values().all(|times| *times == 1), "{rounds:?}");
}

#[tokio::test]
async fn operation_is_paused_resumed_and_cancelled() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    dead_letters(&api, &receiver, "a.b", 60).await;
    let slow = json!({"rate_limit": {"requests_per_second": 20}});
    let operation = api.post("/v1/dlq/retry-batch", &slow).await.expect(202);
    let path = path_of(&operation);
    api.wait_until("some are queued", &path, |seen| seen["progress"]["queued"].as_u64() > Some(3)).await;
    let paused = api.post(&format!("{path}/pause"), json!({})).await.expect(200);
    assert_eq!(paused["status"], "paused");
    let held = api.wait_until("the queued deliveries are received", &path, |seen| {
        seen["progress"]["delivered"] == seen["progress"]["queued"]
    });
    let held = held.await;
    assert!(held["progress"]["queued"].as_u64() < Some(60), "{held}");
    assert_eq!(api.get(&path).await.expect(200)["progress"]["queued"], held["progress"]["queued"]);
    let resumed = api.post(&format!("{path}/resume"), json!({})).await.expect(200);
    assert_eq!(resumed["status"], "running");
    api.wait_until("more are queued", &path, |seen| {
        seen["progress"]["queued"].as_u64() > held["progress"]["queued"].as_u64()
    })
    .await;
    let ended = api.post(&format!("{path}/cancel"), json!({})).await.expect(200);
    assert_eq!(ended["status"], "cancelled");
    let queued = api.get(&path).await.expect(200)["progress"]["queued"].as_u64().unwrap();
    assert_eq!(dead(&api).await, 60 - queued, "the other dead letters are unchanged");
    let problem = api.post(&format!("{path}/resume"), json!({})).await.expect(409);
    assert_eq!(problem["code"], "operation_already_ended");
    // A scheduled operation that is cancelled before its start time does nothing.
    let later =
        api.post("/v1/dlq/retry-batch", json!({"start_at": "2100-01-01T00:00:00Z"})).await.expect(202);
    assert_eq!(later["status"], "scheduled");
    api.post(&format!("{}/cancel", path_of(&later)), json!({})).await.expect(200);
    assert_eq!(dead(&api).await, 60 - queued);
}

#[tokio::test]
async fn rate_limit_is_never_exceeded() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    dead_letters(&api, &receiver, "a.b", 100).await;
    let started = tokio::time::Instant::now();
    let request = json!({"rate_limit": {"requests_per_second": 50}});
    let operation = api.post("/v1/dlq/retry-batch", &request).await.expect(202);
    receiver.wait_for(200).await;
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(1_900), "100 at 50 a second take 2 s, but took {took:?}");
    completed(&api, &operation).await;
    assert!(arrivals(&receiver, 100).values().all(|times| *times == 1));
}

#[tokio::test]
async fn operation_survives_two_kills_with_one_round_each() {
    let receiver = Receiver::start().await;
    let mut redrive = Redrive::start().await;
    dead_letters(&redrive.api(), &receiver, "a.b", 1_000).await;
    let request = json!({"rate_limit": {"requests_per_second": 400}});
    let operation = redrive.api().post("/v1/dlq/retry-batch", &request).await.expect(202);
    for queued in [200, 600] {
        let api = redrive.api();
        let far = |seen: &Value| seen["progress"]["queued"].as_u64() >= Some(queued);
        api.wait_until("the operation makes progress", &path_of(&operation), far).await;
        redrive.kill();
        redrive.restart().await;
    }
    let api = redrive.api();
    let over = completed(&api, &operation).await;
    let progress = &over["progress"];
    assert_eq!((&progress["queued"], &progress["skipped"]), (&json!(1_000), &json!(0)), "{over}");
    assert_eq!(progress["delivered"], 1_000);
    assert_eq!(dead(&api).await, 0);
    let mut rounds: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut cursor = String::new();
    loop {
        let page = api.get(&format!("/v1/deliveries?limit=500{cursor}")).await.expect(200);
        for delivery in &entries(&page) {
            let of = rounds.entry(text(&delivery["event_id"]).to_owned()).or_default();
            of.push(delivery["round"].as_u64().unwrap());
        }
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(rounds.len(), 1_000);
    for (event, mut rounds) in rounds {
        rounds.sort_unstable();
        assert_eq!(rounds, [1, 2], "{event}");
    }
    assert_eq!(arrivals(&receiver, 1_000).len(), 1_000);
}

#[tokio::test]
async fn another_node_resumes_the_operation_of_a_killed_node() {
    let (database, receiver) = (Postgres::shared().await, Receiver::start().await);
    let mut one = Redrive::start_with(Setup::new().database_url(database.url())).await;
    dead_letters(&one.api(), &receiver, "a.b", 300).await;
    let request = json!({"rate_limit": {"requests_per_second": 100}});
    let operation = one.api().post("/v1/dlq/retry-batch", &request).await.expect(202);
    let far = |seen: &Value| seen["progress"]["queued"].as_u64() >= Some(50);
    one.api().wait_until("the operation makes progress", &path_of(&operation), far).await;
    let two = Redrive::start_with(Setup::new().database_url(database.url())).await;
    one.kill();
    let over = completed(&two.api(), &operation).await;
    assert_eq!((&over["progress"]["queued"], &over["progress"]["delivered"]), (&json!(300), &json!(300)));
    assert_eq!(dead(&two.api()).await, 0);
    assert_eq!(arrivals(&receiver, 300).len(), 300);
}

#[tokio::test]
async fn dead_letters_are_purged_and_pending_cancelled_by_filter() {
    let (receiver, silent) = (Receiver::start().await, Receiver::responding(500).await);
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = dead_letters(&api, &receiver, "a.b", 12).await;
    dead_letters(&api, &receiver, "c.d", 3).await;
    let filter = format!("webhook_id={}&event_type=a.b,x.y", text(&webhook["id"]));
    let dry = api.delete(&format!("/v1/dlq?{filter}&dry_run=true")).await.expect(200);
    assert_eq!(dry["total"], 12);
    let purged = api.delete(&format!("/v1/dlq?{filter}")).await.expect(200);
    assert_eq!((&purged["status"], &purged["progress"]["done"]), (&json!("completed"), &json!(12)));
    assert_eq!(dead(&api).await, 3);
    let history =
        api.get(&format!("/v1/webhooks/{}/deliveries?status=dead", text(&webhook["id"]))).await.expect(200);
    assert_eq!(entries(&history).len(), 12, "they stay in history");
    assert!(entries(&history).iter().all(|delivery| delivery["purged_at"].is_string()));
    let log = api.get("/v1/audit-log?action=dlq.purge").await.expect(200);
    assert_eq!(entries(&log).len(), 1);

    let failing = api.create_webhook(&silent.url(), json!({"events": ["e.f"]})).await;
    let paused = api.create_webhook(&receiver.url(), json!({"events": ["e.f"]})).await;
    api.post(&format!("/v1/webhooks/{}/pause", text(&paused["id"])), json!({})).await.expect(200);
    publish(&api, "e.f", 8).await;
    silent.wait_for(8).await;
    let request = json!({"filter": {"webhook_ids": [failing["id"]]}});
    let cancelled = api.post("/v1/deliveries/cancel-batch", request).await;
    assert!(cancelled.status == 200 || cancelled.status == 202);
    let path = format!("/v1/webhooks/{}/deliveries?status=cancelled", text(&failing["id"]));
    api.wait_until("all are cancelled", &path, |page| entries(page).len() == 8).await;
    let path = format!("/v1/webhooks/{}/deliveries?status=pending", text(&paused["id"]));
    assert_eq!(entries(&api.get(&path).await.expect(200)).len(), 8, "other deliveries still wait");
}

#[tokio::test]
async fn dead_letters_purged_during_a_retry_are_not_sent() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    dead_letters(&api, &receiver, "a.b", 40).await;
    let slow = json!({"rate_limit": {"requests_per_second": 10}});
    let operation = api.post("/v1/dlq/retry-batch", &slow).await.expect(202);
    let some = |seen: &Value| seen["progress"]["queued"].as_u64() > Some(2);
    api.wait_until("some are queued", &path_of(&operation), some).await;
    let purged = api.delete("/v1/dlq").await.expect(200)["progress"]["done"].as_u64().unwrap();
    let over = completed(&api, &operation).await;
    let queued = over["progress"]["queued"].as_u64().unwrap();
    assert_eq!((purged + queued, &over["progress"]["skipped"]), (40, &json!(purged)), "{over}");
    assert_eq!(arrivals(&receiver, 40).len() as u64, queued);
}

#[tokio::test]
async fn operations_waiting_for_deliveries_block_no_others() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    dead_letters(&api, &receiver, "a.b", 20).await;
    receiver.respond_with(|_| Reply::status(500));
    let dead_letters = entries(&api.get("/v1/dlq?limit=20").await.expect(200));
    for letter in &dead_letters {
        let only = json!({"from": letter["created_at"], "event_types": ["a.b"]});
        let request = json!({"filter": only});
        let started = api.post("/v1/dlq/retry-batch", request).await.expect(202);
        let queued = |seen: &Value| seen["status"] == "delivering" || seen["status"] == "completed";
        api.wait_until("all deliveries are queued", &path_of(&started), queued).await;
    }
    let purged = api.delete("/v1/dlq").await.expect(200);
    assert_eq!(purged["status"], "completed");
    // Unfinished operations count towards the tenant's limit.
    let slow = json!({"rate_limit": {"requests_per_second": 1}, "filter": {"statuses": ["pending"]}});
    let mut last = 202;
    for _ in 0..9 {
        last = api.post("/v1/deliveries/retry-batch", &slow).await.status;
    }
    assert_eq!(last, 409);
}

#[tokio::test]
async fn backfill_sends_past_events_to_a_new_webhook() {
    let (first, late) = (Receiver::start().await, Receiver::start().await);
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let old = api.create_webhook(&first.url(), Value::Null).await;
    publish(&api, "a.b", 15).await;
    publish(&api, "c.d", 4).await;
    first.wait_for(19).await;
    let new = api.create_webhook(&late.url(), json!({"events": ["a.*"]})).await;
    let path = format!("/v1/webhooks/{}/backfill", text(&new["id"]));
    assert_eq!(api.post(&path, json!({})).await.expect(400)["field"], "from");
    let request = json!({"from": old["created_at"]});
    let dry = api.post(&path, json!({"from": old["created_at"], "dry_run": true})).await.expect(200);
    assert_eq!(dry["total"], 15);
    let operation = api.post(&path, &request).await.expect(202);
    let over = completed(&api, &operation).await;
    assert_eq!((&over["kind"], &over["progress"]["delivered"]), (&json!("backfill"), &json!(15)));
    assert_eq!(arrivals(&late, 0).len(), 15);
    publish(&api, "a.b", 1).await;
    late.wait_for(16).await;
    // A second backfill finds no event that the webhook has not received.
    let over = completed(&api, &api.post(&path, &request).await.expect(202)).await;
    assert_eq!((&over["progress"]["queued"], &over["progress"]["skipped"]), (&json!(0), &json!(16)));
    assert_eq!((late.count(), first.count()), (16, 20));
}

#[tokio::test]
async fn backfill_applies_the_filter_and_skips_erased_events() {
    let late = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let first = api.publish("a.b", json!({"amount": 5})).await;
    for amount in [50, 500, 5_000] {
        api.publish("a.b", json!({"amount": amount})).await;
    }
    let erased = api.publish("a.b", json!({"amount": 600})).await;
    api.post(&format!("/v1/events/{}/erase", text(&erased["id"])), json!({})).await.expect(200);
    let wanted = json!({"events": ["a.*"], "filter": {"path": "/amount", "gte": 100}});
    let webhook = api.create_webhook(&late.url(), wanted).await;
    let from = api.get(&format!("/v1/events/{}", text(&first["id"]))).await.expect(200)["timestamp"].clone();
    let path = format!("/v1/webhooks/{}/backfill", text(&webhook["id"]));
    let operation = api.post(&path, json!({ "from": from })).await.expect(202);
    let over = completed(&api, &operation).await;
    assert_eq!(over["progress"]["delivered"], 2, "{over}");
    assert!(late.arrivals().iter().all(|arrival| arrival.json()["data"]["amount"].as_u64() >= Some(500)));
}
