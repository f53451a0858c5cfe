//! Retention: old data is pruned on time and per tenant, while everything else continues.

use std::time::Duration;

use crate::harness::{
    Harness, START, all_are, draft, failing_receiver, schedule, settings, world, world_with,
};
use redrive_core::{
    DeliveryStatus, TenantId,
    maintenance::retention::Retention,
    tenancy::{TenantQuotas, TenantRules},
    webhook::WebhookState,
};
use redrive_engine::{EventDraft, Settings};
use redrive_store::{PageRequest, Tenant};
use redrive_testkit::Receiver;

const DAY: Duration = Duration::from_secs(24 * 3600);

async fn events_of(harness: &Harness, tenant_id: &TenantId) -> usize {
    let page = PageRequest { after: None, offset: 0, limit: 1_000 };
    harness.store.list_events(tenant_id.clone(), Default::default(), page).await.unwrap().found.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_pruned_after_one_month_and_events_after_three() {
    let harness = world().await;
    let (receiver, _) = failing_receiver().await;
    harness.create_webhook(&receiver.url(), |webhook| webhook.spec.retry_config = schedule(&[0])).await;
    harness.publish(0..5).await;
    harness.until("all are dead", all_are(DeliveryStatus::Dead, 5)).await;
    harness.clock.advance(30 * DAY);
    harness.engine.prune().await.unwrap();
    assert_eq!(harness.store.stats().await.unwrap().dead, 5, "nothing is pruned early");
    harness.clock.advance(DAY);
    harness.engine.prune().await.unwrap();
    assert_eq!(harness.store.stats().await.unwrap().dead, 0);
    assert_eq!(harness.deliveries().await, []);
    assert_eq!(events_of(&harness, &TenantId::default()).await, 5, "their events stay");
    harness.clock.advance(60 * DAY);
    harness.engine.prune().await.unwrap();
    assert_eq!(events_of(&harness, &TenantId::default()).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_is_per_tenant() {
    let harness = world().await;
    let receiver = Receiver::start().await;
    let days = [("short", Some(2)), ("long", Some(200)), ("all", Some(0)), ("usual", None)];
    let mut tenants = Vec::new();
    for (name, retention_days) in days {
        let id = TenantId::parse(name).unwrap();
        let quotas = TenantQuotas { retention_days, ..TenantQuotas::default() };
        let rules = TenantRules { quotas, ..TenantRules::default() };
        let tenant =
            Tenant { id: id.clone(), metadata: Default::default(), name: None, rules, created_at: START };
        assert!(harness.store.create_tenant(tenant).await.unwrap());
        harness.create_webhook(&receiver.url(), |webhook| webhook.tenant_id = id.clone()).await;
        harness.engine.publish(EventDraft { tenant_id: id.clone(), ..draft(0) }).await.unwrap();
        tenants.push(id);
    }
    receiver.wait_for(4).await;
    harness.assert_settled().await;
    for (passed, left) in [(2, [1, 1, 1, 1]), (1, [0, 1, 1, 1]), (90, [0, 1, 1, 0]), (400, [0, 0, 1, 0])] {
        harness.clock.advance(passed * DAY);
        harness.engine.prune().await.unwrap();
        for (tenant_id, left) in tenants.iter().zip(left) {
            assert_eq!(events_of(&harness, tenant_id).await, left, "{tenant_id:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn parked_deliveries_outlive_retention_and_are_sent() {
    let retention = Retention { events: Some(2 * DAY), dead_letters: None };
    let harness = world_with(Settings { retention, ..settings() }).await;
    let receiver = Receiver::start().await;
    let webhook = harness.create_webhook(&receiver.url(), |_| {}).await;
    harness.set_state(&webhook, WebhookState::Paused).await;
    harness.publish(0..3).await;
    harness.clock.advance(4 * DAY);
    harness.engine.prune().await.unwrap();
    harness.set_state(&webhook, WebhookState::Active).await;
    receiver.wait_for(3).await;
    harness.assert_settled().await;
    harness.engine.prune().await.unwrap();
    assert_eq!(harness.deliveries().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn idempotency_key_expires_to_the_millisecond() {
    let idempotency_window = Duration::from_secs(3600);
    let harness = world_with(Settings { idempotency_window, ..settings() }).await;
    let publish = async || {
        let keyed = EventDraft { idempotency_key: Some("k".into()), ..draft(0) };
        harness.engine.publish(keyed).await.unwrap()
    };
    let first = publish().await;
    harness.clock.advance(idempotency_window - Duration::from_millis(1));
    let again = publish().await;
    assert!(again.duplicate && again.event_id == first.event_id);
    harness.clock.advance(Duration::from_millis(1));
    let second = publish().await;
    assert!(!second.duplicate && second.event_id != first.event_id);
}
