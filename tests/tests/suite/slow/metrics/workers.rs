//! Metrics of workers: faults, use of the slots by pool, and tokens.

use std::time::Duration;

use redrive_testkit::{Postgres, Receiver, Redrive, Setup};
use redrive_tests::cluster::node;
use serde_json::json;

use super::publish;

async fn page(redrive: &Redrive) -> String {
    String::from_utf8(redrive.api().get("/metrics").await.body.to_vec()).unwrap()
}

/// Waits until a scrape has this line.
async fn wait_for_line(redrive: &Redrive, line: &str) {
    let found = async {
        while !page(redrive).await.lines().any(|reported| reported == line) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    if tokio::time::timeout(redrive_testkit::WAIT_TIMEOUT, found).await.is_err() {
        panic!("{line} is not in\n{}", page(redrive).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_pool_reports_the_slots_that_it_uses() {
    let setup = Setup::new().arg("--pool").arg("default").arg("--pool").arg("bulk");
    let redrive = Redrive::start_with(setup.env("REDRIVE_DELIVERY_MAX_IN_FLIGHT", "20")).await;
    let api = redrive.api();
    api.post("/v1/tenants", json!({"id": "batch", "pool": "bulk"})).await.expect(201);
    let (receiver, gate) = Receiver::latched(200).await;
    api.create_webhook(&receiver.url(), json!({})).await;
    api.create_webhook(&receiver.url(), json!({"tenant_id": "batch"})).await;
    wait_for_line(&redrive, "webhook_worker_pool_utilization{pool=\"bulk\"} 0.0").await;
    publish(&api, "some.event", 2).await;
    for n in 0..3 {
        let event = json!({"tenant_id": "batch", "event_type": "some.event", "data": n});
        api.post("/v1/events", event).await.expect(202);
    }
    wait_for_line(&redrive, "webhook_worker_pool_utilization{pool=\"default\"} 0.1").await;
    wait_for_line(&redrive, "webhook_worker_pool_utilization{pool=\"bulk\"} 0.15").await;
    wait_for_line(&redrive, "webhook_workers{state=\"active\"} 5").await;
    gate.open();
    wait_for_line(&redrive, "webhook_worker_pool_utilization{pool=\"bulk\"} 0.0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_the_emptiest_bucket_are_reported() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    assert!(!page(&redrive).await.contains("webhook_rate_limit_tokens_available{"), "no bucket is in use");
    let receiver = Receiver::start().await;
    for (event_type, burst) in [("wide.event", 100), ("narrow.event", 5)] {
        let limit = json!({"events": [event_type], "rate_limit": {"requests_per_minute": 1, "burst": burst}});
        api.create_webhook(&receiver.url(), limit).await;
    }
    publish(&api, "wide.event", 3).await;
    wait_for_line(&redrive, "webhook_rate_limit_tokens_available{scope=\"webhook\"} 97").await;
    publish(&api, "narrow.event", 4).await;
    wait_for_line(&redrive, "webhook_rate_limit_tokens_available{scope=\"webhook\"} 1").await;
    assert!(!page(&redrive).await.contains("tokens_available{scope=\"tenant\"}"), "tenants have no limit");
}

mod extended {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn worker_without_database_is_failing_until_it_is_available_again() {
        let mut postgres = Postgres::start().await;
        let redrive = Redrive::start_with(node(&postgres.url(), "a")).await;
        let reasons = ["store", "service", "lease", "network"];
        for reason in reasons {
            wait_for_line(&redrive, &format!("redrive_worker_failing{{reason=\"{reason}\"}} 0")).await;
        }
        postgres.kill().await;
        for reason in ["store", "lease"] {
            wait_for_line(&redrive, &format!("redrive_worker_failing{{reason=\"{reason}\"}} 1")).await;
        }
        postgres.start_again().await;
        for reason in reasons {
            wait_for_line(&redrive, &format!("redrive_worker_failing{{reason=\"{reason}\"}} 0")).await;
        }
        let api_node = Redrive::start_with(node(&postgres.url(), "b").role("api")).await;
        assert!(!page(&api_node).await.contains("redrive_worker_failing"), "it does not send");
    }
}
