//! Tickets over a real broker, and all that can go wrong with it: nothing that was accepted is lost, nothing is sent
//! twice, nothing is stuck, and it goes on by itself. Where the clock stands still, only tickets bring anything.

use std::time::{Duration, Instant};

use crate::broker::{NAMESPACE, REJECTED, node, queue, tickets};
use crate::cluster_harness;
use crate::cluster_harness::{Fleet, On, workers};
use crate::harness::{World, all_are, broken};
use redrive_core::{DeliveryStatus, Role, TenantId, cluster::ticket::GRACE, delivery::lane::Priority};
use redrive_engine::Settings;
use redrive_testkit::{Proxy, RabbitMq, Receiver, Reply};

/// How long a node may take to use a broker again that is back.
const BACK: Duration = Duration::from_secs(10);

/// An API node and a worker on one store, by way of this broker.
async fn pair(broker: &str) -> (World, World) {
    let fleet = Fleet::on(On::Postgres).await;
    let api = fleet.node(node("api", Role::Api, Some(broker))).await;
    let worker = fleet.node(node("worker", Role::Worker, Some(broker))).await;
    for world in [&api, &worker] {
        world.is_set_up(2).await;
    }
    (api, worker)
}

/// Publishes so many and sees them arrive although the clock stands still: by tickets.
async fn tickets_work(api: &World, receiver: &Receiver, from: usize, count: usize) {
    let before = receiver.count();
    api.publish(from..from + count).await;
    receiver.wait_for(before + count).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_its_ticket_is_shown_as_ready_and_its_attempt_as_on_time() {
    let broker = RabbitMq::shared().await;
    let fleet = Fleet::on(On::Postgres).await;
    let api = fleet.node(node("api", Role::Api, Some(&broker.url()))).await;
    // It sends, and does not listen.
    let deaf = fleet.node(node("deaf", Role::Worker, None)).await;
    for world in [&api, &deaf] {
        world.is_set_up(2).await;
    }
    let receiver = Receiver::start().await;
    api.hook(&receiver.url(), |_| {}).await;
    api.publish(0..1).await;
    let delivery = &api.deliveries().await[0];
    assert_eq!(delivery.due, Some(delivery.created_at + GRACE), "it is left to its ticket for a moment");
    let waiting = api.engine.waiting(delivery).await.unwrap().unwrap();
    assert_eq!((waiting.on.name(), waiting.until), ("capacity", None), "{waiting:?}");
    let queue = queue(Priority::Normal);
    api.eventually("the ticket is there", async || broker.depth(&queue).await == 1).await;
    let ticket = broker.get(&queue).await.unwrap();
    assert_eq!(ticket.body, api.ticket_for(&[delivery.id]).await);
    api.a_moment().await;
    assert_eq!(receiver.count(), 0);
    // Nobody has taken it: the store gives it when the moment is over.
    api.clock.advance(GRACE);
    let delivery = api.until("it is delivered", all_are(DeliveryStatus::Delivered, 1)).await.remove(0);
    let attempts = api.store.attempts(TenantId::default(), delivery.id).await.unwrap().unwrap();
    assert_eq!(attempts[0].attempt.scheduled_at, delivery.created_at, "it was late, and not due later");
    deaf.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doubled_late_and_foreign_tickets_send_nothing_twice() {
    let broker = RabbitMq::shared().await;
    let (api, worker) = pair(&broker.url()).await;
    let (receiver, works) = broken().await;
    api.hook(&receiver.url(), |_| {}).await;
    api.publish(0..5).await;
    receiver.wait_for(5).await;
    let failed = api.until("all wait", |all| all.iter().all(|one| one.attempt_count == 1)).await;
    let ids: Vec<_> = failed.iter().map(|one| one.id).collect();
    let ticket = api.ticket_for(&ids).await;
    let again = || vec![(lapin::BasicProperties::default(), ticket.clone()); 5];
    // They wait for their retries: a ticket makes none of them come sooner.
    for priority in Priority::ALL {
        broker.publish_all(&queue(priority), again()).await;
    }
    let empty = async |priority| broker.messages(&queue(priority)).await == 0;
    for priority in Priority::ALL {
        api.eventually("all tickets are taken", async || empty(priority).await).await;
    }
    api.a_moment().await;
    assert_eq!(receiver.count(), 5);
    works.store(true, std::sync::atomic::Ordering::SeqCst);
    api.clock.advance(Duration::from_secs(5));
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 5)).await;
    broker.publish_all(&queue(Priority::Normal), again()).await;
    api.eventually("all tickets are taken", async || empty(Priority::Normal).await).await;
    api.a_moment().await;
    assert_eq!(receiver.count(), 10);
    worker.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_no_ticket_is_put_aside_and_holds_up_nobody() {
    let broker = RabbitMq::shared().await;
    let (api, worker) = pair(&broker.url()).await;
    let receiver = Receiver::start().await;
    api.hook(&receiver.url(), |_| {}).await;
    let bad = [&b"hello"[..], b"", b"{\"v\":7}", b"{\"v\":1,\"ready\":{\"wh_1\":[\"dlv_1\"]}}"];
    for body in bad {
        broker.publish(&queue(Priority::High), lapin::BasicProperties::default(), body).await;
    }
    api.eventually("they are put aside", async || broker.depth(REJECTED).await == 4).await;
    assert_eq!(broker.get(REJECTED).await.unwrap().body, b"hello");
    tickets_work(&api, &receiver, 0, 10).await;
    worker.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_room_leaves_its_tickets_with_the_broker() {
    let broker = RabbitMq::shared().await;
    let fleet = Fleet::on(On::Postgres).await;
    let api = fleet.node(node("api", Role::Api, Some(&broker.url()))).await;
    let small = Settings { max_items: 20, ..node("worker", Role::Worker, Some(&broker.url())) };
    let worker = fleet.node(small).await;
    for world in [&api, &worker] {
        world.is_set_up(2).await;
    }
    let (receiver, gate) = Receiver::held(200).await;
    for _ in 0..20 {
        api.hook(&receiver.url(), |hook| hook.spec.max_in_flight = Some(1)).await;
    }
    for n in 0..30 {
        api.publish(n..n + 1).await;
        if n == 0 {
            worker.eventually("it has enough", async || worker.engine.load().items >= 15).await;
        }
    }
    api.a_moment().await;
    let kept = broker.messages(&queue(Priority::Normal)).await;
    assert!(kept > 0, "what there is to do can be seen at the broker");
    assert!(worker.engine.load().items <= 20);
    gate.open();
    api.clock.advance(GRACE);
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 600)).await;
    assert_eq!(receiver.count(), 600);
    api.eventually("no ticket is left", async || broker.messages(&queue(Priority::Normal)).await == 0).await;
    worker.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn something_else_of_that_name_leaves_the_work_to_the_store() {
    let broker = RabbitMq::shared().await;
    // Declared by hand, and otherwise.
    broker.declare(&format!("{NAMESPACE}.v1.tickets.default.normal")).await;
    let fleet = Fleet::on(On::Postgres).await;
    let api = fleet.node(node("api", Role::Api, Some(&broker.url()))).await;
    let worker = fleet.node(node("worker", Role::Worker, Some(&broker.url()))).await;
    api.is_set_up(2).await;
    assert_eq!(worker.engine.broker_up(), Some(false));
    let receiver = Receiver::start().await;
    api.hook(&receiver.url(), |_| {}).await;
    api.publish(0..10).await;
    api.clock.advance(GRACE);
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 10)).await;
    broker.ctl(&["delete_queue", &queue(Priority::Normal)]).await;
    let deleted = Instant::now();
    worker.broker_is(true).await;
    api.broker_is(true).await;
    assert!(deleted.elapsed() < BACK, "{:?}", deleted.elapsed());
    tickets_work(&api, &receiver, 10, 10).await;
    worker.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_goes_and_comes_back_is_used_again_by_itself() {
    let mut broker = RabbitMq::start().await;
    let (api, worker) = pair(&broker.url()).await;
    let receiver = Receiver::start().await;
    api.hook(&receiver.url(), |_| {}).await;
    tickets_work(&api, &receiver, 0, 10).await;
    let mut published = 10;
    for round in 0..3 {
        // Publishing goes on all the time.
        let outage = async {
            match round {
                0 => broker.stop().await,
                _ => broker.kill().await,
            }
            for world in [&api, &worker] {
                world.broker_is(false).await;
            }
            let received = receiver.count();
            api.publish(1_000 + received..1_010 + received).await;
            // The clock stands still: without a broker nothing has to wait for the moment to be over.
            receiver.wait_for(received + 10).await;
            match round {
                1 => broker.restart_empty().await,
                _ => broker.start_again().await,
            }
            let back = Instant::now();
            for world in [&api, &worker] {
                world.broker_is(true).await;
            }
            assert!(back.elapsed() < BACK, "{:?}", back.elapsed());
        };
        let publishing = async {
            for n in published..published + 200 {
                api.publish(n..n + 1).await;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::join!(outage, publishing);
        published += 210;
        api.clock.advance(GRACE);
        api.until("all are delivered", all_are(DeliveryStatus::Delivered, published)).await;
        tickets_work(&api, &receiver, published, 10).await;
        published += 10;
    }
    assert_eq!(receiver.count(), published, "none was lost, none was sent twice");
    worker.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_without_memory_takes_no_tickets_and_nothing_waits_for_it() {
    let broker = RabbitMq::start().await;
    let (api, worker) = pair(&broker.url()).await;
    let receiver = Receiver::start().await;
    api.hook(&receiver.url(), |_| {}).await;
    tickets_work(&api, &receiver, 0, 10).await;
    broker.ctl(&["set_vm_memory_high_watermark", "0.00001"]).await;
    // The first one is told that it is blocked; what it has sent is found in the store.
    api.publish(10..20).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    api.clock.advance(GRACE);
    receiver.wait_for(20).await;
    // From then on nothing waits.
    assert!(!api.engine.issues_tickets());
    api.publish(20..60).await;
    receiver.wait_for(60).await;
    broker.ctl(&["set_vm_memory_high_watermark", "0.6"]).await;
    let back = Instant::now();
    api.eventually("tickets go out again", async || api.engine.issues_tickets()).await;
    assert!(back.elapsed() < BACK, "{:?}", back.elapsed());
    tickets_work(&api, &receiver, 60, 20).await;
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 80)).await;
    assert_eq!(receiver.count(), 80, "none was sent twice");
    worker.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_cut_and_stalled_lose_and_double_nothing() {
    let broker = RabbitMq::shared().await;
    let (to_api, to_worker) = (Proxy::to(broker.address()).await, Proxy::to(broker.address()).await);
    let fleet = Fleet::on(On::Postgres).await;
    let api = fleet.node(node("api", Role::Api, Some(&broker.url_through(&to_api)))).await;
    let worker = fleet.node(node("worker", Role::Worker, Some(&broker.url_through(&to_worker)))).await;
    for world in [&api, &worker] {
        world.is_set_up(2).await;
    }
    let receiver = Receiver::with(|_| Reply::status(200).after(Duration::from_millis(2))).await;
    api.hook(&receiver.url(), |hook| hook.spec.max_in_flight = Some(20)).await;
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
                api.clock.advance(GRACE);
            }
        }
    };
    tokio::join!(cutting, publishing);
    api.clock.advance(GRACE);
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 1_000)).await;
    assert_eq!(receiver.count(), 1_000, "none was lost, none was sent twice");
    for world in [&api, &worker] {
        world.broker_is(true).await;
    }
    tickets_work(&api, &receiver, 1_000, 10).await;
    assert_eq!(workers(&api).await, ["worker"]);
    worker.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_hangs_is_passed_by_and_used_again() {
    let mut broker = RabbitMq::start().await;
    let (api, worker) = pair(&broker.url()).await;
    let receiver = Receiver::start().await;
    api.hook(&receiver.url(), |_| {}).await;
    tickets_work(&api, &receiver, 0, 10).await;
    broker.freeze();
    // Whatever is not confirmed is found in the store, and then nothing is sent there any more.
    api.publish(10..20).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    api.publish(20..120).await;
    receiver.wait_for(110).await;
    api.clock.advance(GRACE);
    receiver.wait_for(120).await;
    broker.thaw();
    let back = Instant::now();
    api.eventually("tickets go out again", async || api.engine.issues_tickets()).await;
    worker.broker_is(true).await;
    assert!(back.elapsed() < BACK, "{:?}", back.elapsed());
    tickets_work(&api, &receiver, 120, 20).await;
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 140)).await;
    assert_eq!(receiver.count(), 140, "none was sent twice");
    worker.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_starts_without_its_broker_and_uses_it_when_it_is_there() {
    let mut broker = RabbitMq::start().await;
    broker.kill().await;
    let fleet = Fleet::on(On::Postgres).await;
    let api = fleet.node(node("api", Role::Api, Some(&broker.url()))).await;
    let worker = fleet.node(node("worker", Role::Worker, Some(&broker.url()))).await;
    cluster_harness::a_beat().await;
    let receiver = Receiver::start().await;
    api.hook(&receiver.url(), |_| {}).await;
    api.publish(0..20).await;
    receiver.wait_for(20).await;
    broker.start_again().await;
    let back = Instant::now();
    for world in [&api, &worker] {
        world.broker_is(true).await;
    }
    assert!(back.elapsed() < BACK, "{:?}", back.elapsed());
    tickets_work(&api, &receiver, 20, 20).await;
    worker.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tickets_travel_over_tls() {
    let broker = RabbitMq::start_with_tls().await;
    let url = format!("{}?cacertfile={}", broker.url(), broker.ca_path().display());
    let (api, worker) = pair(&url).await;
    let receiver = Receiver::start().await;
    api.hook(&receiver.url(), |_| {}).await;
    tickets_work(&api, &receiver, 0, 10).await;
    worker.assert_settled().await;
    let stranger = tickets(&broker.url()).broker.connect("testing").await.unwrap_err();
    assert!(stranger.to_string().contains("certificate"), "{stranger}");
}

mod extended {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn queues_that_are_purged_or_deleted_cost_time_and_nothing_else() {
        let broker = RabbitMq::shared().await;
        let (api, worker) = pair(&broker.url()).await;
        let receiver = Receiver::start().await;
        api.hook(&receiver.url(), |_| {}).await;
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
        api.clock.advance(GRACE);
        api.until("all are delivered", all_are(DeliveryStatus::Delivered, published)).await;
        api.eventually("the queues are back", async || {
            let n = published;
            api.publish(n..n + 1).await;
            published += 1;
            api.clock.advance(GRACE);
            receiver.wait_for(published).await;
            broker.ctl(&["list_queues", "name"]).await.matches(".tickets.default.").count() == 3
        })
        .await;
        assert!(deleted.elapsed() < BACK, "{:?}", deleted.elapsed());
        api.a_moment().await;
        tickets_work(&api, &receiver, published, 10).await;
        assert_eq!(receiver.count(), published + 10, "none was sent twice");
        worker.assert_settled().await;
    }
}
