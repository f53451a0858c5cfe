//! What holds deliveries back, and lets them go again: circuits, limits, order, pause, expiry, pools.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a failed test says where, and has patience"
)]

mod world;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use redrive_core::{
    DeadReason, DeliveryStatus, TenantId,
    breaker::{BreakerConfig, CircuitState, Forced},
    lane::{Ordering, Priority},
    limiter::RateLimit,
    tenant::TenantRules,
    webhook::WebhookState,
};
use redrive_engine::{CircuitAction, Draft, Settings};
use redrive_store::{DeliveryFilter, PageRequest, Tenant};
use redrive_testkit::{Gate, Receiver, Reply};
use world::{START, all_are, draft, numbers, schedule, settings, world, world_with};

const SECOND: Duration = Duration::from_secs(1);

/// A receiver that fails until it is told to work.
async fn broken() -> (Receiver, Arc<AtomicBool>) {
    let works = Arc::new(AtomicBool::new(false));
    let told = works.clone();
    let receiver = Receiver::with(move |_| Reply::status(if told.load(SeqCst) { 200 } else { 500 })).await;
    (receiver, works)
}

fn breaker(minimum: u32) -> BreakerConfig {
    BreakerConfig { minimum_throughput: Some(minimum), ..BreakerConfig::default() }
}

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
    let periods = world.store.circuit_periods(hook.id, START, 10).await.unwrap();
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
async fn a_failing_order_is_kept_through_an_open_circuit() {
    let world = world().await;
    let (receiver, works) = broken().await;
    let hook = world
        .hook(&receiver.url(), |hook| {
            hook.spec.circuit_breaker_config = breaker(2);
            hook.spec.ordering_guarantee = Ordering::Strict;
            hook.spec.retry_config = schedule(&[0, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        })
        .await;
    world.publish(0..10).await;
    world
        .eventually("it opens", async || {
            world.clock.advance(SECOND);
            world.circuit(&hook).await.state == CircuitState::Open
        })
        .await;
    let before = receiver.count();
    works.store(true, SeqCst);
    world
        .eventually("all are delivered", async || {
            world.clock.advance(10 * SECOND);
            world.deliveries().await.iter().all(|one| one.status == DeliveryStatus::Delivered)
        })
        .await;
    assert_eq!(numbers(&receiver.arrivals()[before..]), (0..10).collect::<Vec<_>>());
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
async fn a_webhooks_rate_limit_is_kept_within_one_token_over_a_minute() {
    let world = world().await;
    let receiver = Receiver::start().await;
    let limit = RateLimit { requests_per_minute: 120, burst: Some(10) };
    world.hook(&receiver.url(), |hook| hook.spec.rate_limit = Some(limit)).await;
    world.publish(0..200).await;
    receiver.wait_for(10).await;
    world.a_moment().await;
    assert_eq!(receiver.count(), 10, "the burst");
    assert_eq!(world.engine.load().unsettled, 0, "what waits for a token has no slot");
    let waiting = world.waiting_on().await;
    assert_eq!(waiting, BTreeMap::from([("rate_limit", 190)]));
    for half_second in 1..=120 {
        world.clock.advance(SECOND / 2);
        receiver.wait_for(10 + half_second).await;
    }
    world.a_moment().await;
    assert_eq!(receiver.count(), 130, "one token each half second, no more and no less");
    assert!(world.deliveries().await.iter().all(|one| one.attempt_count <= 1));
    // A long pause saves up no more than the burst.
    world.clock.advance(3600 * SECOND);
    receiver.wait_for(140).await;
    world.a_moment().await;
    assert_eq!(receiver.count(), 140);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenants_limit_holds_all_its_webhooks_and_the_servers_holds_all() {
    let tenant_rate_limit = Some(RateLimit { requests_per_minute: 60, burst: Some(5) });
    let global_rate_limit = Some(RateLimit { requests_per_minute: 60, burst: Some(8) });
    let world = world_with(Settings { tenant_rate_limit, global_rate_limit, ..settings() }).await;
    let receiver = Receiver::start().await;
    let other = TenantId::parse("other").unwrap();
    let tenant = Tenant { id: other.clone(), name: None, rules: TenantRules::default(), created_at: START };
    assert!(world.store.create_tenant(tenant).await.unwrap());
    for path in ["/a", "/b"] {
        world.hook(&receiver.url_at(path), |_| {}).await;
    }
    world.hook(&receiver.url_at("/other"), |hook| hook.tenant = other.clone()).await;
    world.publish(0..10).await;
    receiver.wait_for(5).await;
    world.a_moment().await;
    assert_eq!(receiver.count(), 5, "two webhooks share the tenant's burst");
    for n in 0..10 {
        world.engine.publish(Draft { tenant: other.clone(), ..draft(n) }).await.unwrap();
    }
    receiver.wait_for(8).await;
    world.a_moment().await;
    let count = |path: &str| receiver.arrivals().iter().filter(|arrival| arrival.path == path).count();
    assert_eq!((receiver.count(), count("/other")), (8, 3), "the server's burst is used up");
    world.clock.advance(10 * SECOND);
    receiver.wait_for(16).await;
    world.a_moment().await;
    assert!(receiver.count() <= 18, "{}", receiver.count());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_429_holds_the_whole_webhook_back() {
    let world = world().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let receiver = Receiver::with(move |_| match calls.fetch_add(1, SeqCst) {
        0 => Reply::status(429).header("retry-after", "20"),
        _ => Reply::status(200),
    })
    .await;
    world.hook(&receiver.url(), |hook| hook.spec.max_in_flight = Some(1)).await;
    world.publish(0..5).await;
    world.until("the 429 is stored", |all| all.iter().any(|one| one.attempt_count == 1)).await;
    world.clock.advance(19 * SECOND);
    world.a_moment().await;
    assert_eq!(receiver.count(), 1);
    assert_eq!(world.waiting_on().await, BTreeMap::from([("rate_limit", 4), ("schedule", 1)]));
    let world = world.restart(settings()).await;
    world.a_moment().await;
    assert_eq!(receiver.count(), 1, "a restart does not forget it");
    world.clock.advance(SECOND);
    receiver.wait_for(5).await;
    world.clock.advance(60 * SECOND);
    world.until("all are delivered", all_are(DeliveryStatus::Delivered, 5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_order_holds_through_failures_and_restarts() {
    let mut world = world().await;
    let tries = Arc::new(AtomicUsize::new(0));
    // Every third request fails.
    let receiver = Receiver::with({
        let tries = tries.clone();
        move |_| Reply::status(if tries.fetch_add(1, SeqCst) % 3 == 1 { 503 } else { 200 })
    })
    .await;
    world
        .hook(&receiver.url(), |hook| {
            hook.spec.ordering_guarantee = Ordering::Strict;
            hook.spec.max_in_flight = Some(10);
            hook.spec.circuit_breaker_config.enabled = Some(false);
        })
        .await;
    world.publish(0..30).await;
    for _ in 0..3 {
        world.clock.advance(5 * SECOND);
        world.a_moment().await;
        world = world.restart(settings()).await;
    }
    world
        .eventually("all are delivered", async || {
            world.clock.advance(5 * SECOND);
            world.deliveries().await.iter().all(|one| one.status == DeliveryStatus::Delivered)
        })
        .await;
    let mut order = numbers(&receiver.arrivals());
    order.dedup();
    assert_eq!(order, (0..30).collect::<Vec<_>>(), "each after the one before it was delivered");
    world.assert_settled().await;
}

/// A small generator of its own, so that a failure shows itself again.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Publishes, fails, cancels, replays, moves the clock and restarts at random; then lets everything end.
async fn live_through(seed: u64) {
    const TYPES: [&str; 3] = ["a.a", "b.b", "c.c"];
    let mut dice = Dice(seed);
    let calls = Arc::new(AtomicUsize::new(seed as usize));
    let receiver = Receiver::with({
        let calls = calls.clone();
        move |_| {
            Reply::status(if calls.fetch_add(1, SeqCst).wrapping_mul(2_654_435_761) % 7 < 2 {
                503
            } else {
                200
            })
        }
    })
    .await;
    let mut world = world().await;
    let hook = world
        .hook(&receiver.url(), |hook| {
            hook.spec.ordering_guarantee = Ordering::PerEventType;
            hook.spec.max_in_flight = Some(10);
            hook.spec.circuit_breaker_config = breaker(8);
            hook.spec.retry_config = schedule(&[0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        })
        .await;
    let mut n = 0;
    for _ in 0..120 {
        match dice.roll(20) {
            0..=9 => {
                let event_type = TYPES[dice.roll(3) as usize].into();
                world.engine.publish(Draft { event_type, ..draft(n) }).await.unwrap();
                n += 1;
            }
            10..=14 => world.clock.advance(Duration::from_millis(dice.roll(1_500))),
            15 | 16 => tokio::time::sleep(Duration::from_millis(dice.roll(10))).await,
            17 => {
                let all = world.deliveries().await;
                if let Some(over) = all.iter().find(|one| one.status.is_final() && one.redriven_as.is_none())
                {
                    world.engine.retry(hook.tenant.clone(), over.id, None).await.unwrap();
                }
            }
            18 => {
                let all = world.deliveries().await;
                if let Some(one) = all.iter().find(|one| one.status == DeliveryStatus::Pending) {
                    let cancel = world.engine.cancel(hook.tenant.clone(), one.id, hook.id, "dice".into());
                    cancel.await.unwrap();
                }
            }
            _ => {
                // What is under way is cut off, as by an impatient shutdown.
                world.engine.drain(Duration::ZERO).await;
                world.engine.stop().await;
                let engine = world::start(world.store.clone(), world.clock.clone(), settings()).await;
                world = world::World { engine, ..world };
            }
        }
    }
    world
        .eventually("everything is over", async || {
            world.clock.advance(20 * SECOND);
            world.deliveries().await.iter().all(|one| one.status.is_final())
        })
        .await;
    world.assert_settled().await;

    // At the endpoint: of each type, one delivery after the other, never back to one that was left.
    let mut left: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for arrival in receiver.arrivals() {
        let delivery = arrival.header("x-webhook-delivery").unwrap().to_owned();
        let of_type = left.entry(arrival.json()["type"].to_string()).or_default();
        if of_type.last() != Some(&delivery) {
            assert!(!of_type.contains(&delivery), "seed {seed}: {delivery} came back after others");
            of_type.push(delivery);
        }
    }
    // And first rounds came in the order of publishing.
    let rounds: BTreeMap<_, _> =
        world.deliveries().await.into_iter().map(|one| (one.id.to_string(), one.round)).collect();
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    for arrival in receiver.arrivals() {
        if rounds[arrival.header("x-webhook-delivery").unwrap()] == 1 {
            let n = arrival.json()["data"]["n"].as_u64().unwrap();
            let before = last.insert(arrival.json()["type"].to_string(), n).unwrap_or(0);
            assert!(before <= n, "seed {seed}: {n} after {before}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_no_order_is_broken() {
    for seed in 1..=8 {
        live_through(seed).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_head_holds_its_own_event_type_alone_and_says_so() {
    let world = world().await;
    let receiver = Receiver::with(|arrival| {
        let fails = arrival.json()["type"] == "order.created" && arrival.json()["data"]["n"] == 0;
        Reply::status(if fails { 503 } else { 200 })
    })
    .await;
    let hook =
        world.hook(&receiver.url(), |hook| hook.spec.ordering_guarantee = Ordering::PerEventType).await;
    world.publish(0..3).await;
    for n in 10..13 {
        world.engine.publish(Draft { event_type: "order.paid".into(), ..draft(n) }).await.unwrap();
    }
    let all = world
        .until("the other type is delivered", |all| {
            all.iter().filter(|one| one.status == DeliveryStatus::Delivered).count() == 3
                && all.iter().any(|one| one.attempt_count == 1 && one.status == DeliveryStatus::Pending)
        })
        .await;
    assert_eq!(world.waiting_on().await, BTreeMap::from([("order", 2), ("schedule", 1)]));
    let head =
        all.iter().find(|one| one.status == DeliveryStatus::Pending && one.attempt_count == 1).unwrap();
    let behind = all.iter().find(|one| one.behind.is_some()).unwrap();
    let waiting = world.engine.waiting(behind).await.unwrap().unwrap();
    assert!(waiting.explanation.contains(&head.id.to_string()), "{waiting:?}");
    // Cancelling the head lets the next one go at once.
    world.engine.cancel(hook.tenant.clone(), head.id, hook.id, "no".into()).await.unwrap();
    world
        .until("the rest is delivered", |all| {
            all.iter().filter(|one| one.status == DeliveryStatus::Delivered).count() == 5
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_goes_to_the_back_of_its_order() {
    let world = world().await;
    let gate = Gate::closed();
    let receiver = Receiver::start().await;
    world.hook(&receiver.url(), |hook| hook.spec.ordering_guarantee = Ordering::Strict).await;
    world.publish(0..1).await;
    let first = world.until("it is delivered", all_are(DeliveryStatus::Delivered, 1)).await.remove(0);
    receiver.answer_with({
        let gate = gate.clone();
        move |_| Reply::status(200).held_by(&gate)
    });
    world.publish(1..4).await;
    receiver.wait_for(2).await;
    world.engine.retry(TenantId::default(), first.id, None).await.unwrap();
    gate.open();
    receiver.wait_for(5).await;
    assert_eq!(numbers(&receiver.arrivals()), [0, 1, 2, 3, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_webhook_parks_what_comes_and_goes_on_in_order() {
    let world = world().await;
    let gate = Gate::closed();
    let receiver = Receiver::start().await;
    let hook = world.hook(&receiver.url(), |hook| hook.spec.max_in_flight = Some(1)).await;
    receiver.answer_with({
        let gate = gate.clone();
        move |_| Reply::status(200).held_by(&gate)
    });
    world.publish(0..10).await;
    receiver.wait_for(1).await;
    world.set_state(&hook, WebhookState::Paused).await;
    world.publish(10..20).await;
    gate.open();
    world
        .until("what was under way is let finish", |all| {
            all.iter().filter(|one| one.status == DeliveryStatus::Delivered).count() == 1
        })
        .await;
    world.a_moment().await;
    assert_eq!(receiver.count(), 1);
    assert_eq!(world.waiting_on().await, BTreeMap::from([("paused", 19)]));
    let world = world.restart(settings()).await;
    world.a_moment().await;
    assert_eq!(receiver.count(), 1, "also after a restart");
    world.set_state(&hook, WebhookState::Active).await;
    world.until("all are delivered", all_are(DeliveryStatus::Delivered, 20)).await;
    assert_eq!(numbers(&receiver.arrivals()), (0..20).collect::<Vec<_>>());
    world.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_back_for_too_long_is_given_up_on() {
    let world = world().await;
    let receiver = Receiver::start().await;
    let give_up = |hook: &mut redrive_core::webhook::Webhook| {
        hook.spec.retry_config.give_up_after = Some(redrive_core::time::Span::secs(60));
    };
    let hook = world.hook(&receiver.url(), give_up).await;
    let ordered = world
        .hook(&receiver.url_at("/ordered"), |hook| {
            give_up(hook);
            hook.spec.ordering_guarantee = Ordering::Strict;
        })
        .await;
    for hook in [&hook, &ordered] {
        world.set_state(hook, WebhookState::Paused).await;
    }
    world.publish(0..3).await;
    world.clock.advance(59 * SECOND);
    world.publish(3..4).await;
    world.a_moment().await;
    assert!(world.deliveries().await.iter().all(|one| one.status == DeliveryStatus::Pending));
    world.clock.advance(31 * SECOND);
    world
        .until("the old ones are dead", |all| {
            all.iter().filter(|one| one.dead_reason == Some(DeadReason::Expired)).count() == 6
        })
        .await;
    assert_eq!(world.waiting_on().await, BTreeMap::from([("paused", 2)]));
    let page = PageRequest { after: None, offset: 0, limit: 100 };
    let dead = world.store.list_dead(TenantId::default(), DeliveryFilter::default(), page).await.unwrap();
    assert_eq!(dead.len(), 6);
    assert_eq!(receiver.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_only_failed_for_five_days_is_disabled() {
    let world = world().await;
    let receiver = Receiver::answering(500).await;
    let hook = world.hook(&receiver.url(), |hook| hook.spec.retry_config = schedule(&[0])).await;
    let day = 24 * 3600 * SECOND;
    let state =
        async || world.store.webhook(hook.tenant.clone(), hook.id).await.unwrap().unwrap().webhook.state;
    for n in 0..5 {
        world.publish(n..n + 1).await;
        world.until("it is dead", all_are(DeliveryStatus::Dead, n + 1)).await;
        world.clock.advance(day);
    }
    assert_eq!(state().await, WebhookState::Active, "five days are over, but nothing has failed since");
    world.publish(9..10).await;
    world.eventually("it is disabled", async || state().await != WebhookState::Active).await;
    assert_eq!(state().await, WebhookState::Disabled("no delivery succeeded for 5 days".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_is_enabled_again_gets_another_five_days() {
    let world = world().await;
    let receiver = Receiver::answering(500).await;
    let hook = world.hook(&receiver.url(), |hook| hook.spec.retry_config = schedule(&[0])).await;
    let state =
        async || world.store.webhook(hook.tenant.clone(), hook.id).await.unwrap().unwrap().webhook.state;
    world.publish(0..1).await;
    world.until("it is dead", all_are(DeliveryStatus::Dead, 1)).await;
    world.clock.advance(5 * 24 * 3600 * SECOND);
    world.publish(1..2).await;
    world.eventually("it is disabled", async || state().await != WebhookState::Active).await;
    world.set_state(&hook, WebhookState::Active).await;
    world.publish(2..3).await;
    world.until("all are over", |all| all.len() == 3 && all.iter().all(|one| one.status.is_final())).await;
    assert_eq!(state().await, WebhookState::Active, "one failure is not five days");
    let world = world.restart(settings()).await;
    world.publish(3..4).await;
    world.until("it is over", |all| all.len() == 4 && all.iter().all(|one| one.status.is_final())).await;
    let found = world.store.webhook(hook.tenant.clone(), hook.id).await.unwrap().unwrap();
    assert_eq!(found.webhook.state, WebhookState::Active, "nor after a restart");
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
    let engine = world::start(world.store.clone(), world.clock.clone(), settings()).await;
    let world = world::World { engine, ..world };
    world.eventually("it closes", async || world.circuit(&hook).await.state == CircuitState::Closed).await;
    // The clock stands still: nobody waits for a time of its own but those that were cut off.
    world
        .until("the others are delivered", |all| {
            all.iter().filter(|one| one.status == DeliveryStatus::Delivered).count() >= 50
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_token_is_given_up_on_in_time_and_takes_none() {
    let world = world().await;
    let receiver = Receiver::start().await;
    world
        .hook(&receiver.url(), |hook| {
            hook.spec.rate_limit = Some(RateLimit { requests_per_minute: 1, burst: Some(1) });
            hook.spec.retry_config.give_up_after = Some(redrive_core::time::Span::secs(60));
        })
        .await;
    world.publish(0..6).await;
    receiver.wait_for(1).await;
    world.clock.advance(59 * SECOND);
    world.publish(6..7).await;
    world.clock.advance(31 * SECOND);
    world
        .until("the old ones are dead", |all| {
            all.iter().filter(|one| one.dead_reason == Some(DeadReason::Expired)).count() == 5
        })
        .await;
    receiver.wait_for(2).await;
    assert_eq!(numbers(&receiver.arrivals()), [0, 6], "the token was for one that lives");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenants_new_limits_reach_what_waits() {
    let world = world().await;
    let gate = Gate::closed();
    let receiver = Receiver::with({
        let gate = gate.clone();
        move |_| Reply::status(200).held_by(&gate)
    })
    .await;
    world.hook(&receiver.url(), |_| {}).await;
    let change = async |rules| {
        let tenant = Tenant { id: TenantId::default(), name: None, rules, created_at: START };
        assert!(world.engine.change_tenant(tenant).await.unwrap());
    };
    change(TenantRules { max_in_flight: Some(1), ..TenantRules::default() }).await;
    world.publish(0..4).await;
    receiver.wait_for(1).await;
    change(TenantRules { max_in_flight: Some(3), ..TenantRules::default() }).await;
    receiver.wait_for(3).await;
    let slow = RateLimit { requests_per_minute: 1, burst: Some(1) };
    change(TenantRules { rate_limit: Some(slow), ..TenantRules::default() }).await;
    gate.open();
    world.a_moment().await;
    world.publish(4..8).await;
    world.a_moment().await;
    assert!(receiver.count() < 8, "a token a minute");
    change(TenantRules::default()).await;
    receiver.wait_for(8).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_given_to_another_pool_is_left_alone() {
    let world = world_with(Settings { max_items: 40, ..settings() }).await;
    let gate = Gate::closed();
    let receiver = Receiver::with({
        let gate = gate.clone();
        move |_| Reply::status(200).held_by(&gate)
    })
    .await;
    world.hook(&receiver.url(), |_| {}).await;
    world.publish(0..100).await;
    receiver.wait_for(5).await;
    let rules = TenantRules { pool: Some("others".into()), ..TenantRules::default() };
    let tenant = Tenant { id: TenantId::default(), name: None, rules, created_at: START };
    assert!(world.engine.change_tenant(tenant).await.unwrap());
    gate.open();
    world.a_moment().await;
    let commits = world.store.vitals().await.unwrap().commits;
    world.a_moment().await;
    let more = world.store.vitals().await.unwrap().commits - commits;
    assert!(more < 5, "{more} commits for nothing");
    assert!(receiver.count() <= 10, "{}", receiver.count());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_success_starts_the_five_days_anew() {
    let world = world().await;
    let (receiver, works) = broken().await;
    let hook = world.hook(&receiver.url(), |hook| hook.spec.retry_config = schedule(&[0])).await;
    let day = 24 * 3600 * SECOND;
    for n in 0..9 {
        works.store(n == 4, SeqCst);
        world.publish(n..n + 1).await;
        receiver.wait_for(n + 1).await;
        world.until("it is over", |all| all.iter().all(|one| one.status.is_final())).await;
        world.clock.advance(day);
    }
    let found = world.store.webhook(hook.tenant.clone(), hook.id).await.unwrap().unwrap();
    assert_eq!(found.webhook.state, WebhookState::Active);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_expires_to_the_moment() {
    let world = world().await;
    let receiver = Receiver::start().await;
    let until = world.clock.now() + 10 * SECOND;
    let hook = world.hook(&receiver.url(), |hook| hook.spec.expires_at = Some(until)).await;
    let parked = world
        .hook(&receiver.url_at("/parked"), |hook| {
            hook.spec.expires_at = Some(until);
            hook.state = WebhookState::Paused;
        })
        .await;
    world.publish(0..1).await;
    receiver.wait_for(1).await;
    world.clock.advance(10 * SECOND);
    let receipt = world.engine.publish(draft(1)).await.unwrap();
    assert_eq!(receipt.deliveries, Some(0));
    for hook in [hook, parked] {
        world
            .eventually("it is disabled", async || {
                let found = world.store.webhook(hook.tenant.clone(), hook.id).await.unwrap().unwrap();
                found.webhook.state == WebhookState::Disabled("expired".into())
            })
            .await;
    }
    world
        .until("what was parked is cancelled", |all| {
            all.iter().any(|one| one.cancel_reason.as_deref() == Some("expired"))
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_of_a_pool_that_nobody_serves_waits_in_plain_sight() {
    let world = world().await;
    let receiver = Receiver::start().await;
    let other = TenantId::parse("other").unwrap();
    let rules = TenantRules { pool: Some("heavy".into()), ..TenantRules::default() };
    let tenant = Tenant { id: other.clone(), name: None, rules, created_at: START };
    assert!(world.store.create_tenant(tenant.clone()).await.unwrap());
    world.hook(&receiver.url(), |hook| hook.tenant = other.clone()).await;
    for n in 0..3 {
        world.engine.publish(Draft { tenant: other.clone(), ..draft(n) }).await.unwrap();
    }
    world.a_moment().await;
    assert_eq!(receiver.count(), 0);
    let page = PageRequest { after: None, offset: 0, limit: 10 };
    let waiting = world.store.list_deliveries(other.clone(), DeliveryFilter::default(), page).await.unwrap();
    let why = world.engine.waiting(&waiting[0]).await.unwrap().unwrap();
    assert_eq!(why.on.name(), "pool");
    assert!(why.explanation.contains("heavy"), "{why:?}");

    // A node that serves the pool sends what waits.
    let world = world.restart(Settings { pools: vec!["heavy".into()], ..settings() }).await;
    receiver.wait_for(3).await;
    // And the tenant can be given to another pool at any time.
    let gone = Tenant { rules: TenantRules::default(), ..tenant.clone() };
    assert!(world.engine.change_tenant(gone).await.unwrap());
    world.engine.publish(Draft { tenant: other.clone(), ..draft(3) }).await.unwrap();
    world.a_moment().await;
    assert_eq!(receiver.count(), 3);
    assert!(world.engine.change_tenant(tenant).await.unwrap());
    receiver.wait_for(4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_hung_endpoints_cost_a_healthy_one_nothing() {
    let world = world().await;
    let gate = Gate::closed();
    let hung = Receiver::with({
        let gate = gate.clone();
        move |_| Reply::status(200).held_by(&gate)
    })
    .await;
    let healthy = Receiver::start().await;
    for n in 0..100 {
        world.hook(&hung.url_at(&format!("/{n}")), |_| {}).await;
    }
    world.publish(0..50).await;
    hung.wait_for(500).await;
    world.hook(&healthy.url(), |_| {}).await;
    world.publish(50..100).await;
    healthy.wait_for(50).await;
    assert_eq!(hung.count(), 500, "five at once to each, and they still hang");
    gate.open();
    world
        .until("all are delivered", |all| all.iter().all(|one| one.status == DeliveryStatus::Delivered))
        .await;
    world.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_retries_does_not_delay_what_is_fresh() {
    const STORM: usize = 20_000;
    let world = world().await;
    let works = Arc::new(AtomicBool::new(false));
    let receiver = Receiver::with({
        let works = works.clone();
        move |_| Reply::status(if works.load(SeqCst) { 200 } else { 503 })
    })
    .await;
    world
        .hook(&receiver.url(), |hook| {
            hook.spec.retry_config = schedule(&[0, 3600]);
            hook.spec.circuit_breaker_config.enabled = Some(false);
            hook.spec.max_in_flight = Some(20);
        })
        .await;
    let publish = |n: usize| {
        let engine = world.engine.clone();
        tokio::spawn(async move { engine.publish(draft(n)).await.unwrap() })
    };
    for part in (0..STORM).step_by(1_000) {
        for published in (part..part + 1_000).map(publish).collect::<Vec<_>>() {
            published.await.unwrap();
        }
    }
    world
        .eventually("all have failed once", async || {
            world.engine.load().items == 0 && receiver.count() >= STORM
        })
        .await;
    works.store(true, SeqCst);
    world.clock.advance(3600 * SECOND);
    receiver.wait_for(STORM + 1_000).await;
    for n in 0..100 {
        world.engine.publish(draft(STORM + n)).await.unwrap();
    }
    let arrivals = receiver
        .wait_until("the fresh ones", |all| {
            all.iter()
                .rev()
                .take(8_000)
                .filter(|one| one.json()["data"]["n"].as_u64() >= Some(STORM as u64))
                .count()
                == 100
        })
        .await;
    let drained = arrivals.len() - 100 - STORM;
    assert!(drained < STORM / 2, "the fresh ones came after {drained} retries");
    receiver.wait_for(2 * STORM + 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn low_priority_is_last_and_still_gets_its_share() {
    let world = world_with(Settings { max_in_flight: 2, ..settings() }).await;
    let gate = Gate::closed();
    let receiver = Receiver::with({
        let gate = gate.clone();
        move |_| Reply::status(200).held_by(&gate)
    })
    .await;
    world.hook(&receiver.url(), |hook| hook.spec.max_in_flight = Some(1)).await;
    for (n, priority) in [(0, Priority::Low), (1_000, Priority::Normal), (2_000, Priority::High)] {
        for n in n..n + 60 {
            world.engine.publish(Draft { priority, ..draft(n) }).await.unwrap();
        }
    }
    gate.open();
    world.until("all are delivered", all_are(DeliveryStatus::Delivered, 180)).await;
    let order = numbers(&receiver.arrivals());
    let when_done = |from: usize| order.iter().rposition(|n| (from..from + 60).contains(n)).unwrap();
    assert!(when_done(2_000) < when_done(1_000) && when_done(1_000) < when_done(0));
    let low_among_first = order[..70].iter().filter(|n| **n < 60).count();
    assert!(low_among_first >= 2, "low ones are not starved: {order:?}");
}
