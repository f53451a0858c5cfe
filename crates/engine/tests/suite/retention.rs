//! Keeping and forgetting: what is old goes, on time and tenant by tenant, while everything else goes on.

use std::time::Duration;

use crate::harness::{START, World, all_are, broken, draft, schedule, settings, world, world_with};
use redrive_core::{
    DeliveryStatus, TenantId,
    maintenance::retention::Retention,
    tenancy::{TenantQuotas, TenantRules},
    webhook::WebhookState,
};
use redrive_engine::{Draft, Settings};
use redrive_store::{PageRequest, Tenant};
use redrive_testkit::Receiver;

const DAY: Duration = Duration::from_secs(24 * 3600);

async fn events_of(world: &World, tenant: &TenantId) -> usize {
    let page = PageRequest { after: None, offset: 0, limit: 1_000 };
    world.store.list_events(tenant.clone(), Default::default(), page).await.unwrap().found.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_go_after_a_month_and_events_after_three() {
    let world = world().await;
    let (receiver, _) = broken().await;
    world.hook(&receiver.url(), |hook| hook.spec.retry_config = schedule(&[0])).await;
    world.publish(0..5).await;
    world.until("all are dead", all_are(DeliveryStatus::Dead, 5)).await;
    world.clock.advance(30 * DAY);
    world.engine.prune().await.unwrap();
    assert_eq!(world.store.vitals().await.unwrap().dead, 5, "not yet");
    world.clock.advance(DAY);
    world.engine.prune().await.unwrap();
    assert_eq!(world.store.vitals().await.unwrap().dead, 0);
    assert_eq!(world.deliveries().await, []);
    assert_eq!(events_of(&world, &TenantId::default()).await, 5, "their events stay");
    world.clock.advance(60 * DAY);
    world.engine.prune().await.unwrap();
    assert_eq!(events_of(&world, &TenantId::default()).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_tenant_has_its_own_time() {
    let world = world().await;
    let receiver = Receiver::start().await;
    let days = [("short", Some(2)), ("long", Some(200)), ("all", Some(0)), ("usual", None)];
    let mut tenants = Vec::new();
    for (name, retention_days) in days {
        let id = TenantId::parse(name).unwrap();
        let quotas = TenantQuotas { retention_days, ..TenantQuotas::default() };
        let rules = TenantRules { quotas, ..TenantRules::default() };
        let tenant = Tenant { id: id.clone(), name: None, rules, created_at: START };
        assert!(world.store.create_tenant(tenant).await.unwrap());
        world.hook(&receiver.url(), |hook| hook.tenant = id.clone()).await;
        world.engine.publish(Draft { tenant: id.clone(), ..draft(0) }).await.unwrap();
        tenants.push(id);
    }
    receiver.wait_for(4).await;
    world.assert_settled().await;
    for (passed, left) in [(2, [1, 1, 1, 1]), (1, [0, 1, 1, 1]), (90, [0, 1, 1, 0]), (400, [0, 0, 1, 0])] {
        world.clock.advance(passed * DAY);
        world.engine.prune().await.unwrap();
        for (tenant, left) in tenants.iter().zip(left) {
            assert_eq!(events_of(&world, tenant).await, left, "{tenant:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_parked_outlives_its_time_and_is_sent() {
    let retention = Retention { events: Some(2 * DAY), dead: None };
    let world = world_with(Settings { retention, ..settings() }).await;
    let receiver = Receiver::start().await;
    let hook = world.hook(&receiver.url(), |_| {}).await;
    world.set_state(&hook, WebhookState::Paused).await;
    world.publish(0..3).await;
    world.clock.advance(4 * DAY);
    world.engine.prune().await.unwrap();
    world.set_state(&hook, WebhookState::Active).await;
    receiver.wait_for(3).await;
    world.assert_settled().await;
    world.engine.prune().await.unwrap();
    assert_eq!(world.deliveries().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_is_free_again_to_the_millisecond() {
    let idempotency_window = Duration::from_secs(3600);
    let world = world_with(Settings { idempotency_window, ..settings() }).await;
    let publish = async || {
        let keyed = Draft { idempotency_key: Some("k".into()), ..draft(0) };
        world.engine.publish(keyed).await.unwrap()
    };
    let first = publish().await;
    world.clock.advance(idempotency_window - Duration::from_millis(1));
    let again = publish().await;
    assert!(again.duplicate && again.event == first.event);
    world.clock.advance(Duration::from_millis(1));
    let second = publish().await;
    assert!(!second.duplicate && second.event != first.event);
}
