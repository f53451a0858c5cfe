//! Scrape time with ten thousand webhooks, all of which are counted.

use std::time::{Duration, Instant};

use redrive_testkit::{Postgres, Receiver, Redrive};
use redrive_tests::cluster::node;
use serde_json::json;

/// Creates 9,999 copies of the existing webhook in a hundred tenants. Through the API this would take minutes.
const MANY: &str = "
    INSERT INTO tenants (id, created_at) SELECT 't' || n, 0 FROM generate_series(0, 99) n;
    INSERT INTO webhooks (id, tenant_id, revision, state, spec, sealed, created_at, updated_at)
        SELECT gen_random_uuid(), 't' || n % 100, revision, state, spec, sealed, created_at, updated_at
        FROM webhooks, generate_series(1, 9999) n;
    ANALYZE webhooks";

#[tokio::test(flavor = "multi_thread")]
async fn scrape_covers_ten_thousand_webhooks() {
    let (database, receiver) = (Postgres::shared().await, Receiver::start().await);
    let redrive = Redrive::start_with(node(&database.url(), "a")).await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), json!({})).await;
    api.publish("quick.test", json!({})).await;
    receiver.wait_for(1).await;
    database.execute(MANY).await;
    // Waits for the first scrape that has counted all of them.
    while !page(&redrive).await.contains("redrive_webhooks 10000\n") {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut took = Vec::new();
    for _ in 0..20 {
        // Long enough that each scrape uses a new count of the store.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let started = Instant::now();
        let page = page(&redrive).await;
        took.push(started.elapsed());
        assert!(page.contains("webhook_circuit_breaker_state{state=\"closed\"} 10000\n"), "{page}");
    }
    took.sort();
    let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
    println!("a scrape with 10,000 webhooks: median {median:?}, longest {longest:?}");
}

async fn page(redrive: &Redrive) -> String {
    let page = redrive.api().get("/metrics").await;
    assert_eq!(page.status, 200);
    String::from_utf8(page.body.to_vec()).unwrap()
}
