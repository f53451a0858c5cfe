//! A scrape tells of all webhooks, however many there are, and how long that takes.

use std::time::{Duration, Instant};

use redrive_testkit::{Postgres, Receiver, Redrive};
use redrive_tests::cluster::node;
use serde_json::json;

/// Makes 9,999 more webhooks like the one that is there, of a hundred tenants. By the API that takes minutes.
const MANY: &str = "
    INSERT INTO tenants (id, created_at) SELECT 't' || n, 0 FROM generate_series(0, 99) n;
    INSERT INTO webhooks (id, tenant, revision, state, spec, sealed, created_at, updated_at)
        SELECT gen_random_uuid(), 't' || n % 100, revision, state, spec, sealed, created_at, updated_at
        FROM webhooks, generate_series(1, 9999) n;
    ANALYZE webhooks";

#[tokio::test(flavor = "multi_thread")]
async fn a_scrape_tells_of_ten_thousand_webhooks() {
    let (database, receiver) = (Postgres::shared().await, Receiver::start().await);
    let redrive = Redrive::start_with(node(&database.url(), "a")).await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), json!({})).await;
    api.publish("quick.test", json!({})).await;
    receiver.wait_for(1).await;
    database.execute(MANY).await;
    // Until the first that has counted them all.
    while !page(&redrive).await.contains("redrive_webhooks 10000\n") {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut took = Vec::new();
    for _ in 0..20 {
        // Long enough for each of them to have the store counted anew.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let began = Instant::now();
        let page = page(&redrive).await;
        took.push(began.elapsed());
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
