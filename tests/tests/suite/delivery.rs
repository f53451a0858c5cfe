//! From a publish to the requests that endpoints receive: fan-out, request format, and the history.

use std::time::{SystemTime, UNIX_EPOCH};

use redrive_testkit::{Api, Latch, ReceivedRequest, Receiver, Redrive, Reply};
use redrive_tests::{
    attempts_when, column, deliveries_of, delivery_of, entries, id, millis, text, wait_for_delivery,
    wait_for_event_status, wait_for_status,
};
use serde_json::{Value, json};

const JSON: (&str, &str) = ("content-type", "application/json");

/// Returns the paths at which an event was received, in alphabetical order.
fn paths(arrivals: &[ReceivedRequest], event: &Value) -> Vec<String> {
    let mut paths: Vec<_> = arrivals
        .iter()
        .filter(|arrival| arrival.webhook_id() == id(event))
        .map(|arrival| arrival.path.trim_start_matches('/').to_owned())
        .collect();
    paths.sort();
    paths
}

/// Returns all pages of a listing.
async fn pages(api: &Api, path: &str) -> Vec<Vec<Value>> {
    let mut pages = Vec::new();
    let mut next = path.to_owned();
    loop {
        let page = api.get(&next).await.expect(200);
        pages.push(entries(&page));
        match page["next_cursor"].as_str() {
            Some(cursor) => next = format!("{path}&cursor={cursor}"),
            None => return pages,
        }
    }
}

#[tokio::test]
async fn event_is_sent_to_every_subscribed_webhook_and_no_other() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    for (path, filter) in [
        ("all", json!({"events": ["*"]})),
        ("below", json!({"events": ["order.*"]})),
        ("deeper", json!({"events": ["order.item.*"]})),
        ("exact", json!({"events": ["order.created"]})),
        ("several", json!({"events": ["order.created", "order.*", "*"]})),
        ("subject", json!({"subjects": ["order-7", "order-8"]})),
        ("both", json!({"events": ["order.*"], "subjects": ["order-7"]})),
        ("other", json!({"events": ["invoice.*"]})),
        ("prefix", json!({"events": ["order"]})),
        ("off", json!({"active": false})),
    ] {
        api.create_webhook(&receiver.url_at(path), filter).await;
    }
    let publish = |event_type: &'static str, subject: Option<&'static str>| {
        let api = api.clone();
        let event = json!({"event_type": event_type, "subject": subject, "data": {}});
        async move { api.post("/v1/events", event).await.expect(202) }
    };
    for (event_type, subject, expected) in [
        ("order.created", None, vec!["all", "below", "exact", "several"]),
        ("order.created", Some("order-7"), vec!["all", "below", "both", "exact", "several", "subject"]),
        ("order.item.added", Some("order-8"), vec!["all", "below", "deeper", "several", "subject"]),
        ("order", None, vec!["all", "prefix", "several"]),
        ("orders.created", None, vec!["all", "several"]),
        ("invoice.paid", Some("order-9"), vec!["all", "other", "several"]),
    ] {
        let event = publish(event_type, subject).await;
        assert_eq!(event["deliveries"], expected.len(), "{event_type} {subject:?}");
        for delivery in deliveries_of(&api, &event).await {
            wait_for_status(&api, id(&delivery), "delivered").await;
        }
        assert_eq!(paths(&receiver.arrivals(), &event), expected, "{event_type} {subject:?}");
    }
}

#[tokio::test]
async fn event_without_subscribers_is_stored() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let event = api.publish("order.created", json!({"n": 1})).await;
    assert_eq!((&event["deliveries"], &event["duplicate"]), (&json!(0), &json!(false)));
    let shown = api.get(&format!("/v1/events/{}", id(&event))).await.expect(200);
    assert_eq!((&shown["event_type"], &shown["data"]), (&json!("order.created"), &json!({"n": 1})));
    assert!(deliveries_of(&api, &event).await.is_empty());
    let replay = api.post(&format!("/v1/events/{}/replay", id(&event)), json!({})).await;
    assert_eq!((replay.status, &*replay.problem()), (409, "nothing_to_replay"));
}

#[tokio::test]
async fn request_has_all_headers_and_the_envelope() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let headers = json!({"X-Team": "payments", "Authorization": "Bearer s3cret"});
    let webhook =
        api.create_webhook(&receiver.url_at("/webhook?x=1&y=%20"), json!({"headers": headers})).await;
    assert_eq!(webhook["headers"], json!({"x-team": "[redacted]", "authorization": "[redacted]"}));
    let event = json!({
        "event_type": "order.created", "data": {"order": 42}, "source": "checkout \"2\"", "subject": "order-42",
        "idempotency_key": "my-key", "metadata": {"note": "not for endpoints"},
    });
    let event = api.post("/v1/events", event).await.expect(202);
    let delivery = wait_for_event_status(&api, &event, "delivered").await;
    let arrival = receiver.wait_for(1).await.remove(0);

    assert_eq!((&*arrival.method, &*arrival.path), ("POST", "/webhook?x=1&y=%20"));
    let unix: i64 = arrival.header("webhook-timestamp").unwrap().parse().unwrap();
    let version = format!("Redrive/{}", env!("CARGO_PKG_VERSION"));
    let length = arrival.body.len().to_string();
    let host = receiver.url().trim_start_matches("http://").trim_end_matches("/webhook").to_owned();
    for (name, value) in [
        ("host", &*host),
        ("content-type", "application/json"),
        ("content-length", &length),
        ("user-agent", &version),
        ("webhook-id", id(&event)),
        ("x-webhook-id", id(&webhook)),
        ("x-webhook-event", "order.created"),
        ("x-webhook-delivery", id(&delivery)),
        ("x-webhook-attempt", "1"),
        ("x-idempotency-key", "my-key"),
        ("x-team", "payments"),
        ("authorization", "Bearer s3cret"),
        ("redrive-hops", "1"),
    ] {
        assert_eq!(arrival.header(name), Some(value), "{name}");
        assert_eq!(arrival.headers.iter().filter(|(own, _)| own == name).count(), 1, "{name} once");
    }
    let iso = json!(arrival.header("x-webhook-timestamp").unwrap());
    assert_eq!(millis(&iso) / 1000, unix);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().cast_signed();
    assert!((now - 30..=now).contains(&unix), "{unix} is not about {now}");
    assert!(arrival.header("webhook-signature").unwrap().starts_with("v1,"));
    assert!(arrival.header("x-webhook-signature").unwrap().starts_with(&format!("t={unix},v1=")));
    let known = ["webhook-timestamp", "webhook-signature", "x-webhook-timestamp", "x-webhook-signature"];
    assert_eq!(arrival.headers.len(), 13 + known.len(), "and no other: {:?}", arrival.headers);

    let body = std::str::from_utf8(&arrival.body).unwrap();
    let timestamp = text(&event["timestamp"]);
    let expected = format!(
        r#"{{"id":"{}","type":"order.created","timestamp":"{timestamp}","source":"checkout \"2\"","subject":"order-42","data":{{"order":42}}}}"#,
        id(&event)
    );
    assert_eq!(body, expected);
    let shown = api.get(&format!("/v1/events/{}", id(&event))).await.expect(200);
    assert_eq!(shown["metadata"], json!({"note": "not for endpoints"}));
}

#[tokio::test]
async fn reserved_headers_cannot_be_overridden() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    for name in ["Host", "webhook-id", "X-Webhook-Event", "User-Agent", "Content-Length", "Transfer-Encoding"]
    {
        let webhook = json!({"url": "http://127.0.0.1:2/", "events": ["*"], "headers": {name: "x"}});
        let response = api.post("/v1/webhooks", webhook).await;
        assert_eq!(
            (response.status, response.json()["field"].clone()),
            (400, json!(format!("headers.{}", name.to_lowercase())))
        );
    }
}

#[tokio::test]
async fn payloads_are_delivered_byte_for_byte() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&receiver.url_at("data"), json!({"payload_format": "data"})).await;
    api.create_webhook(&receiver.url_at("envelope"), json!({})).await;
    let payloads = [
        r#"{ "b" : 1 ,	"a":[ 1.0,2e3 , -0 ] }"#,
        r#"{"huge": 1e400, "long": 12345678901234567890, "longer": 0.10000000000000000000000000001}"#,
        r#"{"twice": 1, "twice": 2}"#,
        "{\"snowman\": \"☃\", \"astral\": \"𝒳\", \"escaped\": \"\\u2603\\ud835\\udcb3 \\/ \\\"\"}",
        "\"just a text\"",
        "null",
        "-17",
        "{\n  \"pretty\": true\n}",
    ];
    for payload in payloads {
        let body = format!("{{\"event_type\":\"odd.json\",\"data\":  {payload}  }}");
        let event = api.raw("POST", "/v1/events", &[JSON], body).await.expect(202);
        for delivery in deliveries_of(&api, &event).await {
            wait_for_status(&api, id(&delivery), "delivered").await;
        }
        let arrivals = receiver.arrivals();
        let body = |path: &str| {
            let found = arrivals.iter().find(|one| one.webhook_id() == id(&event) && one.path == path);
            String::from_utf8(found.unwrap().body.to_vec()).unwrap()
        };
        assert_eq!(body("/data"), payload);
        assert!(body("/envelope").ends_with(&format!(",\"data\":{payload}}}")), "{}", body("/envelope"));
        let shown = api.get(&format!("/v1/events/{}", id(&event))).await;
        let shown = String::from_utf8(shown.body.to_vec()).unwrap();
        assert!(shown.contains(&format!("\"data\":{payload},")), "{shown}");
    }
}

#[tokio::test]
async fn largest_payload_is_delivered_and_larger_one_rejected() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), json!({"payload_format": "data"})).await;
    let max = 256 * 1024;
    let event = api.publish("big.one", json!("x".repeat(max - 2))).await;
    wait_for_event_status(&api, &event, "delivered").await;
    assert_eq!(receiver.arrivals()[0].body.len(), max);
    for too_large in [max - 1, max + 100_000] {
        let event = json!({"event_type": "big.one", "data": "x".repeat(too_large)});
        let response = api.post("/v1/events", event).await;
        assert_eq!(response.status, 413, "{response:?}");
        assert!(text(&response.json()["detail"]).contains("bytes"), "{response:?}");
    }
    assert_eq!(receiver.count(), 1);
}

#[tokio::test]
async fn test_event_is_sent_only_to_its_webhook() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let tested = api.create_webhook(&receiver.url_at("tested"), json!({"events": ["order.*"]})).await;
    api.create_webhook(&receiver.url_at("other"), json!({})).await;
    let path = format!("/v1/webhooks/{}/test", id(&tested));
    let event = api.raw("POST", &path, &[], "").await.expect(202);
    let own = api.post(&path, json!({"data": {"mine": true}})).await.expect(202);
    for event in [&event, &own] {
        wait_for_event_status(&api, event, "delivered").await;
        assert_eq!(paths(&receiver.arrivals(), event), ["tested"]);
    }
    let arrivals = receiver.arrivals();
    assert_eq!(arrivals[0].header("x-webhook-event"), Some("redrive.test"));
    assert_eq!(arrivals[1].json()["data"], json!({"mine": true}));

    // Only Redrive itself may publish `redrive.*` events.
    let forged = api.post("/v1/events", json!({"event_type": "redrive.test", "data": {}})).await;
    assert_eq!((forged.status, forged.json()["field"].clone()), (400, json!("event_type")));
    api.post(&format!("/v1/webhooks/{}/disable", id(&tested)), json!({})).await.expect(200);
    let refused = api.post(&path, json!({})).await;
    assert_eq!((refused.status, &*refused.problem()), (409, "webhook_not_active"));
}

#[tokio::test]
async fn changed_webhook_gets_new_events_in_the_new_format() {
    let (one, other) = (Receiver::responding(500).await, Receiver::start().await);
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = api
        .create_webhook(&one.url(), json!({"retry_config": {"schedule": [0, 3600]}, "metadata": {"a": "1"}}))
        .await;
    let pending = api.publish("order.created", json!({"n": 1})).await;
    let pending = delivery_of(&api, &pending).await;
    attempts_when(&api, id(&pending), 1).await;

    let path = format!("/v1/webhooks/{}", id(&webhook));
    let change = json!({"url": other.url(), "payload_format": "data", "events": ["order.*"]});
    let changed = api.patch(&path, change).await.expect(200);
    assert_eq!(changed["url"], other.url());
    assert_eq!(changed["metadata"], json!({"a": "1"}), "an omitted field is unchanged");
    assert_eq!(changed["retry_config"], webhook["retry_config"]);
    // A pending delivery goes to the new URL with the body it was created with.
    api.post(&format!("/v1/deliveries/{}/retry", id(&pending)), json!({})).await.expect(202);
    wait_for_status(&api, id(&pending), "delivered").await;
    assert_eq!(other.arrivals()[0].body, one.arrivals()[0].body);
    let event = api.publish("order.created", json!({"n": 2})).await;
    wait_for_event_status(&api, &event, "delivered").await;
    assert_eq!(&other.arrivals()[1].body[..], br#"{"n":2}"#);
    assert_eq!(api.publish("invoice.paid", json!({})).await["deliveries"], 0);

    let put = api.put(&path, json!({"description": "mine"})).await.expect(200);
    assert_eq!((&put["description"], &put["url"]), (&json!("mine"), &json!(other.url())));
    assert_eq!(api.patch(&path, json!({"urll": "x"})).await.status, 400);
    assert_eq!(api.patch(&path, json!({"url": "not a url"})).await.status, 400);
    assert_eq!(api.get(&path).await.expect(200), put, "a rejected change has no effect");
}

#[tokio::test]
async fn disabling_cancels_pending_deliveries_for_good() {
    let receiver = Receiver::responding(500).await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = api.create_webhook(&receiver.url(), json!({"retry_config": {"schedule": [0, 3600]}})).await;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let event = api.publish("order.created", json!({})).await;
        waiting.push(delivery_of(&api, &event).await);
    }
    for delivery in &waiting {
        attempts_when(&api, id(delivery), 1).await;
    }
    let path = format!("/v1/webhooks/{}", id(&webhook));
    let disabled = api.post(&format!("{path}/disable"), json!({})).await.expect(200);
    assert_eq!((&disabled["state"], &disabled["active"]), (&json!("disabled"), &json!(false)));
    for delivery in &waiting {
        let delivery = wait_for_status(&api, id(delivery), "cancelled").await;
        assert_eq!(delivery["cancel_reason"], disabled["disabled_reason"]);
    }
    assert_eq!(api.publish("order.created", json!({})).await["deliveries"], 0);
    assert_eq!(entries(&api.get("/v1/webhooks?active=true").await.expect(200)).len(), 0);
    assert_eq!(entries(&api.get("/v1/webhooks?active=false").await.expect(200)).len(), 1);

    receiver.respond_with(|_| Reply::status(200));
    api.patch(&path, json!({"active": true})).await.expect(200);
    let event = api.publish("order.created", json!({})).await;
    wait_for_event_status(&api, &event, "delivered").await;
    for delivery in &waiting {
        assert_eq!(wait_for_status(&api, id(delivery), "cancelled").await["attempt_count"], 1);
    }
    assert_eq!(receiver.count(), 4);
}

#[tokio::test]
async fn deleting_cancels_pending_deliveries_and_keeps_history() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = api.create_webhook(&receiver.url(), json!({"retry_config": {"schedule": [0, 3600]}})).await;
    let done = api.publish("order.created", json!({"n": 1})).await;
    let done = wait_for_event_status(&api, &done, "delivered").await;
    receiver.respond_with(|_| Reply::status(500));
    let event = api.publish("order.created", json!({"n": 2})).await;
    let pending = delivery_of(&api, &event).await;
    attempts_when(&api, id(&pending), 1).await;

    let path = format!("/v1/webhooks/{}", id(&webhook));
    api.delete(&path).await.expect(204);
    let pending = wait_for_status(&api, id(&pending), "cancelled").await;
    assert_eq!(pending["cancel_reason"], "the webhook was deleted");
    assert_eq!(api.get(&path).await.status, 404);
    assert_eq!(api.delete(&path).await.status, 404);
    assert_eq!(api.post(&format!("{path}/enable"), json!({})).await.status, 404);
    assert!(entries(&api.get("/v1/webhooks").await.expect(200)).is_empty());
    let history = entries(&api.get(&format!("/v1/deliveries?webhook_id={}", id(&webhook))).await.expect(200));
    assert_eq!(column(&history, "id"), [&pending["id"], &done["id"]]);
    assert_eq!(attempts_when(&api, id(&done), 1).await.len(), 1);

    // A replay is rejected, because no webhook is left to send to.
    let replay = api.post(&format!("/v1/events/{}/replay", id(&event)), json!({})).await;
    assert_eq!(replay.expect(409)["code"], "nothing_to_replay");
    assert_eq!(api.publish("order.created", json!({})).await["deliveries"], 0);
    assert_eq!(receiver.count(), 2);
}

#[tokio::test]
async fn new_webhook_gets_the_next_event() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    for n in 0..200 {
        let name = format!("turn.n{n}");
        api.create_webhook(&receiver.url(), json!({"events": [name]})).await;
        assert_eq!(api.publish(&name, json!({})).await["deliveries"], 1, "{name}");
    }
    let arrivals = receiver.wait_for(200).await;
    let mut types: Vec<_> = arrivals.iter().map(|one| one.header("x-webhook-event").unwrap()).collect();
    types.sort_unstable();
    types.dedup();
    assert_eq!(types.len(), 200);
}

#[tokio::test]
async fn batch_items_are_validated_separately() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), json!({})).await;
    let batch = json!({"events": [
        {"event_type": "a.one", "data": 1},
        {"event_type": "not a type", "data": 2},
        {"event_type": "redrive.own", "data": 3},
        {"event_type": "a.four", "dat": 4},
        {"event_type": "a.five", "data": "x".repeat(256 * 1024)},
        {"event_type": "a.six", "data": 6, "subject": "s"},
        {"event_type": "a.seven", "data": 7, "tenant_id": "acme"},
        17,
    ]});
    let items = entries(&api.post("/v1/events/batch", batch).await.expect(202));
    assert_eq!(column(&items, "status"), [202, 400, 400, 400, 413, 202, 404, 400]);
    for item in &items {
        let taken = item["status"] == 202;
        assert_eq!((item["id"].is_string(), item["error"].is_null()), (taken, taken), "{item}");
        assert!(taken || item["error"]["code"].is_string(), "{item}");
    }
    let arrivals = receiver.wait_for(2).await;
    let mut arrived: Vec<_> = arrivals.iter().map(ReceivedRequest::webhook_id).collect();
    arrived.sort_unstable();
    let mut taken = [id(&items[0]), id(&items[5])];
    taken.sort_unstable();
    assert_eq!(arrived, taken);

    let many: Vec<_> = (0..1000).map(|n| json!({"event_type": "many.ones", "data": n})).collect();
    let items = entries(&api.post("/v1/events/batch", json!({"events": many})).await.expect(202));
    assert!(items.iter().all(|item| item["status"] == 202));
    receiver.wait_for(1002).await;
    for bad in [json!({"events": []}), json!({"events": vec![&many[0]; 1001]}), json!([])] {
        assert_eq!(api.post("/v1/events/batch", bad).await.status, 400);
    }
}

#[tokio::test]
async fn events_are_listed_newest_first_and_filtered() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let mut published = Vec::new();
    for n in 0..25 {
        let event_type = if n % 5 == 0 { "a.rare" } else { "a.common" };
        let event = json!({"event_type": event_type, "subject": format!("s{}", n % 2), "data": n});
        published.push(api.post("/v1/events", event).await.expect(202));
    }
    published.reverse();
    let listed = pages(&api, "/v1/events?limit=10").await;
    assert_eq!(listed.iter().map(Vec::len).collect::<Vec<_>>(), [10, 10, 5]);
    let listed = listed.concat();
    let times: Vec<_> = column(&listed, "timestamp").iter().map(|at| millis(at)).collect();
    assert!(times.is_sorted_by(|newer, older| newer >= older), "newest first");
    let mut sequence: Vec<_> =
        column(&listed, "sequence_number").iter().map(|n| n.as_i64().unwrap()).collect();
    sequence.sort_unstable();
    let expected: Vec<_> =
        published.iter().rev().map(|event| event["sequence_number"].as_i64().unwrap()).collect();
    assert_eq!(sequence, expected, "each once");

    let count = |path: String| {
        let api = api.clone();
        async move { pages(&api, &path).await.concat().len() }
    };
    assert_eq!(count("/v1/events?event_type=a.rare".into()).await, 5);
    assert_eq!(count("/v1/events?subject=s0&limit=5".into()).await, 13);
    assert_eq!(count("/v1/events?event_type=a.rare&subject=s1".into()).await, 2);
    assert_eq!(count("/v1/events?event_type=none".into()).await, 0);
    assert_eq!(entries(&api.get("/v1/events?offset=20").await.expect(200)).len(), 5);
    let middle = text(&published[10]["timestamp"]);
    let (from, to) =
        (count(format!("/v1/events?from={middle}")).await, count(format!("/v1/events?to={middle}")).await);
    assert!(from >= 11 && from + to == 25, "{from} from, {to} before");
    for bad in ["limit=0", "limit=501", "offset=10001", "cursor=x", "from=yesterday", "event_typ=x"] {
        assert_eq!(api.get(&format!("/v1/events?{bad}")).await.status, 400, "{bad}");
    }
}

#[tokio::test]
async fn deliveries_are_listed_and_filtered() {
    let receiver = Receiver::with(|arrival| Reply::status(arrival.path[1..].parse().unwrap())).await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let once = json!({"retry_config": {"schedule": [0]}});
    let later = json!({"retry_config": {"schedule": [0, 3600]}});
    let good = api.create_webhook(&receiver.url_at("200"), &once).await;
    let bad = api.create_webhook(&receiver.url_at("404"), &once).await;
    let ill = api.create_webhook(&receiver.url_at("500"), &later).await;
    for n in 0..12 {
        let event_type = if n < 4 { "a.rare" } else { "a.common" };
        let event = api.publish(event_type, json!(n)).await;
        for delivery in deliveries_of(&api, &event).await {
            attempts_when(&api, id(&delivery), 1).await;
        }
    }
    let listed = pages(&api, "/v1/deliveries?limit=10").await;
    assert_eq!(listed.iter().map(Vec::len).collect::<Vec<_>>(), [10, 10, 10, 6]);
    let listed = listed.concat();
    let mut ids: Vec<_> = listed.iter().map(id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 36, "each once");
    let created: Vec<_> = column(&listed, "created_at").iter().map(|at| millis(at)).collect();
    assert!(created.is_sorted_by(|newer, older| newer >= older));

    for (filter, expected) in [
        ("status=delivered".to_owned(), 12),
        ("status=dead".to_owned(), 12),
        ("status=pending".to_owned(), 12),
        ("status=failed".to_owned(), 24),
        ("status=cancelled".to_owned(), 0),
        ("status=in_flight".to_owned(), 0),
        ("failure_category=server_error".to_owned(), 12),
        ("failure_category=client_error&event_type=a.rare".to_owned(), 4),
        (format!("webhook_id={}", id(&good)), 12),
        (format!("webhook_id={}&status=dead", id(&ill)), 0),
        ("event_type=a.rare&status=failed".to_owned(), 8),
        ("to=2020-01-01T00:00:00Z".to_owned(), 0),
        ("from=2020-01-01T00:00:00Z".to_owned(), 36),
    ] {
        let found = pages(&api, &format!("/v1/deliveries?limit=5&{filter}")).await.concat();
        assert_eq!(found.len(), expected, "{filter}");
    }
    let of_webhook =
        pages(&api, &format!("/v1/webhooks/{}/deliveries?limit=7&status=dead", id(&bad))).await.concat();
    assert_eq!(of_webhook.len(), 12);
    assert!(of_webhook.iter().all(|delivery| delivery["webhook_id"] == bad["id"]));
    assert_eq!(pages(&api, "/v1/dlq?limit=5").await.concat().len(), 12);
    assert_eq!(pages(&api, "/v1/dlq?limit=5&event_type=a.rare").await.concat().len(), 4);
    assert_eq!(api.get("/v1/deliveries?status=finished").await.status, 400);
}

#[tokio::test]
async fn waiting_delivery_shows_its_wait_reason() {
    let gate = Latch::closed();
    let held = gate.clone();
    let receiver = Receiver::with(move |arrival| match &*arrival.path {
        "/failing" => Reply::status(500),
        _ => Reply::status(200).latched_by(&held),
    })
    .await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let failing = json!({"events": ["a.failing"], "retry_config": {"schedule": [0, 100, 100]}});
    api.create_webhook(&receiver.url_at("failing"), failing).await;
    api.create_webhook(&receiver.url_at("held"), json!({"events": ["a.held"], "max_in_flight": 1})).await;

    let event = api.publish("a.failing", json!({})).await;
    let delivery = delivery_of(&api, &event).await;
    let attempts = attempts_when(&api, id(&delivery), 1).await;
    let waiting = wait_for_status(&api, id(&delivery), "pending").await;
    assert_eq!((&waiting["waiting_on"], &waiting["attempt_count"]), (&json!("schedule"), &json!(1)));
    assert_eq!(waiting["next_attempt_at"], attempts[0]["next_retry_at"]);
    assert_eq!((&waiting["last_status_code"], &waiting["max_attempts"]), (&json!(500), &json!(3)));

    let first = api.publish("a.held", json!({})).await;
    let first = wait_for_event_status(&api, &first, "in_flight").await;
    assert_eq!((&first["waiting_on"], &first["next_attempt_at"]), (&Value::Null, &Value::Null));
    receiver.wait_until("the held request", |arrivals| arrivals.iter().any(|one| one.path == "/held")).await;
    let second = api.publish("a.held", json!({})).await;
    let second = delivery_of(&api, &second).await;
    assert_eq!((&second["status"], &second["waiting_on"]), (&json!("pending"), &json!("in_flight_limit")));
    let under_way = entries(&api.get("/v1/deliveries?status=in_flight").await.expect(200));
    assert_eq!(column(&under_way, "id"), [&first["id"]]);
    gate.open();
    for delivery in [first, second] {
        let over = |delivery: &Value| delivery["status"] == "delivered" && delivery["waiting_on"].is_null();
        wait_for_delivery(&api, id(&delivery), "both are delivered", over).await;
    }
}

#[tokio::test]
async fn tenants_are_isolated() {
    let receiver = Receiver::with(|arrival| Reply::status(arrival.path[1..].parse().unwrap())).await;
    let redrive = Redrive::start().await;
    let admin = redrive.api();
    let mut tenants = Vec::new();
    for name in ["acme", "globex"] {
        admin.post("/v1/tenants", json!({"id": name})).await.expect(201);
        let key = admin.post(&format!("/v1/tenants/{name}/api-keys"), json!({"name": "k"})).await.expect(201);
        let api = admin.with_key(text(&key["key"]));
        let webhook = api.create_webhook(&receiver.url_at("404"), json!({})).await;
        api.post("/v1/event-types", json!({"name": format!("of.{name}")})).await.expect(201);
        let event = api.publish("order.created", json!({"of": name})).await;
        let delivery = wait_for_event_status(&api, &event, "dead").await;
        let later = json!({"start_at": "2100-01-01T00:00:00Z"});
        let operation = api.post("/v1/dlq/retry-batch", later).await.expect(202);
        tenants.push((api, webhook, event, delivery, operation));
    }
    assert_eq!(receiver.count(), 2, "each event went only to the webhook of its own tenant");
    let (acme, own, ..) = &tenants[0];
    let (globex, webhook, event, delivery, operation) = &tenants[1];

    let attempts = globex.get(&format!("/v1/deliveries/{}/attempts", id(delivery))).await.expect(200);
    let attempt = &attempts["data"][0];

    // Every route of the API document, with the other tenant's ids.
    let openapi = admin.get("/openapi.json").await.expect(200);
    let mut tried = 0;
    for (path, methods) in openapi["paths"].as_object().unwrap() {
        let kind = path.split('/').nth(2).unwrap_or_default();
        let foreign = match kind {
            "webhooks" => id(webhook),
            "events" => id(event),
            "deliveries" => id(delivery),
            "attempts" => id(attempt),
            "event-types" => "of.globex",
            "dlq" => id(operation),
            "tenants" | "admin-keys" | "portal-sessions" | "users" | "user-sessions" | "" => continue,
            _ if !path.contains('{') => continue,
            _ => panic!("add what {path} identifies"),
        };
        if !path.contains('{') {
            continue;
        }
        for method in methods.as_object().unwrap().keys() {
            let path = path.replace("{id}", foreign).replace("{name}", foreign);
            let path = path.replace("{delivery_id}", id(delivery));
            let body = match path.rsplit('/').next() {
                Some("circuit-breaker") => r#"{"action": "reset"}"#,
                Some("test" | "resend-edited") => r#"{"data": 1}"#,
                _ => "{}",
            };
            let response = acme.raw(&method.to_uppercase(), &path, &[JSON], body).await;
            assert_eq!((response.status, &*response.problem()), (404, "not_found"), "{method} {path}");
            tried += 1;
        }
    }
    assert!(tried >= 18, "only {tried} routes were tried");
    let path = format!("/v1/webhooks/{}/deliveries/{}/retry", id(own), id(delivery));
    assert_eq!(acme.post(&path, json!({})).await.status, 404);
    let path = format!("/v1/events/{}/replay", id(&tenants[0].2));
    assert_eq!(acme.post(&path, json!({"webhook_ids": [id(webhook)]})).await.status, 404);

    // The other tenant's filters, cursors and tenant id give access to nothing.
    for listing in ["webhooks", "events", "deliveries", "dlq", "event-types"] {
        let listed = acme.get(&format!("/v1/{listing}")).await;
        assert!(!String::from_utf8_lossy(&listed.body).contains("globex"), "{listing}");
        assert_eq!(entries(&listed.expect(200)).len(), 1, "{listing}");
        let foreign = acme.get(&format!("/v1/{listing}?tenant_id=globex")).await;
        assert_eq!((foreign.status, &*foreign.problem()), (403, "forbidden"), "{listing}");
    }
    for listing in ["deliveries", "dlq"] {
        let filtered = acme.get(&format!("/v1/{listing}?webhook_id={}", id(webhook))).await.expect(200);
        assert!(entries(&filtered).is_empty(), "{listing}");
    }
    for path in ["/v1/tenants", "/v1/tenants/globex", "/v1/tenants/globex/api-keys", "/v1/admin-keys"] {
        assert_eq!(acme.get(path).await.status, 403, "{path}");
    }
    let smuggled = json!({"event_type": "order.created", "data": {}, "tenant_id": "globex"});
    assert_eq!(acme.post("/v1/events", smuggled).await.status, 403);

    // The other tenant's objects are unchanged.
    assert_eq!(globex.get(&format!("/v1/webhooks/{}", id(webhook))).await.expect(200)["active"], true);
    assert_eq!(wait_for_status(globex, id(delivery), "dead").await["redriven_as"], Value::Null);
    assert_eq!(receiver.count(), 2);
}

#[tokio::test]
async fn scopes_are_enforced() {
    let redrive = Redrive::start().await;
    let admin = redrive.api();
    let key = |scope: &'static str| {
        let admin = admin.clone();
        async move {
            let key = json!({"name": scope, "scopes": [scope]});
            let key = admin.post("/v1/tenants/default/api-keys", key).await.expect(201);
            admin.with_key(text(&key["key"]))
        }
    };
    let event = json!({"event_type": "order.created", "data": {}});
    let webhook = json!({"url": "http://127.0.0.1:2/", "events": ["*"]});
    for (scope, publish, read, manage) in
        [("publish", 202, 403, 403), ("read", 403, 200, 403), ("manage", 403, 200, 201)]
    {
        let api = key(scope).await;
        assert_eq!(api.post("/v1/events", &event).await.status, publish, "{scope}");
        assert_eq!(api.get("/v1/deliveries").await.status, read, "{scope}");
        assert_eq!(api.post("/v1/webhooks", &webhook).await.status, manage, "{scope}");
        assert_eq!(api.get("/v1/tenants").await.status, 403, "{scope}");
    }
    for api in [admin.without_key(), admin.with_key("rdk_wrong")] {
        let response = api.get("/v1/deliveries").await;
        assert_eq!((response.status, &*response.problem()), (401, "unauthorized"));
        assert_eq!(response.header("www-authenticate"), Some("Bearer"));
    }
}
