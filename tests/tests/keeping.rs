//! Keeping and forgetting, with the real binary: what is old goes by itself.

// Tests may read clocks, and a test that cannot go on should panic.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::time::Duration;

use redrive_testkit::{Api, Receiver, Redrive, Setup};
use redrive_tests::id;
use serde_json::json;

/// Waits until something is no longer there.
async fn gone(api: &Api, path: &str) {
    for _ in 0..400 {
        if api.get(path).await.status == 404 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{path} is still there");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_go_by_themselves_when_their_time_is_over() {
    // A day takes a second.
    let setup = Setup::new().env("REDRIVE_DEV_CLOCK_SPEED", "86400").env("REDRIVE_RETENTION_EVENTS", "3d");
    let redrive = Redrive::start_with(setup).await;
    let api = redrive.api();
    let receiver = Receiver::start().await;
    api.post("/v1/tenants", json!({"id": "keeper", "quotas": {"retention_days": 0}})).await.expect(201);
    api.create_webhook(&receiver.url(), json!({})).await;
    let kept = json!({"tenant_id": "keeper", "event_type": "order.created", "data": {}});
    let kept = api.post("/v1/events", kept).await.expect(202);
    let event = api.publish("order.created", json!({"n": 1})).await;
    receiver.wait_for(1).await;
    let path = format!("/v1/events/{}", id(&event));
    api.get(&path).await.expect(200);
    gone(&api, &path).await;
    assert_eq!(api.get("/v1/deliveries").await.expect(200)["data"], json!([]));
    api.post(&format!("{path}/replay"), json!({})).await.expect(404);
    api.get(&format!("/v1/events/{}?tenant_id=keeper", id(&kept))).await.expect(200);
    let metrics = String::from_utf8(api.get("/metrics").await.body.to_vec()).unwrap();
    assert!(metrics.contains("redrive_pruned_rows_total{kind=\"event\"} 1"), "{metrics}");
}
