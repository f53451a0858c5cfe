//! One key, one event: a repeated publish returns the first event, whatever happened in between.

use std::collections::HashMap;

use redrive_testkit::{Api, ApiResponse, Receiver, Redrive};
use redrive_tests::{entries, id, wait_for_event_status};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const JSON: (&str, &str) = ("content-type", "application/json");

fn order(key: &str, number: u32) -> Value {
    json!({"event_type": "order.created", "idempotency_key": key, "data": {"number": number}})
}

async fn publish_with_header(api: &Api, key: &str, event: &Value) -> ApiResponse {
    api.raw("POST", "/v1/events", &[JSON, ("Idempotency-Key", key)], event.to_string()).await
}

async fn server() -> (Receiver, Redrive, Api) {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), Value::Null).await;
    (receiver, redrive, api)
}

#[tokio::test]
async fn repeated_publish_returns_the_first_event() {
    let (receiver, _redrive, api) = server().await;
    let first = api.post("/v1/events", order("k1", 1)).await.expect(202);
    assert_eq!((&first["duplicate"], &first["deliveries"]), (&json!(false), &json!(1)));
    for _ in 0..3 {
        let repeat = api.post("/v1/events", order("k1", 1)).await.expect(200);
        assert_eq!((&repeat["id"], &repeat["duplicate"]), (&first["id"], &json!(true)));
        assert_eq!(repeat["timestamp"], first["timestamp"]);
    }
    // Another key is another event, even with the same body.
    let other = api.post("/v1/events", order("k2", 1)).await.expect(202);
    assert_ne!(other["id"], first["id"]);
    for event in [&first, &other] {
        wait_for_event_status(&api, event, "delivered").await;
    }
    let arrivals = receiver.arrivals();
    assert_eq!(arrivals.len(), 2);
    let mut keys: Vec<_> =
        arrivals.iter().map(|arrival| arrival.header("x-idempotency-key").unwrap()).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["k1", "k2"]);
    assert_eq!(api.get(&format!("/v1/events/{}", id(&first))).await.expect(200)["idempotency_key"], "k1");
}

#[tokio::test]
async fn different_body_with_the_same_key_is_a_conflict() {
    let (_receiver, _redrive, api) = server().await;
    let first = api.post("/v1/events", order("k1", 1)).await.expect(202);
    let mut others = vec![order("k1", 2)];
    for (field, value) in [("event_type", "order.paid"), ("subject", "s"), ("source", "s")] {
        let mut other = order("k1", 1);
        other[field] = json!(value);
        others.push(other);
    }
    for other in others {
        let response = api.post("/v1/events", &other).await;
        assert_eq!((response.status, &*response.problem()), (409, "idempotency_key_reused"), "{other}");
        assert!(
            response.json()["detail"].as_str().unwrap().contains(id(&first)),
            "the response has the id of the event with the key"
        );
    }
    assert_eq!(entries(&api.get("/v1/events").await.expect(200)).len(), 1);
}

#[tokio::test]
async fn key_is_read_from_header_or_body() {
    let (_receiver, _redrive, api) = server().await;
    let keyless = json!({"event_type": "order.created", "data": {"number": 1}});
    let first = publish_with_header(&api, "k1", &keyless).await.expect(202);
    // A key in the body repeats one in the header, and both together are accepted if equal.
    let by_body = api.post("/v1/events", order("k1", 1)).await.expect(200);
    let by_both = publish_with_header(&api, "k1", &order("k1", 1)).await.expect(200);
    assert_eq!((&by_body["id"], &by_both["id"]), (&first["id"], &first["id"]));

    let mismatch = publish_with_header(&api, "k2", &order("k3", 1)).await;
    assert_eq!((mismatch.status, &*mismatch.problem()), (400, "invalid_field"));
    assert_eq!(mismatch.json()["field"], "idempotency_key");
    for bad in ["", &"k".repeat(257)] {
        assert_eq!(publish_with_header(&api, bad, &keyless).await.status, 400, "{bad:?}");
        assert_eq!(api.post("/v1/events", order(bad, 1)).await.status, 400, "{bad:?}");
    }
    // Without a key every publish is a new event, whose key is its id.
    let one = api.post("/v1/events", &keyless).await.expect(202);
    let two = api.post("/v1/events", &keyless).await.expect(202);
    assert_ne!(one["id"], two["id"]);
    let shown = api.get(&format!("/v1/events/{}", id(&one))).await.expect(200);
    assert_eq!(shown["idempotency_key"], one["id"]);
}

#[tokio::test]
async fn key_may_contain_non_ascii_characters() {
    let (receiver, _redrive, api) = server().await;
    let first = api.post("/v1/events", order("schlüssel ☃", 1)).await.expect(202);
    assert_eq!(api.post("/v1/events", order("schlüssel ☃", 1)).await.expect(200)["id"], first["id"]);
    let delivery = wait_for_event_status(&api, &first, "delivered").await;
    assert_eq!(receiver.arrivals()[0].header("x-idempotency-key"), Some("schlüssel ☃"));
    let attempts = redrive_tests::attempts_of(&api, id(&delivery)).await;
    let shown = json!({"name": "x-idempotency-key", "value": "schlüssel ☃"});
    assert!(attempts[0]["request_headers"].as_array().unwrap().contains(&shown));
}

#[tokio::test]
async fn keys_are_scoped_to_their_tenant() {
    let (_receiver, _redrive, api) = server().await;
    api.post("/v1/tenants", json!({"id": "acme"})).await.expect(201);
    let ours = api.post("/v1/events", order("k1", 1)).await.expect(202);
    let mut theirs = order("k1", 2);
    theirs["tenant_id"] = json!("acme");
    let theirs = api.post("/v1/events", theirs).await.expect(202);
    assert_ne!(ours["id"], theirs["id"]);
}

#[tokio::test]
async fn batch_items_honour_keys() {
    let (receiver, _redrive, api) = server().await;
    let first = api.post("/v1/events", order("k1", 1)).await.expect(202);
    let batch = json!({"events": [order("k1", 1), order("k1", 2), order("k2", 1), order("k2", 1)]});
    let response = entries(&api.post("/v1/events/batch", batch).await.expect(202));
    let statuses: Vec<_> = response.iter().map(|item| item["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses[..2], [200, 409]);
    assert_eq!(response[0]["id"], first["id"]);
    // It is not guaranteed which of two equal items comes first, only that there is one event.
    let mut twins = statuses[2..].to_vec();
    twins.sort_unstable();
    assert_eq!(twins, [200, 202]);
    assert_eq!(response[2]["id"], response[3]["id"]);
    receiver.wait_for(2).await;
    assert_eq!(entries(&api.get("/v1/events").await.expect(200)).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_publishes_with_one_key_create_one_event() {
    let (receiver, _redrive, api) = server().await;
    let mut publishers = JoinSet::new();
    for _ in 0..500 {
        let api = api.clone();
        publishers.spawn(async move { api.post("/v1/events", order("the one", 1)).await });
    }
    let responses = publishers.join_all().await;
    let mut statuses: HashMap<u16, usize> = HashMap::new();
    for response in &responses {
        *statuses.entry(response.status).or_default() += 1;
        assert_eq!(id(&response.json()), id(&responses[0].json()));
    }
    assert_eq!(statuses, HashMap::from([(202, 1), (200, 499)]));
    wait_for_event_status(&api, &responses[0].json(), "delivered").await;
    assert_eq!(receiver.count(), 1);
    assert_eq!(entries(&api.get("/v1/events").await.expect(200)).len(), 1);
}

#[tokio::test]
async fn key_survives_a_kill() {
    let (receiver, mut redrive, api) = server().await;
    let first = api.post("/v1/events", order("k1", 1)).await.expect(202);
    wait_for_event_status(&api, &first, "delivered").await;
    redrive.restart().await;
    let api = redrive.api();
    let repeat = api.post("/v1/events", order("k1", 1)).await.expect(200);
    assert_eq!((&repeat["id"], &repeat["duplicate"]), (&first["id"], &json!(true)));
    assert_eq!(api.post("/v1/events", order("k1", 2)).await.status, 409);
    assert_eq!(receiver.count(), 1);
}
