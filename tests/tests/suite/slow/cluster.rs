//! Three real nodes on one PostgreSQL: they share the work, survive the death of a node, and lose nothing.
//!
//! Checked from outside, by the responses to publishers, the requests to receivers and the history.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::{Duration, Instant},
};

use redrive_testkit::{Api, Latch, Postgres, Receiver, Redrive, Reply};
use redrive_tests::{
    attempts_of,
    cluster::{LEASE, PublishLoad, assert_no_loss, duplicates, node, nodes, wait_until_settled},
    delivery_of, id, text, wait_for_event_status, wait_for_status,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

fn apis(nodes: &[Redrive]) -> Vec<Api> {
    nodes.iter().map(Redrive::api).collect()
}

/// Returns the name of the node that made an attempt, from `name#epoch`.
fn node_of(attempt: &Value) -> String {
    text(&attempt["worker"]).split('#').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_share_the_work() {
    let database = Postgres::shared().await;
    let receiver = Receiver::start().await;
    let nodes = nodes(&database.url(), 3).await;
    for n in 0..6 {
        nodes[n % 3].api().create_webhook(&receiver.url_at(&format!("/{n}")), Value::Null).await;
    }
    let load = PublishLoad::start(apis(&nodes), 6, Duration::from_millis(5));
    receiver.wait_for(600).await;
    let acked = load.finish().await;
    let deliveries = wait_until_settled(&nodes[0].api()).await;
    assert_no_loss(&acked, &deliveries, &receiver.arrivals(), 6);
    assert_eq!(duplicates(&deliveries, &receiver.arrivals()), 0);
    let mut shares: BTreeMap<String, usize> = BTreeMap::new();
    for delivery in deliveries.iter().step_by(5) {
        let attempts = attempts_of(&nodes[1].api(), id(delivery)).await;
        *shares.entry(node_of(&attempts[0])).or_default() += 1;
    }
    println!("share of work: {shares:?}");
    assert_eq!(shares.keys().map(String::as_str).collect::<Vec<_>>(), ["a", "b", "c"]);
    let min = shares.values().min().unwrap() * 10;
    assert!(min >= shares.values().sum::<usize>(), "each has a tenth at least: {shares:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_of_a_killed_node_are_taken_over_without_loss() {
    const IN_FLIGHT: usize = 8;
    let database = Postgres::shared().await;
    let receiver = Receiver::with(|_| Reply::status(200).after(Duration::from_millis(20))).await;
    let url = database.url();
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        let setup = node(&url, name).env("REDRIVE_DELIVERY_MAX_IN_FLIGHT", IN_FLIGHT.to_string());
        nodes.push(Redrive::start_with(setup).await);
    }
    for path in ["/one", "/two"] {
        nodes[0].api().create_webhook(&receiver.url_at(path), json!({"max_in_flight": 24})).await;
    }
    let load = PublishLoad::start(apis(&nodes), 12, Duration::from_millis(2));
    receiver.wait_for(500).await;
    nodes[2].kill();
    let killed = Instant::now();
    load.use_nodes(apis(&nodes[..2]));
    // The killed node may have had no lease at that moment, so the test waits for its death, not for rescued leases.
    let taken_over = "node declared dead; taking over its leases";
    tokio::select! {
        () = nodes[0].wait_output(taken_over) => {}
        () = nodes[1].wait_output(taken_over) => {}
    }
    let taken_over = killed.elapsed();
    receiver.wait_for(receiver.count() + 300).await;
    let acked = load.finish().await;
    let deliveries = wait_until_settled(&nodes[0].api()).await;
    let arrivals = receiver.arrivals();
    assert_no_loss(&acked, &deliveries, &arrivals, 2);
    let twice = duplicates(&deliveries, &arrivals);
    println!(
        "kill -9: {} events, {twice} duplicates (at most {IN_FLIGHT}), taken over after {taken_over:?} (lease {LEASE:?})",
        acked.len()
    );
    assert!(twice <= IN_FLIGHT, "{twice} duplicates");
}

#[tokio::test(flavor = "multi_thread")]
async fn node_frozen_past_its_lease_records_nothing_late() {
    let database = Postgres::shared().await;
    let first = Latch::closed();
    let gate = first.clone();
    let receiver = Receiver::with(move |arrival| match arrival.number {
        1 => Reply::status(200).latched_by(&gate),
        _ => Reply::status(200),
    })
    .await;
    let mut nodes = nodes(&database.url(), 2).await;
    nodes[0].api().create_webhook(&receiver.url(), Value::Null).await;
    let event = nodes[0].api().publish("late", json!({"n": 1})).await;
    receiver.wait_for(1).await;
    nodes[0].signal("STOP");
    receiver.wait_for(2).await;
    let other = nodes[1].api();
    let delivery = wait_for_event_status(&other, &event, "delivered").await;
    first.open();
    nodes[0].signal("CONT");
    nodes[0].wait_output("lease lost").await;
    let attempts = attempts_of(&other, id(&delivery)).await;
    assert_eq!(attempts.iter().map(node_of).collect::<Vec<_>>(), ["b"], "{attempts:#?}");
    // The node has taken a new epoch and works again.
    nodes.remove(1);
    let event = nodes[0].api().publish("later", json!({"n": 2})).await;
    let delivery = wait_for_event_status(&nodes[0].api(), &event, "delivered").await;
    assert_eq!(node_of(&attempts_of(&nodes[0].api(), id(&delivery)).await[0]), "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_order_holds_across_three_nodes() {
    const EVENTS: usize = 120;
    let database = Postgres::shared().await;
    // Every seventh delivery fails at first: later ones must wait for it.
    let receiver = Receiver::with(|arrival| {
        let n = arrival.json()["data"]["n"].as_u64().unwrap();
        match n % 7 == 3 && arrival.header("x-webhook-attempt") == Some("1") {
            true => Reply::status(500),
            false => Reply::status(200),
        }
    })
    .await;
    let nodes = nodes(&database.url(), 3).await;
    let options = json!({
        "ordering_guarantee": "strict",
        "retry_config": {"schedule": [0, 0.05, 0.05, 0.05]},
        "circuit_breaker_config": {"enabled": false},
    });
    nodes[1].api().create_webhook(&receiver.url(), options).await;
    for n in 0..EVENTS {
        nodes[n % 3].api().publish("order", json!({"n": n})).await;
    }
    let over = |arrivals: &[redrive_testkit::ReceivedRequest]| {
        arrivals.iter().map(|one| one.json()["data"]["n"].as_u64().unwrap()).collect::<BTreeSet<_>>().len()
            == EVENTS
    };
    receiver.wait_until("all events are received", over).await;
    wait_until_settled(&nodes[0].api()).await;
    let order: Vec<_> =
        receiver.arrivals().iter().map(|one| one.json()["data"]["n"].as_u64().unwrap()).collect();
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(order, sorted, "each delivery ends before the next starts");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_creates_one_event_across_three_nodes() {
    let database = Postgres::shared().await;
    let receiver = Receiver::start().await;
    let nodes = nodes(&database.url(), 3).await;
    nodes[0].api().create_webhook(&receiver.url(), Value::Null).await;
    for round in 0..10 {
        let event = json!({"event_type": "race", "idempotency_key": format!("round {round}"), "data": round});
        let mut publishers = JoinSet::new();
        for n in 0..15 {
            let (api, event) = (nodes[n % 3].api(), event.clone());
            publishers.spawn(async move { api.post("/v1/events", &event).await });
        }
        let responses = publishers.join_all().await;
        let ids: HashSet<_> = responses.iter().map(|response| id(&response.json()).to_owned()).collect();
        assert_eq!(ids.len(), 1, "{ids:?}");
        assert_eq!(
            responses.iter().filter(|response| response.status == 202).count(),
            1,
            "one node creates the event and the others find it"
        );
    }
    receiver.wait_for(10).await;
    wait_until_settled(&nodes[0].api()).await;
    assert_eq!(receiver.count(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_created_on_one_node_gets_next_event_of_another() {
    let database = Postgres::shared().await;
    let receiver = Receiver::start().await;
    let nodes = nodes(&database.url(), 3).await;
    for n in 0..15 {
        let webhook =
            nodes[n % 3].api().create_webhook(&receiver.url_at(&format!("/{n}")), Value::Null).await;
        let event = nodes[(n + 1) % 3].api().publish("next", json!({"n": n})).await;
        let api = nodes[(n + 2) % 3].api();
        assert_eq!(event["deliveries"], n + 1, "{event}");
        // A webhook paused on one node is paused on all.
        let path = format!("/v1/webhooks/{}/pause", id(&webhook));
        if n % 5 == 4 {
            api.post(&path, json!({})).await.expect(200);
            let held = nodes[n % 3].api().publish("held", json!({"n": n})).await;
            let deliveries = redrive_tests::deliveries_of(&api, &held).await;
            let paused = deliveries.iter().find(|one| one["webhook_id"] == webhook["id"]).unwrap();
            assert_eq!(paused["status"], "pending", "{paused:#}");
            api.post(&format!("/v1/webhooks/{}/resume", id(&webhook)), json!({})).await.expect(200);
            wait_for_status(&api, id(paused), "delivered").await;
        }
    }
    wait_until_settled(&nodes[0].api()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_nodes_promptly_send_events_of_api_nodes() {
    let database = Postgres::shared().await;
    let url = database.url();
    let receiver = Receiver::start().await;
    let api_node = Redrive::start_with(node(&url, "taking").role("api")).await;
    let workers = [
        Redrive::start_with(node(&url, "first").role("worker")).await,
        Redrive::start_with(node(&url, "second").role("worker")).await,
    ];
    let api = api_node.api();
    api.create_webhook(&receiver.url(), Value::Null).await;
    let mut took = Vec::new();
    for n in 0..50 {
        let started = Instant::now();
        let event = api.publish("split", json!({"n": n})).await;
        let arrivals = receiver.wait_for(n + 1).await;
        took.push(arrivals[n].at.duration_since(started));
        let delivery = delivery_of(&api, &event).await;
        let delivery = wait_for_status(&api, id(&delivery), "delivered").await;
        let attempts = attempts_of(&api, id(&delivery)).await;
        assert_ne!(node_of(&attempts[0]), "taking", "an API node sends nothing");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    took.sort_unstable();
    println!("publish to arrival over two processes: median {:?}, slowest {:?}", took[25], took[49]);
    assert!(
        took[25] < Duration::from_millis(500),
        "hints wake the workers before their next poll ({:?})",
        took[25]
    );
    for worker in &workers {
        let response = worker.api().get("/v1/events").await;
        assert_eq!(response.status, 404, "a worker accepts no API requests");
        assert_eq!(worker.api().get("/readyz").await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn circuit_opened_on_one_node_blocks_the_others() {
    let database = Postgres::shared().await;
    let receiver = Receiver::responding(500).await;
    let nodes = nodes(&database.url(), 2).await;
    let options = json!({
        "retry_config": {"schedule": [0, 600]},
        "circuit_breaker_config": {"minimum_throughput": 3, "sleep_window_ms": 600_000},
    });
    let webhook = nodes[0].api().create_webhook(&receiver.url(), options).await;
    let health = format!("/v1/webhooks/{}/health", id(&webhook));
    for n in 0..6 {
        nodes[0].api().publish("doomed", json!({"n": n})).await;
    }
    nodes[0].api().wait_until("open here", &health, |health| health["circuit"]["state"] == "open").await;
    let opened = Instant::now();
    nodes[1].api().wait_until("open there", &health, |health| health["circuit"]["state"] == "open").await;
    println!("a circuit reached the other node after {:?}", opened.elapsed());
    let before = receiver.count();
    let event = nodes[1].api().publish("held", json!({})).await;
    let delivery = delivery_of(&nodes[1].api(), &event).await;
    assert_eq!(delivery["waiting_on"], "circuit_open", "{delivery:#}");
    assert_eq!(receiver.count(), before, "nothing is sent to it");
    // A circuit closed manually on one node is closed on both.
    receiver.respond_with(|_| Reply::status(200));
    let circuit = format!("/v1/webhooks/{}/circuit-breaker", id(&webhook));
    nodes[0].api().patch(&circuit, json!({"action": "reset"})).await.expect(200);
    wait_for_status(&nodes[1].api(), id(&delivery), "delivered").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn skewed_node_clocks_have_no_effect() {
    let database = Postgres::shared().await;
    let url = database.url();
    let receiver = Receiver::with(|arrival| match arrival.header("x-webhook-attempt") {
        Some("1") => Reply::status(500),
        _ => Reply::status(200),
    })
    .await;
    let ahead = Redrive::start_with(node(&url, "ahead").env("REDRIVE_DEV_CLOCK_SKEW", "3600s")).await;
    let behind = Redrive::start_with(node(&url, "behind").env("REDRIVE_DEV_CLOCK_SKEW", "-3600s")).await;
    let options = json!({"retry_config": {"schedule": [0, 1]}, "circuit_breaker_config": {"enabled": false}});
    ahead.api().create_webhook(&receiver.url(), options).await;
    let started = Instant::now();
    let events = [ahead.api().publish("skew", json!(1)).await, behind.api().publish("skew", json!(2)).await];
    for event in &events {
        wait_for_event_status(&ahead.api(), event, "delivered").await;
    }
    println!("retried after {:?} with clocks two hours apart", started.elapsed());
    let times = events.map(|event| redrive_tests::millis(&event["timestamp"]));
    assert!((times[0] - times[1]).abs() < 5_000, "both nodes use the database's clock: {times:?}");
    assert_eq!(receiver.count(), 4);
}

mod extended {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn rolling_restart_rejects_no_publish_and_sends_nothing_twice() {
        let database = Postgres::shared().await;
        let receiver = Receiver::with(|_| Reply::status(200).after(Duration::from_millis(5))).await;
        let mut nodes = nodes(&database.url(), 3).await;
        for path in ["/free", "/ordered"] {
            let ordering = if path == "/ordered" { "strict" } else { "none" };
            let options = json!({"ordering_guarantee": ordering, "max_in_flight": 24});
            nodes[0].api().create_webhook(&receiver.url_at(path), options).await;
        }
        let load = PublishLoad::start(apis(&nodes), 6, Duration::from_millis(10));
        for n in 0..3 {
            receiver.wait_for(receiver.count() + 150).await;
            // As a load balancer would: stop routing requests first, then send the signal.
            let others: Vec<_> = (0..3).filter(|other| *other != n).map(|other| nodes[other].api()).collect();
            load.use_nodes(others);
            tokio::time::sleep(Duration::from_millis(200)).await;
            nodes[n].signal("TERM");
            assert!(nodes[n].wait_exit(redrive_testkit::WAIT_TIMEOUT).await.success());
            nodes[n].restart().await;
            load.use_nodes(apis(&nodes));
        }
        receiver.wait_for(receiver.count() + 150).await;
        let refused = load.refused();
        let acked = load.finish().await;
        assert_eq!(refused, [] as [String; 0], "no publish failed");
        let deliveries = wait_until_settled(&nodes[0].api()).await;
        let arrivals = receiver.arrivals();
        assert_no_loss(&acked, &deliveries, &arrivals, 2);
        println!("rolling restart: {} events, {} requests", acked.len(), arrivals.len());
        assert_eq!(arrivals.len(), deliveries.len(), "nothing was sent twice");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn database_restart_loses_nothing_and_nodes_resume() {
        let mut server = Postgres::start().await;
        let receiver = Receiver::start().await;
        let nodes = nodes(&server.url(), 3).await;
        nodes[0].api().create_webhook(&receiver.url(), json!({"max_in_flight": 24})).await;
        let load = PublishLoad::start(apis(&nodes), 6, Duration::from_millis(5));
        let mut slowest = Duration::ZERO;
        for round in 0..5 {
            receiver.wait_for(receiver.count() + 150).await;
            match round % 2 {
                0 => server.kill().await,
                _ => server.stop().await,
            }
            server.start_again().await;
            let back = Instant::now();
            receiver.wait_for(receiver.count() + 20).await;
            slowest = slowest.max(back.elapsed());
        }
        receiver.wait_for(receiver.count() + 100).await;
        let acked = load.finish().await;
        let deliveries = wait_until_settled(&nodes[0].api()).await;
        let arrivals = receiver.arrivals();
        let twice = duplicates(&deliveries, &arrivals);
        println!(
            "database restarted 5 times: {} events, 0 lost, {twice} duplicates, resumed after at most {slowest:?}",
            acked.len()
        );
        assert_no_loss(&acked, &deliveries, &arrivals, 1);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn database_outage_declares_no_node_dead() {
        let mut server = Postgres::start().await;
        let (receiver, gate) = Receiver::latched(200).await;
        let nodes = nodes(&server.url(), 3).await;
        nodes[0].api().create_webhook(&receiver.url(), json!({"max_in_flight": 24})).await;
        let mut events = Vec::new();
        for n in 0..12 {
            events.push(nodes[n % 3].api().publish("outage", json!({"n": n})).await);
        }
        receiver.wait_for(12).await;
        server.stop().await;
        // The endpoint responds while no node can record the outcome.
        gate.open();
        let refused = nodes[0].api().try_post("/v1/events", json!({"event_type": "outage", "data": 1})).await;
        assert_eq!(refused.unwrap().status, 503);
        assert_eq!(nodes[1].api().get("/readyz").await.status, 503);
        tokio::time::sleep(3 * LEASE).await;
        server.start_again().await;
        let api = nodes[0].api();
        for event in &events {
            let delivery = wait_for_event_status(&api, event, "delivered").await;
            let attempts = attempts_of(&api, id(&delivery)).await;
            assert_eq!(attempts.len(), 1, "{attempts:#?}");
        }
        assert_eq!(receiver.count(), 12, "completed requests are recorded and not sent again");
        for node in &nodes {
            assert!(!node.output().contains("rescued leases of a dead epoch"), "no node took over");
        }
        for node in &nodes {
            assert_eq!(node.api().get("/readyz").await.status, 200);
        }
    }
}
