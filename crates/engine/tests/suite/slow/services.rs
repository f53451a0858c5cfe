//! Services that panic are restarted and work again; a failure that restarts do not repair ends the engine.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use redrive_core::{
    DeliveryStatus,
    webhook::{Webhook, WebhookState},
};
use redrive_engine::{Engine, FaultPoint, RedisSettings, ServiceKind, ServiceStatus, Settings};
use redrive_store::Delivery;
use redrive_testkit::{Latch, RabbitMq, Receiver, Redis, Reply};

use crate::{broker::tickets, cluster_harness::*, harness::*};

fn status(engine: &Engine, name: &str) -> ServiceStatus {
    let services = engine.services();
    services.into_iter().find(|service| service.name == name).unwrap_or_else(|| panic!("no service {name}"))
}

/// Causes a panic in a service and waits until it runs again.
async fn panic_in(harness: &Harness, name: &str) {
    let before = status(&harness.engine, name).restarts;
    harness.engine.fault_injection().panic_in(name);
    harness
        .eventually(&format!("{name} is restarted"), async || {
            let status = status(&harness.engine, name);
            status.up && status.restarts > before
        })
        .await;
    let failure = status(&harness.engine, name).last_failure;
    assert_eq!(failure.as_deref(), Some("panic: injected fault"), "{name}");
}

/// Causes a panic in every service that runs, and waits until all run again. Returns their names.
async fn panic_in_every_service(harness: &Harness) -> Vec<String> {
    let services = harness.engine.services();
    let names = services.into_iter().filter(|service| service.kind != ServiceKind::Once);
    let names: Vec<String> = names.map(|service| service.name.into_owned()).collect();
    for name in &names {
        panic_in(harness, name).await;
    }
    names
}

/// The scheduler claims a retry when it is due.
async fn retry_is_sent(harness: &Harness) {
    let (receiver, works) = failing_receiver().await;
    let webhook = harness.create_webhook(&receiver.url(), |_| {}).await;
    harness.publish(0..1).await;
    harness.until("the first attempt is stored", |all| all.iter().any(|one| one.attempt_count == 1)).await;
    works.store(true, SeqCst);
    harness.clock.advance(5 * SECOND);
    harness.until("the retry is delivered", |all| delivered(all) == 1).await;
    harness.set_state(&webhook, WebhookState::Disabled("by the test".into())).await;
}

/// The gate timer resumes a webhook after the pause that follows a 429.
async fn pause_after_429_ends(harness: &Harness) {
    let before = delivered(&harness.deliveries().await);
    let calls = Arc::new(AtomicUsize::new(0));
    let receiver = Receiver::with(move |_| match calls.fetch_add(1, SeqCst) {
        0 => Reply::status(429).header("retry-after", "60"),
        _ => Reply::status(200),
    })
    .await;
    let change = |webhook: &mut Webhook| webhook.spec.max_in_flight = Some(1);
    let webhook = harness.create_webhook(&receiver.url(), change).await;
    harness.publish(0..2).await;
    receiver.wait_for(1).await;
    harness
        .eventually("the webhook is paused", async || {
            harness.waiting_on().await.get("rate_limit").is_some_and(|waiting| *waiting == 1)
        })
        .await;
    harness.clock.advance(61 * SECOND);
    receiver.wait_for(2).await;
    harness.clock.advance(61 * SECOND);
    harness.until("both are delivered", |all| delivered(all) == before + 2).await;
    harness.set_state(&webhook, WebhookState::Disabled("by the test".into())).await;
}

/// The cancellation service ends the deliveries of a webhook that was disabled.
async fn deliveries_of_a_disabled_webhook_are_cancelled(harness: &Harness) {
    let before = cancelled(harness).await;
    let change = |webhook: &mut Webhook| webhook.state = WebhookState::Paused;
    let webhook = harness.create_webhook("http://127.0.0.1:1/", change).await;
    harness.publish(0..3).await;
    harness.set_state(&webhook, WebhookState::Disabled("by the test".into())).await;
    harness.eventually("they are cancelled", async || cancelled(harness).await == before + 3).await;
}

/// The expiry service disables a webhook at its end.
async fn webhook_expires(harness: &Harness) {
    let until = harness.clock.now() + 10 * SECOND;
    let webhook =
        harness.create_webhook("http://127.0.0.1:1/", |webhook| webhook.spec.expires_at = Some(until)).await;
    harness.clock.advance(10 * SECOND);
    harness
        .eventually("the webhook is disabled", async || {
            let found = harness.store.webhook(webhook.tenant_id.clone(), webhook.id).await.unwrap();
            found.is_some_and(|found| found.webhook.state == WebhookState::Disabled("expired".into()))
        })
        .await;
}

async fn cancelled(harness: &Harness) -> usize {
    let deliveries = harness.deliveries().await;
    deliveries.iter().filter(|delivery| delivery.status == DeliveryStatus::Cancelled).count()
}

fn delivered(deliveries: &[Delivery]) -> usize {
    deliveries.iter().filter(|delivery| delivery.status == DeliveryStatus::Delivered).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_service_of_a_single_node_is_restarted_and_works_again() {
    let harness = world().await;
    let names = panic_in_every_service(&harness).await;
    // A service that is added must be added here, with a check below if its work can be observed within seconds.
    let expected = [
        "bulk_operations",
        "cancellation",
        "expiry",
        "gate_timer",
        "lease_auditor",
        "maintenance",
        "notifier",
        "outcome_retry",
        "pruner",
        "releaser",
        "rollup_flush",
        "scheduler",
        "timekeeping",
        "webhook_checks",
    ];
    assert_eq!(names, expected);
    assert_eq!(harness.engine.failure(), None);
    retry_is_sent(&harness).await;
    pause_after_429_ends(&harness).await;
    deliveries_of_a_disabled_webhook_are_cancelled(&harness).await;
    webhook_expires(&harness).await;
    harness.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_service_of_a_cluster_is_restarted_and_works_again() {
    let cluster = TestCluster::on(On::Postgres).await;
    let (redis, broker) = (Redis::start().await, RabbitMq::shared().await);
    let settings = |name: &str| {
        let redis = RedisSettings {
            url: redis.url(),
            namespace: "services".into(),
            timeout: redrive_testkit::WAIT_TIMEOUT,
            ca: None,
        };
        Settings { redis: Some(redis), tickets: Some(tickets(&broker.url())), ..named(name) }
    };
    let (harness, other) = (cluster.node(settings("a")).await, cluster.node(settings("b")).await);
    harness
        .eventually("Redis and RabbitMQ are used", async || {
            harness.engine.redis_up() == Some(true) && harness.engine.broker_up() == Some(true)
        })
        .await;
    let names = panic_in_every_service(&harness).await;
    for name in ["change_feed", "heartbeat", "redis", "ticket_consumer", "ticket_publisher"] {
        assert!(names.iter().any(|one| one == name), "{name} was not tested: {names:?}");
    }
    harness
        .eventually("Redis and RabbitMQ are used again", async || {
            harness.engine.redis_up() == Some(true) && harness.engine.broker_up() == Some(true)
        })
        .await;
    // The heartbeat goes on: no other node takes over.
    let epoch = harness.engine.epoch();
    tokio::time::sleep(2 * LEASE).await;
    assert_eq!(harness.engine.epoch(), epoch, "the node was declared dead");
    // The change feed goes on: this node sends to a webhook that another node has created.
    let receiver = Receiver::start().await;
    other.create_webhook(&receiver.url(), |_| {}).await;
    harness
        .eventually("the webhook is known", async || {
            harness.engine.publish(draft(1)).await.unwrap().deliveries == Some(1)
        })
        .await;
    receiver.wait_for(1).await;
    harness.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn essential_service_that_keeps_failing_ends_the_engine() {
    let harness = world().await;
    for _ in 0..5 {
        panic_in(&harness, "scheduler").await;
    }
    assert_eq!(harness.engine.failure(), None);
    harness.engine.fault_injection().panic_in("scheduler");
    let failure = harness.engine.failed().await;
    assert_eq!(
        failure.reason,
        "the service scheduler failed more than 5 times within 60 s; last failure: panic: injected fault"
    );
    assert!(failure.can_drain);
    assert!(!status(&harness.engine, "scheduler").up);
}

#[tokio::test(flavor = "multi_thread")]
async fn auxiliary_service_that_keeps_failing_does_not_end_the_engine() {
    let harness = world().await;
    for _ in 0..5 {
        panic_in(&harness, "pruner").await;
    }
    harness.engine.fault_injection().panic_in("pruner");
    harness.eventually("it waits for its restart", async || !status(&harness.engine, "pruner").up).await;
    assert_eq!(harness.engine.failure(), None);
    retry_is_sent(&harness).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn panic_in_the_dispatcher_ends_the_engine_without_draining() {
    let harness = world().await;
    harness.engine.panic_in_dispatcher();
    let failure = harness.engine.failed().await;
    assert_eq!(failure.reason, "a panic has left the dispatcher's state inconsistent");
    assert!(!failure.can_drain);
}

/// Causes a panic at a point and waits until it has happened.
async fn panic_at(harness: &Harness, point: FaultPoint, reach: impl AsyncFnOnce()) {
    harness.engine.fault_injection().panic_at(point);
    reach().await;
    harness
        .eventually(&format!("{point:?} is reached"), async || {
            !harness.engine.fault_injection().is_requested(point)
        })
        .await;
}

/// Advances the clock until all deliveries are delivered: a delivery whose task panicked is delayed.
async fn all_are_delivered(harness: &Harness, count: usize) {
    harness
        .eventually("all are delivered", async || {
            harness.clock.advance(SECOND);
            delivered(&harness.deliveries().await) == count
        })
        .await;
    harness.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn panic_at_every_point_of_a_delivery_leaks_nothing() {
    let harness = world().await;
    let receiver = Receiver::start().await;
    // One slot, so that a slot that is not freed blocks everything after it.
    let one_slot = |webhook: &mut Webhook| webhook.spec.max_in_flight = Some(1);
    harness.create_webhook(&receiver.url(), one_slot).await;
    let mut published = 0;
    for point in
        [FaultPoint::Check, FaultPoint::Send, FaultPoint::Classify, FaultPoint::Record, FaultPoint::Recorded]
    {
        panic_at(&harness, point, async || harness.publish(published..published + 3).await).await;
        published += 3;
        all_are_delivered(&harness, published).await;
    }
    // The event is stored and delivered, although its publisher gets an error.
    let outcome = Arc::new(parking_lot::Mutex::new(None));
    panic_at(&harness, FaultPoint::Committed, async || {
        *outcome.lock() = Some(harness.engine.publish(draft(published)).await);
    })
    .await;
    assert!(matches!(&*outcome.lock(), Some(Err(_))), "the publisher got a receipt");
    published += 1;
    all_are_delivered(&harness, published).await;
    assert_eq!(harness.engine.failure(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn panic_after_a_claim_releases_what_was_claimed() {
    let harness = world().await;
    let (receiver, works) = failing_receiver().await;
    harness.create_webhook(&receiver.url(), |_| {}).await;
    harness.publish(0..4).await;
    harness.until("all have failed once", |all| all.iter().all(|one| one.attempt_count == 1)).await;
    works.store(true, SeqCst);
    panic_at(&harness, FaultPoint::Claimed, async || harness.clock.advance(5 * SECOND)).await;
    all_are_delivered(&harness, 4).await;
    assert_eq!(status(&harness.engine, "scheduler").restarts, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn delivery_that_panics_three_times_becomes_a_failed_attempt() {
    let harness = world().await;
    let receiver = Receiver::start().await;
    harness.create_webhook(&receiver.url(), |_| {}).await;
    panic_at(&harness, FaultPoint::Send, async || harness.publish(0..1).await).await;
    for _ in 1..3 {
        harness.engine.fault_injection().panic_at(FaultPoint::Send);
        harness
            .eventually("it panics again", async || {
                harness.clock.advance(SECOND);
                !harness.engine.fault_injection().is_requested(FaultPoint::Send)
            })
            .await;
    }
    harness
        .eventually("a failed attempt is recorded", async || {
            harness.clock.advance(SECOND);
            harness.deliveries().await[0].attempt_count == 1
        })
        .await;
    assert_eq!(receiver.count(), 0, "nothing was sent");
    all_are_delivered(&harness, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn panic_while_one_of_several_is_ended_keeps_the_others() {
    let harness = world().await;
    let (gate, receiver) = {
        let gate = Latch::closed();
        let held = gate.clone();
        (gate, Receiver::with(move |_| Reply::status(200).latched_by(&held)).await)
    };
    let one_slot = |webhook: &mut Webhook| webhook.spec.max_in_flight = Some(1);
    let webhook = harness.create_webhook(&receiver.url(), one_slot).await;
    harness.publish(0..4).await;
    receiver.wait_for(1).await;
    // The three that are queued are cancelled, and the recording of the first of them panics.
    harness.engine.fault_injection().panic_at(FaultPoint::Record);
    let (engine, changed) = (harness.engine.clone(), webhook.clone());
    let disabling = tokio::spawn(async move {
        let change = |webhook: &mut Webhook| {
            webhook.state = WebhookState::Disabled("by the test".into());
            Ok::<_, ()>(())
        };
        engine.change_webhook(&changed.tenant_id, changed.id, change).await.is_ok()
    });
    assert!(disabling.await.is_err(), "the change does not panic");
    gate.open();
    harness.eventually("the queued ones are cancelled", async || cancelled(&harness).await == 3).await;
    harness.assert_settled().await;
}
