//! Circuits: opening, probing, closing, automatically and forced, across restarts.

use std::{collections::BTreeMap, sync::atomic::Ordering::SeqCst, time::Duration};

use crate::{
    harness,
    harness::{SECOND, START, all_are, breaker, failing_receiver, schedule, settings, world},
};
use redrive_core::{
    DeliveryStatus,
    protection::breaker::{BreakerConfig, CircuitState, Forced},
};
use redrive_engine::CircuitAction;
use redrive_testkit::{Latch, Receiver, Reply};

#[tokio::test(flavor = "multi_thread")]
async fn circuit_opens_probes_and_closes() {
    let harness = world().await;
    let (receiver, works) = failing_receiver().await;
    let webhook = harness
        .create_webhook(&receiver.url(), |webhook| webhook.spec.circuit_breaker_config = breaker(5))
        .await;
    harness.publish(0..5).await;
    harness
        .eventually("the circuit opens", async || harness.circuit(&webhook).await.state == CircuitState::Open)
        .await;
    let circuit = harness.circuit(&webhook).await;
    assert_eq!((circuit.counts.total, circuit.counts.failed), (5, 5));
    assert_eq!(circuit.next_half_open_at, Some(harness.clock.now() + 30 * SECOND));
    harness.until("the retries are scheduled", |all| all.iter().all(|one| one.due.is_some())).await;

    // New deliveries are held without an attempt, and so are retries that become due.
    harness.publish(5..20).await;
    harness.clock.advance(10 * SECOND);
    harness.settle_time().await;
    assert_eq!(receiver.count(), 5);
    assert_eq!(harness.waiting_on().await, BTreeMap::from([("circuit_open", 20)]));
    let waiting = harness.engine.wait_reason(&harness.deliveries().await[0]).await.unwrap().unwrap();
    assert_eq!(waiting.until, circuit.next_half_open_at);
    assert!(waiting.explanation.contains("5 of 5 attempts failed, mostly with server_error"), "{waiting:?}");
    assert!(harness.deliveries().await.iter().filter(|one| one.attempt_count == 0).count() == 15);

    works.store(true, SeqCst);
    harness.clock.advance(20 * SECOND - Duration::from_millis(1));
    harness.settle_time().await;
    assert_eq!(receiver.count(), 5, "no probe before the sleep window ends");
    harness.clock.advance(Duration::from_millis(1));
    harness.until("all are delivered", all_are(DeliveryStatus::Delivered, 20)).await;
    assert_eq!(harness.circuit(&webhook).await.state, CircuitState::Closed);
    let periods =
        harness.store.circuit_periods(webhook.tenant_id.clone(), webhook.id, START, 10).await.unwrap();
    assert_eq!(periods.len(), 1);
    assert!(periods[0].ended_at.is_some() && !periods[0].forced);
    harness.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_open_circuit_limits_probes_to_distinct_events() {
    let harness = world().await;
    let receiver = Receiver::responding(500).await;
    let webhook = harness
        .create_webhook(&receiver.url(), |webhook| webhook.spec.circuit_breaker_config = breaker(5))
        .await;
    harness.publish(0..40).await;
    harness
        .eventually("the circuit opens", async || harness.circuit(&webhook).await.state == CircuitState::Open)
        .await;
    let before = receiver.wait_for(5).await.len();
    let gate = Latch::closed();
    receiver.respond_with({
        let gate = gate.clone();
        move |_| Reply::status(500).latched_by(&gate)
    });
    harness.clock.advance(30 * SECOND);
    receiver.wait_for(before + 5).await;
    harness.settle_time().await;
    let probes = &receiver.arrivals()[before..];
    assert_eq!(probes.len(), 5);
    let mut events: Vec<_> = probes.iter().map(|probe| probe.webhook_id().to_owned()).collect();
    events.sort();
    events.dedup();
    assert_eq!(events.len(), 5, "probes are of different events");
    assert_eq!(
        harness.waiting_on().await.get("circuit_open"),
        Some(&35),
        "the others wait for the probe results"
    );
    gate.open();
    harness
        .eventually("the circuit opens again", async || {
            harness.circuit(&webhook).await.state == CircuitState::Open
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sleep_window_doubles_per_failed_recovery_and_resets() {
    let harness = world().await;
    let (receiver, works) = failing_receiver().await;
    let webhook = harness
        .create_webhook(&receiver.url(), |webhook| {
            webhook.spec.circuit_breaker_config = breaker(5);
            webhook.spec.retry_config = schedule(&[0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        })
        .await;
    harness.publish(0..20).await;
    for sleep in [30, 60, 120, 240] {
        harness
            .eventually("the sleep window doubles", async || {
                let circuit = harness.circuit(&webhook).await;
                circuit.state == CircuitState::Open
                    && circuit.next_half_open_at == Some(harness.clock.now() + sleep * SECOND)
            })
            .await;
        harness.clock.advance(sleep * SECOND);
    }
    works.store(true, SeqCst);
    // The circuit was half-open with a failing endpoint once more, or finds it working already.
    harness
        .eventually("everything is delivered", async || {
            harness.clock.advance(60 * SECOND);
            harness.deliveries().await.iter().all(|one| one.status == DeliveryStatus::Delivered)
        })
        .await;
    let circuit = harness.circuit(&webhook).await;
    assert_eq!((circuit.state, circuit.consecutive_half_open_failures), (CircuitState::Closed, 0));
    works.store(false, SeqCst);
    harness.publish(20..30).await;
    harness
        .eventually("the circuit opens", async || harness.circuit(&webhook).await.state == CircuitState::Open)
        .await;
    let circuit = harness.circuit(&webhook).await;
    assert_eq!(
        circuit.next_half_open_at,
        Some(circuit.state_transition_at + 30 * SECOND),
        "the sleep window is reset"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn open_and_forced_circuits_survive_restart() {
    let harness = world().await;
    let (receiver, works) = failing_receiver().await;
    let webhook = harness
        .create_webhook(&receiver.url(), |webhook| webhook.spec.circuit_breaker_config = breaker(5))
        .await;
    harness.publish(0..5).await;
    harness.until("the failures are stored", |all| all.iter().all(|one| one.due.is_some())).await;
    works.store(true, SeqCst);
    let harness = harness.restart(settings()).await;
    assert_eq!(harness.circuit(&webhook).await.state, CircuitState::Open);
    harness.publish(5..10).await;
    harness.clock.advance(29 * SECOND);
    harness.settle_time().await;
    assert_eq!(receiver.count(), 5);

    let forced = Forced { open: true, until: None, by: "me".into() };
    let act = |action| harness.engine.control_circuit(&webhook.tenant_id, webhook.id, action);
    assert!(act(CircuitAction::Force(forced)).await.unwrap());
    let harness = harness.restart(settings()).await;
    harness.clock.advance(3600 * SECOND);
    harness.settle_time().await;
    assert_eq!(receiver.count(), 5);
    let waiting = harness.engine.wait_reason(&harness.deliveries().await[0]).await.unwrap().unwrap();
    assert!(waiting.explanation.contains("forced open by me"), "{waiting:?}");
    assert_eq!(waiting.until, None);
    harness.engine.control_circuit(&webhook.tenant_id, webhook.id, CircuitAction::Reset).await.unwrap();
    harness.until("all are delivered", all_are(DeliveryStatus::Delivered, 10)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn circuit_can_be_forced_open_temporarily_and_forced_closed() {
    let harness = world().await;
    let (receiver, works) = failing_receiver().await;
    let webhook = harness
        .create_webhook(&receiver.url(), |webhook| webhook.spec.circuit_breaker_config = breaker(5))
        .await;
    let force = async |open, until| {
        let forced = Forced { open, until, by: "me".into() };
        harness
            .engine
            .control_circuit(&webhook.tenant_id, webhook.id, CircuitAction::Force(forced))
            .await
            .unwrap()
    };
    force(true, Some(harness.clock.now() + 10 * SECOND)).await;
    harness.publish(0..3).await;
    harness.settle_time().await;
    assert_eq!(receiver.count(), 0);
    works.store(true, SeqCst);
    harness.clock.advance(10 * SECOND);
    harness.until("all are delivered", all_are(DeliveryStatus::Delivered, 3)).await;

    works.store(false, SeqCst);
    force(false, None).await;
    harness.publish(3..23).await;
    receiver.wait_for(23).await;
    assert_eq!(harness.circuit(&webhook).await.state, CircuitState::Closed, "whatever happens");
}

#[tokio::test(flavor = "multi_thread")]
async fn disabling_breaker_unblocks_deliveries() {
    let harness = world().await;
    let (receiver, works) = failing_receiver().await;
    let webhook = harness
        .create_webhook(&receiver.url(), |webhook| webhook.spec.circuit_breaker_config = breaker(5))
        .await;
    harness.publish(0..10).await;
    harness
        .eventually("the circuit opens", async || harness.circuit(&webhook).await.state == CircuitState::Open)
        .await;
    works.store(true, SeqCst);
    let off = |webhook: &mut redrive_core::webhook::Webhook| {
        webhook.spec.circuit_breaker_config.enabled = Some(false);
        Ok::<_, ()>(())
    };
    harness.engine.change_webhook(&webhook.tenant_id, webhook.id, off).await.unwrap();
    harness.clock.advance(5 * SECOND);
    harness.until("all are delivered", all_are(DeliveryStatus::Delivered, 10)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_probe_is_replaced() {
    let harness = world().await;
    let receiver = Receiver::responding(500).await;
    let webhook = harness
        .create_webhook(&receiver.url(), |webhook| {
            webhook.spec.circuit_breaker_config =
                BreakerConfig { half_open_max_calls: Some(1), ..breaker(3) };
        })
        .await;
    harness.publish(0..4).await;
    harness
        .eventually("the circuit opens", async || harness.circuit(&webhook).await.state == CircuitState::Open)
        .await;
    harness.until("all wait", |all| all.iter().all(|one| one.due.is_some())).await;
    let before = receiver.count();
    let gate = Latch::closed();
    receiver.respond_with({
        let gate = gate.clone();
        move |_| Reply::status(500).latched_by(&gate)
    });
    harness.clock.advance(30 * SECOND);
    let probe =
        receiver.wait_for(before + 1).await.last().unwrap().header("x-webhook-delivery").unwrap().to_owned();
    let probe = harness.deliveries().await.into_iter().find(|one| one.id.to_string() == probe).unwrap();
    harness
        .engine
        .cancel(webhook.tenant_id.clone(), probe.id, webhook.id, "no further probe is sent".into())
        .await
        .unwrap();
    receiver.respond_with(|_| Reply::status(200));
    gate.open();
    harness
        .until("the others are delivered", |all| {
            all.iter().filter(|one| one.status == DeliveryStatus::Delivered).count() == 3
        })
        .await;
    assert_eq!(harness.circuit(&webhook).await.state, CircuitState::Closed);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_deliveries_are_sent_when_circuit_closes_after_restart() {
    let harness = world().await;
    let (receiver, works) = failing_receiver().await;
    let webhook = harness
        .create_webhook(&receiver.url(), |webhook| webhook.spec.circuit_breaker_config = breaker(5))
        .await;
    harness.publish(0..60).await;
    harness
        .eventually("the circuit opens", async || harness.circuit(&webhook).await.state == CircuitState::Open)
        .await;
    let gate = Latch::closed();
    receiver.respond_with({
        let gate = gate.clone();
        move |_| Reply::status(200).latched_by(&gate)
    });
    let before = receiver.count();
    harness.clock.advance(30 * SECOND);
    receiver.wait_for(before + 5).await;
    harness
        .eventually("half open is stored", async || {
            let runtime = harness.store.list_runtime().await.unwrap();
            runtime.iter().any(|one| {
                one.circuit.as_ref().is_some_and(|circuit| circuit.state == CircuitState::HalfOpen)
            })
        })
        .await;
    // The probes are lost with the process.
    harness.engine.drain(Duration::ZERO).await;
    harness.engine.stop().await;
    works.store(true, SeqCst);
    gate.open();
    let engine = harness::start(harness.store.clone(), harness.clock.clone(), settings()).await;
    let harness = harness::Harness { engine, ..harness };
    harness
        .eventually("the circuit closes", async || {
            harness.circuit(&webhook).await.state == CircuitState::Closed
        })
        .await;
    // The clock does not move: only deliveries whose requests were cut have a later due time.
    harness
        .until("the others are delivered", |all| {
            all.iter().filter(|one| one.status == DeliveryStatus::Delivered).count() >= 50
        })
        .await;
}
