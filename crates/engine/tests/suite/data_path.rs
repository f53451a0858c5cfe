//! The data path in one process: a real store, real sockets, and a clock that the test moves.

use std::{sync::Arc, time::Duration};

use crate::harness::{START, World, all_are, draft, settings, start, webhook, world, world_with};
use bytes::Bytes;
use redrive_core::{
    DeadReason, DeliveryId, DeliveryStatus, TenantId,
    delivery::lane::{Lane, Priority},
    delivery::retry::RetryConfig,
    event::PayloadFormat,
    time::Span,
    webhook::{Webhook, WebhookState},
};
use redrive_engine::{
    Settings,
    clock::{self, Clock},
};
use redrive_store::{
    LaneKey, LaneRoom, NewNode, Store,
    sqlite::{Options, Sqlite},
};
use redrive_testkit::Receiver;

const FRESH: Lane = Lane::Free { priority: Priority::Normal, retry: false };

#[tokio::test(flavor = "multi_thread")]
async fn every_attempt_of_the_default_schedule_comes_in_time_and_then_it_is_dead() {
    let world = world().await;
    let receiver = Receiver::answering(500).await;
    world.engine.create_webhook(webhook(&receiver.url(), RetryConfig::default())).await.unwrap();
    world.engine.publish(draft(1)).await.unwrap();
    for attempt in 1..10 {
        let waiting = world
            .until("the next attempt is scheduled", |all| {
                all[0].attempt_count == attempt && all[0].due.is_some()
            })
            .await;
        let due = waiting[0].due.unwrap();
        let before = due.since(world.clock.now()) - Duration::from_millis(1);
        world.clock.advance(before);
        // A moment early nothing happens: the receiver would know.
        tokio::task::yield_now().await;
        assert_eq!(receiver.count(), attempt as usize);
        world.clock.advance(Duration::from_millis(1));
    }
    let ended = world.until("it is given up", |all| all[0].status == DeliveryStatus::Dead).await;
    assert_eq!(ended[0].dead_reason, Some(DeadReason::Exhausted));
    let attempts = world.store.attempts(TenantId::default(), ended[0].id).await.unwrap().unwrap();
    assert_eq!(attempts.len(), 10);
    let schedule = [5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400];
    for (pair, seconds) in attempts.windows(2).zip(schedule) {
        let gap = pair[1].attempt.executed_at.since(pair[0].attempt.executed_at).as_secs_f64();
        let seconds = f64::from(seconds);
        assert!((seconds * 0.9..=seconds * 1.1 + 0.01).contains(&gap), "{gap} s for {seconds} s");
    }
    let bodies: Vec<_> = receiver.arrivals().into_iter().map(|arrival| arrival.body).collect();
    assert!(bodies.iter().all(|body| *body == bodies[0]), "the same bytes every time");
    world.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_in_memory_is_delivered_all_the_same_once_each() {
    let bounds = Settings { max_items: 20, lane_items: 8, max_in_flight: 6, ..settings() };
    let world = world_with(bounds).await;
    let (receiver, gate) = Receiver::held(200).await;
    for path in ["/a", "/b", "/c"] {
        world.engine.create_webhook(webhook(&receiver.url_at(path), RetryConfig::default())).await.unwrap();
    }
    for n in 0..100 {
        world.engine.publish(draft(n)).await.unwrap();
        assert!(world.engine.load().items <= 20, "{:?}", world.engine.load());
    }
    assert!(world.store.vitals().await.unwrap().waiting[1] > 200, "most of it waits in the store");
    gate.open();
    world.until("all are delivered", all_are(DeliveryStatus::Delivered, 300)).await;
    assert_eq!(receiver.count(), 300, "once each");
    world.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_whose_publisher_went_away_is_delivered() {
    let world = world().await;
    let receiver = Receiver::start().await;
    world.engine.create_webhook(webhook(&receiver.url(), RetryConfig::default())).await.unwrap();
    world.engine.publish(draft(0)).await.unwrap();
    let mut began = 0;
    for n in 1..200 {
        let publish = world.engine.publish(draft(n));
        // Polled once and dropped: some are on their way into the store by then.
        if tokio::time::timeout(Duration::ZERO, publish).await.is_err() {
            began += 1;
        }
    }
    assert!(began > 0);
    world
        .until("nothing is pending", |all| all.iter().all(|one| one.status == DeliveryStatus::Delivered))
        .await;
    world.assert_settled().await;
    assert_eq!(receiver.count(), world.deliveries().await.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_that_keeps_killing_its_node_becomes_a_failed_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(
        Sqlite::open(&Options::at(folder.path().join("t.db")).sealed_by(redrive_testkit::vault())).unwrap(),
    );
    let clock = Clock::manual(START);
    let receiver = Receiver::start().await;
    let hook = webhook(&receiver.url(), RetryConfig::default());
    // No engine runs yet: it would take these nodes for the dead that they are about to be.
    store.create_webhook(hook.clone()).await.unwrap();
    // A node that publishes and dies with the delivery in hand, then three that die while sending it.
    let mut dead = store.join(NewNode { name: "doomed".into(), ..NewNode::default() }, START).await.unwrap();
    let delivery = publish_leased(&store, &hook, dead).await;
    for _ in 0..3 {
        store.rescue(dead, START, 100).await.unwrap();
        dead = store.join(NewNode { name: "doomed".into(), ..NewNode::default() }, START).await.unwrap();
        let lane = LaneRoom::new(LaneKey { webhook: hook.id, lane: FRESH }, 10);
        let claimed = store.claim(dead, START, vec![lane], 1 << 20).await.unwrap();
        assert_eq!(claimed[0].deliveries.len(), 1);
        assert!(store.mark_sending(dead, delivery).await.unwrap());
    }
    let engine = start(store.clone(), clock.clone(), settings()).await;
    let world = World { engine, store, clock, _keep: Arc::new(folder) };
    let waiting = world.until("the failed attempt", |all| all[0].attempt_count == 1).await;
    assert_eq!(receiver.count(), 0, "it was not sent");
    assert!(waiting[0].last_error.as_deref().unwrap().contains("died three times"));
    assert_eq!(waiting[0].id, delivery);
    world.clock.advance(Duration::from_secs(10));
    world.until("it is delivered", all_are(DeliveryStatus::Delivered, 1)).await;
}

async fn publish_leased(store: &Arc<dyn Store>, hook: &Webhook, epoch: redrive_store::Epoch) -> DeliveryId {
    use redrive_store::{Birth, NewDelivery, NewEvent, Published};
    let version = store.config_changes(TenantId::default(), 0, 1_000).await.unwrap().unwrap().version;
    let event = redrive_core::event::Event {
        id: redrive_core::EventId::new(START, &clock::randomness()),
        tenant: TenantId::default(),
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
    let id = DeliveryId::new(START, &clock::randomness());
    let (format, lane, birth) = (PayloadFormat::Envelope, FRESH, Birth::Leased);
    let delivery = NewDelivery { id, webhook: hook.id, format, lane, birth };
    let new = NewEvent {
        event: Arc::new(event),
        claim: None,
        config_version: version,
        epoch,
        deliveries: vec![delivery],
        order: None,
    };
    let (tell, told) = tokio::sync::oneshot::channel();
    store.publish(new, Box::new(move |result| tell.send(result).unwrap()));
    assert!(matches!(told.await.unwrap(), Ok(Published::New { .. })));
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_past_its_time_dies_without_another_request() {
    let world = world().await;
    let receiver = Receiver::answering(500).await;
    let give_up = RetryConfig {
        schedule: Some(vec![Span::secs(0), Span::secs(50), Span::secs(50)]),
        give_up_after: Some(Span::secs(60)),
        jitter: Some(0.0),
        ..RetryConfig::default()
    };
    world.engine.create_webhook(webhook(&receiver.url(), give_up)).await.unwrap();
    world.engine.publish(draft(1)).await.unwrap();
    world.until("the retry is scheduled", |all| all[0].due.is_some() && all[0].attempt_count == 1).await;
    // The server slept through everything, as a laptop does.
    world.clock.advance(Duration::from_secs(3600));
    let dead = world.until("it is given up", |all| all[0].status == DeliveryStatus::Dead).await;
    assert_eq!(dead[0].dead_reason, Some(DeadReason::Expired));
    assert_eq!((dead[0].attempt_count, receiver.count()), (1, 1));
    world.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_hands_back_what_was_only_queued() {
    let world = world().await;
    let (receiver, gate) = Receiver::held(200).await;
    world.engine.create_webhook(webhook(&receiver.url(), RetryConfig::default())).await.unwrap();
    for n in 0..30 {
        world.engine.publish(draft(n)).await.unwrap();
    }
    receiver.wait_for(5).await;
    let drain = tokio::spawn({
        let engine = world.engine.clone();
        async move {
            engine.drain(Duration::from_secs(10)).await;
            engine.stop().await;
        }
    });
    while world.store.vitals().await.unwrap().waiting[1] < 25 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    gate.open();
    drain.await.unwrap();
    let vitals = world.store.vitals().await.unwrap();
    assert_eq!((vitals.leased, vitals.waiting[1]), (0, 25), "five were under way and finished");
    assert_eq!(receiver.count(), 5);
    // The next node takes over where this one left off.
    let engine = start(world.store.clone(), world.clock.clone(), settings()).await;
    let world = World { engine, ..world };
    world.until("all are delivered", all_are(DeliveryStatus::Delivered, 30)).await;
    assert_eq!(receiver.count(), 30);
    world.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disabling_a_webhook_calls_off_what_waits_and_what_is_queued() {
    let world = world().await;
    let (receiver, gate) = Receiver::held(500).await;
    let hook = webhook(&receiver.url(), RetryConfig::default());
    world.engine.create_webhook(hook.clone()).await.unwrap();
    for n in 0..20 {
        world.engine.publish(draft(n)).await.unwrap();
    }
    receiver.wait_for(5).await;
    let disable = |webhook: &mut Webhook| {
        webhook.state = WebhookState::Disabled("enough".into());
        Ok::<_, ()>(())
    };
    world.engine.change_webhook(&TenantId::default(), hook.id, disable).await.unwrap();
    gate.open();
    let ended = world.until("all are cancelled", all_are(DeliveryStatus::Cancelled, 20)).await;
    assert!(ended.iter().all(|delivery| delivery.cancel_reason.as_deref() == Some("enough")));
    assert_eq!(receiver.count(), 5, "nothing more was sent");
    let none = world.engine.publish(draft(99)).await.unwrap();
    assert_eq!(none.deliveries, Some(0));
    world.assert_settled().await;
}
