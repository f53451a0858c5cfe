//! Limits on what all tenants together may send to one destination.

use redrive_testkit::{Api, Receiver, Redrive, Reply, Setup};
use redrive_tests::{delivery_of, id, text, wait_for_delivery, wait_for_status};
use serde_json::{Value, json};

#[tokio::test]
async fn delivery_over_host_limit_waits_without_an_attempt() {
    let (slow, gate) = Receiver::latched(200).await;
    let quick = Receiver::start().await;
    let setup = Setup::new().env("REDRIVE_EGRESS_MAX_REQUESTS_PER_HOST", "2");
    let redrive = Redrive::start_with(setup).await;
    let api = redrive.api();
    for n in 0..4 {
        api.create_webhook(&slow.url(), json!({"events": [format!("slow.{n}")]})).await;
    }
    // The same address under another name counts as another host.
    let elsewhere = quick.url().replace("127.0.0.1", "localhost");
    api.create_webhook(&elsewhere, json!({"events": ["quick"]})).await;
    let mut deliveries = Vec::new();
    for n in 0..4 {
        let event = api.publish(&format!("slow.{n}"), json!({})).await;
        deliveries.push(delivery_of(&api, &event).await);
    }
    slow.wait_for(2).await;
    let waits = |delivery: &Value| delivery["waiting_on"] == "capacity";
    let mut waiting = 0;
    for delivery in &deliveries {
        let settled = |delivery: &Value| waits(delivery) || delivery["status"] == "in_flight";
        let delivery = wait_for_delivery(&api, id(delivery), "in flight or waiting", settled).await;
        if waits(&delivery) {
            waiting += 1;
            assert_eq!(delivery["attempt_count"], 0, "{delivery:#}");
            let explanation = text(&delivery["waiting_explanation"]);
            assert!(explanation.contains("to the webhook's host"), "{explanation}");
        }
    }
    assert_eq!((waiting, slow.count()), (2, 2));
    let event = api.publish("quick", json!({})).await;
    let delivery = delivery_of(&api, &event).await;
    wait_for_status(&api, id(&delivery), "delivered").await;
    gate.open();
    for delivery in &deliveries {
        let delivery = wait_for_status(&api, id(delivery), "delivered").await;
        assert_eq!(delivery["attempt_count"], 1);
    }
}

#[tokio::test]
async fn delivery_over_address_limit_is_returned_without_an_attempt() {
    let (slow, gate) = Receiver::latched(200).await;
    let setup = Setup::new().env("REDRIVE_EGRESS_MAX_CONNECTIONS_PER_ADDRESS", "1");
    let redrive = Redrive::start_with(setup).await;
    let api = redrive.api();
    let mut deliveries = Vec::new();
    for host in ["127.0.0.1", "localhost"] {
        let url = slow.url().replace("127.0.0.1", host);
        api.create_webhook(&url, json!({"events": [host.replace('.', "-")]})).await;
        let event = api.publish(&host.replace('.', "-"), json!({})).await;
        deliveries.push(delivery_of(&api, &event).await);
    }
    slow.wait_for(1).await;
    while !metrics_of(&api).await.lines().any(is_put_back) {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(slow.count(), 1, "both names resolve to one address");
    gate.open();
    for delivery in &deliveries {
        let delivery = wait_for_status(&api, id(delivery), "delivered").await;
        assert_eq!(delivery["attempt_count"], 1, "waiting for a connection is no attempt");
    }
}

#[tokio::test]
async fn challenge_without_free_connection_counts_no_attempt() {
    let (slow, gate) = Receiver::latched(200).await;
    let echo = Receiver::with(|arrival| Reply::status(200).body(arrival.body.clone())).await;
    let setup = Setup::new().env("REDRIVE_EGRESS_MAX_CONNECTIONS_PER_ADDRESS", "1");
    let redrive = Redrive::start_with(setup).await;
    let api = redrive.api();
    api.create_webhook(&slow.url(), json!({"events": ["slow"]})).await;
    api.publish("slow", json!({})).await;
    slow.wait_for(1).await;
    let webhook = api.create_webhook(&echo.url(), json!({"events": ["*"], "verify_url": true})).await;
    let path = format!("/v1/webhooks/{}", id(&webhook));
    // Several challenges are due while the only connection is in use.
    for _ in 0..8 {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        let verification = api.get(&path).await.expect(200)["verification"].clone();
        assert!(verification["attempts"].as_u64().is_some_and(|attempts| attempts <= 1), "{verification}");
        assert!(verification["last_error"].is_null(), "{verification}");
    }
    assert_eq!(echo.count(), 0);
    gate.open();
    api.wait_until("the webhook is verified", &path, |webhook| webhook["state"] == "active").await;
    assert_eq!(echo.count(), 1);
}

async fn metrics_of(api: &Api) -> String {
    String::from_utf8(api.get("/metrics").await.body.to_vec()).unwrap()
}

fn is_put_back(line: &str) -> bool {
    line.starts_with("webhook_egress_host_busy_total") && !line.ends_with(" 0")
}
