//! Limits, shares, pauses, ends and pools: what else holds deliveries back, and lets them go again.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use crate::harness::{SECOND, START, all_are, broken, draft, numbers, schedule, settings, world, world_with};
use redrive_core::{
    DeadReason, DeliveryStatus, TenantId,
    delivery::lane::{Ordering, Priority},
    protection::limiter::RateLimit,
    tenancy::TenantRules,
    webhook::WebhookState,
};
use redrive_engine::{Draft, Settings};
use redrive_store::{DeliveryFilter, PageRequest, Tenant};
use redrive_testkit::{Gate, Receiver, Reply};

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
    let dead =
        world.store.list_dead(TenantId::default(), DeliveryFilter::default(), page).await.unwrap().found;
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
    let (receiver, gate) = Receiver::held(200).await;
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
    let (receiver, gate) = Receiver::held(200).await;
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
    let waiting =
        world.store.list_deliveries(other.clone(), DeliveryFilter::default(), page).await.unwrap().found;
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
async fn low_priority_is_last_and_still_gets_its_share() {
    let world = world_with(Settings { max_in_flight: 2, ..settings() }).await;
    let (receiver, gate) = Receiver::held(200).await;
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

mod slow {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_hundred_hung_endpoints_cost_a_healthy_one_nothing() {
        let world = world().await;
        let (hung, gate) = Receiver::held(200).await;
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
}

mod extended {
    use super::*;

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
}
