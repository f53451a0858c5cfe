//! Queue conformance: the same cases through the store alone and through tickets over a broker. With a broker the
//! clock does not advance, so that only tickets can bring work to a node.

use std::time::Duration;

use crate::{
    broker::{node, urgent},
    cluster_harness::{On, TestCluster, holding, workers},
    harness::{Harness, START, all_are, numbers},
};
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
                super::$case(super::QueueSetup::new(false).await).await;
            })*
        }
        mod by_tickets {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(super::QueueSetup::new(true).await).await;
            })*
        }
    };
}

by_every_way!(
    each_delivery_reaches_exactly_one_of_two_workers,
    high_priority_goes_first_without_starving_others,
    pools_are_isolated,
    order_is_kept_with_two_workers,
    drained_worker_loses_no_deliveries,
    dead_worker_loses_no_deliveries,
    slow_webhook_does_not_block_others,
    retries_are_sent_when_due,
    paused_webhook_waits_and_resumes,
);

/// A store, optionally with a broker.
struct QueueSetup {
    cluster: TestCluster,
    broker: Option<redrive_testkit::rabbitmq::Vhost>,
}

impl QueueSetup {
    async fn new(with_broker: bool) -> Self {
        let broker = if with_broker { Some(RabbitMq::shared().await) } else { None };
        Self { cluster: TestCluster::on(On::Postgres).await, broker }
    }

    fn node(&self, name: &str, role: Role) -> Settings {
        node(name, role, self.broker.as_ref().map(|broker| broker.url()).as_deref())
    }

    /// Starts an API node and these workers.
    async fn nodes(&self, workers: &[&str]) -> (Harness, Vec<Harness>) {
        let settings = workers.iter().map(|name| self.node(name, Role::Worker)).collect();
        self.nodes_with(settings).await
    }

    async fn nodes_with(&self, workers: Vec<Settings>) -> (Harness, Vec<Harness>) {
        let api = self.cluster.node(self.node("api", Role::Api)).await;
        let mut nodes = Vec::new();
        for settings in workers {
            nodes.push(self.cluster.node(settings).await);
        }
        for node in nodes.iter().chain([&api]) {
            node.is_set_up(nodes.len() + 1).await;
        }
        (api, nodes)
    }
}

async fn each_delivery_reaches_exactly_one_of_two_workers(path: QueueSetup) {
    let (api, nodes) = path.nodes(&["a", "b"]).await;
    let receiver = Receiver::start().await;
    for _ in 0..4 {
        // Enough capacity for all: deliveries beyond it are left to the store, where they are not due while the clock
        // stops.
        api.create_webhook(&receiver.url(), |webhook| webhook.spec.max_in_flight = Some(40)).await;
    }
    api.publish(0..100).await;
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 400)).await;
    assert_eq!(receiver.count(), 400, "none was sent twice");
    assert_eq!(workers(&api).await, ["a", "b"], "both nodes have sent some");
    for node in &nodes {
        node.assert_settled().await;
    }
}

async fn high_priority_goes_first_without_starving_others(path: QueueSetup) {
    let settings = Settings { max_in_flight: 1, ..path.node("a", Role::Worker) };
    let (api, nodes) = path.nodes_with(vec![settings]).await;
    let (receiver, gate) = holding(1).await;
    api.create_webhook(&receiver.url(), |webhook| webhook.spec.max_in_flight = Some(50)).await;
    api.publish(0..1).await;
    receiver.wait_for(1).await;
    for n in 1..=40 {
        api.engine.publish(urgent(n, Priority::Low)).await.unwrap();
    }
    for n in 41..=80 {
        api.engine.publish(urgent(n, Priority::High)).await.unwrap();
    }
    let worker = &nodes[0];
    worker.eventually("all have arrived", async || worker.engine.load().deliveries == 81).await;
    gate.open();
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 81)).await;
    let order = numbers(&receiver.arrivals());
    let late = order[1..].iter().position(|n| *n == 80).unwrap();
    assert!(late <= 45, "the last of 40 high-priority deliveries was number {late}: {order:?}");
    worker.assert_settled().await;
}

async fn pools_are_isolated(path: QueueSetup) {
    let pool =
        |name: &str, pool: &str| Settings { pools: vec![pool.into()], ..path.node(name, Role::Worker) };
    let (api, nodes) = path.nodes_with(vec![pool("a", "default"), pool("b", "heavy")]).await;
    let receiver = Receiver::start().await;
    api.create_webhook(&receiver.url(), |_| {}).await;
    api.publish(0..20).await;
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 20)).await;
    assert_eq!(workers(&api).await, ["a"]);
    let rules = TenantRules { pool: Some("heavy".into()), ..TenantRules::default() };
    let tenant = Tenant {
        id: TenantId::default(),
        metadata: Default::default(),
        name: None,
        rules,
        created_at: START,
    };
    assert!(api.engine.change_tenant(tenant).await.unwrap());
    api.publish(20..40).await;
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 40)).await;
    assert_eq!(workers(&api).await, ["a", "b"]);
    assert_eq!(receiver.count(), 40);
    for node in &nodes {
        node.assert_settled().await;
    }
}

async fn order_is_kept_with_two_workers(path: QueueSetup) {
    let (api, nodes) = path.nodes(&["a", "b"]).await;
    let receiver = Receiver::start().await;
    api.create_webhook(&receiver.url(), |webhook| webhook.spec.ordering_guarantee = Ordering::Strict).await;
    let free = Receiver::start().await;
    api.create_webhook(&free.url(), |_| {}).await;
    api.publish(0..60).await;
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 120)).await;
    assert_eq!(numbers(&receiver.arrivals()), (0..60).collect::<Vec<_>>());
    assert_eq!(free.count(), 60);
    for node in &nodes {
        node.assert_settled().await;
    }
}

async fn drained_worker_loses_no_deliveries(path: QueueSetup) {
    let (api, nodes) = path.nodes(&["a", "b"]).await;
    let receiver = Receiver::with(|_| Reply::status(200).after(Duration::from_millis(5))).await;
    api.create_webhook(&receiver.url(), |webhook| webhook.spec.max_in_flight = Some(4)).await;
    let publishing = api.publish(0..200);
    let draining = async {
        receiver.wait_for(20).await;
        nodes[0].engine.drain(Duration::from_secs(5)).await;
        nodes[0].engine.stop().await;
    };
    tokio::join!(publishing, draining);
    // Deliveries ticketed to the drained worker may be left to the store.
    api.clock.advance(redrive_core::cluster::ticket::TICKET_CLAIM_TIMEOUT);
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 200)).await;
    assert_eq!(receiver.count(), 200, "none was sent twice");
    nodes[1].assert_settled().await;
}

async fn dead_worker_loses_no_deliveries(path: QueueSetup) {
    let api = path.cluster.node(path.node("api", Role::Api)).await;
    let doomed = path.cluster.isolated_node(path.node("a", Role::Worker)).await;
    let other = path.cluster.node(path.node("b", Role::Worker)).await;
    for node in [&api, &doomed.world, &other] {
        node.is_set_up(3).await;
    }
    let receiver = Receiver::with(|_| Reply::status(200).after(Duration::from_millis(5))).await;
    api.create_webhook(&receiver.url(), |webhook| webhook.spec.max_in_flight = Some(4)).await;
    api.publish(0..150).await;
    receiver.wait_for(20).await;
    doomed.kill();
    api.publish(150..200).await;
    api.clock.advance(redrive_core::cluster::ticket::TICKET_CLAIM_TIMEOUT);
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 200)).await;
    assert!(receiver.count() <= 200 + 4, "only requests in flight may be sent twice: {}", receiver.count());
    other.assert_settled().await;
}

async fn slow_webhook_does_not_block_others(path: QueueSetup) {
    let (api, nodes) = path.nodes(&["a"]).await;
    let (slow, gate) = Receiver::latched(200).await;
    let quick = Receiver::start().await;
    let slow_webhook = api.create_webhook(&slow.url(), |webhook| webhook.spec.max_in_flight = Some(1)).await;
    let fast_webhook =
        api.create_webhook(&quick.url(), |webhook| webhook.spec.max_in_flight = Some(40)).await;
    api.publish(0..300).await;
    quick.wait_for(300).await;
    assert!(slow.count() <= 1);
    gate.open();
    // Deliveries beyond the lane capacity wait in the store in either case.
    api.clock.advance(redrive_core::cluster::ticket::TICKET_CLAIM_TIMEOUT);
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 600)).await;
    assert_eq!((slow.count(), quick.count()), (300, 300), "{} {}", slow_webhook.id, fast_webhook.id);
    nodes[0].assert_settled().await;
}

async fn retries_are_sent_when_due(path: QueueSetup) {
    let (api, nodes) = path.nodes(&["a", "b"]).await;
    let receiver =
        Receiver::with(|arrival| Reply::status(if arrival.number <= 10 { 500 } else { 200 })).await;
    api.create_webhook(&receiver.url(), |_| {}).await;
    api.publish(0..10).await;
    receiver.wait_for(10).await;
    api.until("all wait", |all| all.iter().all(|one| one.attempt_count == 1 && one.due.is_some())).await;
    api.clock.advance(Duration::from_secs(4));
    api.settle_time().await;
    assert_eq!(receiver.count(), 10, "they are not due yet");
    api.clock.advance(Duration::from_secs(1));
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 10)).await;
    assert_eq!(receiver.count(), 20);
    for node in &nodes {
        node.assert_settled().await;
    }
}

async fn paused_webhook_waits_and_resumes(path: QueueSetup) {
    use redrive_core::webhook::WebhookState;
    let (api, nodes) = path.nodes(&["a"]).await;
    let receiver = Receiver::start().await;
    let webhook = api.create_webhook(&receiver.url(), |_| {}).await;
    api.set_state(&webhook, WebhookState::Paused).await;
    api.publish(0..10).await;
    api.settle_time().await;
    assert_eq!(receiver.count(), 0);
    assert_eq!(api.waiting_on().await.get("paused"), Some(&10));
    api.set_state(&webhook, WebhookState::Active).await;
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 10)).await;
    api.publish(10..20).await;
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 20)).await;
    nodes[0].assert_settled().await;
}
