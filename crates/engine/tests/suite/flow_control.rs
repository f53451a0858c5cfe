//! Flow control: rate limits, concurrency, pauses, expiry and pools block deliveries, and release them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use crate::harness::{
    SECOND, START, all_are, draft, failing_receiver, numbers, schedule, settings, world, world_with,
};
use redrive_core::{
    DeadReason, DeliveryStatus, TenantId,
    delivery::lane::{Ordering, Priority},
    protection::limiter::RateLimit,
    tenancy::TenantRules,
    webhook::WebhookState,
};
use redrive_engine::{EventDraft, Settings};
use redrive_store::{DeliveryFilter, PageRequest, Tenant};
use redrive_testkit::{Latch, Receiver, Reply};

#[tokio::test(flavor = "multi_thread")]
async fn webhook_rate_limit_is_exact_to_one_token_over_a_minute() {
    let harness = world().await;
    let receiver = Receiver::start().await;
    let limit = RateLimit { requests_per_minute: 120, burst: Some(10) };
    harness.create_webhook(&receiver.url(), |webhook| webhook.spec.rate_limit = Some(limit)).await;
    harness.publish(0..200).await;
    receiver.wait_for(10).await;
    harness.settle_time().await;
    assert_eq!(receiver.count(), 10, "the burst");
    assert_eq!(harness.engine.load().unsettled, 0, "a delivery waiting for a token holds no slot");
    let waiting = harness.waiting_on().await;
    assert_eq!(waiting, BTreeMap::from([("rate_limit", 190)]));
    for half_second in 1..=120 {
        harness.clock.advance(SECOND / 2);
        receiver.wait_for(10 + half_second).await;
    }
    harness.settle_time().await;
    assert_eq!(receiver.count(), 130, "one token each half second, no more and no less");
    assert!(harness.deliveries().await.iter().all(|one| one.attempt_count <= 1));
    // A long idle time accumulates no more than the burst.
    harness.clock.advance(3600 * SECOND);
    receiver.wait_for(140).await;
    harness.settle_time().await;
    assert_eq!(receiver.count(), 140);
}

#[tokio::test(flavor = "multi_thread")]
async fn tenant_and_global_rate_limits_apply_across_webhooks() {
    let tenant_rate_limit = Some(RateLimit { requests_per_minute: 60, burst: Some(5) });
    let global_rate_limit = Some(RateLimit { requests_per_minute: 60, burst: Some(8) });
    let harness = world_with(Settings { tenant_rate_limit, global_rate_limit, ..settings() }).await;
    let receiver = Receiver::start().await;
    let other = TenantId::parse("other").unwrap();
    let tenant = Tenant {
        id: other.clone(),
        metadata: Default::default(),
        name: None,
        rules: TenantRules::default(),
        created_at: START,
    };
    assert!(harness.store.create_tenant(tenant).await.unwrap());
    for path in ["/a", "/b"] {
        harness.create_webhook(&receiver.url_at(path), |_| {}).await;
    }
    harness.create_webhook(&receiver.url_at("/other"), |webhook| webhook.tenant_id = other.clone()).await;
    harness.publish(0..10).await;
    receiver.wait_for(5).await;
    harness.settle_time().await;
    assert_eq!(receiver.count(), 5, "two webhooks share the tenant's burst");
    for n in 0..10 {
        harness.engine.publish(EventDraft { tenant_id: other.clone(), ..draft(n) }).await.unwrap();
    }
    receiver.wait_for(8).await;
    harness.settle_time().await;
    let count = |path: &str| receiver.arrivals().iter().filter(|arrival| arrival.path == path).count();
    assert_eq!((receiver.count(), count("/other")), (8, 3), "the server's burst is used up");
    harness.clock.advance(10 * SECOND);
    receiver.wait_for(16).await;
    harness.settle_time().await;
    assert!(receiver.count() <= 18, "{}", receiver.count());
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_429_holds_whole_webhook() {
    let harness = world().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let receiver = Receiver::with(move |_| match calls.fetch_add(1, SeqCst) {
        0 => Reply::status(429).header("retry-after", "20"),
        _ => Reply::status(200),
    })
    .await;
    harness.create_webhook(&receiver.url(), |webhook| webhook.spec.max_in_flight = Some(1)).await;
    harness.publish(0..5).await;
    harness.until("the 429 is stored", |all| all.iter().any(|one| one.attempt_count == 1)).await;
    harness.clock.advance(19 * SECOND);
    harness.settle_time().await;
    assert_eq!(receiver.count(), 1);
    assert_eq!(harness.waiting_on().await, BTreeMap::from([("rate_limit", 4), ("schedule", 1)]));
    let harness = harness.restart(settings()).await;
    harness.settle_time().await;
    assert_eq!(receiver.count(), 1, "the hold survives a restart");
    harness.clock.advance(SECOND);
    receiver.wait_for(5).await;
    harness.clock.advance(60 * SECOND);
    harness.until("all are delivered", all_are(DeliveryStatus::Delivered, 5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_webhook_parks_deliveries_and_resumes_in_order() {
    let harness = world().await;
    let gate = Latch::closed();
    let receiver = Receiver::start().await;
    let webhook =
        harness.create_webhook(&receiver.url(), |webhook| webhook.spec.max_in_flight = Some(1)).await;
    receiver.respond_with({
        let gate = gate.clone();
        move |_| Reply::status(200).latched_by(&gate)
    });
    harness.publish(0..10).await;
    receiver.wait_for(1).await;
    harness.set_state(&webhook, WebhookState::Paused).await;
    harness.publish(10..20).await;
    gate.open();
    harness
        .until("requests in flight finish", |all| {
            all.iter().filter(|one| one.status == DeliveryStatus::Delivered).count() == 1
        })
        .await;
    harness.settle_time().await;
    assert_eq!(receiver.count(), 1);
    assert_eq!(harness.waiting_on().await, BTreeMap::from([("paused", 19)]));
    let harness = harness.restart(settings()).await;
    harness.settle_time().await;
    assert_eq!(receiver.count(), 1, "also after a restart");
    harness.set_state(&webhook, WebhookState::Active).await;
    harness.until("all are delivered", all_are(DeliveryStatus::Delivered, 20)).await;
    assert_eq!(numbers(&receiver.arrivals()), (0..20).collect::<Vec<_>>());
    harness.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_deliveries_expire() {
    let harness = world().await;
    let receiver = Receiver::start().await;
    let give_up = |webhook: &mut redrive_core::webhook::Webhook| {
        webhook.spec.retry_config.give_up_after = Some(redrive_core::time::HumanDuration::secs(60));
    };
    let webhook = harness.create_webhook(&receiver.url(), give_up).await;
    let ordered = harness
        .create_webhook(&receiver.url_at("/ordered"), |webhook| {
            give_up(webhook);
            webhook.spec.ordering_guarantee = Ordering::Strict;
        })
        .await;
    for webhook in [&webhook, &ordered] {
        harness.set_state(webhook, WebhookState::Paused).await;
    }
    harness.publish(0..3).await;
    harness.clock.advance(59 * SECOND);
    harness.publish(3..4).await;
    harness.settle_time().await;
    assert!(harness.deliveries().await.iter().all(|one| one.status == DeliveryStatus::Pending));
    harness.clock.advance(31 * SECOND);
    harness
        .until("the old ones are dead", |all| {
            all.iter().filter(|one| one.dead_reason == Some(DeadReason::Expired)).count() == 6
        })
        .await;
    assert_eq!(harness.waiting_on().await, BTreeMap::from([("paused", 2)]));
    let page = PageRequest { after: None, offset: 0, limit: 100 };
    let dead =
        harness.store.list_dead(TenantId::default(), DeliveryFilter::default(), page).await.unwrap().found;
    assert_eq!(dead.len(), 6);
    assert_eq!(receiver.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_failing_for_five_days_is_disabled() {
    let harness = world().await;
    let receiver = Receiver::responding(500).await;
    let webhook =
        harness.create_webhook(&receiver.url(), |webhook| webhook.spec.retry_config = schedule(&[0])).await;
    let day = 24 * 3600 * SECOND;
    let state = async || {
        harness.store.webhook(webhook.tenant_id.clone(), webhook.id).await.unwrap().unwrap().webhook.state
    };
    for n in 0..5 {
        harness.publish(n..n + 1).await;
        harness.until("the delivery is dead", all_are(DeliveryStatus::Dead, n + 1)).await;
        harness.clock.advance(day);
    }
    assert_eq!(state().await, WebhookState::Active, "five days are over, but nothing has failed since");
    harness.publish(9..10).await;
    harness.eventually("the webhook is disabled", async || state().await != WebhookState::Active).await;
    assert_eq!(state().await, WebhookState::Disabled("no delivery succeeded for 5 days".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn reenabled_webhook_gets_another_five_days() {
    let harness = world().await;
    let receiver = Receiver::responding(500).await;
    let webhook =
        harness.create_webhook(&receiver.url(), |webhook| webhook.spec.retry_config = schedule(&[0])).await;
    let state = async || {
        harness.store.webhook(webhook.tenant_id.clone(), webhook.id).await.unwrap().unwrap().webhook.state
    };
    harness.publish(0..1).await;
    harness.until("the delivery is dead", all_are(DeliveryStatus::Dead, 1)).await;
    harness.clock.advance(5 * 24 * 3600 * SECOND);
    harness.publish(1..2).await;
    harness.eventually("the webhook is disabled", async || state().await != WebhookState::Active).await;
    harness.set_state(&webhook, WebhookState::Active).await;
    harness.publish(2..3).await;
    harness
        .until("all deliveries have ended", |all| {
            all.len() == 3 && all.iter().all(|one| one.status.is_final())
        })
        .await;
    assert_eq!(state().await, WebhookState::Active, "one failure is not five days");
    let harness = harness.restart(settings()).await;
    harness.publish(3..4).await;
    harness
        .until("the delivery has ended", |all| all.len() == 4 && all.iter().all(|one| one.status.is_final()))
        .await;
    let found = harness.store.webhook(webhook.tenant_id.clone(), webhook.id).await.unwrap().unwrap();
    assert_eq!(found.webhook.state, WebhookState::Active, "also not after a restart");
}

#[tokio::test(flavor = "multi_thread")]
async fn delivery_waiting_for_token_expires_without_taking_one() {
    let harness = world().await;
    let receiver = Receiver::start().await;
    harness
        .create_webhook(&receiver.url(), |webhook| {
            webhook.spec.rate_limit = Some(RateLimit { requests_per_minute: 1, burst: Some(1) });
            webhook.spec.retry_config.give_up_after = Some(redrive_core::time::HumanDuration::secs(60));
        })
        .await;
    harness.publish(0..6).await;
    receiver.wait_for(1).await;
    harness.clock.advance(59 * SECOND);
    harness.publish(6..7).await;
    harness.clock.advance(31 * SECOND);
    harness
        .until("the old ones are dead", |all| {
            all.iter().filter(|one| one.dead_reason == Some(DeadReason::Expired)).count() == 5
        })
        .await;
    receiver.wait_for(2).await;
    assert_eq!(numbers(&receiver.arrivals()), [0, 6], "the expired delivery took no token");
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_tenant_limits_apply_to_waiting_deliveries() {
    let harness = world().await;
    let (receiver, gate) = Receiver::latched(200).await;
    harness.create_webhook(&receiver.url(), |_| {}).await;
    let change = async |rules| {
        let tenant = Tenant {
            id: TenantId::default(),
            metadata: Default::default(),
            name: None,
            rules,
            created_at: START,
        };
        assert!(harness.engine.change_tenant(tenant).await.unwrap());
    };
    change(TenantRules { max_in_flight: Some(1), ..TenantRules::default() }).await;
    harness.publish(0..4).await;
    receiver.wait_for(1).await;
    change(TenantRules { max_in_flight: Some(3), ..TenantRules::default() }).await;
    receiver.wait_for(3).await;
    let slow = RateLimit { requests_per_minute: 1, burst: Some(1) };
    change(TenantRules { rate_limit: Some(slow), ..TenantRules::default() }).await;
    gate.open();
    harness.settle_time().await;
    harness.publish(4..8).await;
    harness.settle_time().await;
    assert!(receiver.count() < 8, "a token a minute");
    change(TenantRules::default()).await;
    receiver.wait_for(8).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn backlog_moved_to_other_pool_is_not_claimed() {
    let harness = world_with(Settings { max_deliveries: 40, ..settings() }).await;
    let (receiver, gate) = Receiver::latched(200).await;
    harness.create_webhook(&receiver.url(), |_| {}).await;
    harness.publish(0..100).await;
    receiver.wait_for(5).await;
    let rules = TenantRules { pool: Some("others".into()), ..TenantRules::default() };
    let tenant = Tenant {
        id: TenantId::default(),
        metadata: Default::default(),
        name: None,
        rules,
        created_at: START,
    };
    assert!(harness.engine.change_tenant(tenant).await.unwrap());
    gate.open();
    // A scheduler that polls for lanes of another pool commits without pause; outcomes that are being recorded end.
    harness
        .eventually("an idle store", async || {
            let commits = harness.store.stats().await.unwrap().commits;
            harness.settle_time().await;
            harness.store.stats().await.unwrap().commits - commits < 5
        })
        .await;
    assert!(receiver.count() <= 10, "{}", receiver.count());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_success_restarts_the_five_days() {
    let harness = world().await;
    let (receiver, works) = failing_receiver().await;
    let webhook =
        harness.create_webhook(&receiver.url(), |webhook| webhook.spec.retry_config = schedule(&[0])).await;
    let day = 24 * 3600 * SECOND;
    for n in 0..9 {
        works.store(n == 4, SeqCst);
        harness.publish(n..n + 1).await;
        receiver.wait_for(n + 1).await;
        harness.until("the delivery has ended", |all| all.iter().all(|one| one.status.is_final())).await;
        harness.clock.advance(day);
    }
    let found = harness.store.webhook(webhook.tenant_id.clone(), webhook.id).await.unwrap().unwrap();
    assert_eq!(found.webhook.state, WebhookState::Active);
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_expires_exactly_on_time() {
    let harness = world().await;
    let receiver = Receiver::start().await;
    let until = harness.clock.now() + 10 * SECOND;
    let webhook =
        harness.create_webhook(&receiver.url(), |webhook| webhook.spec.expires_at = Some(until)).await;
    let parked = harness
        .create_webhook(&receiver.url_at("/parked"), |webhook| {
            webhook.spec.expires_at = Some(until);
            webhook.state = WebhookState::Paused;
        })
        .await;
    harness.publish(0..1).await;
    receiver.wait_for(1).await;
    harness.clock.advance(10 * SECOND);
    let receipt = harness.engine.publish(draft(1)).await.unwrap();
    assert_eq!(receipt.deliveries, Some(0));
    for webhook in [webhook, parked] {
        harness
            .eventually("the webhook is disabled", async || {
                let found =
                    harness.store.webhook(webhook.tenant_id.clone(), webhook.id).await.unwrap().unwrap();
                found.webhook.state == WebhookState::Disabled("expired".into())
            })
            .await;
    }
    harness
        .until("parked deliveries are cancelled", |all| {
            all.iter().any(|one| one.cancel_reason.as_deref() == Some("expired"))
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_of_unserved_pool_wait_with_reason_pool() {
    let harness = world().await;
    let receiver = Receiver::start().await;
    let other = TenantId::parse("other").unwrap();
    let rules = TenantRules { pool: Some("heavy".into()), ..TenantRules::default() };
    let tenant =
        Tenant { id: other.clone(), metadata: Default::default(), name: None, rules, created_at: START };
    assert!(harness.store.create_tenant(tenant.clone()).await.unwrap());
    harness.create_webhook(&receiver.url(), |webhook| webhook.tenant_id = other.clone()).await;
    for n in 0..3 {
        harness.engine.publish(EventDraft { tenant_id: other.clone(), ..draft(n) }).await.unwrap();
    }
    harness.settle_time().await;
    assert_eq!(receiver.count(), 0);
    let page = PageRequest { after: None, offset: 0, limit: 10 };
    let waiting =
        harness.store.list_deliveries(other.clone(), DeliveryFilter::default(), page).await.unwrap().found;
    let why = harness.engine.wait_reason(&waiting[0]).await.unwrap().unwrap();
    assert_eq!(why.on.name(), "pool");
    assert!(why.explanation.contains("heavy"), "{why:?}");

    // A node that serves the pool sends the waiting deliveries.
    let harness = harness.restart(Settings { pools: vec!["heavy".into()], ..settings() }).await;
    receiver.wait_for(3).await;
    // The tenant can be routed to another pool at any time.
    let gone = Tenant { rules: TenantRules::default(), ..tenant.clone() };
    assert!(harness.engine.change_tenant(gone).await.unwrap());
    harness.engine.publish(EventDraft { tenant_id: other.clone(), ..draft(3) }).await.unwrap();
    harness.settle_time().await;
    assert_eq!(receiver.count(), 3);
    assert!(harness.engine.change_tenant(tenant).await.unwrap());
    receiver.wait_for(4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn low_priority_is_sent_last_but_not_starved() {
    let harness = world_with(Settings { max_in_flight: 2, ..settings() }).await;
    let (receiver, gate) = Receiver::latched(200).await;
    harness.create_webhook(&receiver.url(), |webhook| webhook.spec.max_in_flight = Some(1)).await;
    for (n, priority) in [(0, Priority::Low), (1_000, Priority::Normal), (2_000, Priority::High)] {
        for n in n..n + 60 {
            harness.engine.publish(EventDraft { priority, ..draft(n) }).await.unwrap();
        }
    }
    gate.open();
    harness.until("all are delivered", all_are(DeliveryStatus::Delivered, 180)).await;
    let order = numbers(&receiver.arrivals());
    let when_done = |from: usize| order.iter().rposition(|n| (from..from + 60).contains(n)).unwrap();
    assert!(when_done(2_000) < when_done(1_000) && when_done(1_000) < when_done(0));
    let low_among_first = order[..70].iter().filter(|n| **n < 60).count();
    assert!(low_among_first >= 2, "low priority is not starved: {order:?}");
}

mod slow {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn hundred_hung_endpoints_do_not_delay_healthy_one() {
        let harness = world().await;
        let (hung, gate) = Receiver::latched(200).await;
        let healthy = Receiver::start().await;
        for n in 0..100 {
            harness.create_webhook(&hung.url_at(&format!("/{n}")), |_| {}).await;
        }
        harness.publish(0..50).await;
        hung.wait_for(500).await;
        harness.create_webhook(&healthy.url(), |_| {}).await;
        harness.publish(50..100).await;
        healthy.wait_for(50).await;
        assert_eq!(hung.count(), 500, "five requests in flight to each hung endpoint");
        gate.open();
        harness
            .until("all are delivered", |all| all.iter().all(|one| one.status == DeliveryStatus::Delivered))
            .await;
        harness.assert_settled().await;
    }
}

mod extended {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn retry_storm_does_not_delay_fresh_deliveries() {
        const STORM: usize = 20_000;
        let harness = world().await;
        let works = Arc::new(AtomicBool::new(false));
        let receiver = Receiver::with({
            let works = works.clone();
            move |_| Reply::status(if works.load(SeqCst) { 200 } else { 503 })
        })
        .await;
        harness
            .create_webhook(&receiver.url(), |webhook| {
                webhook.spec.retry_config = schedule(&[0, 3600]);
                webhook.spec.circuit_breaker_config.enabled = Some(false);
                webhook.spec.max_in_flight = Some(20);
            })
            .await;
        let publish = |n: usize| {
            let engine = harness.engine.clone();
            tokio::spawn(async move { engine.publish(draft(n)).await.unwrap() })
        };
        for part in (0..STORM).step_by(1_000) {
            for published in (part..part + 1_000).map(publish).collect::<Vec<_>>() {
                published.await.unwrap();
            }
        }
        harness
            .eventually("all have failed once", async || {
                harness.engine.load().deliveries == 0 && receiver.count() >= STORM
            })
            .await;
        works.store(true, SeqCst);
        harness.clock.advance(3600 * SECOND);
        receiver.wait_for(STORM + 1_000).await;
        for n in 0..100 {
            harness.engine.publish(draft(STORM + n)).await.unwrap();
        }
        let arrivals = receiver
            .wait_until("the fresh deliveries are sent", |all| {
                all.iter()
                    .rev()
                    .take(8_000)
                    .filter(|one| one.json()["data"]["n"].as_u64() >= Some(STORM as u64))
                    .count()
                    == 100
            })
            .await;
        let drained = arrivals.len() - 100 - STORM;
        assert!(drained < STORM / 2, "the fresh deliveries were sent after {drained} retries");
        receiver.wait_for(2 * STORM + 100).await;
    }
}
