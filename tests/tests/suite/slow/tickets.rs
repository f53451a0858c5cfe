//! Tickets between real processes: API nodes that accept events, workers that send them, and a RabbitMQ server
//! that fails under load. Checked from outside.

use std::time::{Duration, Instant};

use redrive_testkit::{Postgres, RabbitMq, Receiver, Redrive, Reply, Setup};
use redrive_tests::cluster::{LEASE, PublishLoad, assert_no_loss, duplicates, node, wait_until_settled};
use serde_json::json;

const UNAVAILABLE: &str =
    "failed; ready deliveries are claimed from the store until RabbitMQ is available again";

/// Returns the sum of a metric over all series whose labels contain this text.
async fn metric(node: &Redrive, name: &str, labels: &str) -> f64 {
    let page = node.api().get("/metrics").await;
    assert_eq!(page.status, 200);
    let text = String::from_utf8(page.body.to_vec()).unwrap();
    let of_it = |line: &&str| line.starts_with(name) && line.contains(labels);
    text.lines().filter(of_it).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

fn tickets(outcome: &str) -> String {
    format!("outcome=\"{outcome}\"")
}

async fn start(database: &str, broker: &str, name: &str, role: &str) -> Redrive {
    // Other users can read a command line, so the password has its own variable.
    let setup = node(database, name).role(role).arg("--amqp").arg(broker.replace(":guest@", "@"));
    Redrive::start_with(setup.env("REDRIVE_AMQP_PASSWORD", "guest")).await
}

async fn is_up(node: &Redrive, up: bool) {
    let deadline = Instant::now();
    while (metric(node, "webhook_amqp_up", "").await > 0.0) != up {
        assert!(
            deadline.elapsed() < redrive_testkit::WAIT_TIMEOUT,
            "the state of the broker is not reported"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn broker_with_single_process_store_is_refused_with_a_hint() {
    let output = Setup::new().arg("--amqp").arg("amqp://me:hunter2@127.0.0.1:1").run_to_end().await;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(
        message.contains("amqp.url: ") && message.contains("set database.url to postgres://"),
        "{message}"
    );
    assert!(!message.contains("hunter2"), "{message}");
}

mod extended {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn broker_outages_and_a_killed_worker_lose_nothing() {
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
        // Time for all nodes to see each other.
        tokio::time::sleep(LEASE).await;
        let load = PublishLoad::start(vec![api.api()], 6, Duration::from_millis(5));
        receiver.wait_for(600).await;
        assert!(metric(&api, "webhook_amqp_tickets_total", &tickets("published")).await > 0.0);
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
            println!("all nodes use the broker again after {:?}", back.elapsed());
            let before = metric(&workers[0], "webhook_amqp_tickets_total", &tickets("claimed")).await;
            receiver.wait_for(receiver.count() + 300).await;
            let after = metric(&workers[0], "webhook_amqp_tickets_total", &tickets("claimed")).await;
            assert!(after > before, "tickets are claimed again");
        }
        workers[1].kill();
        receiver.wait_for(receiver.count() + 300).await;
        let acked = load.finish().await;
        let deliveries = wait_until_settled(&api.api()).await;
        let arrivals = receiver.arrivals();
        assert_no_loss(&acked, &deliveries, &arrivals, 3);
        let twice = duplicates(&deliveries, &arrivals);
        println!("{} events, 2 outages of the broker, 1 kill: {twice} duplicates", acked.len());
        assert!(twice <= 3 * IN_FLIGHT, "only requests in flight at the kill may be repeated: {twice}");
        for node in [&api, &workers[0]] {
            let log = node.output();
            assert_eq!(log.matches(UNAVAILABLE).count(), 2, "one log record per outage:\n{log}");
            assert!(!log.contains("guest:guest") && !log.contains("lapin"), "{log}");
        }
    }
}
