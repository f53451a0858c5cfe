//! Services that panic are restarted and work again; a failure that restarts do not repair ends the engine.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use redrive_core::{
    DeliveryStatus,
    webhook::{Webhook, WebhookState},
};
use redrive_engine::{Engine, RedisSettings, ServiceKind, ServiceStatus, Settings};
use redrive_store::Delivery;
use redrive_testkit::{RabbitMq, Receiver, Redis, Reply};

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
        "the service scheduler failed more than five times within a minute; last failure: panic: injected fault"
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
