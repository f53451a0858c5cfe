//! What any way must do by which ready work reaches those who send: the same cases by the store alone, and by tickets
//! over a broker. Where there is a broker the clock stands still, so that nothing but tickets can bring anything.

use std::time::Duration;

use crate::broker::{node, urgent};
use crate::cluster_harness::{Fleet, On, holding, workers};
use crate::harness::{START, World, all_are, numbers};
use redrive_core::{
    DeliveryStatus, Role, TenantId,
    delivery::lane::{Ordering, Priority},
    tenancy::TenantRules,
};
use redrive_engine::Settings;
use redrive_store::Tenant;
use redrive_testkit::{RabbitMq, Receiver, Reply};

macro_rules! by_every_way {
    ($($case:ident),* $(,)?) => {
        mod by_store {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(super::Way::new(false).await).await;
            })*
        }
        mod by_tickets {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(super::Way::new(true).await).await;
            })*
        }
    };
}

by_every_way!(
    each_delivery_reaches_exactly_one_of_two_workers,
    what_is_urgent_goes_first_and_nothing_is_passed_over,
    pools_are_kept_apart,
    an_order_is_kept_whoever_sends,
    nothing_is_lost_when_a_worker_is_drained,
    nothing_is_lost_when_a_worker_dies,
    a_webhook_that_is_slow_leaves_room_for_the_others,
    what_was_tried_comes_again_when_it_is_due,
    what_is_paused_waits_and_goes_on,
);

/// A store, and perhaps a broker.
struct Way {
    fleet: Fleet,
    broker: Option<redrive_testkit::rabbitmq::Vhost>,
}

impl Way {
    async fn new(with_broker: bool) -> Self {
        let broker = if with_broker { Some(RabbitMq::shared().await) } else { None };
        Self { fleet: Fleet::on(On::Postgres).await, broker }
    }

    fn node(&self, name: &str, role: Role) -> Settings {
        node(name, role, self.broker.as_ref().map(|broker| broker.url()).as_deref())
    }

    /// An API node and these workers.
    async fn nodes(&self, workers: &[&str]) -> (World, Vec<World>) {
        let settings = workers.iter().map(|name| self.node(name, Role::Worker)).collect();
        self.nodes_with(settings).await
    }

    async fn nodes_with(&self, workers: Vec<Settings>) -> (World, Vec<World>) {
        let api = self.fleet.node(self.node("api", Role::Api)).await;
        let mut nodes = Vec::new();
        for settings in workers {
            nodes.push(self.fleet.node(settings).await);
        }
        for node in nodes.iter().chain([&api]) {
            node.is_set_up(nodes.len() + 1).await;
        }
        (api, nodes)
    }
}

async fn each_delivery_reaches_exactly_one_of_two_workers(way: Way) {
    let (api, nodes) = way.nodes(&["a", "b"]).await;
    let receiver = Receiver::start().await;
    for _ in 0..4 {
        // More than comes fits into their lanes: what does not is left to the store, for whom the clock stands still.
        api.hook(&receiver.url(), |hook| hook.spec.max_in_flight = Some(40)).await;
    }
    api.publish(0..100).await;
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 400)).await;
    assert_eq!(receiver.count(), 400, "none was sent twice");
    assert_eq!(workers(&api).await, ["a", "b"], "both have had some");
    for node in &nodes {
        node.assert_settled().await;
    }
}

async fn what_is_urgent_goes_first_and_nothing_is_passed_over(way: Way) {
    let settings = Settings { max_in_flight: 1, ..way.node("a", Role::Worker) };
    let (api, nodes) = way.nodes_with(vec![settings]).await;
    let (receiver, gate) = holding(1).await;
    api.hook(&receiver.url(), |hook| hook.spec.max_in_flight = Some(50)).await;
    api.publish(0..1).await;
    receiver.wait_for(1).await;
    for n in 1..=40 {
        api.engine.publish(urgent(n, Priority::Low)).await.unwrap();
    }
    for n in 41..=80 {
        api.engine.publish(urgent(n, Priority::High)).await.unwrap();
    }
    let worker = &nodes[0];
    worker.eventually("all have come", async || worker.engine.load().items == 81).await;
    gate.open();
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 81)).await;
    let order = numbers(&receiver.arrivals());
    let late = order[1..].iter().position(|n| *n == 80).unwrap();
    assert!(late <= 45, "the last of 40 urgent ones was number {late}: {order:?}");
    worker.assert_settled().await;
}

async fn pools_are_kept_apart(way: Way) {
    let pool = |name: &str, pool: &str| Settings { pools: vec![pool.into()], ..way.node(name, Role::Worker) };
    let (api, nodes) = way.nodes_with(vec![pool("a", "default"), pool("b", "heavy")]).await;
    let receiver = Receiver::start().await;
    api.hook(&receiver.url(), |_| {}).await;
    api.publish(0..20).await;
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 20)).await;
    assert_eq!(workers(&api).await, ["a"]);
    let rules = TenantRules { pool: Some("heavy".into()), ..TenantRules::default() };
    let tenant = Tenant { id: TenantId::default(), name: None, rules, created_at: START };
    assert!(api.engine.change_tenant(tenant).await.unwrap());
    api.publish(20..40).await;
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 40)).await;
    assert_eq!(workers(&api).await, ["a", "b"]);
    assert_eq!(receiver.count(), 40);
    for node in &nodes {
        node.assert_settled().await;
    }
}

async fn an_order_is_kept_whoever_sends(way: Way) {
    let (api, nodes) = way.nodes(&["a", "b"]).await;
    let receiver = Receiver::start().await;
    api.hook(&receiver.url(), |hook| hook.spec.ordering_guarantee = Ordering::Strict).await;
    let free = Receiver::start().await;
    api.hook(&free.url(), |_| {}).await;
    api.publish(0..60).await;
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 120)).await;
    assert_eq!(numbers(&receiver.arrivals()), (0..60).collect::<Vec<_>>());
    assert_eq!(free.count(), 60);
    for node in &nodes {
        node.assert_settled().await;
    }
}

async fn nothing_is_lost_when_a_worker_is_drained(way: Way) {
    let (api, nodes) = way.nodes(&["a", "b"]).await;
    let receiver = Receiver::with(|_| Reply::status(200).after(Duration::from_millis(5))).await;
    api.hook(&receiver.url(), |hook| hook.spec.max_in_flight = Some(4)).await;
    let publishing = api.publish(0..200);
    let draining = async {
        receiver.wait_for(20).await;
        nodes[0].engine.drain(Duration::from_secs(5)).await;
        nodes[0].engine.stop().await;
    };
    tokio::join!(publishing, draining);
    // What was under way to it when it left may wait for the store.
    api.clock.advance(redrive_core::cluster::ticket::GRACE);
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 200)).await;
    assert_eq!(receiver.count(), 200, "none was sent twice");
    nodes[1].assert_settled().await;
}

async fn nothing_is_lost_when_a_worker_dies(way: Way) {
    let api = way.fleet.node(way.node("api", Role::Api)).await;
    let doomed = way.fleet.apart(way.node("a", Role::Worker)).await;
    let other = way.fleet.node(way.node("b", Role::Worker)).await;
    for node in [&api, &doomed.world, &other] {
        node.is_set_up(3).await;
    }
    let receiver = Receiver::with(|_| Reply::status(200).after(Duration::from_millis(5))).await;
    api.hook(&receiver.url(), |hook| hook.spec.max_in_flight = Some(4)).await;
    api.publish(0..150).await;
    receiver.wait_for(20).await;
    doomed.kill();
    api.publish(150..200).await;
    api.clock.advance(redrive_core::cluster::ticket::GRACE);
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 200)).await;
    assert!(receiver.count() <= 200 + 4, "only what was under way may come twice: {}", receiver.count());
    other.assert_settled().await;
}

async fn a_webhook_that_is_slow_leaves_room_for_the_others(way: Way) {
    let (api, nodes) = way.nodes(&["a"]).await;
    let (slow, gate) = Receiver::held(200).await;
    let quick = Receiver::start().await;
    let slow_hook = api.hook(&slow.url(), |hook| hook.spec.max_in_flight = Some(1)).await;
    let quick_hook = api.hook(&quick.url(), |hook| hook.spec.max_in_flight = Some(40)).await;
    api.publish(0..300).await;
    quick.wait_for(300).await;
    assert!(slow.count() <= 1);
    gate.open();
    // More than a lane holds waits in the store, whoever tells of it.
    api.clock.advance(redrive_core::cluster::ticket::GRACE);
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 600)).await;
    assert_eq!((slow.count(), quick.count()), (300, 300), "{} {}", slow_hook.id, quick_hook.id);
    nodes[0].assert_settled().await;
}

async fn what_was_tried_comes_again_when_it_is_due(way: Way) {
    let (api, nodes) = way.nodes(&["a", "b"]).await;
    let receiver =
        Receiver::with(|arrival| Reply::status(if arrival.number <= 10 { 500 } else { 200 })).await;
    api.hook(&receiver.url(), |_| {}).await;
    api.publish(0..10).await;
    receiver.wait_for(10).await;
    api.until("all wait", |all| all.iter().all(|one| one.attempt_count == 1 && one.due.is_some())).await;
    api.clock.advance(Duration::from_secs(4));
    api.a_moment().await;
    assert_eq!(receiver.count(), 10, "they are not due yet");
    api.clock.advance(Duration::from_secs(1));
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 10)).await;
    assert_eq!(receiver.count(), 20);
    for node in &nodes {
        node.assert_settled().await;
    }
}

async fn what_is_paused_waits_and_goes_on(way: Way) {
    use redrive_core::webhook::WebhookState;
    let (api, nodes) = way.nodes(&["a"]).await;
    let receiver = Receiver::start().await;
    let hook = api.hook(&receiver.url(), |_| {}).await;
    api.set_state(&hook, WebhookState::Paused).await;
    api.publish(0..10).await;
    api.a_moment().await;
    assert_eq!(receiver.count(), 0);
    assert_eq!(api.waiting_on().await.get("paused"), Some(&10));
    api.set_state(&hook, WebhookState::Active).await;
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 10)).await;
    api.publish(10..20).await;
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 20)).await;
    nodes[0].assert_settled().await;
}
