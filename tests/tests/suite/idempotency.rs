//! One key, one event: whoever repeats a publish gets the first event back, whatever happened in between.

use std::collections::HashMap;

use redrive_testkit::{Answer, Api, Receiver, Redrive};
use redrive_tests::{entries, event_is, id};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const JSON: (&str, &str) = ("content-type", "application/json");

fn order(key: &str, number: u32) -> Value {
    json!({"event_type": "order.created", "idempotency_key": key, "data": {"number": number}})
}

async fn publish_with_header(api: &Api, key: &str, event: &Value) -> Answer {
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
async fn a_repeat_gives_the_first_event_back() {
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
        event_is(&api, event, "delivered").await;
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
async fn another_body_under_the_same_key_is_a_conflict() {
    let (_receiver, _redrive, api) = server().await;
    let first = api.post("/v1/events", order("k1", 1)).await.expect(202);
    let mut others = vec![order("k1", 2)];
    for (field, value) in [("event_type", "order.paid"), ("subject", "s"), ("source", "s")] {
        let mut other = order("k1", 1);
        other[field] = json!(value);
        others.push(other);
    }
    for other in others {
        let answer = api.post("/v1/events", &other).await;
        assert_eq!((answer.status, &*answer.problem()), (409, "idempotency_key_reused"), "{other}");
        assert!(
            answer.json()["detail"].as_str().unwrap().contains(id(&first)),
            "it says which event has the key"
        );
    }
    assert_eq!(entries(&api.get("/v1/events").await.expect(200)).len(), 1);
}

#[tokio::test]
async fn the_key_comes_in_the_header_or_the_body() {
    let (_receiver, _redrive, api) = server().await;
    let keyless = json!({"event_type": "order.created", "data": {"number": 1}});
    let first = publish_with_header(&api, "k1", &keyless).await.expect(202);
    // Either form repeats the other, and both at once agree.
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
    // Without any key every publish is a new event, whose key is its id.
    let one = api.post("/v1/events", &keyless).await.expect(202);
    let two = api.post("/v1/events", &keyless).await.expect(202);
    assert_ne!(one["id"], two["id"]);
    let shown = api.get(&format!("/v1/events/{}", id(&one))).await.expect(200);
    assert_eq!(shown["idempotency_key"], one["id"]);
}

#[tokio::test]
async fn a_key_may_hold_any_letters() {
    let (receiver, _redrive, api) = server().await;
    let first = api.post("/v1/events", order("schlüssel ☃", 1)).await.expect(202);
    assert_eq!(api.post("/v1/events", order("schlüssel ☃", 1)).await.expect(200)["id"], first["id"]);
    let delivery = event_is(&api, &first, "delivered").await;
    assert_eq!(receiver.arrivals()[0].header("x-idempotency-key"), Some("schlüssel ☃"));
    let attempts = redrive_tests::attempts_of(&api, id(&delivery)).await;
    let shown = json!({"name": "x-idempotency-key", "value": "schlüssel ☃"});
    assert!(attempts[0]["request_headers"].as_array().unwrap().contains(&shown));
}

#[tokio::test]
async fn keys_belong_to_their_tenant() {
    let (_receiver, _redrive, api) = server().await;
    api.post("/v1/tenants", json!({"id": "acme"})).await.expect(201);
    let ours = api.post("/v1/events", order("k1", 1)).await.expect(202);
    let mut theirs = order("k1", 2);
    theirs["tenant_id"] = json!("acme");
    let theirs = api.post("/v1/events", theirs).await.expect(202);
    assert_ne!(ours["id"], theirs["id"]);
}

#[tokio::test]
async fn a_batch_knows_keys_too() {
    let (receiver, _redrive, api) = server().await;
    let first = api.post("/v1/events", order("k1", 1)).await.expect(202);
    let batch = json!({"events": [order("k1", 1), order("k1", 2), order("k2", 1), order("k2", 1)]});
    let answer = entries(&api.post("/v1/events/batch", batch).await.expect(202));
    let statuses: Vec<_> = answer.iter().map(|item| item["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses[..2], [200, 409]);
    assert_eq!(answer[0]["id"], first["id"]);
    // Which of two equal items comes first is not promised; that there is one event is.
    let mut twins = statuses[2..].to_vec();
    twins.sort_unstable();
    assert_eq!(twins, [200, 202]);
    assert_eq!(answer[2]["id"], answer[3]["id"]);
    receiver.wait_for(2).await;
    assert_eq!(entries(&api.get("/v1/events").await.expect(200)).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_500_concurrent_publishers_one_publishes() {
    let (receiver, _redrive, api) = server().await;
    let mut publishers = JoinSet::new();
    for _ in 0..500 {
        let api = api.clone();
        publishers.spawn(async move { api.post("/v1/events", order("the one", 1)).await });
    }
    let answers = publishers.join_all().await;
    let mut statuses: HashMap<u16, usize> = HashMap::new();
    for answer in &answers {
        *statuses.entry(answer.status).or_default() += 1;
        assert_eq!(id(&answer.json()), id(&answers[0].json()));
    }
    assert_eq!(statuses, HashMap::from([(202, 1), (200, 499)]));
    event_is(&api, &answers[0].json(), "delivered").await;
    assert_eq!(receiver.count(), 1);
    assert_eq!(entries(&api.get("/v1/events").await.expect(200)).len(), 1);
}

#[tokio::test]
async fn a_key_is_remembered_through_a_kill() {
    let (receiver, mut redrive, api) = server().await;
    let first = api.post("/v1/events", order("k1", 1)).await.expect(202);
    event_is(&api, &first, "delivered").await;
    redrive.restart().await;
    let api = redrive.api();
    let repeat = api.post("/v1/events", order("k1", 1)).await.expect(200);
    assert_eq!((&repeat["id"], &repeat["duplicate"]), (&first["id"], &json!(true)));
    assert_eq!(api.post("/v1/events", order("k1", 2)).await.status, 409);
    assert_eq!(receiver.count(), 1);
}
