//! Resends: what was delivered is left out, deliveries are named by id, failed ones are recovered, and payloads edited.

use redrive_testkit::{Api, Receiver, Redrive, Reply};
use redrive_tests::{entries, text};
use serde_json::{Value, json};

const RETRY: &str = "/v1/deliveries/retry-batch";
const RETRY_DEAD: &str = "/v1/dlq/retry-batch";

/// Creates a webhook for one event type, with a circuit that never opens and one retry that is far away.
async fn webhook(api: &Api, receiver: &Receiver, event_type: &str) -> Value {
    let settings = json!({
        "events": [event_type], "circuit_breaker_config": {"enabled": false}, "retry_config": {"schedule": [0, 3600]},
    });
    api.create_webhook(&receiver.url(), settings).await
}

async fn deliveries(api: &Api, query: &str, count: usize) -> Vec<Value> {
    let path = format!("/v1/deliveries?limit=500&{query}");
    entries(
        &api.wait_until(&format!("{count} with {query}"), &path, |page| entries(page).len() == count).await,
    )
}

async fn completed(api: &Api, operation: &Value) -> Value {
    let path = format!("/v1/dlq/batch-operations/{}", text(&operation["id"]));
    api.wait_until("the end", &path, |seen| seen["status"] == "completed").await
}

#[tokio::test]
async fn delivered_deliveries_are_left_out_of_a_bulk_retry_unless_included() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    // Every third event is rejected.
    receiver.respond_with(|arrival| {
        let n = arrival.json()["data"]["n"].as_u64().unwrap_or_default();
        Reply::status(if n % 3 == 0 { 400 } else { 200 })
    });
    let webhook = webhook(&api, &receiver, "a.b").await;
    let events: Vec<_> = (0..30).map(|n| json!({"event_type": "a.b", "data": {"n": n}})).collect();
    api.post("/v1/events/batch", json!({ "events": events })).await.expect(202);
    deliveries(&api, "status=dead", 10).await;
    deliveries(&api, "status=delivered", 20).await;
    let filter = json!({"webhook_ids": [webhook["id"]]});
    let count = async |body: Value| {
        let found = api.post(RETRY, body).await.expect(200);
        (found["total"].as_u64().unwrap(), found["already_delivered"].as_u64().unwrap())
    };
    assert_eq!(count(json!({"filter": filter, "dry_run": true})).await, (10, 20));
    let included = json!({"filter": filter, "dry_run": true, "include_delivered": true});
    assert_eq!(count(included).await, (30, 20));
    for (statuses, include_delivered, expected) in [
        (json!(["delivered"]), Value::Null, (20, 20)),
        (json!(["delivered"]), json!(false), (0, 20)),
        (json!(["dead"]), Value::Null, (10, 0)),
    ] {
        let filter = json!({"webhook_ids": [webhook["id"]], "statuses": statuses});
        let body = json!({"filter": filter, "dry_run": true, "include_delivered": include_delivered});
        assert_eq!(count(body.clone()).await, expected, "{body}");
    }
    receiver.respond_with(|_| Reply::status(200));
    let over = completed(&api, &api.post(RETRY, json!({ "filter": filter })).await.expect(202)).await;
    let progress = &over["progress"];
    assert_eq!((&progress["total"], &progress["already_delivered"]), (&json!(10), &json!(20)), "{over}");
    assert_eq!((&progress["delivered"], &over["include_delivered"]), (&json!(10), &json!(false)));
    assert_eq!(receiver.count(), 40, "nothing that was delivered was sent again");
}

#[tokio::test]
async fn bulk_retry_selects_by_status_code_event_subject_and_key() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    receiver.respond_with(|arrival| {
        Reply::status(arrival.json()["data"]["code"].as_u64().unwrap_or_default() as u16)
    });
    webhook(&api, &receiver, "a.b").await;
    let mut ids = Vec::new();
    for (code, key, subject) in
        [(400, "k-1", "s-1"), (404, "k-2", "s-1"), (401, "k-3", "s-2"), (200, "k-4", "s-2")]
    {
        let event =
            json!({"event_type": "a.b", "data": {"code": code}, "idempotency_key": key, "subject": subject});
        ids.push(api.post("/v1/events", event).await.expect(202)["id"].clone());
    }
    deliveries(&api, "status=dead", 3).await;
    deliveries(&api, "status=delivered", 1).await;
    for (filter, total) in [
        (json!({"status_codes": ["404"]}), 1),
        (json!({"status_codes": ["4xx"]}), 3),
        (json!({"status_codes": ["404", "401"]}), 2),
        (json!({"status_codes": ["5xx"]}), 0),
        (json!({"event_ids": [ids[0], ids[3]]}), 1),
        (json!({"idempotency_keys": ["k-2"]}), 1),
        (json!({"subjects": ["s-2"]}), 1),
        (json!({"failed": true}), 3),
    ] {
        let body = json!({"filter": filter, "dry_run": true});
        for path in [RETRY, RETRY_DEAD] {
            assert_eq!(api.post(path, &body).await.expect(200)["total"], total, "{path} {filter}");
        }
    }
    let purge = api.delete("/v1/dlq?status_code=404&dry_run=true").await.expect(200);
    assert_eq!(purge["total"], 1);
    let wrong = json!({"filter": {"status_codes": ["abc"]}});
    assert!(text(&api.post(RETRY, wrong).await.expect(400)["detail"]).contains("must be a status code"));
}

#[tokio::test]
async fn named_deliveries_are_resent_and_others_get_their_reason() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    receiver.respond_with(|arrival| {
        Reply::status(arrival.json()["data"]["code"].as_u64().unwrap_or_default() as u16)
    });
    webhook(&api, &receiver, "a.b").await;
    api.post("/v1/tenants", json!({"id": "acme"})).await.expect(201);
    let acme = json!({"tenant_id": "acme", "url": receiver.url(), "events": ["a.b"]});
    api.post("/v1/webhooks", acme).await.expect(201);
    for code in [400, 400, 400, 200] {
        api.publish("a.b", json!({"code": code})).await;
    }
    let foreign = json!({"tenant_id": "acme", "event_type": "a.b", "data": {"code": 400}});
    api.post("/v1/events", foreign).await.expect(202);
    let dead = deliveries(&api, "status=dead", 3).await;
    let delivered = deliveries(&api, "status=delivered", 1).await;
    let foreign = deliveries(&api, "status=dead&tenant_id=acme", 1).await;
    let redriven = text(&dead[2]["id"]).to_owned();
    receiver.respond_with(|_| Reply::status(200));
    api.post(&format!("/v1/deliveries/{redriven}/retry"), json!({})).await.expect(202);
    let unknown = format!("dlv_{}", "0".repeat(32));
    let named = json!([
        dead[0]["id"],
        dead[1]["id"],
        dead[0]["id"],
        delivered[0]["id"],
        redriven,
        foreign[0]["id"],
        unknown,
        "dlv_x",
    ]);
    let expected = [
        (&dead[0]["id"], 202, Value::Null),
        (&dead[1]["id"], 202, Value::Null),
        (&delivered[0]["id"], 409, json!("not_a_dead_letter")),
        (&json!(redriven), 409, json!("already_redriven")),
        (&foreign[0]["id"], 404, json!("not_found")),
        (&json!(unknown), 404, json!("not_found")),
        (&json!("dlv_x"), 400, json!("invalid_field")),
    ];
    let check = |response: &Value| {
        let results = response["results"].as_array().unwrap();
        assert_eq!(results.len(), expected.len(), "{response}");
        for (result, (id, status, code)) in results.iter().zip(&expected) {
            assert_eq!((&result["delivery_id"], &result["status"]), (*id, &json!(status)), "{result}");
            assert_eq!(&result["error"]["code"], code, "{result}");
        }
    };
    let dry = api.post(RETRY_DEAD, json!({"delivery_ids": named, "dry_run": true})).await.expect(200);
    assert_eq!(dry["total"], 2);
    check(&dry);
    let operation = api.post(RETRY_DEAD, json!({"delivery_ids": named})).await.expect(202);
    check(&operation);
    assert_eq!(operation["delivery_id_count"], 2);
    let over = completed(&api, &operation).await;
    assert_eq!(
        (&over["progress"]["total"], &over["progress"]["delivered"]),
        (&json!(2), &json!(2)),
        "{over}"
    );
    // Among all deliveries, one that was delivered is taken if delivered ones are included.
    let only = json!({"delivery_ids": [delivered[0]["id"]]});
    let refused = api.post(RETRY, &only).await.expect(202);
    assert_eq!(refused["results"][0]["error"]["code"], "already_delivered");
    assert_eq!(completed(&api, &refused).await["progress"]["total"], 0, "an empty selection sends nothing");
    let included = json!({"delivery_ids": [delivered[0]["id"]], "include_delivered": true});
    let over = completed(&api, &api.post(RETRY, included).await.expect(202)).await;
    assert_eq!(
        (&over["progress"]["delivered"], &over["progress"]["already_delivered"]),
        (&json!(1), &json!(1))
    );
    for (body, field) in [
        (json!({"delivery_ids": []}), "delivery_ids"),
        (json!({"delivery_ids": [unknown], "filter": {"statuses": ["dead"]}}), "delivery_ids"),
        (
            json!({"delivery_ids": (0..1_001).map(|n| format!("dlv_{n:032x}")).collect::<Vec<_>>()}),
            "delivery_ids",
        ),
    ] {
        assert_eq!(api.post(RETRY, &body).await.expect(400)["field"], field);
    }
}

#[tokio::test]
async fn failed_deliveries_of_a_webhook_are_recovered_and_others_left_unchanged() {
    let (receiver, other) = (Receiver::start().await, Receiver::responding(400).await);
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let failing = webhook(&api, &receiver, "a.*").await;
    webhook(&api, &other, "b.*").await;
    receiver.respond_with(|arrival| {
        Reply::status(arrival.json()["data"]["code"].as_u64().unwrap_or_default() as u16)
    });
    for code in [200, 200, 400, 400, 500] {
        api.publish("a.b", json!({"code": code})).await;
    }
    api.publish("b.c", json!({})).await;
    deliveries(&api, "status=dead", 3).await;
    let cancelled = api.publish("a.b", json!({"code": 500})).await;
    let retrying = |event: &Value| {
        format!("status=pending&failure_category=server_error&event_id={}", text(&event["id"]))
    };
    let pending = deliveries(&api, &retrying(&cancelled), 1).await;
    api.post(&format!("/v1/deliveries/{}/cancel", text(&pending[0]["id"])), json!({})).await.expect(202);
    deliveries(&api, "status=pending&failure_category=server_error", 1).await;
    let failed = |from: &str| json!({"webhook_ids": [failing["id"]], "failed_from": from});
    let since = text(&failing["created_at"]).to_owned();
    let count = async |filter: Value| {
        api.post(RETRY, json!({"filter": filter, "dry_run": true})).await.expect(200)["total"].clone()
    };
    assert_eq!(count(failed(&since)).await, 3, "two dead letters and one that is retried");
    assert_eq!(count(failed("2100-01-01T00:00:00Z")).await, 1, "a pending delivery fails until it is sent");
    let listed = format!("webhook_id={}&failed_from={since}", text(&failing["id"]));
    deliveries(&api, &listed, 3).await;
    receiver.respond_with(|_| Reply::status(200));
    let before = receiver.count();
    let over = completed(&api, &api.post(RETRY, json!({"filter": failed(&since)})).await.expect(202)).await;
    assert_eq!(
        (&over["progress"]["queued"], &over["progress"]["delivered"]),
        (&json!(3), &json!(3)),
        "{over}"
    );
    assert_eq!(over["progress"]["already_delivered"], 0);
    assert_eq!(receiver.count(), before + 3);
    deliveries(&api, "status=cancelled", 1).await;
    assert_eq!(entries(&api.get("/v1/dlq").await.expect(200)).len(), 1, "that of the other webhook");
    let times = json!({"failed_from": "2026-01-02T00:00:00Z", "failed_to": "2026-01-01T00:00:00Z"});
    assert_eq!(api.post(RETRY, json!({"filter": times})).await.expect(400)["field"], "filter.failed_to");
}

#[tokio::test]
async fn dead_letters_are_filtered_by_age_and_show_successes_since() {
    let receiver = Receiver::responding(400).await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    webhook(&api, &receiver, "a.b").await;
    api.publish("a.b", json!({})).await;
    let dead = api.wait_until("a dead letter", "/v1/dlq", |page| entries(page).len() == 1).await;
    let letter = &entries(&dead)[0];
    assert_eq!(letter["endpoint_successes_since"], 0);
    let died_at = text(&letter["dead_at"]);
    for (query, count) in [
        (format!("failed_from={died_at}"), 1),
        (format!("failed_to={died_at}"), 0),
        ("failed_to=2100-01-01".to_owned(), 1),
        ("failed_from=2100-01-01".to_owned(), 0),
    ] {
        let listed = api.get(&format!("/v1/dlq?{query}")).await.expect(200);
        assert_eq!(entries(&listed).len(), count, "{query}");
        assert_eq!(api.get(&format!("/v1/dlq/stats?{query}")).await.expect(200)["size"], count, "{query}");
    }
    receiver.respond_with(|_| Reply::status(200));
    for _ in 0..3 {
        api.publish("a.b", json!({})).await;
    }
    deliveries(&api, "status=delivered", 3).await;
    let counted = |page: &Value| entries(page)[0]["endpoint_successes_since"].as_u64() >= Some(1);
    api.wait_until("successes", "/v1/dlq", counted).await;
    let one = api.get(&format!("/v1/deliveries/{}", text(&letter["id"]))).await.expect(200);
    assert!(one["endpoint_successes_since"].as_u64() >= Some(1), "{one}");
}

#[tokio::test]
async fn edited_resend_publishes_a_new_event_that_refers_to_the_original() {
    let (receiver, chosen) = (Receiver::start().await, Receiver::start().await);
    let redrive = Redrive::start().await;
    let api = redrive.api();
    webhook(&api, &receiver, "a.b").await;
    let other = webhook(&api, &chosen, "never.published").await;
    let event = json!({
        "event_type": "a.b", "data": {"amount": 1}, "subject": "order-1", "metadata": {"by": "me"}, "priority": "high",
        "idempotency_key": "k",
    });
    let original = api.post("/v1/events", event).await.expect(202);
    let path = format!("/v1/events/{}", text(&original["id"]));
    let resend = format!("{path}/resend-edited");
    let edited = api.post(&resend, json!({"data": {"amount": 2}})).await.expect(202);
    assert_eq!(edited["deliveries"], 1);
    let arrivals = receiver.wait_for(2).await;
    assert_eq!(arrivals[1].json()["data"], json!({"amount": 2}));
    assert_eq!(arrivals[1].webhook_id(), text(&edited["id"]));
    let copy = api.get(&format!("/v1/events/{}", text(&edited["id"]))).await.expect(200);
    assert_eq!(copy["edited_from"], original["id"]);
    for (name, value) in [
        ("event_type", json!("a.b")),
        ("subject", json!("order-1")),
        ("metadata", json!({"by": "me"})),
        ("priority", json!("high")),
        ("idempotency_key", edited["id"].clone()),
    ] {
        assert_eq!(copy[name], value, "{name}");
    }
    let body = json!({"data": {"amount": 3}, "webhook_ids": [other["id"]], "idempotency_key": "once"});
    let targeted = api.post(&resend, &body).await.expect(202);
    assert_eq!(api.post(&resend, &body).await.expect(200)["id"], targeted["id"], "the key is repeated");
    assert_eq!(chosen.wait_for(1).await[0].json()["data"], json!({"amount": 3}));
    assert_eq!(receiver.count(), 2, "only the named webhook receives it");
    let stored = api.get(&path).await.expect(200);
    assert_eq!(stored["edited_as"], json!([targeted["id"], edited["id"]]));
    assert_eq!((&stored["edited_from"], &stored["data"]), (&Value::Null, &json!({"amount": 1})));
    let unknown = format!("/v1/events/evt_{}/resend-edited", "0".repeat(32));
    api.post(&unknown, json!({"data": {}})).await.expect(404);
    assert_eq!(api.post(&resend, json!({})).await.expect(400)["field"], "data");
    let unknown_webhook = json!({"data": {}, "webhook_ids": [format!("wh_{}", "0".repeat(32))]});
    api.post(&resend, unknown_webhook).await.expect(404);
    api.post(&format!("{path}/erase"), json!({})).await.expect(200);
    assert_eq!(api.post(&resend, json!({"data": {}})).await.expect(409)["code"], "payload_erased");
    let audit = api.get("/v1/audit-log?limit=50").await.expect(200);
    assert!(entries(&audit).iter().any(|entry| entry["action"] == "event.resend_edited"), "{audit}");
}
