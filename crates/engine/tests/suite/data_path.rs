//! The data path in one process: a real store, real sockets, and a manual clock.

use std::{sync::Arc, time::Duration};

use crate::harness::{Harness, START, all_are, draft, settings, start, webhook, world, world_with};
use bytes::Bytes;
use redrive_core::{
    DeadReason, DeliveryId, DeliveryStatus, TenantId,
    delivery::{
        lane::{Lane, Priority},
        retry::RetryConfig,
    },
    event::PayloadFormat,
    time::HumanDuration,
    webhook::{Webhook, WebhookState},
};
use redrive_engine::{
    Settings,
    clock::{self, Clock},
};
use redrive_store::{
    LaneCapacity, LaneKey, NewNode, Store,
    sqlite::{Options, Sqlite},
};
use redrive_testkit::Receiver;

const FRESH: Lane = Lane::Unordered { priority: Priority::Normal, retry: false };

#[tokio::test(flavor = "multi_thread")]
async fn default_schedule_is_kept_and_delivery_ends_dead() {
    let harness = world().await;
    let receiver = Receiver::responding(500).await;
    harness
        .engine
        .create_webhook(webhook(&receiver.url(), RetryConfig::default()), None, None)
        .await
        .unwrap();
    harness.engine.publish(draft(1)).await.unwrap();
    for attempt in 1..10 {
        let waiting = harness
            .until("the next attempt is scheduled", |all| {
                all[0].attempt_count == attempt && all[0].due.is_some()
            })
            .await;
        let due = waiting[0].due.unwrap();
        let before = due.duration_since(harness.clock.now()) - Duration::from_millis(1);
        harness.clock.advance(before);
        // One millisecond early nothing may be sent; the receiver would have counted it.
        tokio::task::yield_now().await;
        assert_eq!(receiver.count(), attempt as usize);
        harness.clock.advance(Duration::from_millis(1));
    }
    let ended = harness.until("the delivery is dead", |all| all[0].status == DeliveryStatus::Dead).await;
    assert_eq!(ended[0].dead_reason, Some(DeadReason::Exhausted));
    let attempts = harness.store.attempts(TenantId::default(), ended[0].id).await.unwrap().unwrap();
    assert_eq!(attempts.len(), 10);
    let schedule = [5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400];
    for (pair, seconds) in attempts.windows(2).zip(schedule) {
        let gap = pair[1].attempt.executed_at.duration_since(pair[0].attempt.executed_at).as_secs_f64();
        let seconds = f64::from(seconds);
        assert!((seconds * 0.9..=seconds * 1.1 + 0.01).contains(&gap), "{gap} s for {seconds} s");
    }
    let bodies: Vec<_> = receiver.arrivals().into_iter().map(|arrival| arrival.body).collect();
    assert!(bodies.iter().all(|body| *body == bodies[0]), "the same bytes every time");
    harness.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_beyond_memory_limits_are_delivered_once() {
    let bounds = Settings { max_deliveries: 20, max_lane_deliveries: 8, max_in_flight: 6, ..settings() };
    let harness = world_with(bounds).await;
    let (receiver, gate) = Receiver::latched(200).await;
    for path in ["/a", "/b", "/c"] {
        harness
            .engine
            .create_webhook(webhook(&receiver.url_at(path), RetryConfig::default()), None, None)
            .await
            .unwrap();
    }
    for n in 0..100 {
        harness.engine.publish(draft(n)).await.unwrap();
        assert!(harness.engine.load().deliveries <= 20, "{:?}", harness.engine.load());
    }
    assert!(harness.store.stats().await.unwrap().waiting[1] > 200, "most deliveries wait in the store");
    gate.open();
    harness.until("all are delivered", all_are(DeliveryStatus::Delivered, 300)).await;
    assert_eq!(receiver.count(), 300, "once each");
    harness.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn event_of_disconnected_publisher_is_delivered() {
    let harness = world().await;
    let receiver = Receiver::start().await;
    harness
        .engine
        .create_webhook(webhook(&receiver.url(), RetryConfig::default()), None, None)
        .await
        .unwrap();
    harness.engine.publish(draft(0)).await.unwrap();
    let mut started = 0;
    for n in 1..200 {
        let publish = harness.engine.publish(draft(n));
        // Polled once and dropped: some events have been submitted to the store by then.
        if tokio::time::timeout(Duration::ZERO, publish).await.is_err() {
            started += 1;
        }
    }
    assert!(started > 0);
    harness
        .until("nothing is pending", |all| all.iter().all(|one| one.status == DeliveryStatus::Delivered))
        .await;
    harness.assert_settled().await;
    assert_eq!(receiver.count(), harness.deliveries().await.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn poison_delivery_becomes_failed_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(
        Sqlite::open(&Options::at(folder.path().join("t.db")).with_vault(redrive_testkit::vault())).unwrap(),
    );
    let clock = Clock::manual(START);
    let receiver = Receiver::start().await;
    let webhook = webhook(&receiver.url(), RetryConfig::default());
    // No engine runs yet; it would rescue the leases of these simulated nodes.
    store.create_webhook(webhook.clone()).await.unwrap();
    // A node that publishes and dies while it holds the lease, then three that die while sending.
    let mut dead = store.join(NewNode { name: "doomed".into(), ..NewNode::default() }, START).await.unwrap();
    let delivery_id = publish_leased(&store, &webhook, dead).await;
    for _ in 0..3 {
        store.rescue(dead, START, 100).await.unwrap();
        dead = store.join(NewNode { name: "doomed".into(), ..NewNode::default() }, START).await.unwrap();
        let lane = LaneCapacity::new(LaneKey { webhook_id: webhook.id, lane: FRESH }, 10);
        let claimed = store.claim(dead, START, vec![lane], 1 << 20).await.unwrap();
        assert_eq!(claimed[0].deliveries.len(), 1);
        assert!(store.mark_sending(dead, delivery_id).await.unwrap());
    }
    let engine = start(store.clone(), clock.clone(), settings()).await;
    let harness = Harness { engine, store, clock, _keep: Arc::new(folder) };
    let waiting = harness.until("the failed attempt", |all| all[0].attempt_count == 1).await;
    assert_eq!(receiver.count(), 0, "no request was sent");
    assert!(waiting[0].last_error.as_deref().unwrap().contains("failed internally three times"));
    assert_eq!(waiting[0].id, delivery_id);
    harness.clock.advance(Duration::from_secs(10));
    harness.until("it is delivered", all_are(DeliveryStatus::Delivered, 1)).await;
}

async fn publish_leased(
    store: &Arc<dyn Store>,
    webhook: &Webhook,
    epoch: redrive_store::Epoch,
) -> DeliveryId {
    use redrive_store::{InitialState, NewDelivery, NewEvent, PublishResult};
    let version = store.config_changes(TenantId::default(), 0, 1_000).await.unwrap().unwrap().version;
    let event = redrive_core::event::Event {
        id: redrive_core::EventId::new(START, &clock::random_id_bytes()),
        tenant_id: TenantId::default(),
        event_type: "order.created".into(),
        data: Bytes::from_static(b"1"),
        timestamp: START,
        idempotency_key: None,
        source: None,
        subject: None,
        priority: Priority::Normal,
        metadata: None,
        trace: None,
        hops: 0,
    };
    let id = DeliveryId::new(START, &clock::random_id_bytes());
    let (format, lane, initial_state) = (PayloadFormat::Envelope, FRESH, InitialState::Leased);
    let delivery = NewDelivery { id, webhook_id: webhook.id, format, lane, initial_state };
    let new = NewEvent {
        event: Arc::new(event),
        edited_from: None,
        idempotency: None,
        config_version: version,
        epoch,
        deliveries: vec![delivery],
        position: None,
    };
    let (notify, notified) = tokio::sync::oneshot::channel();
    store.publish(new, Box::new(move |result| notify.send(result).unwrap()));
    assert!(matches!(notified.await.unwrap(), Ok(PublishResult::New { .. })));
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_delivery_is_dead_without_another_request() {
    let harness = world().await;
    let receiver = Receiver::responding(500).await;
    let give_up = RetryConfig {
        schedule: Some(vec![HumanDuration::secs(0), HumanDuration::secs(50), HumanDuration::secs(50)]),
        give_up_after: Some(HumanDuration::secs(60)),
        jitter: Some(0.0),
        ..RetryConfig::default()
    };
    harness.engine.create_webhook(webhook(&receiver.url(), give_up), None, None).await.unwrap();
    harness.engine.publish(draft(1)).await.unwrap();
    harness.until("the retry is scheduled", |all| all[0].due.is_some() && all[0].attempt_count == 1).await;
    // The server was suspended, as a laptop is.
    harness.clock.advance(Duration::from_secs(3600));
    let dead = harness.until("the delivery is dead", |all| all[0].status == DeliveryStatus::Dead).await;
    assert_eq!(dead[0].dead_reason, Some(DeadReason::Expired));
    assert_eq!((dead[0].attempt_count, receiver.count()), (1, 1));
    harness.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_releases_queued_deliveries() {
    let harness = world().await;
    let (receiver, gate) = Receiver::latched(200).await;
    harness
        .engine
        .create_webhook(webhook(&receiver.url(), RetryConfig::default()), None, None)
        .await
        .unwrap();
    for n in 0..30 {
        harness.engine.publish(draft(n)).await.unwrap();
    }
    receiver.wait_for(5).await;
    let drain = tokio::spawn({
        let engine = harness.engine.clone();
        async move {
            engine.drain(Duration::from_secs(10)).await;
            engine.stop().await;
        }
    });
    while harness.store.stats().await.unwrap().waiting[1] < 25 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    gate.open();
    drain.await.unwrap();
    let stats = harness.store.stats().await.unwrap();
    assert_eq!((stats.leased, stats.waiting[1]), (0, 25), "five were in flight and finished");
    assert_eq!(receiver.count(), 5);
    // The next node continues with the released deliveries.
    let engine = start(harness.store.clone(), harness.clock.clone(), settings()).await;
    let harness = Harness { engine, ..harness };
    harness.until("all are delivered", all_are(DeliveryStatus::Delivered, 30)).await;
    assert_eq!(receiver.count(), 30);
    harness.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disabling_webhook_cancels_waiting_and_queued_deliveries() {
    let harness = world().await;
    let (receiver, gate) = Receiver::latched(500).await;
    let resolved = webhook(&receiver.url(), RetryConfig::default());
    harness.engine.create_webhook(resolved.clone(), None, None).await.unwrap();
    for n in 0..20 {
        harness.engine.publish(draft(n)).await.unwrap();
    }
    receiver.wait_for(5).await;
    let disable = |webhook: &mut Webhook| {
        webhook.state = WebhookState::Disabled("enough".into());
        Ok::<_, ()>(())
    };
    harness.engine.change_webhook(&TenantId::default(), resolved.id, disable).await.unwrap();
    gate.open();
    let ended = harness.until("all are cancelled", all_are(DeliveryStatus::Cancelled, 20)).await;
    assert!(ended.iter().all(|delivery| delivery.cancel_reason.as_deref() == Some("enough")));
    assert_eq!(receiver.count(), 5, "nothing more was sent");
    let none = harness.engine.publish(draft(99)).await.unwrap();
    assert_eq!(none.deliveries, Some(0));
    harness.assert_settled().await;
}
