//! Which events a webhook receives: payload filters, and one webhook per resource.

use std::collections::{BTreeMap, BTreeSet};

use redrive_core::Time;
use redrive_testkit::{ReceivedRequest, Receiver, Redrive};
use redrive_tests::{entries, id, millis, redrive_at_speed, text};
use serde_json::{Value, json};

/// Returns the numbers received at a path, in order.
fn numbers_at(arrivals: &[ReceivedRequest], path: &str) -> Vec<i64> {
    let here = arrivals.iter().filter(|arrival| &*arrival.path == path);
    let mut numbers: Vec<_> = here.map(|arrival| arrival.json()["data"]["n"].as_i64().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

#[tokio::test]
async fn only_matching_events_become_deliveries() {
    let receiver = Receiver::start().await;
    let mut redrive = Redrive::start().await;
    let api = redrive.api();
    let large =
        json!({"all": [{"path": "/amount", "gte": 100}, {"not": {"path": "/currency", "eq": "USD"}}]});
    let filtered = api.create_webhook(&receiver.url_at("large"), json!({"filter": large})).await;
    assert_eq!(filtered["filter"], large);
    let all = api.create_webhook(&receiver.url_at("all"), json!({})).await;
    assert_eq!(all["filter"], Value::Null);
    let path = format!("/v1/webhooks/{}", id(&filtered));

    let events = [
        (json!({"n": 1, "amount": 99.99, "currency": "EUR"}), 1),
        (json!({"n": 2, "amount": 100, "currency": "EUR"}), 2),
        (json!({"n": 3, "amount": 5000, "currency": "USD"}), 1),
        (json!({"n": 4, "amount": "5000"}), 1),
        (json!({"n": 5, "amount": 1e300}), 2),
    ];
    for (data, deliveries) in &events {
        assert_eq!(api.publish("order.paid", data).await["deliveries"], *deliveries, "{data}");
    }
    let arrivals = receiver.wait_for(7).await;
    assert_eq!(numbers_at(&arrivals, "/large"), [2, 5]);
    assert_eq!(numbers_at(&arrivals, "/all"), [1, 2, 3, 4, 5]);

    // The filter also applies after a restart and to a batch. Waits first, because unrecorded deliveries are sent
    // again.
    let none = |page: &Value| page["data"].as_array().unwrap().is_empty();
    api.wait_until("nothing is pending", "/v1/deliveries?status=pending&limit=1", none).await;
    redrive.restart().await;
    let batch: Vec<_> =
        events.iter().map(|(data, _)| json!({"event_type": "order.paid", "data": data})).collect();
    let taken = entries(&api.post("/v1/events/batch", json!({"events": batch})).await.expect(202));
    let deliveries: Vec<_> = taken.iter().map(|one| one["deliveries"].as_i64().unwrap()).collect();
    assert_eq!(deliveries, [1, 2, 1, 1, 2]);

    // A test event ignores the filter: it tests the endpoint, not the subscription.
    let test = api.post(&format!("{path}/test"), json!({"data": {"n": 6, "amount": 0}})).await.expect(202);
    assert_eq!(test["deliveries"], 1);

    // Omitted fields keep their value; null clears.
    let changed = api.patch(&path, json!({"description": "large ones"})).await.expect(200);
    assert_eq!(changed["filter"], large);
    let other = json!({"path": "/amount", "lt": 100});
    assert_eq!(api.put(&path, json!({"filter": other})).await.expect(200)["filter"], other);
    assert_eq!(api.publish("order.paid", json!({"n": 7, "amount": 1})).await["deliveries"], 2);
    assert_eq!(api.patch(&path, json!({"filter": null})).await.expect(200)["filter"], Value::Null);
    assert_eq!(api.publish("order.paid", json!({"n": 8})).await["deliveries"], 2);
    let arrivals = receiver.wait_for(19).await;
    assert_eq!(numbers_at(&arrivals, "/large"), [2, 2, 5, 5, 6, 7, 8]);
}

#[tokio::test]
async fn invalid_filter_is_rejected_with_its_path() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = api.create_webhook("https://example.com/", json!({})).await;
    let path = format!("/v1/webhooks/{}", id(&webhook));
    let deep = (0..20).fold(json!({"path": "/a", "eq": 1}), |inner, _| json!({"not": inner}));
    for (filter, field, says) in [
        (json!({"path": "/a", "greater": 1}), "filter.greater", "did you mean \\\"gt\\\""),
        (json!({"all": [{"path": "amount", "gte": 1}]}), "filter.all[0].path", "starts with /"),
        (json!({"any": []}), "filter.any", "at least one"),
        (json!("amount > 5"), "filter", "must be an object"),
        (deep, "filter.not.not.not.not.not.not.not.not.not.not", "too deeply"),
        (json!({"path": "/a", "eq": "x".repeat(20_000)}), "filter", "bytes long"),
    ] {
        let body = json!({"url": "https://example.com/", "events": ["*"], "filter": filter});
        for refused in [
            api.post("/v1/webhooks", &body).await,
            api.patch(&path, json!({"filter": filter})).await,
            api.post(&format!("{path}/filter/test"), json!({"data": 1, "filter": filter})).await,
        ] {
            let problem = refused.expect(400);
            assert_eq!((&problem["code"], &problem["field"]), (&json!("invalid_field"), &json!(field)));
            assert!(problem["detail"].to_string().contains(says), "{problem}");
        }
    }
    assert_eq!(api.get(&path).await.expect(200)["filter"], Value::Null);
}

#[tokio::test]
async fn filter_can_be_tested_without_sending() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let filter = json!({"path": "/amount", "gte": 100});
    let webhook = api.create_webhook(&receiver.url(), json!({"filter": filter})).await;
    let path = format!("/v1/webhooks/{}/filter/test", id(&webhook));
    let request = async |body: Value| api.post(&path, body).await.expect(200);
    assert_eq!(
        request(json!({"data": {"amount": 50}})).await,
        json!({"matches": false, "why": "filter: /amount is 50, so gte 100 does not hold"})
    );
    assert_eq!(request(json!({"data": {"amount": 100.0}})).await["matches"], true);
    let other = json!({"path": "/amount", "exists": false});
    assert_eq!(request(json!({"data": {"amount": 50}, "filter": other})).await["matches"], false);
    let none = request(json!({"data": null, "filter": null})).await;
    assert_eq!(none, json!({"matches": true, "why": "there is no filter, so every payload passes"}));
    api.post(&path, json!({})).await.expect(400);
    assert_eq!(entries(&api.get("/v1/events").await.expect(200)), [] as [Value; 0]);
    assert_eq!(receiver.count(), 0);
}

/// The number of swaps; every second one expires soon.
const SWAPS: usize = 60;

mod slow {
    use super::*;

    #[tokio::test]
    async fn webhook_per_subject_gets_its_own_events_until_it_expires() {
        let receiver = Receiver::start().await;
        let redrive = redrive_at_speed(60).await;
        let api = redrive.api();
        let publish = async |swap: usize, event_type: &str| {
            let subject = format!("swap-{swap}");
            let event = json!({"event_type": event_type, "subject": subject, "data": {"n": swap}});
            api.post("/v1/events", event).await.expect(202)
        };
        let mut webhooks = Vec::new();
        for swap in 0..SWAPS {
            // No webhook subscribes to this event; its response has the server's time.
            let before = publish(swap, "swap.created").await;
            assert_eq!(before["deliveries"], 0);
            let lasts = if swap % 2 == 0 { 300_000 } else { 24 * 3_600_000 };
            let expires_at = Time::from_millis(millis(&before["timestamp"]) + lasts).to_string();
            let own =
                json!({"events": ["swap.*"], "subjects": [format!("swap-{swap}")], "expires_at": expires_at});
            webhooks.push(api.create_webhook(&receiver.url_at(&format!("swap-{swap}")), own).await);
            for event_type in ["swap.matched", "swap.settled"] {
                assert_eq!(publish(swap, event_type).await["deliveries"], 1);
            }
            assert_eq!(publish(swap, "order.created").await["deliveries"], 0);
        }
        let mut got: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for arrival in receiver.wait_for(2 * SWAPS).await {
            got.entry(arrival.path.to_string())
                .or_default()
                .push(arrival.json()["data"]["n"].as_i64().unwrap());
        }
        let expected = (0..SWAPS as i64).map(|swap| (format!("/swap-{swap}"), vec![swap, swap])).collect();
        assert_eq!(got, expected, "each webhook got the events of its own swap and no others");

        for webhook in webhooks.iter().step_by(2) {
            let path = format!("/v1/webhooks/{}", id(webhook));
            let over = api.wait_until("the webhook expires", &path, |one| one["state"] == "disabled").await;
            assert_eq!(over["disabled_reason"], "expired", "{over:#}");
            let late = millis(&over["updated_at"]) - millis(&webhook["expires_at"]);
            // The server's clock runs sixty times as fast as real time.
            assert!((0..120_000).contains(&late), "disabled {late} ms after its time");
        }
        let active = entries(&api.get("/v1/webhooks?active=true&limit=500").await.expect(200));
        let active: BTreeSet<_> =
            active.iter().map(|webhook| text(&webhook["subjects"][0]).to_owned()).collect();
        assert_eq!(active, (1..SWAPS).step_by(2).map(|swap| format!("swap-{swap}")).collect());
        for swap in 0..SWAPS {
            assert_eq!(publish(swap, "swap.refunded").await["deliveries"], swap % 2);
        }
        assert_eq!(receiver.wait_for(2 * SWAPS + SWAPS / 2).await.len(), 2 * SWAPS + SWAPS / 2);
    }
}
