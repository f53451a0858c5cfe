//! Circuits: opening, probing, closing, by themselves and by hand, through restarts.

use std::{collections::BTreeMap, sync::atomic::Ordering::SeqCst, time::Duration};

use crate::harness;
use crate::harness::{SECOND, START, all_are, breaker, broken, schedule, settings, world};
use redrive_core::{
    DeliveryStatus,
    protection::breaker::{BreakerConfig, CircuitState, Forced},
};
use redrive_engine::CircuitAction;
use redrive_testkit::{Gate, Receiver, Reply};

#[tokio::test(flavor = "multi_thread")]
async fn a_circuit_opens_lets_probes_through_and_closes() {
    let world = world().await;
    let (receiver, works) = broken().await;
    let hook = world.hook(&receiver.url(), |hook| hook.spec.circuit_breaker_config = breaker(5)).await;
    world.publish(0..5).await;
    world.eventually("it opens", async || world.circuit(&hook).await.state == CircuitState::Open).await;
    let circuit = world.circuit(&hook).await;
    assert_eq!((circuit.counts.total, circuit.counts.failed), (5, 5));
    assert_eq!(circuit.next_half_open_at, Some(world.clock.now() + 30 * SECOND));
    world.until("the retries are scheduled", |all| all.iter().all(|one| one.due.is_some())).await;

    // New ones are held back without an attempt, and so are retries that become due.
    world.publish(5..20).await;
    world.clock.advance(10 * SECOND);
    world.a_moment().await;
    assert_eq!(receiver.count(), 5);
    assert_eq!(world.waiting_on().await, BTreeMap::from([("circuit_open", 20)]));
    let waiting = world.engine.waiting(&world.deliveries().await[0]).await.unwrap().unwrap();
    assert_eq!(waiting.until, circuit.next_half_open_at);
    assert!(waiting.explanation.contains("5 of 5 calls failed, mostly with server_error"), "{waiting:?}");
    assert!(world.deliveries().await.iter().filter(|one| one.attempt_count == 0).count() == 15);

    works.store(true, SeqCst);
    world.clock.advance(20 * SECOND - Duration::from_millis(1));
    world.a_moment().await;
    assert_eq!(receiver.count(), 5, "not a moment early");
    world.clock.advance(Duration::from_millis(1));
    world.until("all are delivered", all_are(DeliveryStatus::Delivered, 20)).await;
    assert_eq!(world.circuit(&hook).await.state, CircuitState::Closed);
    let periods = world.store.circuit_periods(hook.tenant.clone(), hook.id, START, 10).await.unwrap();
    assert_eq!(periods.len(), 1);
    assert!(periods[0].ended_at.is_some() && !periods[0].forced);
    world.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_open_lets_no_more_probes_through_than_it_may_and_each_of_another_event() {
    let world = world().await;
    let receiver = Receiver::answering(500).await;
    let hook = world.hook(&receiver.url(), |hook| hook.spec.circuit_breaker_config = breaker(5)).await;
    world.publish(0..40).await;
    world.eventually("it opens", async || world.circuit(&hook).await.state == CircuitState::Open).await;
    let before = receiver.wait_for(5).await.len();
    let gate = Gate::closed();
    receiver.answer_with({
        let gate = gate.clone();
        move |_| Reply::status(500).held_by(&gate)
    });
    world.clock.advance(30 * SECOND);
    receiver.wait_for(before + 5).await;
    world.a_moment().await;
    let probes = &receiver.arrivals()[before..];
    assert_eq!(probes.len(), 5);
    let mut events: Vec<_> = probes.iter().map(|probe| probe.webhook_id().to_owned()).collect();
    events.sort();
    events.dedup();
    assert_eq!(events.len(), 5, "of different events");
    assert_eq!(world.waiting_on().await.get("circuit_open"), Some(&35), "the others wait for the verdict");
    gate.open();
    world.eventually("it opens again", async || world.circuit(&hook).await.state == CircuitState::Open).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_recoveries_double_the_sleep_and_a_recovery_resets_it() {
    let world = world().await;
    let (receiver, works) = broken().await;
    let hook = world
        .hook(&receiver.url(), |hook| {
            hook.spec.circuit_breaker_config = breaker(5);
            hook.spec.retry_config = schedule(&[0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        })
        .await;
    world.publish(0..20).await;
    for sleep in [30, 60, 120, 240] {
        world
            .eventually("it sleeps twice as long", async || {
                let circuit = world.circuit(&hook).await;
                circuit.state == CircuitState::Open
                    && circuit.next_half_open_at == Some(world.clock.now() + sleep * SECOND)
            })
            .await;
        world.clock.advance(sleep * SECOND);
    }
    works.store(true, SeqCst);
    // It has gone half open with a failing endpoint once more, or finds it working already.
    world
        .eventually("everything is delivered", async || {
            world.clock.advance(60 * SECOND);
            world.deliveries().await.iter().all(|one| one.status == DeliveryStatus::Delivered)
        })
        .await;
    let circuit = world.circuit(&hook).await;
    assert_eq!((circuit.state, circuit.consecutive_half_open_failures), (CircuitState::Closed, 0));
    works.store(false, SeqCst);
    world.publish(20..30).await;
    world.eventually("it opens", async || world.circuit(&hook).await.state == CircuitState::Open).await;
    let circuit = world.circuit(&hook).await;
    assert_eq!(circuit.next_half_open_at, Some(circuit.state_transition_at + 30 * SECOND), "as at first");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_remembers_an_open_circuit_and_a_forced_one() {
    let world = world().await;
    let (receiver, works) = broken().await;
    let hook = world.hook(&receiver.url(), |hook| hook.spec.circuit_breaker_config = breaker(5)).await;
    world.publish(0..5).await;
    world.until("the failures are stored", |all| all.iter().all(|one| one.due.is_some())).await;
    works.store(true, SeqCst);
    let world = world.restart(settings()).await;
    assert_eq!(world.circuit(&hook).await.state, CircuitState::Open);
    world.publish(5..10).await;
    world.clock.advance(29 * SECOND);
    world.a_moment().await;
    assert_eq!(receiver.count(), 5);

    let forced = Forced { open: true, until: None, by: "me".into() };
    let act = |action| world.engine.act_on_circuit(&hook.tenant, hook.id, action);
    assert!(act(CircuitAction::Force(forced)).await.unwrap());
    let world = world.restart(settings()).await;
    world.clock.advance(3600 * SECOND);
    world.a_moment().await;
    assert_eq!(receiver.count(), 5);
    let waiting = world.engine.waiting(&world.deliveries().await[0]).await.unwrap().unwrap();
    assert!(waiting.explanation.contains("forced open by me"), "{waiting:?}");
    assert_eq!(waiting.until, None);
    world.engine.act_on_circuit(&hook.tenant, hook.id, CircuitAction::Reset).await.unwrap();
    world.until("all are delivered", all_are(DeliveryStatus::Delivered, 10)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_circuit_is_forced_open_for_a_time_and_forced_closed() {
    let world = world().await;
    let (receiver, works) = broken().await;
    let hook = world.hook(&receiver.url(), |hook| hook.spec.circuit_breaker_config = breaker(5)).await;
    let force = async |open, until| {
        let forced = Forced { open, until, by: "me".into() };
        world.engine.act_on_circuit(&hook.tenant, hook.id, CircuitAction::Force(forced)).await.unwrap()
    };
    force(true, Some(world.clock.now() + 10 * SECOND)).await;
    world.publish(0..3).await;
    world.a_moment().await;
    assert_eq!(receiver.count(), 0);
    works.store(true, SeqCst);
    world.clock.advance(10 * SECOND);
    world.until("all are delivered", all_are(DeliveryStatus::Delivered, 3)).await;

    works.store(false, SeqCst);
    force(false, None).await;
    world.publish(3..23).await;
    receiver.wait_for(23).await;
    assert_eq!(world.circuit(&hook).await.state, CircuitState::Closed, "whatever happens");
}

#[tokio::test(flavor = "multi_thread")]
async fn switching_the_breaker_off_lets_everything_go() {
    let world = world().await;
    let (receiver, works) = broken().await;
    let hook = world.hook(&receiver.url(), |hook| hook.spec.circuit_breaker_config = breaker(5)).await;
    world.publish(0..10).await;
    world.eventually("it opens", async || world.circuit(&hook).await.state == CircuitState::Open).await;
    works.store(true, SeqCst);
    let off = |hook: &mut redrive_core::webhook::Webhook| {
        hook.spec.circuit_breaker_config.enabled = Some(false);
        Ok::<_, ()>(())
    };
    world.engine.change_webhook(&hook.tenant, hook.id, off).await.unwrap();
    world.clock.advance(5 * SECOND);
    world.until("all are delivered", all_are(DeliveryStatus::Delivered, 10)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_that_is_called_off_is_replaced() {
    let world = world().await;
    let receiver = Receiver::answering(500).await;
    let hook = world
        .hook(&receiver.url(), |hook| {
            hook.spec.circuit_breaker_config = BreakerConfig { half_open_max_calls: Some(1), ..breaker(3) };
        })
        .await;
    world.publish(0..4).await;
    world.eventually("it opens", async || world.circuit(&hook).await.state == CircuitState::Open).await;
    world.until("all wait", |all| all.iter().all(|one| one.due.is_some())).await;
    let before = receiver.count();
    let gate = Gate::closed();
    receiver.answer_with({
        let gate = gate.clone();
        move |_| Reply::status(500).held_by(&gate)
    });
    world.clock.advance(30 * SECOND);
    let probe =
        receiver.wait_for(before + 1).await.last().unwrap().header("x-webhook-delivery").unwrap().to_owned();
    let probe = world.deliveries().await.into_iter().find(|one| one.id.to_string() == probe).unwrap();
    world.engine.cancel(hook.tenant.clone(), probe.id, hook.id, "no more".into()).await.unwrap();
    receiver.answer_with(|_| Reply::status(200));
    gate.open();
    world
        .until("the others are delivered", |all| {
            all.iter().filter(|one| one.status == DeliveryStatus::Delivered).count() == 3
        })
        .await;
    assert_eq!(world.circuit(&hook).await.state, CircuitState::Closed);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_no_probe_goes_with_the_verdict_also_after_a_restart() {
    let world = world().await;
    let (receiver, works) = broken().await;
    let hook = world.hook(&receiver.url(), |hook| hook.spec.circuit_breaker_config = breaker(5)).await;
    world.publish(0..60).await;
    world.eventually("it opens", async || world.circuit(&hook).await.state == CircuitState::Open).await;
    let gate = Gate::closed();
    receiver.answer_with({
        let gate = gate.clone();
        move |_| Reply::status(200).held_by(&gate)
    });
    let before = receiver.count();
    world.clock.advance(30 * SECOND);
    receiver.wait_for(before + 5).await;
    world
        .eventually("half open is stored", async || {
            let troubled = world.store.troubled().await.unwrap();
            troubled.iter().any(|one| {
                one.circuit.as_ref().is_some_and(|circuit| circuit.state == CircuitState::HalfOpen)
            })
        })
        .await;
    // The probes are lost with the process.
    world.engine.drain(Duration::ZERO).await;
    world.engine.stop().await;
    works.store(true, SeqCst);
    gate.open();
    let engine = harness::start(world.store.clone(), world.clock.clone(), settings()).await;
    let world = harness::World { engine, ..world };
    world.eventually("it closes", async || world.circuit(&hook).await.state == CircuitState::Closed).await;
    // The clock stands still: nobody waits for a time of its own but those that were cut off.
    world
        .until("the others are delivered", |all| {
            all.iter().filter(|one| one.status == DeliveryStatus::Delivered).count() >= 50
        })
        .await;
}
