//! While Redis answers: rates, caps and circuits are those of one node, however many there are.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use redrive_testkit::Reply;
use redrive_tests::{cluster::all_over, id};
use serde_json::{Value, json};

use super::{most_within, world};

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_is_kept_by_all_nodes_together() {
    let world = world(&[]).await;
    let limit = json!({"rate_limit": {"requests_per_minute": 1200, "burst": 4}});
    world.nodes[0].api().create_webhook(&world.receiver.url(), limit).await;
    world.publish(90).await;
    let arrivals = world.receiver.wait_for(90).await;
    // A token comes back every 50 ms. What left in time may arrive late, all of half a second's at once: with a bucket
    // for each node there would be three times as many.
    for millis in [1_000, 2_000] {
        let most = most_within(&arrivals, Duration::from_millis(millis));
        let allowed = 4 + (millis as usize + 500) / 50;
        assert!(most <= allowed, "{most} within {millis} ms, where {allowed} may be");
    }
    let took = arrivals[89].at - arrivals[0].at;
    assert!(took >= Duration::from_millis((90 - 4) * 50 - 500), "all of them within {took:?}");
    assert_eq!(world.senders().await.len(), 3, "all of them send, not a home alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn rates_of_a_tenant_and_of_all_are_kept_by_all_nodes_together() {
    for settings in [
        [("REDRIVE_LIMITS_TENANT_REQUESTS_PER_MINUTE", "1200"), ("REDRIVE_LIMITS_TENANT_BURST", "4")],
        [("REDRIVE_LIMITS_GLOBAL_REQUESTS_PER_SECOND", "20"), ("REDRIVE_LIMITS_GLOBAL_BURST", "4")],
    ] {
        let world = world(&settings).await;
        for path in ["/one", "/two"] {
            world.nodes[0].api().create_webhook(&world.receiver.url_at(path), Value::Null).await;
        }
        world.publish(30).await;
        let arrivals = world.receiver.wait_for(60).await;
        let took = arrivals[59].at - arrivals[0].at;
        assert!(
            took >= Duration::from_millis((60 - 4) * 50 - 500),
            "all of them within {took:?} with {settings:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_the_api_are_counted_by_all_nodes_together() {
    let limits = [("REDRIVE_LIMITS_API_REQUESTS_PER_MINUTE", "600"), ("REDRIVE_LIMITS_API_BURST", "12")];
    let world = world(&limits).await;
    // Until the bucket is full again.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let (mut taken, mut refused, began) = (0, 0, Instant::now());
    for call in 0..40 {
        match world.nodes[call % 3].api().get("/v1/webhooks").await.status {
            200 => taken += 1,
            429 => refused += 1,
            other => panic!("{other}"),
        }
    }
    let most = 12 + 1 + began.elapsed().as_millis() as usize / 100;
    assert!(taken >= 12 && taken <= most, "{taken} taken where {most} may be, {refused} refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_webhook_has_more_requests_under_way_than_it_may() {
    const EACH: Duration = Duration::from_millis(40);
    // With fewer than there are nodes, they go round.
    for cap in [1, 2, 5] {
        let world = world(&[]).await;
        world.receiver.answer_with(|_| Reply::status(200).after(EACH));
        let hook = json!({"max_in_flight": cap, "state": "paused"});
        let webhook = world.nodes[0].api().create_webhook(&world.receiver.url(), hook).await;
        world.publish(60).await;
        let resume = format!("/v1/webhooks/{}/resume", id(&webhook));
        world.nodes[0].api().post(&resume, json!({})).await.expect(200);
        let arrivals = world.receiver.wait_for(60).await;
        let under_way =
            |at: Instant| arrivals.iter().filter(|one| one.at <= at && at < one.at + EACH).count();
        let most = arrivals.iter().map(|arrival| under_way(arrival.at)).max().unwrap();
        assert!(most <= cap, "{most} at once, where {cap} may be");
        assert_eq!(most, cap, "what may be used is used");
        all_over(&world.nodes[0].api()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_one_circuit_and_one_set_of_probes() {
    let world = world(&[]).await;
    let healthy = Arc::new(AtomicBool::new(false));
    let heals = healthy.clone();
    world.receiver.answer_with(move |_| Reply::status(if heals.load(Relaxed) { 200 } else { 500 }));
    let breaker = json!({"minimum_throughput": 6, "sleep_window_ms": 2000, "half_open_max_calls": 2,
        "half_open_success_threshold": 1.0});
    let webhook = world.nodes[0]
        .api()
        .create_webhook(
            &world.receiver.url(),
            json!({"circuit_breaker_config": breaker, "retry_config": {"schedule": [0, 1, 1, 1, 1, 1, 1, 1, 1, 1]}}),
        )
        .await;
    let health = format!("/v1/webhooks/{}/health", id(&webhook));
    let is = |state: &'static str| move |health: &Value| health["circuit"]["state"] == state;
    world.publish(12).await;
    for node in &world.nodes {
        let seen = node.api().eventually("an open circuit", &health, is("open")).await;
        assert_eq!(seen["circuit"]["fallback"], false);
    }
    // Whatever was under way when it opened is over: what follows are probes.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = world.receiver.count();
    assert!(before <= 12 + 6, "{before} requests to a circuit that opens at six failures");
    world.receiver.wait_for(before + 2).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(world.receiver.count(), before + 2, "one set of probes for all three");
    healthy.store(true, Relaxed);
    for node in &world.nodes {
        node.api().eventually("a closed circuit", &health, is("closed")).await;
    }
    let deliveries = all_over(&world.nodes[0].api()).await;
    assert!(deliveries.iter().all(|delivery| delivery["status"] == "delivered"), "{deliveries:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cap_that_is_lowered_holds() {
    const EACH: Duration = Duration::from_millis(100);
    const EVENTS: usize = 240;
    /// How long nodes may take to follow a change on a machine with no time for them.
    const FOLLOWED_WITHIN: Duration = Duration::from_secs(5);
    let world = world(&[]).await;
    world.receiver.answer_with(|_| Reply::status(200).after(EACH));
    let hook = json!({"max_in_flight": 9, "state": "paused"});
    let webhook = world.nodes[0].api().create_webhook(&world.receiver.url(), hook).await;
    world.publish(EVENTS).await;
    let path = format!("/v1/webhooks/{}", id(&webhook));
    world.nodes[0].api().post(&format!("{path}/resume"), json!({})).await.expect(200);
    world.receiver.wait_for(30).await;
    world.nodes[0].api().patch(&path, json!({"max_in_flight": 2})).await.expect(200);
    let changed = Instant::now();
    let arrivals = world.receiver.wait_for(EVENTS).await;
    // The other nodes learn of the change when they next read the change feed, which a loaded machine delays. From some
    // moment on no node exceeds the cap any more, and most events arrive after that moment.
    let in_flight = |at: Instant| arrivals.iter().filter(|one| one.at <= at && at < one.at + EACH).count();
    let last_excess = arrivals.iter().map(|arrival| arrival.at).filter(|at| in_flight(*at) > 2).max();
    let settled = last_excess.unwrap_or(changed);
    let late = arrivals.iter().filter(|arrival| arrival.at > settled).count();
    let took = settled.saturating_duration_since(changed);
    assert!(late >= EVENTS / 2, "more than 2 in flight up to {took:?} after the change; {late} came later");
    assert!(took < FOLLOWED_WITHIN, "more than 2 in flight up to {took:?} after the change");
}
