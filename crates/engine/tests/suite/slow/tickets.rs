//! Tickets over a real broker, and broker failures: nothing accepted is lost, sent twice or stuck, and nodes
//! recover on their own. While the clock does not advance, only tickets bring work to a node.

use std::time::{Duration, Instant};

use crate::{
    broker::{NAMESPACE, REJECTED, node, queue, tickets},
    cluster_harness,
    cluster_harness::{On, TestCluster, workers},
    harness::{Harness, all_are, failing_receiver},
};
use redrive_core::{
    DeliveryStatus, Role, TenantId, cluster::ticket::TICKET_CLAIM_TIMEOUT, delivery::lane::Priority,
};
use redrive_engine::Settings;
use redrive_testkit::{Proxy, RabbitMq, Receiver, Reply};

/// Time within which nodes must notice that the broker is available again. They take seconds on an idle machine.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts an API node and a worker on one store with this broker.
async fn pair(broker: &str) -> (Harness, Harness) {
    let cluster = TestCluster::on(On::Postgres).await;
    let api = cluster.node(node("api", Role::Api, Some(broker))).await;
    let worker = cluster.node(node("worker", Role::Worker, Some(broker))).await;
    for harness in [&api, &worker] {
        harness.is_set_up(2).await;
    }
    (api, worker)
}

/// Publishes `count` events and waits for them without advancing the clock, so that they must come by tickets.
async fn tickets_work(api: &Harness, receiver: &Receiver, from: usize, count: usize) {
    let before = receiver.count();
    api.publish(from..from + count).await;
    receiver.wait_for(before + count).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ticketed_delivery_is_displayed_as_ready_and_scheduled_at_creation() {
    let broker = RabbitMq::shared().await;
    let cluster = TestCluster::on(On::Postgres).await;
    let api = cluster.node(node("api", Role::Api, Some(&broker.url()))).await;
    // A worker without a broker: it sends but consumes no tickets.
    let deaf = cluster.node(node("deaf", Role::Worker, None)).await;
    for harness in [&api, &deaf] {
        harness.is_set_up(2).await;
    }
    let receiver = Receiver::start().await;
    api.create_webhook(&receiver.url(), |_| {}).await;
    api.publish(0..1).await;
    let delivery = &api.deliveries().await[0];
    assert_eq!(
        delivery.due,
        Some(delivery.created_at + TICKET_CLAIM_TIMEOUT),
        "the delivery is reserved for its ticket"
    );
    let waiting = api.engine.wait_reason(delivery).await.unwrap().unwrap();
    assert_eq!((waiting.on.name(), waiting.until), ("capacity", None), "{waiting:?}");
    let queue = queue(Priority::Normal);
    api.eventually("the ticket is in the queue", async || broker.depth(&queue).await == 1).await;
    let ticket = broker.get(&queue).await.unwrap();
    assert_eq!(ticket.body, api.ticket_for(&[delivery.id]).await);
    api.settle_time().await;
    assert_eq!(receiver.count(), 0);
    // The ticket was not used: the delivery is claimed from the store after the grace period.
    api.clock.advance(TICKET_CLAIM_TIMEOUT);
    let delivery = api.until("it is delivered", all_are(DeliveryStatus::Delivered, 1)).await.remove(0);
    let attempts = api.store.attempts(TenantId::default(), delivery.id).await.unwrap().unwrap();
    assert_eq!(
        attempts[0].attempt.scheduled_at, delivery.created_at,
        "the ticket was late, and the delivery is not due later"
    );
    deaf.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicate_and_late_tickets_send_nothing_twice() {
    let broker = RabbitMq::shared().await;
    let (api, worker) = pair(&broker.url()).await;
    let (receiver, works) = failing_receiver().await;
    api.create_webhook(&receiver.url(), |_| {}).await;
    api.publish(0..5).await;
    receiver.wait_for(5).await;
    let failed = api.until("all wait", |all| all.iter().all(|one| one.attempt_count == 1)).await;
    let ids: Vec<_> = failed.iter().map(|one| one.id).collect();
    let ticket = api.ticket_for(&ids).await;
    let again = || vec![(lapin::BasicProperties::default(), ticket.clone()); 5];
    // The deliveries wait for their retries: a ticket does not make them due sooner.
    for priority in Priority::ALL {
        broker.publish_all(&queue(priority), again()).await;
    }
    let empty = async |priority| broker.messages(&queue(priority)).await == 0;
    for priority in Priority::ALL {
        api.eventually("all tickets are consumed", async || empty(priority).await).await;
    }
    api.settle_time().await;
    assert_eq!(receiver.count(), 5);
    works.store(true, std::sync::atomic::Ordering::SeqCst);
    api.clock.advance(Duration::from_secs(5));
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 5)).await;
    broker.publish_all(&queue(Priority::Normal), again()).await;
    api.eventually("all tickets are consumed", async || empty(Priority::Normal).await).await;
    api.settle_time().await;
    assert_eq!(receiver.count(), 10);
    worker.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_ticket_is_rejected_without_blocking_others() {
    let broker = RabbitMq::shared().await;
    let (api, worker) = pair(&broker.url()).await;
    let receiver = Receiver::start().await;
    api.create_webhook(&receiver.url(), |_| {}).await;
    let bad = [&b"hello"[..], b"", b"{\"v\":7}", b"{\"v\":1,\"ready\":{\"wh_1\":[\"dlv_1\"]}}"];
    for body in bad {
        broker.publish(&queue(Priority::High), lapin::BasicProperties::default(), body).await;
    }
    api.eventually("invalid messages are rejected", async || broker.depth(REJECTED).await == 4).await;
    assert_eq!(broker.get(REJECTED).await.unwrap().body, b"hello");
    tickets_work(&api, &receiver, 0, 10).await;
    worker.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conflicting_queue_declaration_falls_back_to_store() {
    let broker = RabbitMq::shared().await;
    // Declared manually with other arguments.
    broker.declare(&format!("{NAMESPACE}.v1.tickets.default.normal")).await;
    let cluster = TestCluster::on(On::Postgres).await;
    let api = cluster.node(node("api", Role::Api, Some(&broker.url()))).await;
    let worker = cluster.node(node("worker", Role::Worker, Some(&broker.url()))).await;
    // The API node may be connected: it declares the queue only once it knows of a worker.
    api.cluster_has(2).await;
    assert_eq!(worker.engine.broker_up(), Some(false));
    let receiver = Receiver::start().await;
    api.create_webhook(&receiver.url(), |_| {}).await;
    api.publish(0..10).await;
    api.clock.advance(TICKET_CLAIM_TIMEOUT);
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 10)).await;
    broker.ctl(&["delete_queue", &queue(Priority::Normal)]).await;
    let deleted = Instant::now();
    worker.broker_is(true).await;
    api.broker_is(true).await;
    assert!(deleted.elapsed() < RECONNECT_TIMEOUT, "{:?}", deleted.elapsed());
    tickets_work(&api, &receiver, 10, 10).await;
    worker.assert_settled().await;
}

mod extended {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn purged_and_deleted_queues_only_cause_delay() {
        let broker = RabbitMq::shared().await;
        let (api, worker) = pair(&broker.url()).await;
        let receiver = Receiver::start().await;
        api.create_webhook(&receiver.url(), |_| {}).await;
        tickets_work(&api, &receiver, 0, 10).await;
        let (mut published, mut deleted) = (10, Instant::now());
        for round in 0..3 {
            for priority in Priority::ALL {
                let command = if round == 0 { "purge_queue" } else { "delete_queue" };
                broker.ctl(&[command, &queue(priority)]).await;
                api.publish(published..published + 10).await;
                published += 10;
            }
            deleted = Instant::now();
        }
        // Some tickets were lost with their queues.
        api.clock.advance(TICKET_CLAIM_TIMEOUT);
        api.until("all are delivered", all_are(DeliveryStatus::Delivered, published)).await;
        api.eventually("the queues are declared again", async || {
            let n = published;
            api.publish(n..n + 1).await;
            published += 1;
            api.clock.advance(TICKET_CLAIM_TIMEOUT);
            receiver.wait_for(published).await;
            broker.ctl(&["list_queues", "name"]).await.matches(".tickets.default.").count() == 3
        })
        .await;
        assert!(deleted.elapsed() < RECONNECT_TIMEOUT, "{:?}", deleted.elapsed());
        api.settle_time().await;
        tickets_work(&api, &receiver, published, 10).await;
        assert_eq!(receiver.count(), published + 10, "none was sent twice");
        worker.assert_settled().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn restarted_broker_is_used_again() {
        let mut broker = RabbitMq::start().await;
        let (api, worker) = pair(&broker.url()).await;
        let receiver = Receiver::start().await;
        api.create_webhook(&receiver.url(), |_| {}).await;
        tickets_work(&api, &receiver, 0, 10).await;
        let mut published = 10;
        for round in 0..3 {
            // Publishing continues throughout.
            let outage = async {
                match round {
                    0 => broker.stop().await,
                    _ => broker.kill().await,
                }
                for harness in [&api, &worker] {
                    harness.broker_is(false).await;
                }
                let received = receiver.count();
                api.publish(1_000 + received..1_010 + received).await;
                // The clock does not advance: without a broker deliveries do not wait for the grace period.
                receiver.wait_for(received + 10).await;
                match round {
                    1 => broker.restart_empty().await,
                    _ => broker.start_again().await,
                }
                let back = Instant::now();
                for harness in [&api, &worker] {
                    harness.broker_is(true).await;
                }
                assert!(back.elapsed() < RECONNECT_TIMEOUT, "{:?}", back.elapsed());
            };
            let publishing = async {
                for n in published..published + 200 {
                    api.publish(n..n + 1).await;
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::join!(outage, publishing);
            published += 210;
            api.clock.advance(TICKET_CLAIM_TIMEOUT);
            api.until("all are delivered", all_are(DeliveryStatus::Delivered, published)).await;
            tickets_work(&api, &receiver, published, 10).await;
            published += 10;
        }
        assert_eq!(receiver.count(), published, "none was lost, none was sent twice");
        worker.assert_settled().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn node_starts_without_broker_and_uses_it_when_available() {
        let mut broker = RabbitMq::start().await;
        broker.kill().await;
        let cluster = TestCluster::on(On::Postgres).await;
        let api = cluster.node(node("api", Role::Api, Some(&broker.url()))).await;
        let worker = cluster.node(node("worker", Role::Worker, Some(&broker.url()))).await;
        cluster_harness::one_heartbeat().await;
        let receiver = Receiver::start().await;
        api.create_webhook(&receiver.url(), |_| {}).await;
        api.publish(0..20).await;
        receiver.wait_for(20).await;
        broker.start_again().await;
        let back = Instant::now();
        for harness in [&api, &worker] {
            harness.broker_is(true).await;
        }
        assert!(back.elapsed() < RECONNECT_TIMEOUT, "{:?}", back.elapsed());
        tickets_work(&api, &receiver, 20, 20).await;
        worker.assert_settled().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn hanging_broker_is_bypassed_and_used_again() {
        let mut broker = RabbitMq::start().await;
        let (api, worker) = pair(&broker.url()).await;
        let receiver = Receiver::start().await;
        api.create_webhook(&receiver.url(), |_| {}).await;
        tickets_work(&api, &receiver, 0, 10).await;
        broker.freeze();
        // Deliveries of unconfirmed tickets are claimed from the store; then no more tickets are sent.
        api.publish(10..20).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        api.publish(20..120).await;
        receiver.wait_for(110).await;
        api.clock.advance(TICKET_CLAIM_TIMEOUT);
        receiver.wait_for(120).await;
        broker.thaw();
        let back = Instant::now();
        api.eventually("tickets are published again", async || api.engine.issues_tickets()).await;
        worker.broker_is(true).await;
        assert!(back.elapsed() < RECONNECT_TIMEOUT, "{:?}", back.elapsed());
        tickets_work(&api, &receiver, 120, 20).await;
        api.until("all are delivered", all_are(DeliveryStatus::Delivered, 140)).await;
        assert_eq!(receiver.count(), 140, "none was sent twice");
        worker.assert_settled().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn memory_alarm_of_broker_diverts_deliveries_to_store() {
        let broker = RabbitMq::start().await;
        let (api, worker) = pair(&broker.url()).await;
        let receiver = Receiver::start().await;
        api.create_webhook(&receiver.url(), |_| {}).await;
        tickets_work(&api, &receiver, 0, 10).await;
        broker.ctl(&["set_vm_memory_high_watermark", "0.00001"]).await;
        // The first publish blocks the connection; the deliveries of its tickets are claimed from the store.
        api.publish(10..20).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        api.clock.advance(TICKET_CLAIM_TIMEOUT);
        receiver.wait_for(20).await;
        // Later deliveries do not wait for tickets.
        assert!(!api.engine.issues_tickets());
        api.publish(20..60).await;
        receiver.wait_for(60).await;
        broker.ctl(&["set_vm_memory_high_watermark", "0.6"]).await;
        let back = Instant::now();
        api.eventually("tickets are published again", async || api.engine.issues_tickets()).await;
        assert!(back.elapsed() < RECONNECT_TIMEOUT, "{:?}", back.elapsed());
        tickets_work(&api, &receiver, 60, 20).await;
        api.until("all are delivered", all_are(DeliveryStatus::Delivered, 80)).await;
        assert_eq!(receiver.count(), 80, "none was sent twice");
        worker.assert_settled().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn cut_and_stalled_connections_lose_and_duplicate_nothing() {
        let broker = RabbitMq::shared().await;
        let (to_api, to_worker) = (Proxy::to(broker.address()).await, Proxy::to(broker.address()).await);
        let cluster = TestCluster::on(On::Postgres).await;
        let api = cluster.node(node("api", Role::Api, Some(&broker.url_through(&to_api)))).await;
        let worker = cluster.node(node("worker", Role::Worker, Some(&broker.url_through(&to_worker)))).await;
        for harness in [&api, &worker] {
            harness.is_set_up(2).await;
        }
        let receiver = Receiver::with(|_| Reply::status(200).after(Duration::from_millis(2))).await;
        api.create_webhook(&receiver.url(), |webhook| webhook.spec.max_in_flight = Some(20)).await;
        let cutting = async {
            for round in 0..12 {
                let proxy = if round % 2 == 0 { &to_api } else { &to_worker };
                receiver.wait_for(30 * (round + 1)).await;
                match round % 3 {
                    0 => proxy.cut(),
                    1 => {
                        proxy.stall();
                        tokio::time::sleep(Duration::from_millis(300)).await;
                        proxy.cut();
                        proxy.pass();
                    }
                    _ => {
                        proxy.refuse();
                        proxy.cut();
                        tokio::time::sleep(Duration::from_millis(300)).await;
                        proxy.pass();
                    }
                }
            }
        };
        let publishing = async {
            for n in 0..1_000 {
                api.publish(n..n + 1).await;
                tokio::time::sleep(Duration::from_millis(3)).await;
                if n % 50 == 0 {
                    api.clock.advance(TICKET_CLAIM_TIMEOUT);
                }
            }
        };
        tokio::join!(cutting, publishing);
        api.clock.advance(TICKET_CLAIM_TIMEOUT);
        api.until("all are delivered", all_are(DeliveryStatus::Delivered, 1_000)).await;
        assert_eq!(receiver.count(), 1_000, "none was lost, none was sent twice");
        for harness in [&api, &worker] {
            harness.broker_is(true).await;
        }
        tickets_work(&api, &receiver, 1_000, 10).await;
        assert_eq!(workers(&api).await, ["worker"]);
        worker.assert_settled().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn node_without_capacity_leaves_tickets_in_broker() {
        let broker = RabbitMq::shared().await;
        let cluster = TestCluster::on(On::Postgres).await;
        let api = cluster.node(node("api", Role::Api, Some(&broker.url()))).await;
        let small = Settings { max_deliveries: 20, ..node("worker", Role::Worker, Some(&broker.url())) };
        let worker = cluster.node(small).await;
        for harness in [&api, &worker] {
            harness.is_set_up(2).await;
        }
        let (receiver, gate) = Receiver::latched(200).await;
        for _ in 0..20 {
            api.create_webhook(&receiver.url(), |webhook| webhook.spec.max_in_flight = Some(1)).await;
        }
        for n in 0..30 {
            api.publish(n..n + 1).await;
            if n == 0 {
                worker
                    .eventually("the node has no capacity left", async || {
                        worker.engine.load().deliveries >= 15
                    })
                    .await;
            }
        }
        api.settle_time().await;
        let kept = broker.messages(&queue(Priority::Normal)).await;
        assert!(kept > 0, "the queue length shows the backlog");
        assert!(worker.engine.load().deliveries <= 20);
        gate.open();
        api.clock.advance(TICKET_CLAIM_TIMEOUT);
        api.until("all are delivered", all_are(DeliveryStatus::Delivered, 600)).await;
        assert_eq!(receiver.count(), 600);
        api.eventually("no ticket is left", async || broker.messages(&queue(Priority::Normal)).await == 0)
            .await;
        worker.assert_settled().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn tickets_work_over_tls() {
        let broker = RabbitMq::start_with_tls().await;
        let url = format!("{}?cacertfile={}", broker.url(), broker.ca_path().display());
        let (api, worker) = pair(&url).await;
        let receiver = Receiver::start().await;
        api.create_webhook(&receiver.url(), |_| {}).await;
        tickets_work(&api, &receiver, 0, 10).await;
        worker.assert_settled().await;
        let untrusted = tickets(&broker.url()).broker.connect("testing").await.unwrap_err();
        assert!(untrusted.to_string().contains("certificate"), "{untrusted}");
    }
}
