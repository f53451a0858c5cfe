//! Real processes: API nodes that take events, workers that send them, and a RabbitMQ server between them that is
//! broken in the middle of it. Judged from outside.

use std::time::{Duration, Instant};

use redrive_testkit::{Postgres, RabbitMq, Receiver, Redrive, Reply, Setup};
use redrive_tests::cluster::{LEASE, Load, all_over, assert_no_loss, duplicates, node};
use serde_json::json;

const GONE: &str = "no longer; ready work goes through the store until it does";

/// The sum of a metric over its labels that hold all of these.
async fn metric(node: &Redrive, name: &str, labels: &str) -> f64 {
    let page = node.api().get("/metrics").await;
    assert_eq!(page.status, 200);
    let text = String::from_utf8(page.body.to_vec()).unwrap();
    let of_it = |line: &&str| line.starts_with(name) && line.contains(labels);
    text.lines().filter(of_it).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

fn tickets(fate: &str) -> String {
    format!("fate=\"{fate}\"")
}

async fn start(database: &str, broker: &str, name: &str, role: &str) -> Redrive {
    // What is on a command line, others can read: the password has a variable of its own.
    let setup = node(database, name).role(role).arg("--amqp").arg(broker.replace(":guest@", "@"));
    Redrive::start_with(setup.env("REDRIVE_AMQP_PASSWORD", "guest")).await
}

async fn is_up(node: &Redrive, up: bool) {
    let patience = Instant::now();
    while (metric(node, "webhook_amqp_up", "").await > 0.0) != up {
        assert!(patience.elapsed() < redrive_testkit::PATIENCE, "the broker is not seen as it is");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_breaks_under_load_and_a_worker_that_dies_lose_and_double_nothing() {
    const IN_FLIGHT: usize = 16;
    let (database, mut broker) = (Postgres::shared().await, RabbitMq::start().await);
    let receiver = Receiver::with(|_| Reply::status(200).after(Duration::from_millis(2))).await;
    let (url, mq) = (database.url(), broker.url());
    let api = start(&url, &mq, "api", "api").await;
    let mut workers = Vec::new();
    for name in ["a", "b"] {
        workers.push(start(&url, &mq, name, "worker").await);
    }
    for node in workers.iter().chain([&api]) {
        is_up(node, true).await;
    }
    for n in 0..3 {
        let extra = json!({"max_in_flight": IN_FLIGHT});
        api.api().create_webhook(&receiver.url_at(&format!("/{n}")), extra).await;
    }
    // Time for everybody to see who is there.
    tokio::time::sleep(LEASE).await;
    let load = Load::start(vec![api.api()], 6, Duration::from_millis(5));
    receiver.wait_for(600).await;
    assert!(metric(&api, "webhook_amqp_tickets_total", &tickets("issued")).await > 0.0);
    for restart in 0..2 {
        broker.kill().await;
        is_up(&api, false).await;
        let ready = api.api().get("/readyz").await;
        assert_eq!(ready.status, 200, "a node is ready without its broker");
        receiver.wait_for(receiver.count() + 300).await;
        match restart {
            0 => broker.start_again().await,
            _ => broker.restart_empty().await,
        }
        let back = Instant::now();
        for node in workers.iter().chain([&api]) {
            is_up(node, true).await;
        }
        assert!(back.elapsed() < Duration::from_secs(10), "{:?}", back.elapsed());
        let before = metric(&workers[0], "webhook_amqp_tickets_total", &tickets("taken")).await;
        receiver.wait_for(receiver.count() + 300).await;
        let after = metric(&workers[0], "webhook_amqp_tickets_total", &tickets("taken")).await;
        assert!(after > before, "tickets are taken again");
    }
    workers[1].kill();
    receiver.wait_for(receiver.count() + 300).await;
    let acked = load.finish().await;
    let deliveries = all_over(&api.api()).await;
    let arrivals = receiver.arrivals();
    assert_no_loss(&acked, &deliveries, &arrivals, 3);
    let twice = duplicates(&deliveries, &arrivals);
    println!("{} events, 2 outages of the broker, 1 kill: {twice} duplicates", acked.len());
    assert!(twice <= 3 * IN_FLIGHT, "only what was under way when a worker died may come twice: {twice}");
    for node in [&api, &workers[0]] {
        let log = node.output();
        assert_eq!(log.matches(GONE).count(), 2, "one line for each outage:\n{log}");
        assert!(!log.contains("guest:guest") && !log.contains("lapin"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_for_one_process_is_refused_with_what_to_do() {
    let output = Setup::new().arg("--amqp").arg("amqp://me:hunter2@127.0.0.1:1").run_to_end().await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(said.contains("amqp.url: ") && said.contains("set database.url to postgres://"), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
}
