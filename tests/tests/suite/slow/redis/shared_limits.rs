//! While Redis is available, rates, caps and circuits hold for all nodes together.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use redrive_testkit::Reply;
use redrive_tests::{cluster::wait_until_settled, id};
use serde_json::{Value, json};

use super::{max_within, world};

#[tokio::test(flavor = "multi_thread")]
async fn webhook_rate_limit_holds_across_nodes() {
    let fixture = world(&[]).await;
    let limit = json!({"rate_limit": {"requests_per_minute": 1200, "burst": 4}});
    fixture.nodes[0].api().create_webhook(&fixture.receiver.url(), limit).await;
    fixture.publish(90).await;
    let arrivals = fixture.receiver.wait_for(90).await;
    // A token is added every 50 ms. Requests sent in time may be received late, half a second's worth together; with
    // one bucket per node there would be three times as many.
    for millis in [1_000, 2_000] {
        let max = max_within(&arrivals, Duration::from_millis(millis));
        let allowed = 4 + (millis as usize + 500) / 50;
        assert!(max <= allowed, "{max} within {millis} ms, limit {allowed}");
    }
    let took = arrivals[89].at - arrivals[0].at;
    assert!(took >= Duration::from_millis((90 - 4) * 50 - 500), "all of them within {took:?}");
    assert_eq!(fixture.senders().await.len(), 3, "all nodes send, not only an assigned one");
}

#[tokio::test(flavor = "multi_thread")]
async fn tenant_and_global_rate_limits_hold_across_nodes() {
    for settings in [
        [("REDRIVE_LIMITS_TENANT_REQUESTS_PER_MINUTE", "1200"), ("REDRIVE_LIMITS_TENANT_BURST", "4")],
        [("REDRIVE_LIMITS_GLOBAL_REQUESTS_PER_SECOND", "20"), ("REDRIVE_LIMITS_GLOBAL_BURST", "4")],
    ] {
        let fixture = world(&settings).await;
        for path in ["/one", "/two"] {
            fixture.nodes[0].api().create_webhook(&fixture.receiver.url_at(path), Value::Null).await;
        }
        fixture.publish(30).await;
        let arrivals = fixture.receiver.wait_for(60).await;
        let took = arrivals[59].at - arrivals[0].at;
        assert!(
            took >= Duration::from_millis((60 - 4) * 50 - 500),
            "all of them within {took:?} with {settings:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn api_rate_limit_holds_across_nodes() {
    let limits = [("REDRIVE_LIMITS_API_REQUESTS_PER_MINUTE", "600"), ("REDRIVE_LIMITS_API_BURST", "12")];
    let fixture = world(&limits).await;
    // Waits until the bucket is full again.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let (mut taken, mut refused, started) = (0, 0, Instant::now());
    for call in 0..40 {
        match fixture.nodes[call % 3].api().get("/v1/webhooks").await.status {
            200 => taken += 1,
            429 => refused += 1,
            other => panic!("{other}"),
        }
    }
    let max = 12 + 1 + started.elapsed().as_millis() as usize / 100;
    assert!(taken >= 12 && taken <= max, "{taken} accepted, limit {max}, {refused} rejected");
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_share_one_circuit_and_one_set_of_probes() {
    let fixture = world(&[]).await;
    let healthy = Arc::new(AtomicBool::new(false));
    let heals = healthy.clone();
    fixture.receiver.respond_with(move |_| Reply::status(if heals.load(Relaxed) { 200 } else { 500 }));
    let breaker = json!({"minimum_throughput": 6, "sleep_window_ms": 2000, "half_open_max_calls": 2,
        "half_open_success_threshold": 1.0});
    let webhook = fixture.nodes[0]
        .api()
        .create_webhook(
            &fixture.receiver.url(),
            json!({"circuit_breaker_config": breaker, "retry_config": {"schedule": [0, 1, 1, 1, 1, 1, 1, 1, 1, 1]}}),
        )
        .await;
    let health = format!("/v1/webhooks/{}/health", id(&webhook));
    let is = |state: &'static str| move |health: &Value| health["circuit"]["state"] == state;
    fixture.publish(12).await;
    for node in &fixture.nodes {
        let seen = node.api().wait_until("an open circuit", &health, is("open")).await;
        assert_eq!(seen["circuit"]["fallback"], false);
    }
    // Requests in flight when the circuit opened have ended: all further ones are probes.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = fixture.receiver.count();
    assert!(before <= 12 + 6, "{before} requests to a circuit that opens at six failures");
    fixture.receiver.wait_for(before + 2).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(fixture.receiver.count(), before + 2, "one set of probes for all three");
    healthy.store(true, Relaxed);
    for node in &fixture.nodes {
        node.api().wait_until("a closed circuit", &health, is("closed")).await;
    }
    let deliveries = wait_until_settled(&fixture.nodes[0].api()).await;
    assert!(deliveries.iter().all(|delivery| delivery["status"] == "delivered"), "{deliveries:#?}");
}

mod extended {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn lowered_max_in_flight_is_applied_by_all_nodes() {
        const EACH: Duration = Duration::from_millis(100);
        const EVENTS: usize = 240;
        let fixture = world(&[]).await;
        fixture.receiver.respond_with(|_| Reply::status(200).after(EACH));
        let resolved = json!({"max_in_flight": 9, "state": "paused"});
        let webhook = fixture.nodes[0].api().create_webhook(&fixture.receiver.url(), resolved).await;
        fixture.publish(EVENTS).await;
        let path = format!("/v1/webhooks/{}", id(&webhook));
        fixture.nodes[0].api().post(&format!("{path}/resume"), json!({})).await.expect(200);
        fixture.receiver.wait_for(30).await;
        fixture.nodes[0].api().patch(&path, json!({"max_in_flight": 2})).await.expect(200);
        let changed = Instant::now();
        let arrivals = fixture.receiver.wait_for(EVENTS).await;
        // The other nodes see the change when they next read the change feed, which a loaded machine delays. After that no
        // node exceeds the cap, and most events are received later than that.
        let in_flight =
            |at: Instant| arrivals.iter().filter(|one| one.at <= at && at < one.at + EACH).count();
        let last_excess = arrivals.iter().map(|arrival| arrival.at).filter(|at| in_flight(*at) > 2).max();
        let settled = last_excess.unwrap_or(changed);
        let late = arrivals.iter().filter(|arrival| arrival.at > settled).count();
        let took = settled.saturating_duration_since(changed);
        assert!(
            late >= EVENTS / 2,
            "more than 2 in flight up to {took:?} after the change; {late} came later"
        );
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn max_in_flight_holds_across_nodes() {
        const EACH: Duration = Duration::from_millis(40);
        // With fewer slots than nodes, the slots rotate among the nodes.
        for cap in [1, 2, 5] {
            let fixture = world(&[]).await;
            fixture.receiver.respond_with(|_| Reply::status(200).after(EACH));
            let resolved = json!({"max_in_flight": cap, "state": "paused"});
            let webhook = fixture.nodes[0].api().create_webhook(&fixture.receiver.url(), resolved).await;
            fixture.publish(60).await;
            let resume = format!("/v1/webhooks/{}/resume", id(&webhook));
            fixture.nodes[0].api().post(&resume, json!({})).await.expect(200);
            let arrivals = fixture.receiver.wait_for(60).await;
            let under_way =
                |at: Instant| arrivals.iter().filter(|one| one.at <= at && at < one.at + EACH).count();
            let max = arrivals.iter().map(|arrival| under_way(arrival.at)).max().unwrap();
            assert!(max <= cap, "{max} in flight, limit {cap}");
            assert_eq!(max, cap, "the limit is fully used");
            wait_until_settled(&fixture.nodes[0].api()).await;
        }
    }
}
